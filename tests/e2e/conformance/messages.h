// Point-to-point traffic that no single collective shows: several messages for each pair of ranks
// and in both directions, on two communicators, to oneself, of sizes that a codec takes and of
// sizes that it leaves, each rank grouping its own calls as it likes. All ranks know one order of
// all messages and make their calls in it, so the earliest unfinished message always has both its
// ends in the group at hand: whatever the groups, nothing can wait for ever.
#pragma once

#include <vector>

#include "tests/e2e/conformance/player.h"

namespace conformance {

struct Message {
    Call call;     // kind, type, count, data, communicator; root is the way from sender to receiver
    int from = 0;  // modulo the communicator's ranks
};

struct Traffic {
    std::vector<Message> messages;
    uint64_t grouping = 0;  // seed of what every rank decides for itself
    bool repeat = false;    // once more, grouped otherwise; the bits must be the same
};

Traffic draw_traffic(Chance& chance, const Weights& weights, int world_ranks);

class Messenger {
  public:
    // `members`: world and split, which outlive it.
    Messenger(const Member* members, const Codec& codec, const Weights& weights);
    ~Messenger();
    Messenger(const Messenger&) = delete;
    Messenger& operator=(const Messenger&) = delete;

    // Ends the process with 5 and a text when something is wrong.
    void play(const Traffic& traffic, uint64_t number);

  private:
    // One end of a message on this rank.
    struct End {
        size_t message = 0;
        bool sends = false;
        size_t offset = 0;  // of the data in the arena of inputs or of results
        size_t bytes = 0;
        cudaStream_t stream = nullptr;
    };
    void place(const Traffic& traffic);
    void issue(const Traffic& traffic, Chance& own);
    void make(const Traffic& traffic, const End& end);
    // A group that is only simulated, one with a call that NCCL refuses, or that call by itself:
    // none of their calls may run.
    void try_in_vain(const Traffic& traffic, Chance& own);
    ncclResult_t make_wrong(const Traffic& traffic, int kind);
    void check(const Traffic& traffic, uint64_t number);
    [[nodiscard]] const Member& member_of(const Message& message) const;

    const Member* members_;
    Codec codec_;
    cudaStream_t streams_[2] = {};
    size_t arena_bytes_;
    char* inputs_ = nullptr;   // device
    char* results_ = nullptr;  // device
    std::vector<char> host_inputs_, host_results_;
    std::vector<End> ends_;
};

}  // namespace conformance
