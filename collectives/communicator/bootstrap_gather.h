// A few bytes of every rank of some communicators, told to all of them by an all-gather on internal
// streams: who the ranks are (members.h), the id of a communicator that grows (creation_agree.h).
// Start and finish are apart, because the start has a place among the communicator's calls and the
// finish waits for other ranks; they may be in two threads, one after the other.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/communicator/pending_creations.h"
#include "collectives/communicator/process.h"

namespace slimwire {

class AllGathering {
  public:
    struct Part {
        ncclComm_t comm = nullptr;
        int device = 0, rank = 0;
        std::span<const std::byte> mine;
        std::span<std::byte> all;  // has room for those of each rank
    };
    // What the parts name must outlive it.
    AllGathering(Runtime& runtime, std::vector<Part> parts);
    // Frees nothing that waits for other ranks.
    ~AllGathering();
    AllGathering(const AllGathering&) = delete;
    AllGathering& operator=(const AllGathering&) = delete;

    // Enqueues all parts in one group; all ranks of the communicators must.
    Status start();
    // Whether NCCL does the launch in the background: the communicators are busy until finish().
    [[nodiscard]] bool launching() const noexcept { return launched_ == ncclInProgress; }
    // Waits under `watch` until `all` is filled.
    Status finish(Watch* watch);

  private:
    struct Exchange {
        char* memory = nullptr;
        size_t bytes = 0;
        cudaStream_t stream = nullptr;
    };
    [[nodiscard]] char* own(size_t i) const noexcept;
    void release() noexcept;

    Runtime& runtime_;
    std::vector<Part> parts_;
    std::vector<Exchange> exchanges_;
    ncclResult_t launched_ = ncclSuccess;
};

}  // namespace slimwire
