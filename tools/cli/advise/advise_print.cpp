// What `slimwire advise` prints: text, JSON, a policy file.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/cli/advise/advise.h"
#include "tools/cli/common/text.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string milliseconds(double seconds) {
    const double ms = seconds * 1e3;
    return fmt::format("{:.{}f}", ms, ms >= 100 ? 0 : ms >= 1 ? 1 : 3);
}

std::string parameters_text(double parameters) {
    return parameters >= 1e9 ? fmt::format("{:.3g} billion parameters", parameters / 1e9)
                             : fmt::format("{:.3g} million parameters", parameters / 1e6);
}

// Smaller messages are left alone, whatever the model says of them: it knows no launch that is
// late.
uint64_t min_bytes(const Advice& advice) {
    return std::max<uint64_t>(advice.threshold.enter_bytes, 64 << 10);
}

std::string limit_text(double gb_s) {
    return gb_s >= kNoLimit ? "any" : gbit_s_text(gb_s);
}

std::string candidate_name(const AdviseInput& input, const Candidate& candidate) {
    return fmt::format("{} {}", traffic_name(candidate.traffic),
                       input.codecs[candidate.codec].to_string());
}

std::string sweep_text(const char* unit,
                       const AdviseInput& input,
                       const std::vector<SweepPoint>& points) {
    std::string text = fmt::format("{:>10} {:>12}", unit, "native, ms");
    for (const CodecSpec& codec : input.codecs) {
        text += fmt::format(" {:>16}", codec.to_string());
    }
    text += "\n";
    for (const SweepPoint& point : points) {
        text += fmt::format("{:>10} {:>12}", point.x, milliseconds(point.native_s));
        for (const double with_s : point.with_s) {
            text += fmt::format(" {:>15.2f}x", point.native_s / with_s);
        }
        text += "\n";
    }
    return text;
}

std::string head_text(const AdviseInput& input) {
    const Parallelism& p = input.parallelism;
    return fmt::format(
        "model     {} layers, hidden {}, sequence {}, micro-batch {} x {}; {}\n"
        "job       {} GPUs: tensor {} x pipeline {} x data {}; {} a node, {} nodes\n"
        "cluster   {}: {:.4g} GB/s within a node, {:.4g} Gbit/s between nodes for each GPU, {:.4g} "
        "TFLOP/s reached\n"
        "gradients {}; {}\n",
        input.model.layers, input.model.hidden, input.model.sequence, input.model.micro_batch,
        input.model.micro_batches, parameters_text(input.model.parameters()), p.gpus(), p.tensor,
        p.pipeline, p.data, input.cluster.gpus_per_node,
        (p.gpus() + input.cluster.gpus_per_node - 1) / input.cluster.gpus_per_node, input.gpu.name,
        input.cluster.within.gb_s, input.cluster.between.gb_s * 8, input.cluster.gpu_flops / 1e12,
        dtype_name(input.gradients),
        input.measured.empty()
            ? fmt::format("codecs at {:.4g} GB/s of the memory's {:.4g}: data sheet, not measured",
                          0.85 * input.gpu.hbm_gb_s, input.gpu.hbm_gb_s)
            : "link and codecs as calibrated");
}

std::string verdict(const AdviseInput& input, const Advice& advice) {
    if (advice.advised < 0) {
        return "stay native: no codec on the gradients saves 5 % of the step";
    }
    const Candidate& best = advice.candidates[static_cast<size_t>(advice.advised)];
    return fmt::format(
        "{} on the gradients: step {:.2f}x faster; pays below {} Gbit/s for each GPU{}",
        input.codecs[best.codec].to_string(), best.speedup, limit_text(best.break_even_gb_s),
        advice.threshold.pays
            ? fmt::format(" and from {} KiB a message", (min_bytes(advice) + 1023) / 1024)
            : "");
}

Json step_json(const StepCost& step) {
    return {{"compute_s", step.compute_s},
            {"tensor_s", step.tensor_s},
            {"boundary_s", step.boundary_s},
            {"gradient_s", step.gradient_s},
            {"gradient_exposed_s", step.gradient_exposed_s},
            {"total_s", step.total_s()}};
}

}  // namespace

std::string gbit_s_text(double gb_s) {
    const double gbit_s = 8 * gb_s;
    return fmt::format("{:.{}f}", gbit_s,
                       gbit_s >= 100  ? 0
                       : gbit_s >= 10 ? 1
                       : gbit_s >= 1  ? 2
                                      : 3);
}

std::string advice_text(const AdviseInput& input, const Advice& advice) {
    std::string text = head_text(input);
    text += fmt::format("advice    {}\n\n{:<34} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}\n",
                        verdict(input, advice), "step, ms", "compute", "tensor", "stages",
                        "gradients", "exposed", "total", "speed-up", "pays below");
    const auto row = [&text](const std::string& name, const StepCost& step) {
        text += fmt::format("{:<34} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}", name,
                            milliseconds(step.compute_s), milliseconds(step.tensor_s),
                            milliseconds(step.boundary_s), milliseconds(step.gradient_s),
                            milliseconds(step.gradient_exposed_s), milliseconds(step.total_s()));
    };
    row("native", advice.native);
    text += "\n";
    for (const Candidate& candidate : advice.candidates) {
        row(candidate_name(input, candidate), candidate.step);
        text += fmt::format(" {:>8.2f}x {:>5} Gbit/s\n", candidate.speedup,
                            limit_text(candidate.break_even_gb_s));
    }
    text += "\nby number of GPUs, data parallelism growing: speed-up with the gradients in\n" +
            sweep_text("GPUs", input, advice.by_gpus) +
            "\nby bandwidth between nodes for each GPU\n" +
            sweep_text("Gbit/s", input, advice.by_bandwidth);
    return text;
}

Json advice_json(const AdviseInput& input, const Advice& advice) {
    Json json = json_record("advise");
    json["gpu"] = input.gpu.name;
    json["parameters"] = input.model.parameters();
    json["tensor"] = input.parallelism.tensor;
    json["pipeline"] = input.parallelism.pipeline;
    json["data"] = input.parallelism.data;
    json["gpus_per_node"] = input.cluster.gpus_per_node;
    json["within_gb_s"] = input.cluster.within.gb_s;
    json["between_gbit_s"] = input.cluster.between.gb_s * 8;
    json["gpu_flops"] = input.cluster.gpu_flops;
    json["layer_s"] = input.cluster.layer_s;
    if (input.layers_fit) {
        json["layers_fit"] = {{"median_error", input.layers_fit->median_error},
                              {"worst_error", input.layers_fit->worst_error},
                              {"r_squared", input.layers_fit->r_squared}};
    }
    json["calibrated"] = !input.measured.empty();
    json["codecs"] = Json::array();
    for (const CodecSpec& codec : input.codecs) {
        json["codecs"].push_back(codec.to_string());
    }
    json["native"] = step_json(advice.native);
    json["candidates"] = Json::array();
    for (const Candidate& candidate : advice.candidates) {
        Json entry{{"traffic", traffic_name(candidate.traffic)},
                   {"codec", input.codecs[candidate.codec].to_string()},
                   {"step", step_json(candidate.step)},
                   {"speedup", candidate.speedup}};
        entry["break_even_gb_s"] =
            candidate.break_even_gb_s >= kNoLimit ? Json(nullptr) : Json(candidate.break_even_gb_s);
        json["candidates"].push_back(std::move(entry));
    }
    json["advised"] = advice.advised;
    json["min_bytes"] = min_bytes(advice);
    for (const auto& [name, points] :
         {std::pair("by_gpus", &advice.by_gpus), std::pair("by_bandwidth", &advice.by_bandwidth)}) {
        json[name] = Json::array();
        for (const SweepPoint& point : *points) {
            json[name].push_back(
                {{"x", point.x}, {"native_s", point.native_s}, {"with_s", point.with_s}});
        }
    }
    return json;
}

bool casts_only(const CodecSpec& codec) {
    return codec.to_string() == "bf16" || codec.to_string() == "fp16";
}

std::string advice_policy(const AdviseInput& input, const Advice& advice) {
    if (advice.advised < 0) {
        return {};
    }
    const Candidate& best = advice.candidates[static_cast<size_t>(advice.advised)];
    const CodecSpec& codec = input.codecs[best.codec];
    const GroupSpan span = data_span(input.parallelism, input.cluster.gpus_per_node);
    std::string match = fmt::format(
        "op = [\"allreduce\", \"reducescatter\"], dtype = \"{}\", redop = [\"sum\", \"avg\", "
        "\"premulsum\"], bytes = \"{}..\"",
        dtype_name(input.gradients), min_bytes(advice));
    match += span.nodes > 1 ? ", scope = \"inter_node\"" : "";
    // Only where other all-reduces would be taken for gradients.
    match += input.parallelism.tensor > 1 ? ", role = \"dp\"" : "";
    return fmt::format(
        "{} for a model of {} on {} GPUs, {} "
        "Gbit/s "
        "between nodes\n# for each. Predicted: step {:.2f}x faster. Look at the "
        "loss "
        "before you rely on it.\nversion = 1\n\n[[rule]]\nname = \"gradients\"\nmatch = {{ {} "
        "}}\ncodec "
        "= \"{}\"\n{}",
        kWrittenByAdvise, parameters_text(input.model.parameters()), input.parallelism.gpus(),
        input.cluster.between.gb_s * 8, best.speedup, match, codec.to_string(),
        casts_only(codec) ? "" : "error_feedback = \"ef14\"\n");
}

}  // namespace slimwire::cli
