// Ranks in one process, each on an emulated device of its own with a buffer to send from and one to
// receive into, under a policy of the test's own: as many as the test's parameter says, at most
// kMost, or two.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/own_files.h"

namespace slimwire::test {

template <int kMost, class Base = testing::TestWithParam<int>>
class SeveralDevices : public Base, protected OwnFiles {
  protected:
    static constexpr int kRanks = kMost;
    using Values = std::vector<float>;
    static void TearDownTestSuite() { OwnFiles::TearDownTestSuite(); }

    // `count`: elements of each buffer.
    explicit SeveralDevices(size_t count) : count_(count) {}
    void SetUp() override {
        ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess)
            << ncclGetLastError(nullptr);
        for (int rank = 0; rank < ranks(); ++rank) {
            send_[rank] = buffer_of(rank, count_);
            recv_[rank] = buffer_of(rank, count_);
        }
    }
    void TearDown() override {
        for (int rank = 0; rank < ranks(); ++rank) {
            end(comms_[rank]);
            (void)cudaFree(send_[rank]);
            (void)cudaFree(recv_[rank]);
        }
    }

    static int ranks() {
        if constexpr (std::is_same_v<Base, testing::Test>) {
            return kMost;
        } else {
            return Base::GetParam();
        }
    }
    static void mark() {
        static uint64_t step = 0;
        ASSERT_EQ(slimwire_mark_step(++step), SLIMWIRE_OK);
    }
    // Others in their place: the report has all of those before.
    void renew_communicators() {
        for (int rank = 0; rank < ranks(); ++rank) {
            end(comms_[rank]);
        }
        ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess);
    }
    // Keys of a rule with calls, in the report of communicators of as many ranks that have ended.
    static std::vector<nlohmann::json> keys(const std::string& rule) {
        std::vector<nlohmann::json> found;
        std::set<std::string> comms;
        for (nlohmann::json& record : report()) {
            if (record.at("record") == "comm" && record.at("ranks") == ranks()) {
                comms.insert(record.at("comm"));
            }
            if (record.at("record") == "key" && record.at("rule") == rule &&
                record.at("calls") != 0 && comms.count(record.at("comm")) > 0) {
                found.push_back(std::move(record));
            }
        }
        return found;
    }

    static float* buffer_of(int rank, size_t count) {
        void* buffer = nullptr;
        EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
        EXPECT_EQ(cudaMalloc(&buffer, count * sizeof(float)), cudaSuccess);
        return static_cast<float*>(buffer);
    }
    static size_t free_bytes() {
        size_t free = 0, total = 0;
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
        return free;
    }
    template <class Element>
    static void upload(int rank, void* to, const std::vector<Element>& values) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(
            cudaMemcpy(to, values.data(), values.size() * sizeof(Element), cudaMemcpyHostToDevice),
            cudaSuccess);
    }
    // When the device is done with all work.
    template <class Element = float>
    static std::vector<Element> download(int rank, const void* from, size_t count) {
        std::vector<Element> values(count);
        EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(values.data(), from, count * sizeof(Element), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return values;
    }
    void fill(int rank, const Values& values) { upload(rank, send_[rank], values); }
    Values result(int rank, size_t count) { return download(rank, recv_[rank], count); }

    // call(rank) of all ranks on their devices, in one group.
    template <class Call>
    void group(const Call& call) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        on_all(call);
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
    }
    template <class Call>
    void on_all(const Call& call) {
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(call(rank), ncclSuccess) << ncclGetLastError(nullptr);
        }
    }
    ncclResult_t sum_of(int rank, size_t count, ncclRedOp_t op = ncclSum, size_t offset = 0) {
        return ncclAllReduce(send_[rank] + offset, recv_[rank] + offset, count, ncclFloat32, op,
                             comms_[rank], nullptr);
    }
    // The result of the first rank; all must have the same bits.
    template <class Element = float>
    std::vector<Element> equal_result(size_t count, size_t offset = 0, bool in_place = false) {
        std::vector<Element> first;
        for (int rank = 0; rank < ranks(); ++rank) {
            const float* const from = (in_place ? send_[rank] : recv_[rank]) + offset;
            const std::vector<Element> one = download<Element>(rank, from, count);
            first = rank == 0 ? one : first;
            EXPECT_EQ(std::memcmp(first.data(), one.data(), count * sizeof(Element)), 0)
                << "ranks differ";
        }
        return first;
    }
    // The sum of what all ranks were filled with, of the same values of all, of those of each.
    Values reduce(size_t count, ncclRedOp_t op = ncclSum) {
        group([&](int rank) { return sum_of(rank, count, op); });
        return equal_result(count);
    }
    Values sum(const Values& values) {
        return reduce(std::vector<Values>(static_cast<size_t>(ranks()), values));
    }
    Values reduce(const std::vector<Values>& given,
                  ncclRedOp_t op = ncclSum,
                  bool in_place = false) {
        const size_t count = given[0].size();
        for (int rank = 0; rank < ranks(); ++rank) {
            fill(rank, given[static_cast<size_t>(rank)]);
        }
        group([&](int rank) {
            return ncclAllReduce(send_[rank], in_place ? send_[rank] : recv_[rank], count,
                                 ncclFloat32, op, comms_[rank], nullptr);
        });
        return equal_result(count, 0, in_place);
    }
    // The same of a group that is dropped.
    void simulate(const std::function<void()>& calls) {
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        calls();
        ASSERT_EQ(ncclGroupSimulateEnd(&info), ncclSuccess);
    }
    void simulate_sum(size_t count) {
        simulate([&] { on_all([&](int rank) { return sum_of(rank, count); }); });
    }
    // Of two ranks: twice a value is exact natively.
    static bool is_native(const Values& values, const Values& summed) {
        for (size_t i = 0; i < values.size(); ++i) {
            if (summed[i] != 2 * values[i]) {
                return false;
            }
        }
        return true;
    }
    // A sum of halves, the same operator on every rank.
    ncclRedOp_t half_sum() {
        float half = 0.5f;
        ncclRedOp_t ops[kMost];
        for (int rank = 0; rank < ranks(); ++rank) {
            EXPECT_EQ(ncclRedOpCreatePreMulSum(&ops[rank], &half, ncclFloat32,
                                               ncclScalarHostImmediate, comms_[rank]),
                      ncclSuccess);
            EXPECT_EQ(ops[rank], ops[0]);
        }
        return ops[0];
    }

    ncclComm_t comms_[kMost] = {};
    float* send_[kMost] = {};
    float* recv_[kMost] = {};

  private:
    const size_t count_;
};

class TwoDevices : public SeveralDevices<2, testing::Test> {
  protected:
    using SeveralDevices::SeveralDevices;
};

}  // namespace slimwire::test
