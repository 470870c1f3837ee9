// One process with four emulated devices, whose communicators the tests of Lives make and end:
// streams, buffers, and the compressed call that proves a communicator whole.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <cmath>
#include <vector>

#include "tests/support/async_comm.h"

#define ASSERT_CUDA(call) ASSERT_EQ((call), cudaSuccess)
#define ASSERT_NCCL(call) ASSERT_EQ((call), ncclSuccess) << ncclGetLastError(nullptr)

namespace slimwire::test {

using Clock = std::chrono::steady_clock;

inline constexpr int kDevices = 4;
inline constexpr size_t kCount = 20000;
// Of what takes a moment, and less than ranks wait for each other.
inline constexpr double kBoundSeconds = 15;

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Streams and buffers of four ranks; the tests make the communicators.
class Lives : public testing::Test {
  protected:
    void SetUp() override {
        int devices = 0;
        ASSERT_CUDA(cudaGetDeviceCount(&devices));
        ASSERT_EQ(devices, kDevices) << "SLIMWIRE_EMU_DEVICES must be 4";
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_CUDA(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking));
            std::vector<float> host(kCount);
            for (size_t k = 0; k < kCount; ++k) {
                host[k] = static_cast<float>(i + 1) * base(k);
            }
            ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&in_[i]), kCount * sizeof(float)));
            ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&out_[i]), kCount * sizeof(float)));
            ASSERT_CUDA(
                cudaMemcpy(in_[i], host.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
        }
    }
    void TearDown() override {
        for (int i = 0; i < kDevices; ++i) {
            EXPECT_EQ(cudaStreamDestroy(streams_[i]), cudaSuccess);
            EXPECT_EQ(cudaFree(in_[i]), cudaSuccess);
            EXPECT_EQ(cudaFree(out_[i]), cudaSuccess);
        }
    }

    static float base(size_t k) { return 1 + static_cast<float>(k) / static_cast<float>(kCount); }

    const CallsMayWait launches_{"exchanges of non-blocking communicators are launched later"};

    ncclResult_t all_reduce(int device, ncclComm_t comm) {
        return ncclAllReduce(in_[device], out_[device], kCount, ncclFloat32, ncclSum, comm,
                             streams_[device]);
    }

    // One group of all-reduces over the communicators of the devices that have one.
    ncclResult_t all_reduce_all(const ncclComm_t (&comms)[kDevices]) {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        for (int i = 0; i < kDevices; ++i) {
            if (comms[i] != nullptr) {
                EXPECT_EQ(all_reduce(i, comms[i]), ncclSuccess) << ncclGetLastError(nullptr);
            }
        }
        return ncclGroupEnd();
    }

    // The sum over `ranks` on each of them, within int8's error and with the same bits;
    // `compressed`: and not exact.
    void expect_sum(const std::vector<int>& ranks, bool compressed = true) {
        float factor = 0;
        for (const int i : ranks) {
            factor += static_cast<float>(i + 1);
        }
        std::vector<float> first;
        for (const int i : ranks) {
            ASSERT_CUDA(cudaStreamSynchronize(streams_[i]));
            std::vector<float> host(kCount);
            ASSERT_CUDA(
                cudaMemcpy(host.data(), out_[i], kCount * sizeof(float), cudaMemcpyDeviceToHost));
            size_t wrong = 0, inexact = 0;
            for (size_t k = 0; k < kCount; ++k) {
                const float wanted = factor * base(k);
                wrong += std::abs(host[k] - wanted) > 0.02f * wanted ? 1 : 0;
                inexact += std::abs(host[k] - wanted) > 1e-5f * wanted ? 1 : 0;
            }
            first = first.empty() ? host : first;
            EXPECT_TRUE(host == first) << "device " << i;
            EXPECT_EQ(wrong, 0u) << "device " << i;
            EXPECT_TRUE(!compressed || inexact > kCount / 10)
                << "nothing was compressed on device " << i;
            ASSERT_CUDA(cudaMemset(out_[i], 0, kCount * sizeof(float)));
            ASSERT_CUDA(cudaStreamSynchronize(nullptr));  // the ranks' streams do not wait for it
        }
    }

    // A compressed all-reduce over `comms`, twice: made, and made use of again.
    void expect_compresses(const ncclComm_t (&comms)[kDevices], const std::vector<int>& ranks) {
        for (int round = 0; round < 2; ++round) {
            const ncclResult_t result = all_reduce_all(comms);
            ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress)
                << ncclGetLastError(nullptr);
            for (const int i : ranks) {
                ASSERT_EQ(settled(comms[i]), ncclSuccess) << ncclGetLastError(nullptr);
            }
            expect_sum(ranks);
        }
    }

    // Four non-blocking ranks from one thread, without a group.
    static void start_non_blocking(ncclComm_t (*comms)[kDevices]) {
        ncclUniqueId id;
        ncclConfig_t config = non_blocking();
        ASSERT_NCCL(ncclGetUniqueId(&id));
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_EQ(ncclCommInitRankConfig(&(*comms)[i], kDevices, id, i, &config),
                      ncclInProgress);
            ASSERT_NE((*comms)[i], nullptr);
        }
    }
    // All four ranks, made either way and ready.
    static void start(bool blocking, ncclComm_t (*comms)[kDevices]) {
        if (blocking) {
            ASSERT_NCCL(ncclCommInitAll(*comms, kDevices, nullptr));
        } else {
            start_non_blocking(comms);
            settle(*comms);
        }
    }
    static void settle(const ncclComm_t (&comms)[kDevices]) {
        for (ncclComm_t comm : comms) {
            if (comm != nullptr) {
                ASSERT_EQ(settled(comm), ncclSuccess) << ncclGetLastError(nullptr);
            }
        }
    }
    static void destroy(ncclComm_t (*comms)[kDevices]) {
        for (ncclComm_t& comm : *comms) {
            if (comm != nullptr) {
                EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess) << ncclGetLastError(nullptr);
                comm = nullptr;
            }
        }
    }

    const std::vector<int> all_{0, 1, 2, 3};
    cudaStream_t streams_[kDevices] = {};
    float* in_[kDevices] = {};
    float* out_[kDevices] = {};
};

}  // namespace slimwire::test
