// Which codec of a ladder a tensor travels by (rule key `max_error`): the strongest whose measured
// error stays within the rule's bound, and NCCL's own call where none does.
//
// Every so many calls of a tensor one is a probe: exact sums, as NCCL makes them. Its result is
// equal on all ranks, so each rank encodes and decodes a sample of it by every codec of the ladder
// (PowerSGD factors all of it), finds the same errors, and decides alike; ranks tell each other
// nothing. What is owed waits meanwhile. A probe whose result is not finite leaves things as they
// were.
//
// `max_error = "random"` looks at each matrix of a message by itself: those of which factors keep
// no more than of noise travel raw beside the factors of the others.
//
// Part of a CommState, and like it used by one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/measure.h"
#include "collectives/layout.h"
#include "collectives/policy.h"
#include "collectives/progress.h"
#include "collectives/stats.h"
#include "collectives/step_detector.h"

namespace slimwire {

struct CommState;
struct Plan;

// Of one tensor. Pure.
class ErrorBudgetControl {
  public:
    // Codecs of the ladder are numbered from the strongest, 0, on.
    static constexpr int kNative = -1;
    static constexpr int kProbe = -2;

    explicit ErrorBudgetControl(const ErrorBudgetRule& rule) noexcept : rule_(&rule) {}

    // What the next call takes.
    int next() noexcept;
    // It never was.
    void uncount() noexcept { --calls_; }
    // Whether the next call comes after decide() for the probe before it.
    [[nodiscard]] bool due() const noexcept;
    // `squares`: of the relative L2 errors of the ladder's codecs on the probe's result; empty
    // where that was not finite. `bounds`: of each; empty: the rule's for all.
    void decide(const std::vector<double>& squares, const std::vector<double>& bounds = {});
    // Of codecs of low rank that look at each matrix: what found_of_matrices() chose.
    void choose(const std::vector<double>& squares,
                const std::vector<double>& bounds,
                int rung,
                const std::vector<uint32_t>& refused);

    // How far it is, for another process (FORMAT.md, "Saved state").
    void save(RecordWriter* record) const;
    // False, and nothing changed, where a record is too short or has other matrices than
    // `matrices`.
    bool load(RecordReader* record, uint32_t matrices);

    [[nodiscard]] const ErrorBudgetTotals& totals() const noexcept { return totals_; }

  private:
    const ErrorBudgetRule* rule_;  // outlives this
    uint64_t calls_ = 0;
    ErrorBudgetTotals totals_;
};

// A tensor's controller and the way of its measurements to the host.
struct BudgetedTensor {
    explicit BudgetedTensor(const ErrorBudgetRule& rule) noexcept : control(rule) {}
    ErrorBudgetControl control;
    uint64_t path = 0;  // of its place (StepPlace)
    // Pinned: one a codec; of codecs of low rank one a matrix and codec, and behind them one a
    // matrix.
    Measured* measured = nullptr;
    // The plan of the chosen codec with the refused matrices raw; null where none is.
    std::shared_ptr<Plan> partial;
    uint64_t more_wire_bytes = 0;  // than by the codec's own plan, whose counters are partial's
    cudaEvent_t end = nullptr;
    bool under_way = false;
};

// A call of one.
struct BudgetedCall {
    BudgetedTensor* tensor = nullptr;  // null: of none
    int rung = ErrorBudgetControl::kNative;
    // Those of the tensor as the call was made: in a group it may have others when the call runs.
    std::shared_ptr<Plan> partial;
    uint64_t more_wire_bytes = 0;
    // What the call runs by, of the plan whose ladder it is; not of a native one.
    [[nodiscard]] Plan* plan_of(Plan* plan) const noexcept;
};

// That of a codec of the ladder, or of a probe.
[[nodiscard]] Plan* plan_of_rung(Plan* plan, int rung) noexcept;

// Scratch of a probe of `count` elements.
[[nodiscard]] uint64_t probe_bytes(const std::vector<CodecSpec>& ladder,
                                   DType dtype,
                                   uint64_t count);

// Of one communicator, on its device.
class ErrorBudgets {
  public:
    // The next call of the plan's tensor at this place; waits for the measurements where a decision
    // is due. A tensor's first goes on with what was loaded for it.
    Result<BudgetedCall> next(const DeviceApi& api,
                              CommState* state,
                              Plan* plan,
                              const StepPlace& place);
    // The records of all its tensors.
    void save(const CommState& state, const KeepRecord& keep) const;
    // Behind a probe on `stream`: measures its result by the ladder of `plan`. `scratch`:
    // probe_bytes().
    static Status measure(const DeviceApi& api,
                          const Plan& plan,
                          const void* result,
                          char* scratch,
                          BudgetedTensor* tensor,
                          cudaStream_t stream);
    // Frees what it has; pinned memory that work may still write stays where `idle` is false.
    void release(const DeviceApi& api, bool idle) noexcept;

  private:
    struct Key {
        const Plan* plan;
        uint32_t slot, ordinal;
        auto operator<=>(const Key&) const = default;
    };
    std::map<Key, BudgetedTensor> tensors_;
};

}  // namespace slimwire
