// Whether calls of a kind travel compressed or by NCCL's own call: whichever is measured faster
// (rule key `gate`).
//
// The first calls of a plan go the two ways by turns, behind a barrier, and events on the stream
// time them; what the host took to enqueue a call counts beside, as if nothing hid it. Each rank's
// times meet the others' in a small maximum over the ranks some calls later; a few calls behind
// that all ranks read the same numbers and decide alike. Which call does what follows from how many
// there were, so nothing is agreed upon on the way of a call. A choice is looked at again now and
// then by two pairs of calls; where these speak against it, it is measured anew.
//
// Of the calls that a group holds of one plan only the first counts, and the others go its way:
// what the group's own calls take is not known before it ends. Groups are alike on all ranks, as
// NCCL asks.
//
// Part of a CommState, and like it used by one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/policy.h"
#include "collectives/real_nccl.h"
#include "collectives/stats.h"

namespace slimwire {

struct CommState;
struct Plan;

// Of one plan. Pure: the same numbers make the same choices.
class GateControl {
  public:
    static constexpr uint64_t kWarm = 2;        // calls, one each way, before the first trial
    static constexpr uint64_t kLag = 2;         // calls between being timed, told and decided by
    static constexpr uint64_t kPairs = 5;       // of a trial's batch
    static constexpr uint64_t kShortPairs = 2;  // that look whether the choice still holds
    static constexpr uint64_t kMostPairs = 40;  // of all batches of a trial
    // Fewer pairs than these decide only where the ways differ by so much more.
    static constexpr uint64_t kFewPairs = 15;
    static constexpr double kClear = 0.1;
    // Calls between the batches of one trial, so that what disturbs a few calls in a row is not in
    // all of them; and between a choice and the first look at it, which doubles up to the rule's.
    static constexpr uint64_t kGap = 30, kFirstLook = 50;
    // Parts of the native time: a first choice for compression and one that leaves native must save
    // so much; pairs of a look that speak against the choice by less do not count.
    static constexpr double kFirstGain = 0.01, kReturnGain = 0.03, kContrary = 0.05;

    explicit GateControl(const GateRule& rule) noexcept : rule_(&rule) {}

    struct Call {
        bool native = false;
        int slot = -1;       // of the batch's times; below 0: not timed
        bool tells = false;  // hands the batch's times to the other ranks
        [[nodiscard]] bool acts() const noexcept { return slot >= 0 || tells; }
    };
    // The next call.
    Call next() noexcept;
    // What next() would say.
    [[nodiscard]] Call peek() const noexcept;
    // It never was.
    void uncount() noexcept { --calls_; }
    // Whether the next call comes after decide() for the batch before it.
    [[nodiscard]] bool due() const noexcept;
    // `seconds` by slot, each the longest of any rank; 0 where none was timed; empty where nothing
    // was heard.
    void decide(const std::vector<float>& seconds);
    // Slots of a batch: of pair p 2p is native and 2p + 1 compressed.
    [[nodiscard]] size_t slots() const noexcept { return 2 * pairs_; }

    [[nodiscard]] const GateTotals& totals() const noexcept { return totals_; }

  private:
    [[nodiscard]] uint64_t end_of_timing() const noexcept { return begin_ + warm_ + 2 * pairs_; }
    void rest() noexcept;
    void next_batch(uint64_t gap) noexcept;
    void choose(bool native);

    const GateRule* rule_;  // outlives this
    uint64_t calls_ = 0;
    uint64_t begin_ = 0;  // call that the batch begins with
    uint64_t warm_ = kWarm;
    uint64_t pairs_ = kPairs;
    uint64_t interval_ = kFirstLook;  // calls until the next look
    bool look_ = false;               // the batch only looks whether the choice holds
    bool chosen_ = false;             // once at least
    bool native_ = false;
    std::vector<double> native_s_, compressed_s_;  // of the trial, by pair
    GateTotals totals_;
};

// A plan's controller, its events and the way of its times to the other ranks.
struct GatedPlan {
    explicit GatedPlan(const GateRule& rule) noexcept : control(rule) {}
    static constexpr size_t kSlots = 2 * GateControl::kPairs;

    GateControl control;
    uint64_t group = 0;           // the last that held a call
    GateControl::Call of_group;   // which way the others go
    float* words = nullptr;       // pinned: what is told, and behind it what was heard
    cudaEvent_t heard = nullptr;  // recorded behind that
    bool told = false;            // under way since then
    struct Times {
        cudaEvent_t begin = nullptr, end = nullptr;
        bool timed = false;  // both are recorded
        float host_s = 0;    // to enqueue the call
    };
    std::array<Times, kSlots> times = {};
};

// A call of one.
struct GatedCall {
    GatedPlan* gate = nullptr;  // null: of none
    GateControl::Call at;
    [[nodiscard]] bool acts() const noexcept { return gate != nullptr && at.acts(); }
};

// Bytes that a call which is timed or tells needs of scratch.
inline constexpr uint64_t kGateScratchBytes = 256;
static_assert(kGateScratchBytes >= GatedPlan::kSlots * sizeof(float));

// Of one communicator, on its device.
class Gates {
  public:
    // The next call of the plan on `stream`; waits for the other ranks' times where a decision is
    // due, and for this rank's where they are told.
    Result<GatedCall> next(const RealNccl& nccl,
                           const DeviceApi& api,
                           CommState* state,
                           Plan* plan,
                           cudaStream_t stream);
    // Frees what it has; pinned memory that work may still write stays where `idle` is false.
    void release(const DeviceApi& api, bool idle) noexcept;

  private:
    std::map<const Plan*, GatedPlan> plans_;
};

}  // namespace slimwire
