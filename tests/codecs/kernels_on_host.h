// Kernels of codecs on the execution model of tests/support/cuda_on_host.h against the host bodies,
// by the comparison that a GPU gets (tests/gpu/codecs/compare.h), over a runtime whose device
// memory is the host's. Included by one file of a program, which includes the kernels' sources.
#pragma once

#include "tests/support/cuda_on_host.h"

#include <cstring>
#include <map>

#include "tests/codecs/fixture.h"
#include "tests/gpu/codecs/compare.h"

namespace slimwire::testing {

inline std::map<void*, Guarded> device_memory;

}  // namespace slimwire::testing

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    slimwire::testing::Guarded memory(static_cast<int64_t>(bytes));
    *pointer = memory.data();
    slimwire::testing::device_memory.emplace(*pointer, std::move(memory));
    return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
    const auto found = slimwire::testing::device_memory.find(pointer);
    EXPECT_TRUE(found->second.margins_intact());
    slimwire::testing::device_memory.erase(found);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    std::memset(to, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
    return "refused by the execution model";
}
// A launch runs at once, so that a graph has nothing left to do.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned int) {
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) {
    return cudaSuccess;
}

namespace slimwire::testing {

class KernelsOnHost : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    // Random situations of up to so many elements.
    void compare_random(const CodecSpec& spec, int64_t most_elems, int rounds) {
        for (int round = 0; round < rounds && !HasFailure(); ++round) {
            if (sampled(sampling_)) {
                expect_equal(spec, gpu::random_situation(spec, most_elems, random_));
            }
        }
    }
    void expect_equal(const CodecSpec& spec, const gpu::Situation& situation) {
        std::vector<std::string> failures;
        gpu::compare(spec, situation, random_, &failures);
        EXPECT_TRUE(failures.empty()) << failures[0] << " seed " << seed_;
    }

    uint32_t seed_ = test_seed();
    std::mt19937_64 random_{seed_};

  private:
    std::mt19937 sampling_{seed_};
};

}  // namespace slimwire::testing
