// Where a call stands in a step that the program marks (slimwire_mark_step): how many calls of the
// same signature came since the mark. No learning: the first step has places, and a call that is
// left out or comes in addition moves only calls of its own signature behind it. Pure.
//
// One sequence of calls, as StepDetector; one thread at a time. Memory: 24 bytes and a map's node
// for each signature, no allocation once all of a step were seen.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "collectives/call/hash.h"
#include "collectives/identity/step_detector.h"

namespace slimwire {

// The places of marked steps: one path in every process, apart from all that a detector learns.
inline constexpr uint64_t kMarkedPath = stable_hash("slimwire marked step");
inline constexpr uint32_t kMarkedSlot = 0xFFFFFFFFu;

class MarkedStep {
  public:
    // A program that stopped marking: calls are unsure beyond so many since the mark.
    static constexpr uint32_t kMostCalls = 65536;

    // The next call of the sequence. `mark` is the number of the last mark, from 1, `step` what
    // the program calls that step.
    StepPosition next(uint64_t signature, uint64_t mark, uint64_t step);
    // rewind() makes the calls since begin_group() never to have been.
    void begin_group();
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

}  // namespace slimwire
