// Plays batches on one rank: lays out buffers, issues the calls, fetches and checks the results.
// One thread; in the mode of several devices in one process, one player a thread.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <string>
#include <vector>

#include "tests/e2e/conformance/draw.h"
#include "tests/e2e/conformance/oracle.h"

namespace conformance {

struct Member {
    ncclComm_t comm = nullptr;
    int ranks = 0, rank = 0;
    uint64_t digest = 0;  // of all results that must be equal on its ranks
};

class Player {
  public:
    Player(int device, ncclComm_t world, const Codec& codec, size_t max_elems);
    ~Player();
    Player(const Player&) = delete;
    Player& operator=(const Player&) = delete;

    // Plays and checks; ends the process with 5 and a text when a result is wrong.
    void play(const Batch& batch, uint64_t number);
    // Compares the digests with those of the other ranks.
    void compare_digests(uint64_t number);
    [[nodiscard]] const Member* members() const { return members_; }
    // Digest over everything this rank got, for comparing runs.
    [[nodiscard]] uint64_t own_digest() const { return own_digest_; }

  private:
    // Where a call's buffers lie in the arenas, in bytes.
    struct Placed {
        size_t region = 0, region_bytes = 0;  // of the result, with margins
        size_t output = 0;
        size_t input = 0;  // in the arena of inputs, or of results when in place
        size_t input_bytes = 0, output_bytes = 0;
        bool result_here = true;  // this rank gets a result
    };

    void place(const Batch& batch);
    void issue(const Batch& batch, Grouping grouping);
    void upload(const Call& call, const Placed& placed, cudaStream_t stream);
    void enqueue(const Call& call, const Placed& placed, ncclRedOp_t op, cudaStream_t stream);
    void download(const Batch& batch);
    void check(const Batch& batch, uint64_t number);
    [[noreturn]] void fail(const Batch& batch,
                           size_t index,
                           uint64_t number,
                           const std::string& what);
    [[nodiscard]] cudaStream_t stream_of(const Call& call) const;
    [[nodiscard]] const Member& member_of(const Call& call) const;

    Codec codec_;
    Member members_[2];  // world, split
    cudaStream_t streams_[kStreamChoices] = {};
    char* inputs_ = nullptr;   // device
    char* results_ = nullptr;  // device
    char* scalars_ = nullptr;  // device
    std::vector<char> host_inputs_, host_results_;
    std::vector<Placed> placed_;
    uint64_t own_digest_ = 0;
};

}  // namespace conformance
