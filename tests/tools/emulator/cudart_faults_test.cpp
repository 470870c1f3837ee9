// What SLIMWIRE_EMU_MEMORY, _STRICT and _FAULT do to a CUDA program. Each in a fresh process,
// because the environment is read at the first call.
#include <algorithm>
#include <chrono>

#include "tests/tools/emulator/cuda_test.h"

namespace slimwire::testing {
namespace {

using Clock = std::chrono::steady_clock;

bool all_poisoned(const std::vector<unsigned char>& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == 0xff; });
}

std::vector<unsigned char> read_back(const void* device, size_t bytes) {
    std::vector<unsigned char> host(bytes);
    EXPECT_EQ(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
}

TEST(MemoryLimit, what_does_not_fit_is_out_of_memory) {
    IN_FRESH_PROCESS("", {
        setenv("SLIMWIRE_EMU_MEMORY", "1MiB", 1);
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
        EXPECT_EQ(total_bytes, size_t{1} << 20);
        void* first = nullptr;
        void* second = nullptr;
        EXPECT_EQ(cudaMalloc(&first, (1 << 20) + 1), cudaErrorMemoryAllocation);
        CUDA_OK(cudaMalloc(&first, 600 << 10));
        EXPECT_EQ(cudaMalloc(&second, 600 << 10), cudaErrorMemoryAllocation);
        EXPECT_EQ(cudaMallocAsync(&second, 600 << 10, cudaStreamPerThread),
                  cudaErrorMemoryAllocation);
        CUDA_OK(cudaFree(first));
        CUDA_OK(cudaMalloc(&second, 1 << 20));
        CUDA_OK(cudaSetDevice(1));  // a limit of each device
        CUDA_OK(cudaMalloc(&first, 1 << 20));
    });
}

TEST(MemoryLimit, is_of_bytes_too_and_empty_variables_are_as_absent) {
    IN_FRESH_PROCESS("", {
        setenv("SLIMWIRE_EMU_MEMORY", "65536", 1);
        for (const char* name : {"DEVICES", "STRICT", "CHECK_ERROR", "FAULT", "NODES"}) {
            setenv((std::string("SLIMWIRE_EMU_") + name).c_str(), "", 1);
        }
        size_t free = 0, total = 0;
        CUDA_OK(cudaMemGetInfo(&free, &total));
        EXPECT_EQ(total, 65536u);
    });
}

TEST(Poison, fresh_memory_of_every_kind_is_full_of_nan) {
    IN_FRESH_PROCESS("", {
        setenv("SLIMWIRE_EMU_STRICT", "1", 1);
        constexpr size_t kBytes = 10'000;
        const cudaStream_t stream = make_stream();
        void* device = nullptr;
        for (int round = 0; round < 2; ++round) {  // the second one gets used memory
            CUDA_OK(cudaMalloc(&device, kBytes));
            EXPECT_TRUE(all_poisoned(read_back(device, kBytes)));
            CUDA_OK(cudaMemset(device, 0, kBytes));
            CUDA_OK(cudaFree(device));
            CUDA_OK(cudaMallocAsync(&device, kBytes, stream));
            CUDA_OK(cudaStreamSynchronize(stream));
            EXPECT_TRUE(all_poisoned(read_back(device, kBytes)));
            CUDA_OK(cudaMemsetAsync(device, 0, kBytes, stream));
            CUDA_OK(cudaFreeAsync(device, stream));
        }
        unsigned char* host = nullptr;
        CUDA_OK(cudaMallocHost(&host, kBytes));
        EXPECT_TRUE(all_poisoned({host, host + kBytes}));
    });
}

// The block that a stream frees and gets again is poisoned in the stream's order, not at the call.
TEST(Poison, memory_that_is_reused_is_poisoned_in_the_order_of_its_stream) {
    IN_FRESH_PROCESS("", {
        setenv("SLIMWIRE_EMU_STRICT", "1", 1);
        const cudaStream_t stream = make_stream();
        Gate gate;
        void* first = nullptr;
        void* second = nullptr;
        unsigned char* kept = nullptr;
        CUDA_OK(cudaMallocHost(&kept, 512));
        CUDA_OK(cudaMallocAsync(&first, 512, stream));
        CUDA_OK(cudaMemsetAsync(first, 7, 512, stream));
        gate.hold(stream);
        CUDA_OK(cudaMemcpyAsync(kept, first, 512, cudaMemcpyDeviceToHost, stream));
        CUDA_OK(cudaFreeAsync(first, stream));
        CUDA_OK(cudaMallocAsync(&second, 512, stream));
        EXPECT_EQ(first, second);
        sleep_ms(10);
        gate.open();
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(kept[100], 7);
        EXPECT_TRUE(all_poisoned(read_back(second, 512)));
    });
}

TEST(Faults, the_nth_call_fails) {
    IN_FRESH_PROCESS("", {
        setenv("SLIMWIRE_EMU_FAULT",
               "cudaMalloc:2,cudaEventRecord:1=700,cudaStreamSynchronize:2+=719", 1);
        void* pointer = nullptr;
        cudaEvent_t event = nullptr;
        CUDA_OK(cudaMalloc(&pointer, 64));
        EXPECT_EQ(cudaMalloc(&pointer, 64), cudaErrorMemoryAllocation);
        EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
        CUDA_OK(cudaMalloc(&pointer, 64));
        CUDA_OK(cudaEventCreate(&event));
        EXPECT_EQ(cudaEventRecord(event, nullptr), cudaErrorIllegalAddress);
        CUDA_OK(cudaEventRecord(event, nullptr));
        CUDA_OK(cudaStreamSynchronize(nullptr));
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorLaunchFailure);
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorLaunchFailure);
        CUDA_OK(cudaDeviceSynchronize());  // injected errors do not poison the device
    });
}

TEST(Faults, the_nth_call_is_late) {
    IN_FRESH_PROCESS("^slimwire emulator: launch call 2: late[^\n]*\n$", {
        setenv("SLIMWIRE_EMU_FAULT", "launch:2=30ms", 1);
        std::vector<int> log;
        std::vector<double> ms;
        const cudaStream_t stream = make_stream();
        for (int i = 0; i < 3; ++i) {
            const auto start = Clock::now();
            note(stream, log, i);
            ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
        }
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(log, (std::vector<int>{0, 1, 2}));
        EXPECT_GE(ms[1], 30);
    });
}

}  // namespace
}  // namespace slimwire::testing
