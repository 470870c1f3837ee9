// As many ranks in one process as the test's parameter says, at most kMost, each on an emulated
// device of its own with a buffer to send from and one to receive into, under a policy of the
// test's own.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/own_files.h"

namespace slimwire::test {

template <int kMost>
class SeveralDevices : public testing::TestWithParam<int>, protected OwnFiles {
  protected:
    static constexpr int kMostRanks = kMost;
    static void TearDownTestSuite() { OwnFiles::TearDownTestSuite(); }

    // `bytes`: of each buffer.
    explicit SeveralDevices(size_t bytes) : bytes_(bytes) {}
    void SetUp() override {
        ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess)
            << ncclGetLastError(nullptr);
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            for (void** buffer : {&send_[rank], &recv_[rank]}) {
                ASSERT_EQ(cudaMalloc(buffer, bytes_), cudaSuccess);
            }
        }
    }
    void TearDown() override {
        for (int rank = 0; rank < ranks(); ++rank) {
            EXPECT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
            (void)cudaFree(send_[rank]);
            (void)cudaFree(recv_[rank]);
        }
    }

    static int ranks() { return GetParam(); }
    static void mark() {
        static uint64_t step = 0;
        ASSERT_EQ(slimwire_mark_step(++step), SLIMWIRE_OK);
    }
    // Others in their place: the report has all of those before.
    void renew_communicators() {
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
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

    // Enqueues the all-reduce of `bytes` of each rank at `offset` of its buffers.
    void queue(const std::vector<const void*>& given,
               size_t offset,
               size_t bytes,
               size_t count,
               ncclDataType_t type,
               ncclRedOp_t op,
               bool in_place) {
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            char* const send = static_cast<char*>(send_[rank]) + offset;
            char* const recv = in_place ? send : static_cast<char*>(recv_[rank]) + offset;
            ASSERT_EQ(
                cudaMemcpy(send, given[static_cast<size_t>(rank)], bytes, cudaMemcpyHostToDevice),
                cudaSuccess);
            ASSERT_EQ(ncclAllReduce(send, recv, count, type, op, comms_[rank], nullptr),
                      ncclSuccess);
        }
    }
    void queue_floats(const std::vector<std::vector<float>>& given,
                      size_t offset,
                      ncclRedOp_t op,
                      bool in_place) {
        std::vector<const void*> pointers;
        for (const std::vector<float>& of : given) {
            pointers.push_back(of.data());
        }
        queue(pointers, offset, given[0].size() * sizeof(float), given[0].size(), ncclFloat32, op,
              in_place);
    }
    // Of the first rank; all must have the same bits.
    template <class Element>
    std::vector<Element> result(size_t offset, size_t count, bool in_place) {
        std::vector<Element> first(count), other(count);
        const size_t bytes = count * sizeof(Element);
        for (int rank = 0; rank < ranks(); ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            const void* buffer = in_place ? send_[rank] : recv_[rank];
            EXPECT_EQ(cudaMemcpy(rank == 0 ? first.data() : other.data(),
                                 static_cast<const char*>(buffer) + offset, bytes,
                                 cudaMemcpyDeviceToHost),
                      cudaSuccess);
            EXPECT_TRUE(rank == 0 || std::memcmp(first.data(), other.data(), bytes) == 0)
                << "ranks differ";
        }
        return first;
    }
    std::vector<float> reduce(const std::vector<std::vector<float>>& given,
                              ncclRedOp_t op = ncclSum,
                              bool in_place = false) {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        queue_floats(given, 0, op, in_place);
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        return result<float>(0, given[0].size(), in_place);
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

    // Captures the sum of `count` fp32 of each rank as it is in the buffers; a graph a rank.
    void capture_sum(size_t count) {
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaStreamCreate(&streams_[rank]), cudaSuccess);
            ASSERT_EQ(cudaStreamBeginCapture(streams_[rank], cudaStreamCaptureModeThreadLocal),
                      cudaSuccess);
        }
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], count, ncclFloat32, ncclSum,
                                    comms_[rank], streams_[rank]),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        for (int rank = 0; rank < ranks(); ++rank) {
            cudaGraph_t graph = nullptr;
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaStreamEndCapture(streams_[rank], &graph), cudaSuccess);
            ASSERT_EQ(cudaGraphInstantiate(&graphs_[rank], graph, 0), cudaSuccess);
            ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        }
    }
    std::vector<float> replay(size_t count) {
        for (int rank = 0; rank < ranks(); ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaGraphLaunch(graphs_[rank], streams_[rank]), cudaSuccess);
        }
        return result<float>(0, count, false);
    }
    void drop_graphs() {
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaGraphExecDestroy(graphs_[rank]), cudaSuccess);
            ASSERT_EQ(cudaStreamDestroy(streams_[rank]), cudaSuccess);
        }
    }

    ncclComm_t comms_[kMost] = {};
    void* send_[kMost] = {};
    void* recv_[kMost] = {};

  private:
    const size_t bytes_;
    cudaStream_t streams_[kMost] = {};
    cudaGraphExec_t graphs_[kMost] = {};
};

}  // namespace slimwire::test
