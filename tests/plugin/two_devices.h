// Two ranks in one process on two emulated devices, under a policy of the test's own, each with a
// buffer to send from and one to receive into.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/own_files.h"

namespace slimwire::test {

class TwoDevices : public testing::Test, protected OwnFiles {
  protected:
    static constexpr int kRanks = 2;
    using Values = std::vector<float>;

    static void TearDownTestSuite() { OwnFiles::TearDownTestSuite(); }
    static void mark() {
        static uint64_t step = 0;
        ASSERT_EQ(slimwire_mark_step(++step), SLIMWIRE_OK);
    }

    // `count`: elements of each buffer.
    explicit TwoDevices(size_t count) : count_(count) {}
    void SetUp() override {
        ASSERT_EQ(ncclCommInitAll(comms_, kRanks, nullptr), ncclSuccess)
            << ncclGetLastError(nullptr);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            for (float** buffer : {&send_[rank], &recv_[rank]}) {
                ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(buffer), count_ * sizeof(float)),
                          cudaSuccess);
            }
        }
    }
    void TearDown() override {
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
            (void)cudaFree(send_[rank]);
            (void)cudaFree(recv_[rank]);
        }
    }

    void fill(int rank, const Values& values) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(cudaMemcpy(send_[rank], values.data(), values.size() * sizeof(float),
                             cudaMemcpyHostToDevice),
                  cudaSuccess);
    }
    void queue_sum(int rank, size_t count) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], count, ncclFloat32, ncclSum, comms_[rank],
                                nullptr),
                  ncclSuccess);
    }
    Values result(int rank, size_t count) {
        Values values(count);
        EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(
            cudaMemcpy(values.data(), recv_[rank], count * sizeof(float), cudaMemcpyDeviceToHost),
            cudaSuccess);
        return values;
    }
    // The sum of what all ranks were filled with; the ranks' results must be equal.
    Values reduce(size_t count) {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            queue_sum(rank, count);
        }
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        const Values got = result(0, count);
        EXPECT_EQ(result(1, count), got) << "ranks differ";
        return got;
    }
    // The sum of the same values of all ranks.
    Values sum(const Values& values) {
        for (int rank = 0; rank < kRanks; ++rank) {
            fill(rank, values);
        }
        return reduce(values.size());
    }
    // Twice a value is exact natively.
    static bool is_native(const Values& values, const Values& summed) {
        for (size_t i = 0; i < values.size(); ++i) {
            if (summed[i] != 2 * values[i]) {
                return false;
            }
        }
        return true;
    }

    ncclComm_t comms_[kRanks] = {};
    float* send_[kRanks] = {};
    float* recv_[kRanks] = {};

  private:
    const size_t count_;
};

}  // namespace slimwire::test
