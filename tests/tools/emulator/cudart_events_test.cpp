// Events of the emulated runtime: recording, queries, time, flags.
#include "tests/tools/emulator/cuda_test.h"

namespace slimwire::testing {
namespace {

TEST(Events, unrecorded_event_counts_as_done) {
    cudaEvent_t event = nullptr;
    CUDA_OK(cudaEventCreate(&event));
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(cudaStreamPerThread, event, 0), cudaSuccess);
    CUDA_OK(cudaEventDestroy(event));
}

TEST(Events, record_query_synchronize) {
    const cudaStream_t stream = make_stream();
    cudaEvent_t event = nullptr;
    CUDA_OK(cudaEventCreate(&event));
    Gate gate;
    std::vector<int> log;
    gate.hold(stream);
    note(stream, log, 1);
    CUDA_OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    std::thread opener([&] {
        sleep_ms(10);
        gate.open();
    });
    CUDA_OK(cudaEventSynchronize(event));
    EXPECT_EQ(log, std::vector<int>{1});
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
    opener.join();
    CUDA_OK(cudaEventDestroy(event));
    CUDA_OK(cudaStreamDestroy(stream));
}

TEST(Events, elapsed_time_is_that_of_the_work_between) {
    const cudaStream_t stream = make_stream();
    cudaEvent_t start = nullptr;
    cudaEvent_t end = nullptr;
    CUDA_OK(cudaEventCreate(&start));
    CUDA_OK(cudaEventCreate(&end));
    Gate gate;
    gate.hold(stream);
    CUDA_OK(cudaEventRecord(start, stream));
    CUDA_OK(cudaLaunchHostFunc(
        stream, [](void*) { sleep_ms(30); }, nullptr));
    CUDA_OK(cudaEventRecord(end, stream));
    sleep_ms(100);  // held: must not count
    float ms = -1;
    EXPECT_EQ(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    const auto opened = std::chrono::steady_clock::now();
    gate.open();
    CUDA_OK(cudaEventSynchronize(end));
    const std::chrono::duration<float, std::milli> since =
        std::chrono::steady_clock::now() - opened;
    CUDA_OK(cudaEventElapsedTime(&ms, start, end));
    EXPECT_GE(ms, 30.0F);
    EXPECT_LE(ms, since.count());
    CUDA_OK(cudaEventDestroy(start));
    CUDA_OK(cudaEventDestroy(end));
    CUDA_OK(cudaStreamDestroy(stream));
}

TEST(Events, time_needs_two_timed_recorded_events) {
    cudaEvent_t timed = nullptr;
    cudaEvent_t untimed = nullptr;
    CUDA_OK(cudaEventCreate(&timed));
    CUDA_OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    float ms = 0;
    EXPECT_EQ(cudaEventElapsedTime(&ms, timed, timed), cudaErrorInvalidResourceHandle);
    CUDA_OK(cudaEventRecord(timed, cudaStreamPerThread));
    CUDA_OK(cudaEventRecord(untimed, cudaStreamPerThread));
    CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
    CUDA_OK(cudaEventElapsedTime(&ms, timed, timed));
    EXPECT_EQ(ms, 0.0F);
    EXPECT_EQ(cudaEventElapsedTime(&ms, timed, untimed), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
    CUDA_OK(cudaEventDestroy(timed));
    CUDA_OK(cudaEventDestroy(untimed));
}

TEST(Events, recording_again_replaces_the_recording) {
    const cudaStream_t stream = make_stream();
    cudaEvent_t event = nullptr;
    CUDA_OK(cudaEventCreate(&event));
    CUDA_OK(cudaEventRecord(event, stream));
    CUDA_OK(cudaEventSynchronize(event));
    Gate gate;
    gate.hold(stream);
    CUDA_OK(cudaEventRecord(event, stream));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    gate.open();
    CUDA_OK(cudaEventSynchronize(event));
    CUDA_OK(cudaEventDestroy(event));
    CUDA_OK(cudaStreamDestroy(stream));
}

TEST(Events, flags_are_checked_and_interprocess_is_refused) {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, 0x80), cudaErrorInvalidValue);
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess), cudaErrorInvalidValue);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming),
              cudaErrorNotSupported);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("events between processes"),
              std::string::npos);
    (void)cudaGetLastError();
    CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
    CUDA_OK(cudaEventDestroy(event));
    EXPECT_EQ(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

}  // namespace
}  // namespace slimwire::testing
