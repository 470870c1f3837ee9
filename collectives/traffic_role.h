// What a communicator is for, as its collectives tell: for rules with `role` where no name says it
// (role.h), and for reports. The collectives of a communicator are the same on all ranks, in the
// same order, so all ranks come to the answer at the same call without speaking. It says nothing
// rather than guess. Messages tell nothing here: their order is known to two ranks only, so of
// pipelines there is no answer.
//
// A step of the calls (step_detector.h, marked_step.h) is judged as a whole, each path once:
//   dp  sums of floating-point numbers, and: at the beginning PyTorch's DDP compared its ranks'
//       models, or floating-point tensors were broadcast one after another (replicas); or shards
//       are gathered in a row and the same counts reduced and scattered; or every sum comes once in
//       the step and there are several, of different sizes
//   tp  many sums of one count, and maxima of more than one number (an output layer in parts)
//   ep  all-to-all exchanges, there and back, and no sums
// Once there is an answer it stays.
//
// Used by one thread at a time, as the CallPlaces that it is part of.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/call.h"
#include "collectives/role.h"

namespace slimwire {

struct RoleFound {
    Role role = Role::kData;
    const char* evidence = "";
};

// What a communicator's first calls told.
struct RoleStart {
    bool ddp = false;         // as DDP compares models: counts gathered, shapes broadcast
    uint32_t broadcasts = 0;  // of floating-point tensors in a row, before any sum
};

// Pure. `step`: its collectives, from anywhere in it.
[[nodiscard]] std::optional<RoleFound> role_of_step(std::span<const CallFacts> step,
                                                    const RoleStart& start);

class TrafficRole {
  public:
    static constexpr uint32_t kMostCalls = 4096;  // of a step that is judged
    static constexpr uint32_t kReplicas = 4;      // broadcasts in a row that say so

    TrafficRole();

    // The next collective. `judge`: it is the first after a whole step of so many calls; 0: not.
    void hear(const CallFacts& facts, uint32_t judge);
    [[nodiscard]] const std::optional<RoleFound>& found() const noexcept { return now_.found; }

    // rewind() makes the calls since mark() never to have been.
    void mark() noexcept { marked_ = now_; }
    void rewind() noexcept { now_ = marked_; }

  private:
    struct Knowledge {
        uint64_t calls = 0;
        RoleStart start;
        bool started = false;   // the first calls are over
        bool gathered = false;  // one int64 of each rank, just before
        std::optional<RoleFound> found;
    };
    void begin_with(const CallFacts& facts) noexcept;

    std::vector<CallFacts> ring_;  // twice kMostCalls: rewinding brings back what fell out of it
    Knowledge now_, marked_;
};

}  // namespace slimwire
