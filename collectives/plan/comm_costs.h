// What calls of one communicator take by what was measured on one of its shape (`slimwire
// calibrate`, SLIMWIRE_CALIBRATION; else when communicators are made,
// dispatch/timing/call_timer.h), and what rules that leave it open do then: which algorithm "auto"
// is, and from which size min_bytes "auto" compresses.
//
// From the file, whose text ranks compare, or times that they agreed on, and the links, which they
// told each other: equal on all ranks, like everything that plans are made of. A plan is made once,
// so no size goes to and fro.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/observe/stats.h"
#include "collectives/policy/policy.h"
#include "topology/cost/calibration.h"

namespace slimwire {

struct PlanShape;

class CommCosts {
  public:
    // The part of the native time that compression must save at least with min_bytes "auto".
    static constexpr double kLeastSaved = 0.05;
    // What another algorithm must save against the one that the communicator's shape suggests.
    static constexpr double kSavedByAlgorithm = 0.1;

    // Of a communicator whose slowest link has `mb_s` MB/s (0: not known, taken for the one that
    // was measured). Null where no calibration has its shape. `how` they were made, for reasons.
    [[nodiscard]] static std::shared_ptr<const CommCosts> make(
        const std::shared_ptr<const std::vector<Calibration>>& calibrations,
        int ranks,
        int nodes,
        uint32_t mb_s,
        const char* how = "as calibrated");
    [[nodiscard]] const char* how() const noexcept { return how_; }
    // Of all shapes.
    [[nodiscard]] const std::shared_ptr<const std::vector<Calibration>>& calibrations()
        const noexcept {
        return calibrations_;
    }

    struct Way {
        Algorithm algorithm = Algorithm::kAuto;
        double seconds = 0;
    };
    struct Call {
        double native_s = 0;
        std::vector<Way> ways;  // fastest first; empty: nothing is known of such calls
    };
    // Of `bytes` of message; both ends of a message are one kind of calls.
    [[nodiscard]] Call find(Op op, DType dtype, const std::string& codec, uint64_t bytes) const;
    // Of what saves kLeastSaved.
    [[nodiscard]] std::vector<CostThreshold> thresholds() const;

  private:
    struct Known {
        Op op;
        DType dtype;
        const Calibration* calibration;
        double gb_s;  // of this communicator's slowest link
    };
    std::shared_ptr<const std::vector<Calibration>> calibrations_;
    std::vector<Known> known_;
    const char* how_ = "";
};

// Whether the action leaves open what measured costs may decide.
[[nodiscard]] bool asks_costs(const Action& action);

// What is known of a call by this action, which compresses it; without ways where the action says
// everything itself or differs from what was measured.
[[nodiscard]] CommCosts::Call known_costs(const CallSignature& signature,
                                          const PlanShape& shape,
                                          const Action& action);

// Why min_bytes "auto" leaves a call native of which nothing is calibrated; empty: it does not. By
// the bandwidth of the slowest link and the cost model (topology/cost/cost.h), where ranks know
// one, else by kLeastBytesOfUnknown.
[[nodiscard]] std::string why_slower(const CallSignature& signature,
                                     const PlanShape& shape,
                                     const Action& action);

// What follows.
struct CostChoice {
    std::string native;                 // why the call is native; empty: it is not
    std::vector<Algorithm> algorithms;  // to try, best first
    std::string reason;                 // that belongs to the plan's; may be empty
};
// `shaped`: what the communicator's shape suggests.
[[nodiscard]] CostChoice choose_by_costs(const CallSignature& signature,
                                         const PlanShape& shape,
                                         const Action& action,
                                         std::vector<Algorithm> shaped);

}  // namespace slimwire
