// A program compiled for per-thread default streams: stream 0 is the thread's own stream.
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "tests/tools/emulator/cuda_test.h"

namespace slimwire::testing {
namespace {

TEST(PerThreadDefault, stream_zero_is_the_threads_own) {
    Gate gate;
    gate.hold(nullptr);
    EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady) << "the same stream";
    EXPECT_EQ(cudaStreamQuery(cudaStreamLegacy), cudaErrorNotReady) << "ordered with it";
    std::thread([] { EXPECT_EQ(cudaStreamQuery(nullptr), cudaSuccess); }).join();
    gate.open();
    CUDA_OK(cudaStreamSynchronize(nullptr));
}

TEST(PerThreadDefault, copies_and_fills_do_not_wait_for_other_threads) {
    int* device = nullptr;
    int* back = nullptr;  // pinned: copies of pageable memory wait for the device
    CUDA_OK(cudaMalloc(&device, sizeof(int)));
    CUDA_OK(cudaMallocHost(&back, sizeof(int)));
    Gate gate;
    gate.hold(cudaStreamPerThread);
    std::thread([device, back] {
        // Through the legacy stream these would wait for the held blocking stream, for ever.
        CUDA_OK(cudaMemset(device, 0x22, sizeof(int)));
        CUDA_OK(cudaMemcpy(back, device, sizeof(int), cudaMemcpyDeviceToHost));
        EXPECT_EQ(*back, 0x22222222);
        CUDA_OK(cudaMemsetAsync(device, 0x33, sizeof(int)));
        cudaEvent_t event = nullptr;
        CUDA_OK(cudaEventCreate(&event));
        CUDA_OK(cudaEventRecord(event));
        CUDA_OK(cudaEventSynchronize(event));
        CUDA_OK(cudaEventDestroy(event));
        CUDA_OK(cudaMemcpyAsync(back, device, sizeof(int), cudaMemcpyDeviceToHost));
        CUDA_OK(cudaStreamSynchronize(nullptr));
        EXPECT_EQ(*back, 0x33333333);
    }).join();
    gate.open();
    CUDA_OK(cudaFreeHost(back));
    CUDA_OK(cudaFree(device));
}

}  // namespace
}  // namespace slimwire::testing
