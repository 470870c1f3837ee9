#include "collectives/plan/comm_costs.h"

#include <algorithm>

#include "codecs/base/number_text.h"
#include "collectives/plan/plan.h"
#include "collectives/policy/calibration_file.h"
#include "collectives/policy/names.h"
#include "topology/cost/cost.h"

namespace slimwire {
namespace {

// Of one pass over a message by a codec, on the slower ones of the devices in use.
constexpr double kCodecGbS = 400, kLaunchS = 5e-6;

std::string milliseconds(double seconds) {
    return general_text(1e3 * seconds, 3) + " ms";
}

// Why the faster of the two is not taken, where that is so.
std::string saved_too_little(double seconds, double native_s) {
    return seconds < native_s
               ? ", which saves less than " + general_text(100 * CommCosts::kLeastSaved, 3) + " %"
               : "";
}

}  // namespace

std::shared_ptr<const CommCosts> CommCosts::make(
    const std::shared_ptr<const std::vector<Calibration>>& calibrations,
    int ranks,
    int nodes,
    uint32_t mb_s,
    const char* how) {
    if (calibrations == nullptr) {
        return nullptr;
    }
    const double nominal = mb_s / 1e3;
    auto made = std::make_shared<CommCosts>();
    made->calibrations_ = calibrations;
    made->how_ = how;
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
            const Threshold from = known.calibration->threshold(*way, known.gb_s, kLeastSaved);
            all.push_back({known.op, known.dtype, way->codec, way->algorithm,
                           from.pays ? std::optional<uint64_t>(from.enter_bytes) : std::nullopt});
        }
    }
    return all;
}

bool asks_costs(const Action& action) {
    // Stages of one tensor keep residuals alike, so they are of one algorithm.
    const bool staged = action.switches_codec() || action.least_state_rank > 0;
    const bool open = action.auto_bytes || action.algorithm == Algorithm::kAuto;
    return !staged && open && action.codec.has_value() && !action.intra_codec.has_value();
}

CommCosts::Call known_costs(const CallSignature& signature,
                            const PlanShape& shape,
                            const Action& action) {
    // What lies between the two ends of a message was measured only where it is the same for all.
    const bool mixed = is_point_to_point(signature.op) && shape.scope == Scope::kInterNode &&
                       shape.max_ranks_per_node > 1;
    if (shape.costs == nullptr || mixed || !asks_costs(action)) {
        return {};
    }
    CommCosts::Call call =
        shape.costs->find(signature.op, signature.dtype, action.codec->to_string(),
                          message_bytes(signature, shape.ranks));
    if (action.algorithm != Algorithm::kAuto) {
        std::erase_if(call.ways,
                      [&](const CommCosts::Way& way) { return way.algorithm != action.algorithm; });
    }
    return call;
}

std::string why_slower(const CallSignature& signature,
                       const PlanShape& shape,
                       const Action& action) {
    const uint64_t bytes = message_bytes(signature, shape.ranks);
    const auto elems = static_cast<int64_t>(bytes / dtype_bytes(signature.dtype));
    const int64_t encoded = action.codec->encoded_bytes(signature.dtype, elems);
    const bool spread = shape.scope == Scope::kInterNode && shape.max_ranks_per_node > 0;
    const int ends = spread ? (shape.ranks - 1) / shape.max_ranks_per_node + 1 : shape.ranks;
    if (shape.slowest_mb_s == 0 || encoded <= 0 || ends < 2) {
        return bytes >= kLeastBytesOfUnknown
                   ? ""
                   : std::to_string(bytes) + " bytes are less than the " +
                         std::to_string(kLeastBytesOfUnknown) +
                         " from which it pays on a link of unknown bandwidth";
    }
    // Latency without bandwidth: compressed calls have as many steps as NCCL's, or fewer.
    const LinkCost link{0, shape.slowest_mb_s / 1e3};
    const auto size = static_cast<double>(bytes);
    const TimeBySize pass = TimeBySize::of_rate(kCodecGbS, kLaunchS);
    const CodecCost codec{size / static_cast<double>(encoded), pass, pass};
    const bool message = is_point_to_point(signature.op);
    const double native_s =
        (message ? send_cost(size, link) : dense_ring_cost(size, ends, link)).total_s();
    const double seconds =
        (message ? compressed_send_cost(size, link, codec) : two_shot_cost(size, ends, link, codec))
            .total_s();
    return seconds <= (1 - CommCosts::kLeastSaved) * native_s
               ? ""
               : milliseconds(seconds) + " compressed and " + milliseconds(native_s) +
                     " natively, as estimated for " + std::to_string(shape.slowest_mb_s) + " MB/s" +
                     saved_too_little(seconds, native_s);
}

CostChoice choose_by_costs(const CallSignature& signature,
                           const PlanShape& shape,
                           const Action& action,
                           std::vector<Algorithm> shaped) {
    CostChoice choice;
    const CommCosts::Call known = known_costs(signature, shape, action);
    if (known.ways.empty()) {
        choice.algorithms = std::move(shaped);
        return choice;
    }
    const auto saves = [](double seconds, double least, double than) {
        return seconds <= (1 - least) * than;
    };
    CommCosts::Way taken = known.ways.front();
    const auto usual =
        std::find_if(known.ways.begin(), known.ways.end(), [&](const CommCosts::Way& way) {
            return !shaped.empty() && way.algorithm == shaped.front();
        });
    // With min_bytes "auto" also the usual algorithm must pay.
    if (usual != known.ways.end() &&
        !saves(taken.seconds, CommCosts::kSavedByAlgorithm, usual->seconds) &&
        !(action.auto_bytes && !saves(usual->seconds, CommCosts::kLeastSaved, known.native_s))) {
        taken = *usual;
    }
    const std::string measured = milliseconds(taken.seconds) + " by " +
                                 algorithm_name(taken.algorithm) + " and " +
                                 milliseconds(known.native_s) + " natively, " + shape.costs->how();
    if (action.auto_bytes && !saves(taken.seconds, CommCosts::kLeastSaved, known.native_s)) {
        choice.native = measured + saved_too_little(taken.seconds, known.native_s);
        return choice;
    }
    if (usual != known.ways.end()) {
        choice.algorithms.push_back(taken.algorithm);
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
