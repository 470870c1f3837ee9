#include "collectives/comm_costs.h"

#include <algorithm>
#include <cstdio>

#include "collectives/calibration_file.h"
#include "collectives/names.h"
#include "collectives/plan.h"

namespace slimwire {
namespace {

std::string milliseconds(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g ms", 1e3 * seconds);
    return text;
}

}  // namespace

std::shared_ptr<const CommCosts> CommCosts::make(
    const std::shared_ptr<const std::vector<Calibration>>& calibrations,
    int ranks,
    int nodes,
    uint32_t mb_s) {
    if (calibrations == nullptr) {
        return nullptr;
    }
    const double nominal = mb_s / 1e3;
    auto made = std::make_shared<CommCosts>();
    made->calibrations_ = calibrations;
    for (const Calibration& one : *calibrations) {
        const std::optional<Op> op = calibrated_op(one.op);
        const std::optional<DType> dtype = parse_dtype(one.dtype);
        // The nearest link of this shape.
        if (!op.has_value() || !dtype.has_value() ||
            find_calibration(*calibrations, *op, *dtype, ranks, nodes, nominal) != &one) {
            continue;
        }
        const double gb_s =
            one.nominal_gb_s > 0 && nominal > 0 ? one.expected_gb_s(nominal) : one.link.gb_s;
        made->known_.push_back({*op, *dtype, &one, gb_s});
    }
    return made->known_.empty() ? nullptr : made;
}

CommCosts::Call CommCosts::find(Op op,
                                DType dtype,
                                const std::string& codec,
                                uint64_t bytes) const {
    const Op measured = op == Op::kRecv ? Op::kSend : op;
    const auto size = static_cast<double>(bytes);
    Call call;
    for (const Known& known : known_) {
        if (known.op != measured || known.dtype != dtype) {
            continue;
        }
        for (const CalibratedWay& way : known.calibration->ways) {
            const std::optional<Algorithm> algorithm = parse_algorithm(way.algorithm);
            if (way.codec == codec && algorithm.has_value()) {
                call.ways.push_back({*algorithm, way.seconds(size, known.gb_s)});
            }
        }
        if (!call.ways.empty()) {
            call.native_s = known.calibration->ways.front().seconds(size, known.gb_s);
            break;
        }
    }
    std::stable_sort(call.ways.begin(), call.ways.end(),
                     [](const Way& a, const Way& b) { return a.seconds < b.seconds; });
    return call;
}

std::vector<CostThreshold> CommCosts::thresholds() const {
    std::vector<CostThreshold> all;
    for (const Known& known : known_) {
        const std::vector<CalibratedWay>& ways = known.calibration->ways;
        for (auto way = ways.begin() + 1; way != ways.end(); ++way) {
            const Threshold from = known.calibration->threshold(*way, known.gb_s, kSavedAlone);
            all.push_back({known.op, known.dtype, way->codec, way->algorithm,
                           from.pays ? std::optional<uint64_t>(from.enter_bytes) : std::nullopt});
        }
    }
    return all;
}

CommCosts::Call known_costs(const CallFacts& facts, const PlanShape& shape, const Action& action) {
    // Stages of one tensor keep residuals alike, so they are of one algorithm.
    const bool staged = !action.ramp.empty() || action.accordion.has_value() ||
                        action.budget.has_value() || action.least_state_rank > 0;
    const bool open = action.auto_bytes || action.algorithm == Algorithm::kAuto;
    // What lies between the two ends of a message was measured only where it is the same for all.
    const bool mixed = is_point_to_point(facts.op) && shape.scope == Scope::kInterNode &&
                       shape.max_ranks_per_node > 1;
    if (shape.costs == nullptr || staged || !open || mixed || !action.codec.has_value() ||
        action.intra_codec.has_value()) {
        return {};
    }
    CommCosts::Call call = shape.costs->find(facts.op, facts.dtype, action.codec->to_string(),
                                             message_bytes(facts, shape.ranks));
    if (action.algorithm != Algorithm::kAuto) {
        std::erase_if(call.ways,
                      [&](const CommCosts::Way& way) { return way.algorithm != action.algorithm; });
    }
    return call;
}

CostChoice choose_by_costs(const CallFacts& facts,
                           const PlanShape& shape,
                           const Action& action,
                           std::vector<Algorithm> shaped) {
    CostChoice choice;
    const CommCosts::Call known = known_costs(facts, shape, action);
    if (known.ways.empty()) {
        choice.algorithms = std::move(shaped);
        return choice;
    }
    const CommCosts::Way& fastest = known.ways.front();
    const std::string measured = milliseconds(fastest.seconds) + " by " +
                                 algorithm_name(fastest.algorithm) + " and " +
                                 milliseconds(known.native_s) + " natively, as calibrated";
    const bool gated = action.gate.has_value() && !is_point_to_point(facts.op);
    const double most =
        known.native_s * (gated ? 1 + CommCosts::kTriedSlower : 1 - CommCosts::kSavedAlone);
    if (action.auto_bytes && fastest.seconds > most) {
        choice.native = measured;
        return choice;
    }
    const auto usual =
        std::find_if(known.ways.begin(), known.ways.end(), [&](const CommCosts::Way& way) {
            return !shaped.empty() && way.algorithm == shaped.front();
        });
    if (usual != known.ways.end() &&
        fastest.seconds <= (1 - CommCosts::kSavedByAlgorithm) * usual->seconds) {
        choice.algorithms.push_back(fastest.algorithm);
    }
    for (const Algorithm algorithm : shaped) {
        if (choice.algorithms.empty() || algorithm != choice.algorithms.front()) {
            choice.algorithms.push_back(algorithm);
        }
    }
    choice.reason = measured;
    return choice;
}

}  // namespace slimwire
