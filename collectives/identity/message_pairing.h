// Messages between two ranks: which way each goes, and which activation a gradient answers. Both
// ends count the messages of each direction alike, but see the two directions in different orders;
// so what decides a size, direction and number, follows from one direction's order, and what
// follows from both, the answer, is for the end that sends it alone.
//
// Between two stages of a pipeline:
//   forward   as the first message of the pair. The first kUndirected messages each way have no
//             direction, because of a pair whose first group holds messages both ways (neighbours
//             that exchange borders) it is only known then that it is no pipeline: none ever has.
//   answers   the oldest forward message of the same kind (count and type) that waits, or the
//             newest, or by chunks as interleaved schedules do (PairOrder)
//
// Of exchanges (PairOrder::calls), whose ranks all send forward and then all send answers: by
// counting those of a rule since the mark of the step; in evaluation each goes forward. Without a
// mark it has no direction: passes forward alone, of a validation or of inference, are the same
// calls as those of training, so that neither the first call of all nor a step that repetition
// finds tells which half of them are answers. A collective is a message to all ranks and one from
// them; one that answers none has no direction. Of those that are made again (PairOrder::again) a
// message of another kind than is due shows that its group stops early. Where kinds are alike
// nothing does; so they have no direction until a marked step was of whole passes, as the rule says
// they are, and of no other number of shorter ones. None has one behind a step of several passes
// that were not: a program that sends no parts of no elements (PyTorch's) makes fewer calls.
//
// One for each peer of a communicator, and one for its collectives; one thread at a time. Pure; no
// allocation once as many messages waited as ever will.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/policy/policy.h"

namespace slimwire {

// The operation whose calls answer those of `op`.
[[nodiscard]] constexpr Op answered_by(Op op) noexcept {
    return op == Op::kAllGather       ? Op::kReduceScatter
           : op == Op::kReduceScatter ? Op::kAllGather
                                      : op;
}

class MessagePairing {
  public:
    static constexpr uint64_t kUndirected = 4;
    static constexpr size_t kMostOpen = 1024;  // that wait; then the oldest is dropped

    struct Message {
        Op op = Op::kSend;     // or that of a collective
        uint64_t kind = 0;     // of count and type
        uint64_t mark = 0;     // steps that the program marked: with a new one nothing waits
        uint64_t group = 0;    // of the NCCL group that it is in; 0: none
        bool training = true;  // else it is answered by nothing
        uint64_t asked = 0;    // the kind of what it answers if it goes backward; 0: its own
    };
    struct Place {
        Direction direction = Direction::kUnknown;
        // Among those of training that go the same way, from 0; with a mark answers catch up.
        uint64_t number = 0;
        std::optional<uint64_t> answers;  // number of the forward message; of backward ones alone
        bool answers_native = false;      // a collective, which stays_native()
        bool waits = false;               // an answer may come; also where no direction is said yet
        // How many more answers than messages forward came before one forward: some where the first
        // message of the pair was no activation.
        uint64_t behind = 0;
        // What the forward ones are at this end among which it, or what it answers, is; kSend also
        // of a collective.
        Op forward = Op::kSend;
        uint64_t mark = 0;  // Message::mark
        // Of an exchange: which of the calls of its kind among those that go forward before their
        // answers come it is, or what it answers; of one that answers none, and without marks,
        // none.
        std::optional<uint32_t> ordinal;
        // Of one that goes by an autoencoder (use()): the calls of its way that did by the same one
        // before it; and it is an answer behind which none of those forward waits.
        uint64_t use = 0;
        bool last = false;
        bool unlike = false;  // the first of a step behind one that was not as the rule says
    };
    Place next(const Message& message, const PairOrder& order);
    // The message of `place`, the one counted last, goes by this autoencoder, which is not 0.
    void use(uint64_t code, Place* place);
    // The forward collective that was counted last keeps nothing that an answer could go by.
    void stays_native() noexcept;
    // No message counted since goes by it.
    [[nodiscard]] bool newest_use(uint64_t code, const Place& place) const noexcept;
    // The group, the last one that messages were given of, was dropped: they never were.
    void rewind(uint64_t group) noexcept;

    // What a later process goes on with behind a mark, where nothing waits, as numbers. False, and
    // nothing changed, where they are not such.
    [[nodiscard]] std::vector<uint64_t> save() const;
    bool go_on(std::span<const uint64_t> saved);

    // The number of the first of those since the mark, before which none waits; 0 without marks.
    [[nodiscard]] uint64_t first_of_step(Op forward) const noexcept {
        return state_.ways[forward == Op::kRecv ? 1 : 0].first;
    }

  private:
    struct Open {
        uint64_t number, kind;
        uint32_t ordinal = 0, rule = 0;
        uint64_t code = 0;    // the autoencoder that it goes by; 0: none
        bool native = false;  // stays_native()
        bool again = false;   // it was made again
    };
    struct Used {
        uint64_t code, times;
    };
    // Forward messages that go one way, and what answers them.
    struct Way {
        uint64_t numbers[2] = {};  // of those forward, of the answers
        std::vector<Open> open;    // oldest first
        uint64_t first = 0;        // number of the first forward one since the mark
        // Since nothing waited no answer came: with the next one as many wait as the schedule has
        // it; beyond what waited at most at that time in other steps they are of an evaluation,
        // where the program marks no steps and told of none.
        bool unasked = true;
        size_t usual = 0;        // 0: not known
        bool newest = false;     // kAuto goes by the newest
        uint64_t kinds = 0;      // that had answers, two bits of each
        uint64_t block = 0;      // of chunks: the begin of those that are answered now
        uint64_t answers = 0;    // that it had
        std::vector<Used> used;  // autoencoders

        void drop_oldest(size_t count) noexcept;
        void add(const Open& one);
        // The first of the rule's `again` newest is made again: the latest one is answered.
        std::optional<Open> take_again(const PairOrder& order) noexcept;
        // Answers begin: of those `again` the ones that were not made again are the newest.
        void end_again(const PairOrder& order) noexcept;
        // Beyond what waits in training what is of evaluation is dropped.
        void end_asking() noexcept;
        std::optional<Open> answer(uint64_t kind, const PairOrder& order) noexcept;
        [[nodiscard]] size_t find(uint64_t kind, const PairOrder& order) noexcept;
        [[nodiscard]] size_t due(uint64_t kind, const PairOrder& order) const noexcept;
    };
    struct State {
        std::optional<Op> forward;  // of the first message
        uint64_t first_group = 0;
        bool both_ways = false;             // the first group holds messages both ways
        bool told = false;                  // of an evaluation
        std::optional<bool> resumed_whole;  // what was loaded is of steps that all were whole
        uint64_t mark = 0;
        // Messages of exchanges, by PairOrder::rule, and whether they are received and of training.
        struct Exchanged {
            uint32_t rule;
            bool received, training;
            uint64_t period;  // of passes forward, again and back
            uint64_t least;   // calls that it has at least, stopping early though no rule says so
            uint64_t cut;     // those forward, with which a step may end, as in its first period
            bool whole;  // the last marked step that had any was such periods alone, or none was
            bool unlike = false;
            // Since the mark: early stops would not show; groups stopped unlike one another, or had
            // none made again.
            bool alike = false, other = false;
            uint64_t stops = 0;                // of the latest group
            uint64_t calls = 0;                // since the mark, with those that were left out
            std::vector<uint64_t> kinds = {};  // of those forward in this period
            void end_step() noexcept;
        };
        std::vector<Exchanged> exchanged;
        Way ways[2];  // forward ones are sent, are received
    };
    Place exchange(const Message& message, const PairOrder& order);
    State::Exchanged& counted(const Message& message, const PairOrder& order);

    State state_, before_;  // before_: as before group_
    uint64_t group_ = 0;
};

}  // namespace slimwire
