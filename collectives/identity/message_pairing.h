// Messages between two stages of a pipeline: which way each goes, and which activation a gradient
// answers. Both ends count the messages of each direction alike, but see the two directions in
// different orders; so what decides a size, direction and number, follows from one direction's
// order, and what follows from both, the answer, is for the end that sends it alone.
//
//   forward   as the first message of the pair. The first kUndirected messages each way have no
//             direction, because of a pair whose first group holds messages both ways (neighbours
//             that exchange borders) it is only known then that it is no pipeline: none ever has.
//   answers   the oldest forward message of the same kind (count and type) that waits, or the
//             newest, or by chunks as interleaved schedules do (PairOrder)
//
// One for each peer of a communicator; one thread at a time. Pure; no allocation once as many
// messages waited as ever will.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/policy/policy.h"

namespace slimwire {

class MessagePairing {
  public:
    static constexpr uint64_t kUndirected = 4;
    static constexpr size_t kMostOpen = 1024;  // that wait; then the oldest is dropped

    struct Message {
        Op op = Op::kSend;
        uint64_t kind = 0;     // of count and type
        uint64_t mark = 0;     // steps that the program marked: with a new one nothing waits
        uint64_t group = 0;    // of the NCCL group that it is in; 0: none
        bool training = true;  // else it is answered by nothing
    };
    struct Place {
        Direction direction = Direction::kUnknown;
        uint64_t number = 0;              // among those of training that go the same way, from 0
        std::optional<uint64_t> answers;  // number of the forward message; of backward ones alone
        bool waits = false;               // an answer may come; also where no direction is said yet
    };
    Place next(const Message& message, const PairOrder& order);
    // The group, the last one that messages were given of, was dropped: they never were.
    void rewind(uint64_t group) noexcept;

    [[nodiscard]] size_t open() const noexcept { return state_.open.size(); }
    // Forward messages that nothing answered, and backward ones that answer nothing.
    [[nodiscard]] uint64_t dropped() const noexcept { return state_.dropped; }
    [[nodiscard]] uint64_t unanswered() const noexcept { return state_.unanswered; }

  private:
    struct Open {
        uint64_t number, kind;
    };
    struct State {
        std::optional<Op> forward;  // of the first message
        uint64_t first_group = 0;
        bool both_ways = false;  // the first group holds messages both ways
        uint64_t numbers[2] = {};
        uint64_t mark = 0;
        std::vector<Open> open;  // oldest first
        // Since nothing waited no answer came: with the next one as many wait as the schedule has
        // it; beyond what waited at most at that time in other steps they are of an evaluation.
        bool unasked = true;
        size_t usual = 0;      // 0: not known
        bool newest = false;   // kAuto goes by the newest
        uint64_t block = 0;    // of chunks: the begin of those that are answered now
        uint64_t answers = 0;  // that it had
        uint64_t dropped = 0, unanswered = 0;
    };
    void drop_oldest(size_t count) noexcept;
    std::optional<uint64_t> answer(uint64_t kind, const PairOrder& order) noexcept;
    [[nodiscard]] size_t find(uint64_t kind, const PairOrder& order) noexcept;

    State state_, before_;  // before_: as before group_
    uint64_t group_ = 0;
};

}  // namespace slimwire
