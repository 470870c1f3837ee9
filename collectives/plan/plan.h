// A plan says what happens to every call with the same signature on one communicator. It is made
// once, at the first such call, from rank-equal inputs only, and never changes; a call then runs it
// without asking anything again. What its calls count lies beside it, in the cache's PlanEntry.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/observe/stats.h"
#include "collectives/plan/layout.h"
#include "collectives/plan/nodes.h"
#include "collectives/policy/config.h"
#include "collectives/policy/parameter_ranges.h"
#include "collectives/policy/policy.h"

namespace slimwire {

// Why single calls of a compressed plan go native.
enum class FallbackReason : uint8_t {
    kBeforeStart,
    kCapture,
    kBadBuffer,
    kUnknownOperator,
    kToItself,
    kBadRoot,
    kUnplaced,  // its place in the step is unsure
    kNoMemory,  // its place would keep one residual too many
    kPhase,     // it feeds back, and the program is not training
    kWindow,    // its buffers lie in symmetric windows
    kAnswer,    // the collective that it answers went native
};
inline constexpr size_t kFallbackReasonCount = 11;

class CommCosts;       // comm_costs.h
class Controller;      // adaptive/controller.h
class ControllerRule;  // the same

// What a feature keeps in a plan; each derives its own.
struct PlanPart {
    virtual ~PlanPart() = default;
};

// What a tensor keeps on the device by a plan: a state that all ranks share, residuals, the state
// of thresholds, one behind the other.
struct ResidualLayout {
    uint64_t bytes = 0;        // of one tensor, as it is stored
    uint64_t state_bytes = 0;  // with kLowRank, in front of the residuals
    uint64_t elems = 0;        // of the store of residuals
    ResidualType type = ResidualType::kFloat32;
    // Encoding does not read and write the store itself: residuals are loaded into fp32 at
    // ScratchLayout::staging_offset and stored again, run by run.
    bool staged = false;
    // Where a codec adapts its threshold: the state of every run of residuals, behind them.
    bool has_thresholds = false;
    uint64_t thresholds_offset = 0;
    // Floats at the begin that must fit those of the other ranks; and with kEf21, whose residuals
    // are fp32, where among them the copies begin of what other ranks made.
    uint64_t shared_elems = 0;
    uint64_t shared_estimate = 0;
    // Hash of what says which residual lies where: plans whose stores are alike have one, variants
    // of a plan its own. 0 where nothing is kept.
    uint64_t shape = 0;
};

// Where parts of the scratch lie that are not the algorithm's own.
struct ScratchLayout {
    uint64_t bytes = 0;
    uint64_t staging_offset = 0;  // one run of residuals in fp32
    uint64_t marks_offset = 0;    // with ResidualLayout::shared_elems: a word for each rank's chunk
    // More behind it, of a message that is not alone in its group: all of its slices.
    uint64_t grouped_bytes = 0;

    [[nodiscard]] uint64_t grouped_offset() const noexcept { return aligned(bytes); }
    [[nodiscard]] uint64_t of_call(bool alone) const noexcept {
        return aligned(bytes) + (alone ? 0 : aligned(grouped_bytes));
    }
};

struct Plan {
    CallSignature signature;
    bool compressed = false;
    bool capturable = true;  // false: native under capture
    Algorithm algorithm = Algorithm::kNative;
    // Its rule asks for error feedback, whichever end keeps a residual, or it has a state.
    bool uses_error_feedback = false;
    ErrorFeedback error_feedback = ErrorFeedback::kNone;
    bool needs_slot = false;   // native while the tensor's slot is not known (Action::needs_slot())
    bool pairs_calls = false;  // calls go by what is kept of those that they answer (call_pairs.h)
    // Plans that single calls may take instead, native or with residuals that lie as this plan's,
    // and what chooses.
    std::vector<std::shared_ptr<const Plan>> variants;
    std::vector<std::shared_ptr<const ControllerRule>> controlled_by;
    uint64_t controller_bytes = 0;  // that those keep of each tensor on the device
    std::vector<std::shared_ptr<const PlanPart>> parts;
    Layout layout;
    ScratchLayout scratch;
    ResidualLayout residual;
    // Of calls whose ordinal rules ask for and is not known (signature.ordinal): where rules begin
    // to decide otherwise, from 0 on. The plan is then native, and that of a known ordinal is
    // another one.
    std::vector<uint32_t> ordinals;
    // Of messages whose direction decides and is not known, where that of a known one is another:
    // which ones answer which.
    std::optional<PairOrder> pairs;
    // Whether rules ask for what only the call's place among others tells.
    [[nodiscard]] bool asks_place() const noexcept {
        return pairs.has_value() || !ordinals.empty();
    }
    std::string rule;                 // the rule that decided; empty when none matched
    std::string reason;               // why compressed, or why native
    const char* remedy = nullptr;     // CallStats::remedy, of a native plan
    std::vector<std::string> beside;  // other rules whose codecs parts of the message have
    bool lacks_feedback = false;      // a codec of it needs error feedback and has none
    bool lacks_row = false;           // native until messages tell their rows
    // What its codecs draw by, where they draw at all; rank and step are set for each call.
    struct Draws {
        bool any = false;
        bool alike = false;  // the same numbers on all ranks
        RandomKey key;
    } draws;
    std::shared_ptr<const ParameterRanges> parameters;  // that it carries; null: not known

    // Of all that a tensor keeps on the device.
    [[nodiscard]] uint64_t tensor_bytes() const noexcept {
        return residual.bytes + controller_bytes;
    }
    // The controller's, of this class; null: none. With adaptive/controller.h.
    template <class Rule>
    [[nodiscard]] const Rule* rule_of() const noexcept {
        for (const std::shared_ptr<const ControllerRule>& one : controlled_by) {
            if (const auto* const own = dynamic_cast<const Rule*>(one.get())) {
                return own;
            }
        }
        return nullptr;
    }
    // The feature's part; null: none.
    template <class Part>
    [[nodiscard]] const Part* part() const noexcept {
        for (const std::shared_ptr<const PlanPart>& one : parts) {
            if (const auto* const own = dynamic_cast<const Part*>(one.get())) {
                return own;
            }
        }
        return nullptr;
    }
    // Whether what a tensor keeps must fit that of the other ranks.
    [[nodiscard]] bool replicated_state() const noexcept { return residual.shared_elems > 0; }
    // Of the elements that its codecs encode and decode: EF21's differences are fp32.
    [[nodiscard]] DType encoded_dtype() const noexcept {
        return error_feedback == ErrorFeedback::kEf21 ? DType::kFloat32 : signature.dtype;
    }
};

// A plan in a communicator's cache, and what counts its calls.
struct PlanEntry {
    std::shared_ptr<const Plan> plan;
    bool passing = false;  // may be dropped when no call of it is queued (plan_lookup.h)
    // Whether other ranks were told of such a call's type (dispatch/call_types.h): of one that is
    // native or compressed, of a compressed one.
    std::array<bool, 2> claimed{};
    CallStats* stats = nullptr;
    std::vector<CallStats*> variant_stats;                     // of plan->variants
    std::array<CallStats*, kFallbackReasonCount> fallbacks{};  // null until a call took that one
    std::vector<Controller*> controllers;                      // of plan->controlled_by

    // Of the plan or a variant of it.
    [[nodiscard]] CallStats* stats_of(const Plan& run) const noexcept {
        return &run == plan.get() ? stats : stats_of_variant(run);
    }
    [[nodiscard]] CallStats* stats_of_variant(const Plan& run) const noexcept;
};

// What a plan needs to know of a communicator; equal on all ranks.
struct PlanShape {
    int ranks = 0;
    Scope scope = Scope::kInterNode;
    int max_ranks_per_node = 1;
    std::shared_ptr<const NodeTable> nodes;  // null while unknown
    std::shared_ptr<const CommCosts> costs;  // null where nothing was calibrated for it
    uint32_t slowest_mb_s = 0;               // of its links; 0: not known
    bool go = false;                         // the ranks agreed
    bool private_comm = true;                // one was made, because a rule can match
    std::string native_reason;               // when not
    std::string name;  // of the communicator, where all ranks gave it the same and a rule asks
    uint64_t committed_bytes = 0;  // residuals that were granted before this plan
    // Scratch that each rank has at least, for one call at a time; none: as much as a plan wants.
    std::optional<uint64_t> scratch_bytes;
};

// Why a plan with so much scratch is native; empty where all ranks have it.
[[nodiscard]] std::string why_no_scratch(uint64_t bytes, const PlanShape& shape);

// Whether so much memory is more than SLIMWIRE_MAX_MEMORY allows.
[[nodiscard]] bool exceeds(uint64_t bytes, const Settings& settings) noexcept;

// Whether residuals lie alike with both plans, and mean the same.
[[nodiscard]] bool residuals_alike(const Plan& a, const Plan& b);

// The codecs of a compressed plan as reports name them, "int4:block=64+raw+ef14".
[[nodiscard]] std::string codec_text(const Plan& plan);

// Equal on all ranks, in all runs and builds; never 0.
[[nodiscard]] inline uint64_t hash_of(const CallSignature& signature) noexcept {
    uint64_t hash = signature.count * 0x9e3779b97f4a7c15ull;
    hash ^= (static_cast<uint64_t>(signature.op) << 16 |
             static_cast<uint64_t>(signature.dtype) << 8 | static_cast<uint64_t>(signature.redop)) *
            0xc2b2ae3d27d4eb4full;
    hash ^= static_cast<uint64_t>(static_cast<uint32_t>(signature.root_or_peer)) *
            0x165667b19e3779f9ull;
    hash ^= signature.ranges_id * 0x9fb21c651e98df25ull;
    hash ^= signature.ordinal * 0xd6e8feb86659fd93ull;
    hash ^= static_cast<uint64_t>(signature.direction) * 0xa0761d6478bd642full;
    hash ^= signature.row * 0xe7037ed1a0b428dbull;
    hash ^= hash >> 29;
    return hash | 1;  // 0 marks an empty slot
}

inline constexpr int kNeediestRank = -1;
// Bytes one rank would hand to the transport for this call natively (ring formulas; send/recv and
// all-to-all exact), or the rank that sends most. An estimate on real NCCL, which may choose
// another algorithm.
[[nodiscard]] uint64_t native_wire_bytes(const CallSignature& signature,
                                         int ranks,
                                         int rank = kNeediestRank) noexcept;
// Elements of the buffer that a rank gives, where it gives one.
[[nodiscard]] uint64_t elements_given(const CallSignature& signature, int ranks) noexcept;
// Size of the message as policies count it: the full buffer of the operation.
[[nodiscard]] uint64_t message_bytes(const CallSignature& signature, int ranks) noexcept;

// Open-addressing table from signatures to plans. One thread at a time, as NCCL asks for a
// communicator.
class PlanCache {
  public:
    [[nodiscard]] PlanEntry* find(const CallSignature& signature) const noexcept {
        if (slots_.empty()) {
            return nullptr;
        }
        const uint64_t hash = hash_of(signature);
        const size_t mask = slots_.size() - 1;
        for (size_t i = hash >> 7 & mask;; i = (i + 1) & mask) {
            const Slot& slot = slots_[i];
            if (slot.hash == 0 || (slot.hash == hash && slot.entry->plan->signature == signature)) {
                return slot.entry.get();
            }
        }
    }
    PlanEntry* insert(Plan plan, bool passing = false);
    void drop_passing();
    [[nodiscard]] size_t size() const noexcept { return size_; }
    [[nodiscard]] size_t lasting() const noexcept { return size_ - passing_; }
    [[nodiscard]] size_t passing() const noexcept { return passing_; }

  private:
    struct Slot {
        uint64_t hash = 0;
        std::unique_ptr<PlanEntry> entry;
    };
    void place(Slot slot) noexcept;

    std::vector<Slot> slots_;
    size_t size_ = 0, passing_ = 0;
};

}  // namespace slimwire
