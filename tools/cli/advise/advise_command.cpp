// `slimwire advise`: reads a description of a training job and prints what compressing would gain.
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "collectives/algorithms/algorithm.h"
#include "collectives/policy/names.h"
#include "collectives/policy/policy.h"
#include "tools/cli/advise/advise.h"
#include "tools/cli/common/argument_checks.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/optimizers.h"
#include "tools/cli/common/text.h"
#include "tools/cli/topo/topo.h"

namespace slimwire::cli {
namespace {

constexpr int kMostGpus = 1 << 20;

struct AdviseOptions {
    AdviseInput input;
    std::string gpu = "h100", dtype = "bf16", xml, policy, layer_times, calibration;
    std::string optimizer = "adam";
    std::vector<std::string> codecs, traces;
    double utilization = 0.4, within_gb_s = 0, between_gbit_s = 0;
    bool json = false;
};

// Bandwidths of a recorded machine, where the command line has none.
Status read_machine(AdviseOptions* options) {
    SLIMWIRE_TRY_ASSIGN(Machine machine, load_machine(options->xml));
    const Topo topo(std::move(machine), {}, 2);
    if (topo.places.gpus.empty()) {
        return invalid(options->xml + " has no GPUs");
    }
    // An NVLink domain of several hosts is one node to its GPUs.
    const bool domain = topo.places.nv_domains == 1 &&
                        std::all_of(topo.places.gpus.begin(), topo.places.gpus.end(),
                                    [](const GpuPlace& place) { return place.nv_domain == 0; });
    options->input.cluster.gpus_per_node =
        static_cast<int>(topo.places.gpus.size() / (domain ? 1 : topo.machine.hosts.size()));
    if (options->within_gb_s <= 0 && !topo.machine.gpu_links_told) {
        return invalid(
            fmt::format("{} does not tell the links between GPUs, which NCCL finds itself; "
                        "accepted: --within with their GB/s of one direction ({:g} where {} "
                        "have NVLink)",
                        options->xml, options->input.gpu.nvlink_gb_s, options->input.gpu.name));
    }
    if (options->within_gb_s <= 0) {
        options->within_gb_s = topo.links.slowest_in_node.mb_s / 1000.0;
    }
    if (options->between_gbit_s <= 0) {
        options->between_gbit_s = topo.places.gpus.front().net_gb_s * 8;
        bool known = true;
        for (const GpuPlace& place : topo.places.gpus) {
            known = known && place.net_known;
            // Those on one rail share it.
            const auto sharing =
                std::count_if(topo.places.gpus.begin(), topo.places.gpus.end(),
                              [&place](const GpuPlace& other) { return other.nics == place.nics; });
            options->between_gbit_s =
                std::min(options->between_gbit_s,
                         place.net_gb_s * 8 / static_cast<double>(std::max<long>(sharing, 1)));
        }
        if (!known) {
            note(fmt::format(
                "{} does not tell what the network brings, {}; --between says it", options->xml,
                options->between_gbit_s > 0 ? "taken for what PCIe does" : "taken for 400 Gbit/s"));
        }
    }
    return {};
}

// Whether gradients can go by a rule with the codec, as policies of advise have it.
Status check_codec(const CodecSpec& codec, DType gradients) {
    const auto refuse = [&](const std::string& why) {
        return invalid(
            fmt::format("--codec {}: gradients do not go by it: {}; accepted: a codec "
                        "that all-reduces go by",
                        codec.to_string(), why));
    };
    Result<Policy> policy = parse_policy(
        fmt::format("version = 1\n[[rule]]\nname = \"gradients\"\nmatch = {{ op = \"allreduce\" "
                    "}}\ncodec = \"{}\"\n{}",
                    codec.to_string(), casts_only(codec) ? "" : "error_feedback = \"ef14\"\n"),
        "policy");
    if (!policy.ok()) {
        return refuse(policy.status().message());
    }
    const Action& action = policy.value().rules.front().action;
    const CallSignature signature{Op::kAllReduce, gradients, RedOp::kSum, 0, 1 << 24};
    PlanShape shape;
    shape.ranks = 2;
    const AlgorithmRequest request{signature, shape, action};
    const std::string why = why_not(candidates(request).front(), request);
    return why.empty() ? Status() : refuse(why);
}

Status complete(AdviseOptions* options) {
    AdviseInput& input = options->input;
    const Parallelism& parallelism = input.parallelism;
    if (int64_t{parallelism.tensor} * parallelism.pipeline > kMostGpus / parallelism.data) {
        return invalid(fmt::format("--tp {} x --pp {} x --dp {}; accepted: at most {} GPUs",
                                   parallelism.tensor, parallelism.pipeline, parallelism.data,
                                   kMostGpus));
    }
    SLIMWIRE_TRY_ASSIGN(input.gpu, find_gpu(options->gpu));
    input.gradients = *parse_dtype(options->dtype);
    if (!options->xml.empty()) {
        SLIMWIRE_TRY(read_machine(options));
    }
    ClusterCost& cluster = input.cluster;
    cluster.within.gb_s = options->within_gb_s > 0 ? options->within_gb_s : input.gpu.nvlink_gb_s;
    cluster.between.gb_s = (options->between_gbit_s > 0 ? options->between_gbit_s : 400) / 8;
    cluster.gpu_flops = options->utilization * input.gpu.dense_tflops * 1e12;
    cluster.gradient_bytes = static_cast<double>(dtype_bytes(input.gradients));
    if (!options->layer_times.empty()) {
        SLIMWIRE_TRY(use_layer_times(options->layer_times, &input));
    }
    std::vector<std::string> candidates = options->codecs;
    if (candidates.empty() && options->calibration.empty()) {
        candidates = {"int8", "int4"};
        if (options->optimizer == "sgd") {
            candidates.emplace_back("int2:block=512");
        }
    }
    for (const std::string& text : candidates) {
        SLIMWIRE_TRY_ASSIGN(CodecSpec codec, parse_codec(text));
        if (!codec.accepts(input.gradients) || codec.encoded_bytes(input.gradients, 1 << 20) <= 0) {
            return invalid(
                fmt::format("codec {} does not encode {} by itself; accepted: a codec of plain "
                            "elements",
                            text, options->dtype));
        }
        SLIMWIRE_TRY(check_codec(codec, input.gradients));
        input.codecs.push_back(codec);
    }
    const bool adam = options->optimizer == "adam";
    if (!options->calibration.empty()) {
        return use_calibration(options->calibration, adam, &input);
    }
    for (const CodecSpec& codec : input.codecs) {
        if (adam && loses_under_adam(codec)) {
            note(codec.to_string() + " " + kUnderAdam + " (--optimizer sgd says that it is SGD)");
        }
    }
    if (options->codecs.empty() && input.gradients == DType::kFloat32) {
        SLIMWIRE_TRY_ASSIGN(const CodecSpec cast, parse_codec("bf16"));
        input.codecs.insert(input.codecs.begin(), cast);
    }
    return {};
}

// In `run` and `explain` --policy is the input, so a policy that somebody else wrote stays.
Status check_policy_path(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
        return {};
    }
    std::string first;
    std::getline(std::ifstream(path, std::ios::binary), first);
    if (!first.empty() && first.rfind(kWrittenByAdvise, 0) != 0) {
        return invalid(
            fmt::format("--policy {} was not written by advise, which would overwrite it; "
                        "accepted: a new file, or one that begins with \"{}\"",
                        path, kWrittenByAdvise));
    }
    return {};
}

Status write_policy(const AdviseOptions& options, const std::string& policy) {
    if (options.policy.empty()) {
        return {};
    }
    if (policy.empty()) {
        note("no policy written: native is advised");
        return {};
    }
    SLIMWIRE_TRY(parse_policy(policy, options.policy).status());
    SLIMWIRE_TRY(write_page(options.policy, policy));
    note("wrote " + options.policy);
    return {};
}

int advise_by_trace(const AdviseOptions& options) {
    SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, const TraceTable table, read_traces(options.traces));
    note_all(table.notes);
    const TraceAdviseInput input{options.input.codecs, options.input.gpu,
                                 options.input.cluster.between};
    const TraceAdvice advice = advise_trace(table, input);
    SLIMWIRE_OR_FAIL(kCheckFailed, write_policy(options, trace_advice_policy(advice, input)));
    fmt::print("{}", options.json ? json_line(trace_advice_json(advice, input)) + "\n"
                                  : trace_advice_text(advice, input));
    return kSuccess;
}

int run_advise(AdviseOptions* options) {
    SLIMWIRE_OR_FAIL(kUsage, check_policy_path(options->policy));
    SLIMWIRE_OR_FAIL(kUsage, complete(options));
    if (!options->traces.empty()) {
        return advise_by_trace(*options);
    }
    const Advice advice = advise(options->input);
    SLIMWIRE_OR_FAIL(kCheckFailed, write_policy(*options, advice_policy(options->input, advice)));
    fmt::print("{}", options->json ? json_line(advice_json(options->input, advice)) + "\n"
                                   : advice_text(options->input, advice));
    return kSuccess;
}

}  // namespace

void add_advise_command(CLI::App& app, Invocation* invocation) {
    auto o = std::make_shared<AdviseOptions>();
    AdviseInput& input = o->input;
    input.cluster.within = kWithinNode;
    input.cluster.between = kBetweenNodes;
    CLI::App* command = app.add_subcommand(
        "advise",
        "what compressing would gain a training job: step time natively and under "
        "candidate "
        "codecs, the bandwidth below which they pay, 8 to 16384 GPUs, 1 to 800 Gbit/s");
    const auto number = [command](const char* name, double* value, const char* help) {
        command->add_option(name, *value, help)->check(positive_number())->capture_default_str();
    };
    const auto count = [command](const char* name, int* value, const char* help) {
        command->add_option(name, *value, help)
            ->check(CLI::Range(1, kMostGpus))
            ->capture_default_str();
    };
    number("--layers", &input.model.layers, "transformer layers");
    number("--hidden", &input.model.hidden, "hidden size");
    number("--sequence", &input.model.sequence, "tokens of a sample");
    number("--micro-batch", &input.model.micro_batch, "samples of a micro-batch");
    number("--micro-batches", &input.model.micro_batches, "micro-batches of a step");
    number("--vocabulary", &input.model.vocabulary, "words of the embedding");
    count("--tp", &input.parallelism.tensor, "tensor parallelism");
    count("--pp", &input.parallelism.pipeline, "pipeline parallelism");
    count("--dp", &input.parallelism.data, "data parallelism");
    count("--gpus-per-node", &input.cluster.gpus_per_node, "GPUs of a node");
    command->add_option("--gpu", o->gpu, "v100 a100 h100 h200 b200 l40s a10g mi300x")
        ->capture_default_str();
    command
        ->add_option("--utilization", o->utilization,
                     "part of the GPU's dense 16-bit TFLOP/s that is reached")
        ->check(number_between(0.001, 1))
        ->capture_default_str();
    number("--within", &o->within_gb_s,
           "GB/s between GPUs of a node; default: of the GPU's NVLink");
    number("--between", &o->between_gbit_s, "Gbit/s between nodes for each GPU; default: 400");
    command->add_option("--xml", o->xml,
                        "take bandwidths and GPUs of a node from a recorded machine");
    command->add_option("--gradients", o->dtype, "type of gradients on the wire: f32 bf16")
        ->transform(type_among({"f32", "bf16"}))
        ->capture_default_str();
    command
        ->add_option("--overlap", input.cluster.overlap,
                     "part of the last backward pass that gradients hide behind")
        ->check(number_between(0, 1))
        ->capture_default_str();
    command
        ->add_option("--optimizer", o->optimizer,
                     "adam or sgd: codecs of less than four bits keep the loss under SGD alone")
        ->check(CLI::IsMember({"adam", "sgd"}))
        ->capture_default_str();
    command->add_option("--codec", o->codecs,
                        "candidates, the careful first; default: int8 int4, and for SGD "
                        "int2:block=512");
    command->add_flag("--json", o->json, "one JSON line");
    command->add_option("--layer-times", o->layer_times,
                        "times of layers measured here at this --tp, as "
                        "tests/papers/mcbench/layers writes them, instead of --utilization");
    CLI::Option* calibration =
        command->add_option("--calibration", o->calibration,
                            "what slimwire calibrate --out wrote: its link and codecs instead of "
                            "data sheets");
    CLI::Option* trace = command->add_option(
        "--trace", o->traces,
        "instead of a model: traces of a job (SLIMWIRE_MODE=record or shadow); its "
        "calls took what they took");
    trace->excludes(calibration);
    command->add_option("--policy", o->policy,
                        "also write a policy of what is advised to this file, new or of advise");
    command->footer(
        "A model, from data sheets unless --layer-times and --calibration are given: good for what "
        "pays and where, not for milliseconds. "
        "Formulas: topology/README.md.");
    command->callback([=] { invocation->action = [=] { return run_advise(o.get()); }; });
}

}  // namespace slimwire::cli
