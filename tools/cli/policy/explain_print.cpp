#include <fmt/core.h>

#include <algorithm>

#include "collectives/adaptive/accordion.h"
#include "collectives/adaptive/warmup.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/feedback/averaging.h"
#include "tools/cli/common/text.h"
#include "tools/cli/policy/explained.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string size_text(uint64_t bytes) {
    return format_bytes(static_cast<double>(bytes));
}

// What the rule says beside a codec.
void print_features(const Explained& found) {
    const Plan& plan = found.plan;
    const auto* const warmup = plan.rule_of<WarmupRule>();
    if (warmup != nullptr && warmup->start_call > 0) {
        fmt::print("  start      native for the first {} calls of a tensor\n", warmup->start_call);
    }
    if (const auto* const accordion = plan.rule_of<AccordionPlan>()) {
        fmt::print("  accordion  or {}: {}\n", codec_text(*accordion->low), accordion->low->reason);
    }
    if (const auto* const averaging = plan.part<Averaging>()) {
        fmt::print(
            "  averaging  of residuals every {} of a tensor's calls, {}: {} a rank at most, "
            "{} a call\n",
            averaging->every,
            averaging->codec == "native" ? "as they are" : "by " + averaging->codec,
            size_text(found.averaging_wire),
            size_text((found.averaging_wire + averaging->every - 1) / averaging->every));
    }
    for (size_t i = 0; warmup != nullptr && i < warmup->variants.size(); ++i) {
        const Plan& stage = *warmup->variants[i];
        fmt::print("  ramp       {}: {}\n", stage.compressed ? codec_text(stage) : "native",
                   stage.reason);
    }
}

}  // namespace

Json json_of(const Explained& found, const Asked& asked, const Config& config) {
    const Plan& plan = found.plan;
    Json json = json_record("explain");
    json["op"] = op_name(asked.signature.op);
    json["dtype"] = dtype_name(asked.signature.dtype);
    json["redop"] = redop_name(asked.signature.redop);
    if (asked.signature.direction != Direction::kUnknown) {
        json["direction"] = direction_name(asked.signature.direction);
    }
    json["count"] = asked.signature.count;
    json["bytes"] = found.bytes;
    json["ranks"] = asked.shape.ranks;
    json["nodes"] = asked.nodes;
    json["policy"] = config.policy.source;
    json["rule"] = plan.rule;
    json["reason"] = plan.reason;
    json["passed_over"] = Json::array();
    for (const auto& [rule, why] : found.passed) {
        json["passed_over"].push_back({{"rule", rule->name}, {"for", why}});
    }
    json["remedy"] = plan.remedy != nullptr ? Json(plan.remedy) : Json(nullptr);
    json["warnings"] = found.warnings;
    json["algorithm"] = algorithm_name(plan.algorithm);
    json["codec"] = plan.compressed ? codec_text(plan) : "native";
    json["steps"] = descriptor_of(plan.algorithm).steps(plan, asked.shape);
    json["slices"] = plan.layout.slices.size();
    json["native_wire_bytes"] = found.native;
    json["wire_bytes"] = found.wire;
    if (plan.compressed) {
        json["node_wire_bytes"] = found.node_wire;
    }
    if (found.measured_native_s > 0) {
        json["calibrated"] = {{"native_s", found.measured_native_s}};
        if (found.measured_s > 0) {
            json["calibrated"]["compressed_s"] = found.measured_s;
            json["calibrated"]["pays_from_bytes"] =
                found.pays.pays ? Json(found.pays.enter_bytes) : Json(nullptr);
        }
    }
    if (!found.times.empty()) {
        json["predicted"] = {{"gpu", asked.gpu.name},
                             {"between_gbit_s", asked.links.between.gb_s * 8}};
        for (const AlgorithmTime& time : found.times) {
            json["predicted"][std::string(cost_algorithm_name(time.algorithm)) + "_s"] =
                time.seconds;
        }
    }
    json["scratch_bytes"] = plan.scratch.bytes;
    json["residual_bytes"] = plan.residual.bytes;
    json["error_feedback"] = error_feedback_name(plan.error_feedback);
    const auto* const warmup = plan.rule_of<WarmupRule>();
    json["start_step"] = warmup != nullptr ? warmup->start_call : 0;
    if (const auto* const accordion = plan.rule_of<AccordionPlan>()) {
        json["low"] = codec_text(*accordion->low);
    }
    if (const auto* const averaging = plan.part<Averaging>()) {
        json["averaging"] = {{"every", averaging->every},
                             {"codec", averaging->codec},
                             {"wire_bytes", found.averaging_wire}};
    }
    for (size_t i = 0; warmup != nullptr && i < warmup->until.size(); ++i) {
        const Plan& stage = *warmup->variants[i];
        json["ramp"].push_back({{"until", warmup->until[i]},
                                {"codec", stage.compressed ? codec_text(stage) : "native"},
                                {"reason", stage.reason}});
    }
    json["captured"] = plan.compressed && plan.capturable;
    return json;
}

void print(const Explained& found, const Asked& asked, const Config& config) {
    const Plan& plan = found.plan;
    fmt::print("{} of {} ({} {}{}) on {} ranks, {} node{}\n", op_name(asked.signature.op),
               size_text(found.bytes), asked.signature.count, dtype_name(asked.signature.dtype),
               asked.signature.redop == RedOp::kNone
                   ? ""
                   : fmt::format(", {}", redop_name(asked.signature.redop)),
               asked.shape.ranks, asked.nodes, asked.nodes == 1 ? "" : "s");
    for (const auto& [rule, why] : found.passed) {
        fmt::print("  rule '{}' is passed over: {}\n", rule->name, why);
    }
    fmt::print("  rule       {}\n", plan.rule.empty() ? "none takes it"
                                                      : fmt::format("'{}' of {}", plan.rule,
                                                                    plan.rule == kEnvironmentRule
                                                                        ? "environment"
                                                                        : config.policy.source));
    fmt::print("  plan       {}: {}\n",
               plan.compressed
                   ? fmt::format("{}, {}", algorithm_name(plan.algorithm), codec_text(plan))
                   : "native",
               plan.reason);
    if (plan.remedy != nullptr) {
        fmt::print("  remedy     {}\n", plan.remedy);
    }
    for (const std::string& warning : found.warnings) {
        fmt::print("  warning    {}\n", warning);
    }
    int number = 0;
    for (const std::string& step : descriptor_of(plan.algorithm).steps(plan, asked.shape)) {
        fmt::print("  {:<10} {}. {}\n", number == 0 ? "steps" : "", number + 1, step);
        ++number;
    }
    if (!plan.compressed) {
        fmt::print("  wire       {} a rank at most\n", size_text(found.native));
        return;
    }
    if (plan.layout.slices.size() > 1) {
        fmt::print("  slices     {}, so that codec and wire overlap\n", plan.layout.slices.size());
    }
    fmt::print(
        "  wire       {} a rank at most, natively {}: {:.2f} times less\n", size_text(found.wire),
        size_text(found.native),
        static_cast<double>(found.native) / static_cast<double>(std::max<uint64_t>(found.wire, 1)));
    if (asked.nodes > 1) {
        fmt::print("  network    {} out of a node at most\n", size_text(found.node_wire));
    }
    for (const AlgorithmTime& time : found.times) {
        fmt::print("  {:<10} {:<12} {:>9.3f} ms{}\n", &time == found.times.data() ? "on paper" : "",
                   cost_algorithm_name(time.algorithm), 1e3 * time.seconds,
                   &time != found.times.data() ? ""
                   : asked.nodes > 1 ? fmt::format(" ({}, {:g} Gbit/s a rank between nodes)",
                                                   asked.gpu.name, 8 * asked.links.between.gb_s)
                                     : fmt::format(" ({})", asked.gpu.name));
    }
    if (found.measured_native_s > 0) {
        fmt::print("  calibrated native {:.3f} ms", 1e3 * found.measured_native_s);
        if (found.measured_s > 0) {
            fmt::print(", compressed {:.3f} ms; pays {}", 1e3 * found.measured_s,
                       found.pays.pays ? "from " + size_text(found.pays.enter_bytes) + " on"
                                       : std::string("at no size measured"));
        }
        fmt::print("\n");
    }
    fmt::print("  memory     {} of scratch for all calls of the communicator",
               size_text(plan.scratch.bytes));
    if (plan.residual.bytes > 0) {
        fmt::print(", {} that each tensor keeps", size_text(plan.residual.bytes));
    }
    fmt::print("\n");
    print_features(found);
    if (plan.needs_slot) {
        fmt::print("  tensors    by their slot in the step: native until that is known\n");
    }
    fmt::print("  graphs     captured calls are {}\n", plan.capturable ? "compressed" : "native");
}

}  // namespace slimwire::cli
