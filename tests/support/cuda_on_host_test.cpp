// The execution model that the kernel tests stand on (cuda_on_host.h): its schedules,
// and every error it promises, provoked once. That its intrinsics give what a device's do, the
// kernels show, which give the host bodies' bytes.
#include "tests/support/cuda_on_host.h"
#include "tests/support/has.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace {

using cuda_on_host::Machine;
using cuda_on_host::start_kernel;
constexpr unsigned kAll = 0xFFFFFFFFu;

void run(unsigned blocks, unsigned threads, const std::function<void()>& body) {
    Machine::get().run(blocks, threads, 0, body);
}

// The text of the error that the kernel ends in; empty if it ends well.
std::string error_of(unsigned blocks, unsigned threads, const std::function<void()>& body) {
    try {
        run(blocks, threads, body);
    } catch (const std::logic_error& error) {
        return error.what();
    }
    return "";
}

void expect_error(const std::string& text, const std::string& part) {
    EXPECT_HAS(text, part) << "'" << text << "' lacks '" << part << "'";
    EXPECT_HAS(text, "(schedule seed ");
}

class CudaOnHost : public ::testing::TestWithParam<uint32_t> {
  protected:
    void SetUp() override { Machine::get().seed(GetParam()); }
    void TearDown() override { Machine::get().set_step_limit(Machine::kStepLimit); }
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaOnHost, ::testing::Range(1u, 13u));

template <class T>
__global__ void reverse(T* values) {
    auto* const copy = static_cast<T*>(Machine::get().dynamic_shared());
    copy[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

// --- Schedules

TEST(CudaOnHostSchedules, SeedsRepeatAndDiffer) {
    const auto order_of = [](uint32_t seed) {
        Machine::get().seed(seed);
        std::vector<unsigned> order;
        run(2, 64, [&] {
            order.push_back(threadIdx.x);
            __syncthreads();
            order.push_back(threadIdx.x);
        });
        return order;
    };
    EXPECT_EQ(order_of(7), order_of(7));
    EXPECT_NE(order_of(7), order_of(8));
}

TEST(CudaOnHostSchedules, AMissingBarrierShowsForSomeSeed) {
    int wrong = 0;
    for (uint32_t seed = 1; seed <= 20; ++seed) {
        Machine::get().seed(seed);
        std::vector<unsigned> values(64);
        run(1, 64, [&] {
            values[threadIdx.x] = threadIdx.x + 1;
            wrong += values[63 - threadIdx.x] != 64 - threadIdx.x ? 1 : 0;
        });
    }
    EXPECT_GT(wrong, 0);
}

TEST(CudaOnHostSchedules, AnAdditionThatIsNotAtomicShowsForSomeSeed) {
    int wrong = 0;
    for (uint32_t seed = 1; seed <= 20; ++seed) {
        Machine::get().seed(seed);
        unsigned sum = 0;
        run(1, 64, [&] {
            const unsigned old = __ldcv(&sum);
            __stcg(&sum, old + 1);
        });
        wrong += sum != 64 ? 1 : 0;
    }
    EXPECT_GT(wrong, 0);
}

__global__ void read_shared(unsigned* values) {
    __shared__ unsigned never_written[4];
    values[blockIdx.x] = never_written[blockIdx.x % 4];
    never_written[blockIdx.x % 4] = 0;
}

TEST(CudaOnHostSchedules, SharedMemoryThatNobodyWroteIsNoise) {
    if (!cuda_on_host::kExchangesShared) {
        GTEST_SKIP() << "static shared memory is zero at first under AddressSanitizer";
    }
    Machine::get().seed(3);
    std::vector<unsigned> values(12);
    ASSERT_EQ(start_kernel(read_shared, 12, 1, 0, nullptr, values.data()), cudaSuccess);
    EXPECT_GT(std::set<unsigned>(values.begin(), values.end()).size(), 6u);
}

// --- Errors

TEST_P(CudaOnHost, ALaneThatLeavesItsWarpInAShuffleIsAnError) {
    const std::string text = error_of(1, 32, [] {
        if (threadIdx.x != 5) {
            __shfl_xor_sync(kAll, threadIdx.x, 1);
        }
    });
    expect_error(text, "31 (thread ");
    expect_error(text, "wait in __shfl_xor_sync mask ffffffff at cuda_on_host_test.cpp:");
    expect_error(text, "1 (thread 5) came to the end of the kernel");
}

TEST_P(CudaOnHost, ADivergentShuffleIsAnError) {
    expect_error(error_of(1, 32,
                          [] {
                              if (threadIdx.x < 16) {
                                  __shfl_sync(kAll, threadIdx.x, 0);
                              } else {
                                  __shfl_sync(kAll, threadIdx.x, 0);
                              }
                          }),
                 "lanes of a warp diverged: thread ");
    expect_error(error_of(1, 32, [] { __shfl_xor_sync(kAll, 1, threadIdx.x < 16 ? 1 : 2); }),
                 "lanes of a warp diverged: thread ");
}

TEST_P(CudaOnHost, MasksThatDifferAreAnError) {
    expect_error(error_of(1, 32, [] { __ballot_sync(threadIdx.x == 9 ? 0x3FFu : kAll, 1); }),
                 "lanes of a warp diverged: thread ");
}

TEST_P(CudaOnHost, AMaskWithoutTheCallerIsAnError) {
    expect_error(error_of(1, 32, [] { __syncwarp(0xFFFFu); }),
                 "is not among the lanes that the mask names");
}

TEST_P(CudaOnHost, AMaskBeyondTheBlockIsAnError) {
    expect_error(error_of(1, 24, [] { __syncwarp(); }), "which the block does not have");
}

TEST_P(CudaOnHost, ReadingALaneOutsideTheMaskIsAnError) {
    expect_error(error_of(1, 32,
                          [] {
                              if (threadIdx.x < 16) {
                                  __shfl_sync(0xFFFFu, 1, static_cast<int>(threadIdx.x) + 1);
                              }
                          }),
                 "reads lane 16, which the mask does not name");
}

TEST_P(CudaOnHost, AShuffleOfAnOddWidthIsAnError) {
    expect_error(error_of(1, 32, [] { __shfl_sync(kAll, 1, 0, 12); }), "with a width of 12");
}

TEST_P(CudaOnHost, ADivergentBarrierIsAnError) {
    expect_error(error_of(2, 64,
                          [] {
                              if (threadIdx.x < 32) {
                                  __syncthreads();
                              } else {
                                  __syncthreads();
                              }
                          }),
                 "threads of a block diverged: thread ");
    expect_error(error_of(2, 64,
                          [] {
                              if (threadIdx.x != 63) {
                                  __syncthreads();
                              }
                          }),
                 "63 (thread 0, ...) wait in __syncthreads at ");
}

TEST_P(CudaOnHost, ABarrierAgainstAShuffleIsAnError) {
    const std::string text = error_of(1, 32, [] {
        if (threadIdx.x == 0) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    });
    expect_error(text, "1 (thread 0) wait in __syncwarp mask ffffffff");
    expect_error(text, "31 (thread 1, ...) wait in __syncthreads");
}

TEST_P(CudaOnHost, WaitingForABlockThatHasNotStartedIsAnError) {
    Machine::get().set_step_limit(100'000);
    std::vector<unsigned> flags(8);
    expect_error(error_of(8, 32,
                          [&] {
                              if (blockIdx.x == 0) {
                                  while (__ldcv(&flags[7]) == 0) {
                                  }
                              }
                              atomicAdd(&flags[blockIdx.x], 1);
                          }),
                 "waits for a block that has not started");
    expect_error(error_of(1, 32,
                          [&] {
                              while (__any_sync(kAll, flags[5] == 0)) {
                              }
                          }),
                 "in 100000 steps");
}

TEST_P(CudaOnHost, AMisalignedAtomicIsAnError) {
    alignas(8) uint8_t bytes[16] = {};
    expect_error(error_of(1, 1, [&] { atomicAdd(reinterpret_cast<unsigned*>(bytes + 2), 1); }),
                 "an atomic at an address that is not a multiple of 4");
}

TEST_P(CudaOnHost, ACollectiveOutsideAKernelIsAnError) {
    EXPECT_THROW(__syncthreads(), std::logic_error);
}

TEST_P(CudaOnHost, WhatAThreadThrowsComesOutAndTheMachineGoesOn) {
    EXPECT_THROW(run(3, 64,
                     [] {
                         __syncthreads();
                         if (threadIdx.x == 17) {
                             throw std::runtime_error("a test");
                         }
                         __syncthreads();
                     }),
                 std::runtime_error);
    unsigned threads = 0;
    run(3, 64, [&] { atomicAdd(&threads, 1); });
    EXPECT_EQ(threads, 192u);
}

TEST(CudaOnHostLaunch, RefusesWhatADeviceRefuses) {
    uint64_t value = 0;
    const auto launch = [&](dim3 grid, dim3 block, size_t bytes) {
        return start_kernel(reverse<uint64_t>, grid, block, bytes, nullptr, &value);
    };
    EXPECT_EQ(launch(0, 1, 8), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(1, 1025, 8), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(dim3(1, 65536), 1, 8), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(1, 1, (48 << 10) + 1), cudaErrorInvalidValue);
    EXPECT_EQ(launch(1, 1, 48 << 10), cudaSuccess);
}

// --- Arithmetic, against the definitions in the CUDA C++ Programming Guide

TEST(CudaOnHostArithmetic, BitFunctions) {
    EXPECT_EQ(__popc(0xF00Fu), 8);
    EXPECT_EQ(__clz(0), 32);
    EXPECT_EQ(__ffs(0), 0);
    EXPECT_EQ(__ffs(0x8000), 16);
    EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x7531), 0x77553311u);
    EXPECT_EQ(__byte_perm(0x80000000u, 0, 0x000B), 0x000000FFu);
    EXPECT_EQ(min(3u, 2u), 2u);
    EXPECT_EQ(max(-3L, 2L), 2L);
}

TEST(CudaOnHostArithmetic, FloatingPoint) {
    EXPECT_EQ(__float_as_uint(__fsub_rn(INFINITY, INFINITY)), 0x7FFFFFFFu);
    EXPECT_EQ(__fmaf_rn(0x1.000002p0f, 0x1.000002p0f, -0x1.000004p0f), 0x1p-46f);
}

}  // namespace
