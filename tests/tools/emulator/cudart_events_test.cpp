// Events of the emulated runtime: recording, queries, time, flags.
#include "tests/support/has.h"
#include "tests/tools/emulator/cuda_test.h"

namespace slimwire::testing {
namespace {

TEST(Events, unrecorded_event_counts_as_done) {
    const Event event;
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(cudaStreamPerThread, event, 0), cudaSuccess);
}

TEST(Events, record_query_synchronize) {
    const Stream stream;
    const Event event;
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
}

TEST(Events, elapsed_time_is_that_of_the_work_between) {
    const Stream stream;
    const Event start;
    const Event end;
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
}

TEST(Events, time_needs_two_timed_recorded_events) {
    const Event timed;
    const Event untimed(cudaEventDisableTiming);
    float ms = 0;
    EXPECT_EQ(cudaEventElapsedTime(&ms, timed, timed), cudaErrorInvalidResourceHandle);
    CUDA_OK(cudaEventRecord(timed, cudaStreamPerThread));
    CUDA_OK(cudaEventRecord(untimed, cudaStreamPerThread));
    CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
    CUDA_OK(cudaEventElapsedTime(&ms, timed, timed));
    EXPECT_EQ(ms, 0.0F);
    EXPECT_EQ(cudaEventElapsedTime(&ms, timed, untimed), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
}

TEST(Events, recording_again_replaces_the_recording) {
    const Stream stream;
    const Event event;
    CUDA_OK(cudaEventRecord(event, stream));
    CUDA_OK(cudaEventSynchronize(event));
    Gate gate;
    gate.hold(stream);
    CUDA_OK(cudaEventRecord(event, stream));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    gate.open();
    CUDA_OK(cudaEventSynchronize(event));
}

TEST(Events, flags_are_checked_and_interprocess_is_refused) {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, 0x80), cudaErrorInvalidValue);
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess), cudaErrorInvalidValue);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming),
              cudaErrorNotSupported);
    EXPECT_HAS(::testing::internal::GetCapturedStderr(), "events between processes");
    (void)cudaGetLastError();
    CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
    CUDA_OK(cudaEventDestroy(event));
    EXPECT_EQ(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

}  // namespace
}  // namespace slimwire::testing
