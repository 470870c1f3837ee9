// Streams of the emulated runtime: order, waits across streams and devices, the legacy stream's
// implicit ordering, handles after destruction.
#include "tests/tools/emulator/cuda_test.h"

#include <numeric>

namespace slimwire::testing {
namespace {

std::vector<int> counted(int n) {
    std::vector<int> values(static_cast<size_t>(n));
    std::iota(values.begin(), values.end(), 0);
    return values;
}

TEST(Streams, work_of_one_stream_runs_in_order) {
    const Stream stream;
    std::vector<int> log;
    for (int i = 0; i < 2000; ++i) {
        note(stream, log, i);
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(log, counted(2000));
}

TEST(Streams, query_tells_pending_from_done) {
    const Stream stream;
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
    Gate gate;
    gate.hold(stream);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "not ready is an answer, not an error";
    gate.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
}

TEST(Streams, wait_event_orders_two_streams_also_of_two_devices) {
    for (const int device : {0, 1}) {
        const Stream first;
        const Event event;
        Gate gate;
        std::vector<int> log;
        gate.hold(first);
        note(first, log, 1);
        CUDA_OK(cudaEventRecord(event, first));
        CUDA_OK(cudaSetDevice(device));
        const Stream second;
        if (device == 1) {
            EXPECT_EQ(cudaEventRecord(event, second), cudaErrorInvalidResourceHandle)
                << "event of device 0";
        }
        CUDA_OK(cudaStreamWaitEvent(second, event, 0));
        note(second, log, 2);
        sleep_ms(20);
        EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
        gate.open();
        CUDA_OK(cudaStreamSynchronize(second));
        EXPECT_EQ(log, (std::vector<int>{1, 2}));
        CUDA_OK(cudaSetDevice(0));
    }
    (void)cudaGetLastError();
}

TEST(Streams, wait_keeps_the_recording_it_saw) {
    const Stream first;
    const Stream second;
    const Stream third;
    cudaEvent_t event = nullptr;
    CUDA_OK(cudaEventCreate(&event));
    Gate early;
    Gate late;
    early.hold(first);
    early.wait_until_it_holds();
    CUDA_OK(cudaEventRecord(event, first));
    CUDA_OK(cudaStreamWaitEvent(second, event, 0));
    late.hold(third);
    CUDA_OK(cudaEventRecord(event, third));  // the wait above is for the first recording
    early.open();
    CUDA_OK(cudaStreamSynchronize(second));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    CUDA_OK(cudaStreamWaitEvent(second, event, 0));
    CUDA_OK(cudaEventDestroy(event));  // legal while a stream waits for it
    EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
    late.open();
    CUDA_OK(cudaStreamSynchronize(second));
}

TEST(LegacyStream, waits_for_blocking_streams_and_holds_them) {
    const Stream blocking(cudaStreamDefault);
    std::vector<int> log;
    Gate gate;
    gate.hold(blocking);
    note(blocking, log, 1);
    note(nullptr, log, 2);   // after 1
    note(blocking, log, 3);  // after 2
    sleep_ms(20);
    EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
    gate.open();
    CUDA_OK(cudaStreamSynchronize(blocking));
    EXPECT_EQ(log, (std::vector<int>{1, 2, 3}));
}

TEST(LegacyStream, pending_work_holds_later_work_of_blocking_streams) {
    const Stream blocking(cudaStreamDefault);
    std::vector<int> log;
    Gate gate;
    gate.hold(nullptr);
    note(blocking, log, 1);
    sleep_ms(20);
    EXPECT_EQ(cudaStreamQuery(blocking), cudaErrorNotReady);
    gate.open();
    CUDA_OK(cudaStreamSynchronize(blocking));
    EXPECT_EQ(log, std::vector<int>{1});
}

TEST(LegacyStream, leaves_non_blocking_streams_alone) {
    const Stream non_blocking(cudaStreamNonBlocking);
    std::vector<int> log;
    Gate gate;
    gate.hold(non_blocking);
    gate.wait_until_it_holds();
    note(nullptr, log, 1);
    CUDA_OK(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(log, std::vector<int>{1});
    Gate legacy_gate;
    legacy_gate.hold(nullptr);
    gate.open();
    CUDA_OK(cudaStreamSynchronize(non_blocking));
    legacy_gate.open();
}

TEST(LegacyStream, synchronising_it_and_blocking_copies_wait_for_blocking_streams) {
    const Stream blocking(cudaStreamDefault);
    int* device = nullptr;
    int* pinned = nullptr;  // a copy of pageable memory would wait for the whole device
    CUDA_OK(cudaMalloc(&device, sizeof(int)));
    CUDA_OK(cudaMallocHost(&pinned, sizeof(int)));
    EXPECT_TRUE(waits_for(blocking, [] { return cudaStreamSynchronize(cudaStreamLegacy); }));
    EXPECT_TRUE(waits_for(
        blocking, [&] { return cudaMemcpy(pinned, device, sizeof(int), cudaMemcpyDeviceToHost); }));
    CUDA_OK(cudaFreeHost(pinned));
    CUDA_OK(cudaFree(device));
}

TEST(LegacyStream, pending_work_does_not_make_idle_streams_busy) {
    const Stream blocking(cudaStreamDefault);
    Gate gate;
    gate.hold(nullptr);
    EXPECT_EQ(cudaStreamQuery(blocking), cudaSuccess);
    CUDA_OK(cudaStreamSynchronize(blocking));  // has nothing to wait for
    EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
    gate.open();
    CUDA_OK(cudaDeviceSynchronize());
}

TEST(LegacyStream, is_one_for_each_device) {
    CUDA_OK(cudaSetDevice(0));
    Gate gate;
    gate.hold(nullptr);
    CUDA_OK(cudaSetDevice(1));
    std::vector<int> log;
    note(nullptr, log, 1);
    CUDA_OK(cudaDeviceSynchronize());  // device 1 only
    EXPECT_EQ(log, std::vector<int>{1});
    CUDA_OK(cudaSetDevice(0));
    gate.open();
    CUDA_OK(cudaDeviceSynchronize());
}

TEST(LegacyStream, concurrent_use_from_many_threads_ends) {
    std::atomic<int> ran{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            const cudaStream_t own = make_stream(cudaStreamDefault);
            for (int i = 0; i < 200; ++i) {
                for (const cudaStream_t stream : {own, cudaStreamLegacy, cudaStreamPerThread}) {
                    EXPECT_EQ(
                        cudaLaunchHostFunc(
                            stream, [](void* count) { ++*static_cast<std::atomic<int>*>(count); },
                            &ran),
                        cudaSuccess);
                }
            }
            EXPECT_EQ(cudaStreamSynchronize(own), cudaSuccess);
            EXPECT_EQ(cudaStreamDestroy(own), cudaSuccess);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(ran, 4 * 200 * 3);
}

TEST(PerThreadStream, each_thread_has_its_own) {
    Gate gate;
    gate.hold(cudaStreamPerThread);
    std::thread other([] {
        std::vector<int> log;
        note(cudaStreamPerThread, log, 1);
        EXPECT_EQ(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
        EXPECT_EQ(log, std::vector<int>{1});
    });
    other.join();
    EXPECT_EQ(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady);
    gate.open();
    CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
}

TEST(Streams, destroying_one_with_pending_work_runs_the_work) {
    const cudaStream_t stream = make_stream();
    std::vector<int> log;
    Gate gate;
    gate.hold(stream);
    note(stream, log, 1);
    CUDA_OK(cudaStreamDestroy(stream));
    gate.open();
    CUDA_OK(cudaDeviceSynchronize());  // waits for destroyed streams, too
    EXPECT_EQ(log, std::vector<int>{1});
}

TEST(Streams, destroyed_and_invented_handles_are_errors) {
    const cudaStream_t destroyed = make_stream();
    CUDA_OK(cudaStreamDestroy(destroyed));
    int local = 0;
    for (const cudaStream_t bad : {destroyed, reinterpret_cast<cudaStream_t>(&local),
                                   reinterpret_cast<cudaStream_t>(uintptr_t{0xdeadbeef})}) {
        EXPECT_EQ(cudaStreamQuery(bad), cudaErrorInvalidResourceHandle);
        EXPECT_EQ(cudaStreamSynchronize(bad), cudaErrorInvalidResourceHandle);
        EXPECT_EQ(cudaStreamDestroy(bad), cudaErrorInvalidResourceHandle);
        EXPECT_EQ(cudaLaunchHostFunc(
                      bad, [](void*) {}, nullptr),
                  cudaErrorInvalidResourceHandle);
    }
    EXPECT_EQ(cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventQuery(reinterpret_cast<cudaEvent_t>(&local)),
              cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

TEST(Streams, many_streams_at_once) {
    constexpr int kStreams = 96;
    std::vector<cudaStream_t> streams;
    std::atomic<int> ran{0};
    Gate gate;
    for (int i = 0; i < kStreams; ++i) {
        streams.push_back(make_stream(i % 2 == 0 ? cudaStreamDefault : cudaStreamNonBlocking));
        gate.hold(streams.back());
        CUDA_OK(cudaLaunchHostFunc(
            streams.back(), [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &ran));
    }
    EXPECT_EQ(ran, 0);
    gate.open();
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(ran, kStreams);
    for (const cudaStream_t stream : streams) {
        CUDA_OK(cudaStreamDestroy(stream));
    }
}

TEST(Streams, flags_priority_device_and_id_are_kept) {
    CUDA_OK(cudaSetDevice(1));
    cudaStream_t stream = nullptr;
    CUDA_OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -2));
    CUDA_OK(cudaSetDevice(0));
    unsigned int flags = 99;
    int priority = 99;
    int device = 99;
    unsigned long long id = 0;
    unsigned long long legacy_id = 0;
    CUDA_OK(cudaStreamGetFlags(stream, &flags));
    CUDA_OK(cudaStreamGetPriority(stream, &priority));
    CUDA_OK(cudaStreamGetDevice(stream, &device));
    CUDA_OK(cudaStreamGetId(stream, &id));
    CUDA_OK(cudaStreamGetId(nullptr, &legacy_id));
    EXPECT_EQ(flags, static_cast<unsigned>(cudaStreamNonBlocking));
    EXPECT_EQ(priority, -2);
    EXPECT_EQ(device, 1);
    EXPECT_NE(id, legacy_id);
    CUDA_OK(cudaStreamDestroy(stream));
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 0x40), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

// A kernel that waits until another one has run.
struct Pair {
    std::atomic<int>* done;
};

TEST(HardwareQueues, streams_that_share_one_start_in_the_order_of_issue) {
    for (const char* connections : {"1", "2"}) {
        IN_FRESH_PROCESS("", {
            setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
            (void)emulator();
            const bool shared = std::string(connections) == "1";
            const cudaStream_t first = make_stream(), second = make_stream();
            Gate gate;
            gate.hold(first);
            std::vector<int> log;
            note(second, log, 1);
            if (shared) {
                sleep_ms(20);
                EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
                // Allocations take no place in the queue.
                void* memory = nullptr;
                const cudaStream_t third = make_stream();
                CUDA_OK(cudaMallocAsync(&memory, 64, third));
                CUDA_OK(cudaStreamSynchronize(third));
                gate.open();
            }
            CUDA_OK(cudaStreamSynchronize(second));
            gate.open();
            CUDA_OK(cudaStreamSynchronize(first));
        });
    }
}

TEST(HardwareQueues, kernels_of_one_run_side_by_side) {
    IN_FRESH_PROCESS("", {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
        (void)emulator();
        const cudaStream_t first = make_stream(), second = make_stream();
        std::atomic<int> done = 0;
        const Pair pair{&done};
        CUDA_OK(emulator().launch(
            first, [](const void* args) { static_cast<const Pair*>(args)->done->wait(0); }, &pair,
            sizeof pair, "waits"));
        CUDA_OK(emulator().launch(
            second,
            [](const void* args) {
                static_cast<const Pair*>(args)->done->store(1);
                static_cast<const Pair*>(args)->done->notify_all();
            },
            &pair, sizeof pair, "ends it"));
        CUDA_OK(cudaDeviceSynchronize());
    });
}

TEST(Streams, blocking_calls_are_refused_in_host_functions) {
    const Stream stream;
    static cudaError_t seen[3];
    CUDA_OK(cudaLaunchHostFunc(
        stream,
        [](void* handle) {
            seen[0] = cudaStreamSynchronize(static_cast<cudaStream_t>(handle));
            seen[1] = cudaDeviceSynchronize();
            seen[2] = cudaDeviceReset();
        },
        stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    for (const cudaError_t error : seen) {
        EXPECT_EQ(error, cudaErrorNotPermitted);
    }
}

}  // namespace
}  // namespace slimwire::testing
