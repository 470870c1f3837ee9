// What NCCL added after 2.28, as a program meets it through slimwire before the emulated NCCL: the
// collectives with a configuration of the call, and symmetric windows. One process, four emulated
// devices; SLIMWIRE_CODEC of the test's environment is int8.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl_later.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/has.h"

namespace {

constexpr size_t kLaterCallsCount = 20000;

std::vector<float> values_of(int rank, size_t count = kLaterCallsCount) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = std::sin(static_cast<float>(i * (static_cast<size_t>(rank) + 3)));
    }
    return values;
}

struct Buffer {
    explicit Buffer(const std::vector<float>& host) : elems(host.size()) {
        EXPECT_EQ(cudaMalloc(&device, host.size() * sizeof(float)), cudaSuccess);
        EXPECT_EQ(
            cudaMemcpy(device, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice),
            cudaSuccess);
    }
    ~Buffer() { (void)cudaFree(device); }
    Buffer(const Buffer&) = delete;
    [[nodiscard]] std::vector<float> host() const {
        std::vector<float> values(elems);
        EXPECT_EQ(cudaMemcpy(values.data(), device, elems * sizeof(float), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return values;
    }
    void* device = nullptr;
    size_t elems;
};

// Relative L2 distance of an all-reduce's result from the sum of the ranks' values.
double error_of(const std::vector<float>& result, int ranks) {
    std::vector<double> sum(kLaterCallsCount);
    for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<float> of = values_of(rank);
        for (size_t i = 0; i < kLaterCallsCount; ++i) {
            sum[i] += of[i];
        }
    }
    double distance = 0, norm = 0;
    for (size_t i = 0; i < kLaterCallsCount; ++i) {
        distance += (result[i] - sum[i]) * (result[i] - sum[i]);
        norm += sum[i] * sum[i];
    }
    return std::sqrt(distance / norm);
}

// Two ranks, a thread each; body(rank, comm) on its device.
void on_two_ranks(const std::function<void(int, ncclComm_t)>& body) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    const auto run = [&](int rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ncclComm_t comm = nullptr;
        ASSERT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclSuccess) << ncclGetLastError(nullptr);
        body(rank, comm);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    };
    std::thread other(run, 1);
    run(0);
    other.join();
}

double configured_error(int rank, ncclComm_t comm, const ncclCollConfig_t* config) {
    const Buffer send(values_of(rank)), recv(std::vector<float>(kLaterCallsCount, NAN));
    EXPECT_EQ(ncclAllReduceConfig(send.device, recv.device, kLaterCallsCount, ncclFloat32, ncclSum,
                                  comm, nullptr, config),
              ncclSuccess)
        << ncclGetLastError(comm);
    return error_of(recv.host(), 2);
}

TEST(ConfiguredCalls, OptionsOfOtherVendorsAreNotLookedAt) {
    on_two_ranks([](int rank, ncclComm_t comm) {
        const double by_rule = configured_error(rank, comm, nullptr);
        EXPECT_GT(by_rule, 0.001);
        EXPECT_LT(by_rule, 0.01);
        ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
        config.userProfilerTag = 7;
        EXPECT_EQ(configured_error(rank, comm, &config), by_rule);
        ncclConfigExt_t stranger = {};
        stranger.key = {0x1234, 1};
        stranger.val.i = 5;
        config.ext = &stranger;
        EXPECT_EQ(configured_error(rank, comm, &config), by_rule);
    });
}

// Those on symmetric windows are NCCL's own, on all ranks, while the windows are registered.
TEST(SymmetricWindows, CollectivesOnThemStayNative) {
    on_two_ranks([](int rank, ncclComm_t comm) {
        const Buffer send(values_of(rank)), recv(std::vector<float>(kLaterCallsCount, NAN));
        constexpr size_t kSize = kLaterCallsCount * sizeof(float);
        const auto compressed = [&] {
            EXPECT_EQ(ncclAllReduce(send.device, recv.device, kLaterCallsCount, ncclFloat32,
                                    ncclSum, comm, nullptr),
                      ncclSuccess);
            const double error = error_of(recv.host(), 2);
            EXPECT_TRUE(error < 1e-6 || (error > 0.001 && error < 0.01)) << error;
            return error > 0.001;
        };
        // What counts where all ranks use one of the buffers only.
        const auto gathered = [&] {
            EXPECT_EQ(ncclReduce(send.device, recv.device, kLaterCallsCount, ncclFloat32, ncclSum,
                                 0, comm, nullptr),
                      ncclSuccess);
            return rank == 0 && error_of(recv.host(), 2) > 0.001;
        };
        EXPECT_TRUE(compressed());
        EXPECT_EQ(gathered(), rank == 0);
        ncclWindow_t windows[2] = {};
        EXPECT_EQ(
            ncclCommWindowRegister(comm, send.device, kSize, &windows[0], NCCL_WIN_COLL_SYMMETRIC),
            ncclSuccess);
        EXPECT_TRUE(compressed()) << "the other buffer is not in one";
        EXPECT_FALSE(gathered());
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        EXPECT_EQ(
            ncclCommWindowRegister(comm, recv.device, kSize, &windows[1], NCCL_WIN_COLL_SYMMETRIC),
            ncclSuccess);
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        EXPECT_FALSE(compressed());
        EXPECT_EQ(ncclCommWindowDeregister(comm, windows[1]), ncclSuccess);
        EXPECT_TRUE(compressed());
        EXPECT_EQ(ncclCommWindowRegister(comm, recv.device, kSize, &windows[1], NCCL_WIN_DEFAULT),
                  ncclSuccess);
        EXPECT_TRUE(compressed()) << "it is not symmetric";
        for (ncclWindow_t window : windows) {
            EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclSuccess);
        }
    });
}

// As a framework's watchdog does.
TEST(SymmetricWindows, AreRegisteredWhileOtherThreadsAskForErrors) {
    on_two_ranks([](int, ncclComm_t comm) {
        const Buffer buffer(std::vector<float>(kLaterCallsCount, 1.0f));
        std::atomic<bool> done{false};
        std::thread watchdogs[2];
        for (std::thread& one : watchdogs) {
            one = std::thread([&] {
                while (!done) {
                    ncclResult_t error = ncclSuccess;
                    EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
                }
            });
        }
        const auto enter = [&](ncclWindow_t* window) {
            EXPECT_EQ(ncclCommWindowRegister(comm, buffer.device, kLaterCallsCount * sizeof(float),
                                             window, NCCL_WIN_COLL_SYMMETRIC),
                      ncclSuccess);
        };
        std::vector<ncclWindow_t> windows(500);
        for (int round = 0; round < 60; ++round) {
            std::for_each(windows.begin(), windows.end(), [&](ncclWindow_t& one) { enter(&one); });
            for (ncclWindow_t one : windows) {
                EXPECT_EQ(ncclCommWindowDeregister(comm, one), ncclSuccess);
            }
        }
        done = true;
        for (std::thread& one : watchdogs) {
            one.join();
        }
        EXPECT_EQ(ncclAllReduce(buffer.device, buffer.device, kLaterCallsCount, ncclFloat32,
                                ncclSum, comm, nullptr),
                  ncclSuccess);
        EXPECT_NEAR(buffer.host()[7], 2, 0.05);
    });
}

// Every twin gives the bits of its plain function.
TEST(ConfiguredCalls, EveryTwinIsItsPlainFunction) {
    const auto call = [](int which, bool configured, const void* send, void* recv,
                         ncclComm_t comm) {
        const ncclCollConfig_t initial = NCCL_COLLCONFIG_INITIALIZER;
        const ncclCollConfig_t* config = &initial;
        const size_t n = kLaterCallsCount / 2;
        const auto f32 = ncclFloat32;
        switch (which * 2 + (configured ? 1 : 0)) {
            case 0:
                return ncclAllReduce(send, recv, n, f32, ncclAvg, comm, nullptr);
            case 1:
                return ncclAllReduceConfig(send, recv, n, f32, ncclAvg, comm, nullptr, config);
            case 2:
                return ncclReduceScatter(send, recv, n, f32, ncclSum, comm, nullptr);
            case 3:
                return ncclReduceScatterConfig(send, recv, n, f32, ncclSum, comm, nullptr, config);
            case 4:
                return ncclReduce(send, recv, n, f32, ncclMax, 1, comm, nullptr);
            case 5:
                return ncclReduceConfig(send, recv, n, f32, ncclMax, 1, comm, nullptr, config);
            case 6:
                return ncclAllGather(send, recv, n, f32, comm, nullptr);
            case 7:
                return ncclAllGatherConfig(send, recv, n, f32, comm, nullptr, config);
            case 8:
                return ncclBroadcast(send, recv, n, f32, 1, comm, nullptr);
            case 9:
                return ncclBroadcastConfig(send, recv, n, f32, 1, comm, nullptr, config);
            case 10:
                return ncclAlltoAll(send, recv, n, f32, comm, nullptr);
            case 11:
                return ncclAlltoAllConfig(send, recv, n, f32, comm, nullptr, config);
            case 12:
                return ncclGather(send, recv, n, f32, 1, comm, nullptr);
            case 13:
                return ncclGatherConfig(send, recv, n, f32, 1, comm, nullptr, config);
            case 14:
                return ncclScatter(send, recv, n, f32, 1, comm, nullptr);
            default:
                return ncclScatterConfig(send, recv, n, f32, 1, comm, nullptr, config);
        }
    };
    on_two_ranks([&](int rank, ncclComm_t comm) {
        for (int which = 0; which < 8; ++which) {
            const Buffer send(values_of(rank)), plain(std::vector<float>(kLaterCallsCount, 7)),
                twin(std::vector<float>(kLaterCallsCount, 7));
            ASSERT_EQ(call(which, false, send.device, plain.device, comm), ncclSuccess);
            ASSERT_EQ(call(which, true, send.device, twin.device, comm), ncclSuccess);
            const std::vector<float> first = plain.host(), second = twin.host();
            EXPECT_EQ(first, second) << which;
            EXPECT_TRUE(rank != 1 || first != std::vector<float>(kLaterCallsCount, 7)) << which;
        }
    });
}

// Whether native, compressed or after the refused one, which NCCL sees because it goes native: of a
// wrong configuration, and of one that no initializer made, which is refused of itself, too.
TEST(ConfiguredCalls, NothingOfAGroupRunsInWhichNcclRefusesACall) {
    on_two_ranks([](int rank, ncclComm_t comm) {
        const std::vector<float> before(kLaterCallsCount, 7);
        const Buffer send(values_of(rank)), native(before), compressed(before), late(before);
        const auto call = [&](const Buffer& recv, const ncclCollConfig_t& config, bool sums) {
            return ncclAllReduceConfig(send.device, recv.device, kLaterCallsCount,
                                       sums ? ncclFloat32 : ncclInt32, sums ? ncclSum : ncclMax,
                                       comm, nullptr, &config);
        };
        const ncclCollConfig_t good = NCCL_COLLCONFIG_INITIALIZER;
        ncclCollConfig_t bad = good;
        bad.algSelection = "tree";
        const ncclCollConfig_t nothing = {};
        EXPECT_EQ(call(compressed, nothing, true), ncclInvalidArgument);
        for (const bool tree : {true, false}) {
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            EXPECT_EQ(call(native, good, false), ncclSuccess);
            EXPECT_EQ(call(compressed, good, true), ncclSuccess);
            EXPECT_EQ(call(late, tree ? bad : nothing, !tree), ncclInvalidArgument);
            (void)call(late, good, true);
            EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
            EXPECT_HAS(ncclGetLastError(comm), tree ? "algSelection 'tree'" : "");
            EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            for (const Buffer* buffer : {&native, &compressed, &late}) {
                EXPECT_EQ(buffer->host(), before);
            }
            EXPECT_LT(configured_error(rank, comm, &good), 0.01);
        }
    });
}

// The event is the program's, of a call's launch: behind what the stream had to do before, and in
// the capture that the stream is in. Compressed, beside a native call, and native.
TEST(ConfiguredCalls, TheEventOfALaunchIsRecorded) {
    on_two_ranks([](int rank, ncclComm_t comm) {
        const Buffer send(values_of(rank)), recv(std::vector<float>(kLaterCallsCount, 7));
        cudaStream_t stream = nullptr, waiting = nullptr;
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking), cudaSuccess);
        for (const char* way : {"compressed", "beside", "native"}) {
            ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
            ASSERT_EQ(
                cudaEventCreateWithFlags(&config.launchCompletionEvent, cudaEventDisableTiming),
                cudaSuccess);
            const auto call = [&] {
                ASSERT_EQ(ncclGroupStart(), ncclSuccess);
                if (std::string(way) == "beside") {
                    EXPECT_EQ(ncclAllReduce(recv.device, recv.device, 8, ncclInt32, ncclMax, comm,
                                            stream),
                              ncclSuccess);
                }
                EXPECT_EQ(
                    ncclAllReduceConfig(send.device, recv.device, kLaterCallsCount, ncclFloat32,
                                        std::string(way) == "native" ? ncclMax : ncclSum, comm,
                                        stream, &config),
                    ncclSuccess);
                ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
            };
            std::promise<void> go;
            std::future<void> gone = go.get_future();
            ASSERT_EQ(cudaLaunchHostFunc(
                          stream, [](void* wait) { static_cast<std::future<void>*>(wait)->wait(); },
                          &gone),
                      cudaSuccess);
            call();
            EXPECT_EQ(cudaEventQuery(config.launchCompletionEvent), cudaErrorNotReady) << way;
            go.set_value();
            ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
            EXPECT_EQ(cudaEventQuery(config.launchCompletionEvent), cudaSuccess) << way;
            cudaGraph_t graph = nullptr;
            ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                      cudaSuccess);
            call();
            ASSERT_EQ(cudaStreamWaitEvent(waiting, config.launchCompletionEvent, 0), cudaSuccess);
            cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
            ASSERT_EQ(cudaStreamIsCapturing(waiting, &captured), cudaSuccess);
            EXPECT_EQ(captured, cudaStreamCaptureStatusActive) << way;
            ASSERT_EQ(cudaEventRecord(config.launchCompletionEvent, waiting), cudaSuccess);
            ASSERT_EQ(cudaStreamWaitEvent(stream, config.launchCompletionEvent, 0), cudaSuccess);
            ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
            ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
            ASSERT_EQ(cudaEventDestroy(config.launchCompletionEvent), cudaSuccess);
        }
        ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
        ASSERT_EQ(cudaStreamDestroy(waiting), cudaSuccess);
    });
}

TEST(Grow, WrongArgumentsAreRefused) {
    on_two_ranks([](int, ncclComm_t comm) {
        ncclComm_t grown = nullptr;
        EXPECT_EQ(ncclCommGrow(comm, 2, nullptr, -1, &grown, nullptr), ncclInvalidArgument);
        EXPECT_EQ(ncclCommGrow(comm, 3, nullptr, 1, &grown, nullptr), ncclInvalidArgument);
        EXPECT_EQ(ncclCommGrow(nullptr, 3, nullptr, 2, &grown, nullptr), ncclInvalidArgument);
        EXPECT_EQ(grown, nullptr);
    });
}

}  // namespace
