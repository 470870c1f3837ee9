// Plays batches on one rank: lays out buffers, issues the calls, fetches and checks the results.
// One thread uses a player; one thread may use several, one for each of its devices, step by step.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/e2e/conformance/draw.h"
#include "tests/e2e/conformance/rules.h"

namespace conformance {

// Fills what no call has written.
inline constexpr int kResultPoison = 0xa5;

struct Member {
    ncclComm_t comm = nullptr;
    int ranks = 0, rank = 0;
    uint64_t digest = 0;  // of all results that must be equal on its ranks
};

// The communicators of a rank, all of the calling thread's ranks at once: the world as given, and
// its ranks with even and with odd numbers apart.
void split_worlds(const std::vector<ncclComm_t>& worlds, std::vector<ncclComm_t>* splits);

// Memory for the buffers of calls: on the device, or pinned on the host.
char* allocate(size_t bytes, bool pinned);
void release(char* memory, bool pinned);

// What draws how a rank makes its calls.
struct OwnWays {
    Chance own, graphs;
    bool judged;  // otherwise values may be any, but equal on all ranks
};

class Player {
  public:
    // Judges the result, which this rank gets, of call `index` of a batch; empty when right.
    using Judge =
        std::function<std::string(size_t index, const Member& member, const char* output)>;

    // Ends `split` with itself; `world` stays the caller's. Buffers are pinned host memory or not.
    Player(int device,
           ncclComm_t world,
           ncclComm_t split,
           const Rules& rules,
           size_t max_elems,
           bool pinned = false);
    ~Player();
    Player(const Player&) = delete;
    Player& operator=(const Player&) = delete;

    // Plays and checks; ends the process with 5 and a text when a result is wrong.
    void play(const Batch& batch, uint64_t number);
    void play(const Batch& batch, uint64_t number, const Judge& judge);
    // The same calls in this rank's own way, which no other rank knows: in a graph, grouped, on a
    // thread, in place or not.
    void play_own_way(const Batch& batch, uint64_t number, OwnWays* ways);
    // The same in steps: begin(), call() for each in any group, end(), then check(); a batch that
    // is played again is compared with what check() saw instead.
    void begin(const Batch& batch);
    void call(const Batch& batch, size_t index);
    void end(const Batch& batch);
    void check(const Batch& batch, uint64_t number);
    // The same with another judge of values, or with one that takes all.
    void check(const Batch& batch, uint64_t number, const Judge& judge);
    static std::string take_all(size_t, const Member&, const char*) { return {}; }
    void compare_with_before(const Batch& batch, uint64_t number);
    // How a batch is grouped the second time.
    static Grouping regrouped(const Batch& batch);

    // Compares the digests with those of the other ranks, in three steps of which the second is a
    // call for each communicator.
    void compare_digests(uint64_t number);
    void begin_digest(int member, uint64_t number);
    void gather_digests(int member);
    void check_digests(int member, uint64_t number);
    // Makes the player's device the thread's.
    void select() const;
    [[nodiscard]] const Member* members() const { return members_; }
    [[nodiscard]] bool pinned() const { return pinned_; }
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
    void make_calls(const Batch& batch, Grouping grouping);
    void issue_own_way(const Batch& batch, OwnWays* ways);
    void upload(const Call& call, const Placed& placed, cudaStream_t stream);
    void enqueue(const Call& call, const Placed& placed, ncclRedOp_t op, cudaStream_t stream);
    void download(const Batch& batch);
    [[noreturn]] void fail(const Batch& batch,
                           size_t index,
                           uint64_t number,
                           const std::string& what);
    [[nodiscard]] cudaStream_t stream_of(const Call& call) const;
    [[nodiscard]] const Member& member_of(const Call& call) const;

    const int device_;
    const bool pinned_;
    const Rules& rules_;
    Member members_[2];  // world, split
    cudaStream_t streams_[kStreamChoices] = {};
    bool in_graph_ = false;    // the calls being made are captured, all on one stream
    char* inputs_ = nullptr;   // device
    char* results_ = nullptr;  // device
    char* scalars_ = nullptr;  // device
    std::vector<char> host_inputs_, host_results_;
    std::vector<Placed> placed_;
    std::vector<ncclRedOp_t> ops_;
    std::vector<std::vector<char>> before_;  // results that check() saw
    uint64_t own_digest_ = 0;
};

}  // namespace conformance
