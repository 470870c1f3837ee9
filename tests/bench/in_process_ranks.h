// Ranks in this process, a device of the emulator each, that reduce one tensor of fp32.
#pragma once

#include <cuda_runtime_api.h>
#include <errno.h>
#include <nccl.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace slimwire::bench {

inline void check(bool good, const char* what) {
    if (!good) {
        std::fprintf(stderr, "%s: %s failed: %s\n", program_invocation_short_name, what,
                     ncclGetLastError(nullptr));
        std::exit(1);
    }
}

class Ranks {
  public:
    // The environment must be set: this makes the communicators. `most`: elements of a step.
    Ranks(int count, size_t most)
        : comms_(static_cast<size_t>(count)), buffers_(static_cast<size_t>(count)) {
        check(ncclCommInitAll(comms_.data(), count, nullptr) == ncclSuccess, "ncclCommInitAll");
        std::vector<float> gradient(most);
        for (int rank = 0; rank < count; ++rank) {
            for (size_t i = 0; i < most; ++i) {
                gradient[i] =
                    std::sin(0.7f * static_cast<float>(i % 100003) + static_cast<float>(rank));
            }
            float*& buffer = buffers_[static_cast<size_t>(rank)];
            check(cudaSetDevice(rank) == cudaSuccess &&
                      cudaMalloc(reinterpret_cast<void**>(&buffer), 8 * most) == cudaSuccess &&
                      cudaMemcpy(buffer, gradient.data(), 4 * most, cudaMemcpyHostToDevice) ==
                          cudaSuccess,
                  "memory");
        }
    }
    void step(size_t elements) const {
        check(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
        for (size_t rank = 0; rank < comms_.size(); ++rank) {
            float* const send = buffers_[rank];
            check(ncclAllReduce(send, send + elements, elements, ncclFloat32, ncclSum, comms_[rank],
                                nullptr) == ncclSuccess,
                  "ncclAllReduce");
        }
        check(ncclGroupEnd() == ncclSuccess, "ncclGroupEnd");
        for (int rank = 0; rank < static_cast<int>(comms_.size()); ++rank) {
            check(cudaSetDevice(rank) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess,
                  "a step");
        }
    }
    void end() {
        for (size_t rank = 0; rank < comms_.size(); ++rank) {
            check(ncclCommDestroy(comms_[rank]) == ncclSuccess, "ncclCommDestroy");
            (void)cudaFree(buffers_[rank]);
        }
    }

  private:
    std::vector<ncclComm_t> comms_;
    std::vector<float*> buffers_;
};

}  // namespace slimwire::bench
