// Which tensor each call of one communicator carries: its slot, that is which call of its signature
// it is since the last boundary of a step (README). A boundary is, first of these that there is,
//  - a mark of the program (training.h);
//  - what DDP's own bucket table says, where the call's parameters are known;
//  - a repetition of the calls. Collectives have one detector, which all ranks give the same calls;
//    messages have one for each peer and direction, which both ends give the same calls.
// So the answer is equal on all ranks that take part, and may decide what a call does.
//
// Kept for one communicator, and like it used by one thread at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/call/hash.h"
#include "collectives/call/training.h"
#include "collectives/identity/step_detector.h"
#include "collectives/observe/stats.h"
#include "collectives/policy/parameter_ranges.h"

namespace slimwire {

struct Plan;

// One of the tensors of a plan: its facts, and slot and ordinal of the place.
struct PlaceKey {
    const Plan* plan = nullptr;
    uint32_t slot = 0, ordinal = 0;
    auto operator<=>(const PlaceKey&) const = default;
};

// The places of marked steps: one path in every process, apart from all that a detector learns.
inline constexpr uint64_t kMarkedPath = stable_hash("slimwire marked step");
inline constexpr uint32_t kMarkedSlot = 0xFFFFFFFFu;

// Where a call stands in a step that the program marks (slimwire_mark_step): how many calls of the
// same signature came since the mark. No learning: the first step has places, and a call that is
// left out or comes in addition moves only calls of its own signature behind it. Pure.
//
// One sequence of calls, as StepDetector. Memory: 24 bytes and a map's node
// for each signature, no allocation once all of a step were seen.
class MarkedStep {
  public:
    // A program that stopped marking: calls are unsure beyond so many since the mark.
    static constexpr uint32_t kMostCalls = 65536;

    // The next call of the sequence. `mark` is the number of the last mark, from 1, `step` what
    // the program calls that step.
    StepPosition next(uint64_t signature, uint64_t mark, uint64_t step);
    // rewind() makes the calls since begin_group() never to have been.
    void begin_group() { group_.clear(); }
    void rewind();

    // Calls of the last step that another one followed; 0 before.
    [[nodiscard]] uint32_t step_calls() const noexcept { return step_calls_; }
    // Steps that were followed by another one.
    [[nodiscard]] uint64_t steps() const noexcept { return steps_; }

  private:
    struct Count {
        uint64_t mark = 0;   // that the ordinal counts from
        uint32_t calls = 0;  // since then
    };
    std::unordered_map<uint64_t, Count> counts_;  // by signature
    std::vector<uint64_t> group_;                 // signatures counted since begin_group()
    uint64_t mark_ = 0;
    uint32_t calls_ = 0;  // since mark_
    uint32_t step_calls_ = 0;
    uint64_t steps_ = 0;
};

// The slots of DDP's buckets, each of which has a path of its own.
inline constexpr uint32_t kTableSlot = 0xFFFFFFFEu;

class TensorSlots {
  public:
    // `training`, which outlives the object, has the marks.
    explicit TensorSlots(const Training& training = training_state()) noexcept
        : training_(&training) {}

    // The next call. Every well-formed collective must be given, compressed or not, and of messages
    // those whose plan wants a place; counted in `stats`. `bucket`: what it carries, null where
    // that is not known. `group`: a number of the group that the call belongs to, 0 for none.
    StepPosition next(const CallSignature& signature,
                      const ParameterRanges* bucket,
                      uint64_t group,
                      CommStats* stats);
    // The group, the last one that calls were given of, was dropped: its calls never were.
    void drop(uint64_t group);

    // Collectives so far.
    [[nodiscard]] uint64_t calls() const noexcept { return collectives_.calls; }
    // Of steps that begin by gathering their parameters, when one has begun
    // (StepPosition::begins): how many ended before, collectives of one, and its path.
    struct Gathered {
        uint64_t steps = 0;
        uint32_t calls = 0;
        uint64_t path = 0;
    };
    [[nodiscard]] Gathered gathered() const noexcept;
    // The collective that was number `first`, from 0 on, began such a step of so many, whose path
    // this is, and others may have followed: places are known from the next call on, until the step
    // repeated.
    void trust(uint64_t first, uint32_t step_calls, uint64_t path);

  private:
    // A step that is taken for one of so many calls, whose first had this signature.
    struct Trusted {
        uint64_t first = 0, path = 0;
        uint32_t calls = 0, position = 0;
        uint64_t step = 0;
    };
    struct Sequence {
        std::optional<StepDetector> detector;  // made for the first call without marks
        MarkedStep marked;
        std::optional<Trusted> trusted, trusted_before;
        uint64_t calls = 0, calls_before = 0;
        uint64_t group = 0;  // that all are marked before
    };
    static StepPosition follow(Sequence* sequence,
                               uint64_t hash,
                               StreamCall kind,
                               const StepPosition& repeated);
    const Training* training_;

    Sequence collectives_;
    std::map<std::pair<int, Op>, Sequence> messages_;
};

}  // namespace slimwire
