// Point-to-point traffic that no single collective shows: several messages for each pair of ranks
// and in both directions, on two communicators, to oneself, of sizes that a codec takes and of
// sizes that it leaves, each rank grouping its own calls as it likes. All ranks know one order of
// all messages and make their calls in it, so the earliest unfinished message always has both its
// ends in the group at hand: whatever the groups, nothing can wait for ever. A run of the messages
// may share its group with collective calls; that group all ranks make, each in an order of its
// own.
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
    // Messages [shared_begin, shared_end) are in one group with these calls; without calls there is
    // no such group.
    Batch batch;
    size_t shared_begin = 0, shared_end = 0;
    uint64_t grouping = 0;  // seed of what every rank decides for itself, unless all are alike
    bool repeat = false;    // once more, grouped otherwise; the bits must be the same
};

Traffic draw_traffic(Chance& chance, const Weights& weights, int world_ranks);

class Messenger {
  public:
    // The player, which outlives it, has the communicators and plays the calls among the messages.
    // Its device is the thread's.
    Messenger(Player* player, const Rules& rules, const Weights& weights);
    ~Messenger();
    Messenger(const Messenger&) = delete;
    Messenger& operator=(const Messenger&) = delete;

    // Ends the process with 5 and a text when something is wrong; with values that are not judged,
    // when they differ between ranks or what is beside them was written.
    void play(const Traffic& traffic, uint64_t number, bool judged = true);
    // The same in steps: begin(), make_all() in any group, end() with the number of the repetition.
    void begin(const Traffic& traffic);
    void make_all(const Traffic& traffic, Chance& own);
    void end(const Traffic& traffic, uint64_t number, int round, bool judged = true);

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
    [[nodiscard]] size_t first_end(size_t message) const;
    void issue(const Traffic& traffic, Chance& own);
    void issue_cut(const Traffic& traffic, size_t begin, size_t last, Chance& own);
    // Ends [begin, last) and the calls of the batch, each kind in its order.
    void make_mixed(const Traffic& traffic, size_t begin, size_t last, Chance& own);
    void make(const Traffic& traffic, const End& end);
    // A group that is only simulated, one with a call that NCCL refuses, or that call by itself:
    // none of their calls may run.
    void try_in_vain(const Traffic& traffic, Chance& own);
    ncclResult_t make_wrong(const Traffic& traffic, int kind);
    void check(const Traffic& traffic, uint64_t number, bool judged);
    void compare_with_before(const Traffic& traffic, uint64_t number) const;
    [[nodiscard]] const Member& member_of(const Message& message) const;

    Player* player_;
    const Member* members_;
    const Rules& rules_;
    const bool alike_;
    cudaStream_t streams_[2] = {};
    size_t arena_bytes_;
    char* inputs_ = nullptr;   // as the player's
    char* results_ = nullptr;  // the same
    std::vector<char> host_inputs_, host_results_, before_;
    std::vector<End> ends_;
};

}  // namespace conformance
