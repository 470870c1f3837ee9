// `slimwire explain`: what would become of a call, and why, without running anything. The plan is
// the one that the job would make: from the same configuration, by the same functions.
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <memory>
#include <optional>

#include "collectives/algorithms/algorithm.h"
#include "collectives/dispatch/planner.h"
#include "collectives/feedback/averaging.h"
#include "collectives/plan/comm_costs.h"
#include "collectives/policy/calibration_file.h"
#include "collectives/policy/config.h"
#include "collectives/policy/names.h"
#include "tools/cli/advise/advise.h"
#include "tools/cli/common/argument_checks.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/text.h"
#include "tools/cli/policy/explained.h"
#include "tools/cli/run/job.h"

namespace slimwire::cli {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kMostRanksOnNodes = 1 << 16;          // which plans take longer for
constexpr uint64_t kMostElems = uint64_t{1} << 40;  // so many of each rank are below 2^63 bytes

struct ExplainOptions {
    std::string op = "allreduce";
    std::string bytes;
    uint64_t count = 0;
    std::string dtype = "f32";
    std::string redop;
    std::string nodes;
    int ranks = 2;
    std::string comm;
    std::string direction;
    std::string shapes;
    std::string policy, codec;
    std::string gpu = "h100";
    double between_gbit_s = 400;
    std::string calibration;
    bool json = false;
};

template <class Value>
Result<Value> one_of(const char* option,
                     const std::string& text,
                     std::optional<Value> (*parse)(std::string_view),
                     const std::vector<std::string_view>& names) {
    const std::optional<Value> value = parse(text);
    return value ? Result<Value>(*value)
                 : Result<Value>(invalid(fmt::format("{} '{}'{}; accepted: {}", option, text,
                                                     suggestion(text, names), join(names))));
}

// Elements of NCCL's count argument, of an operation whose message is `bytes` long.
Result<uint64_t> count_of(CallSignature signature, int ranks, uint64_t bytes) {
    signature.count = 1;
    const uint64_t each = message_bytes(signature, ranks);
    if (bytes % each != 0) {
        return invalid(fmt::format("--bytes {}: {} of {} on {} ranks needs a multiple of {}", bytes,
                                   op_name(signature.op), dtype_name(signature.dtype), ranks,
                                   each));
    }
    if (bytes / each > kMostElems) {
        return invalid(fmt::format("--bytes {}: accepted: at most {} elements", bytes, kMostElems));
    }
    return bytes / each;
}

// The parameters that a message of `count` elements carries, from "1024x512,512": one behind the
// other.
Result<ParameterRanges> read_shapes(const std::string& text, uint64_t count) {
    ParameterRanges parameters;
    uint64_t end = 0;
    for (const std::string& shape : CLI::detail::split(text, ',')) {
        ParameterRange range;
        range.offset = end;
        range.count = 1;
        range.parameter = static_cast<uint32_t>(parameters.ranges.size());
        for (const std::string& word : CLI::detail::split(shape, 'x')) {
            uint64_t extent = 0;
            const auto read = std::from_chars(word.data(), word.data() + word.size(), extent);
            if (read.ec != std::errc() || read.ptr != word.data() + word.size() || extent == 0 ||
                extent > count || range.dimensions == UINT8_MAX ||
                __builtin_mul_overflow(range.count, extent, &range.count)) {
                return invalid(fmt::format(
                    "--shapes '{}': accepted: shapes of parameters, as 1024x512,512", text));
            }
            range.rows = range.dimensions == 0 ? static_cast<int64_t>(extent) : range.rows;
            ++range.dimensions;
        }
        if (__builtin_add_overflow(end, range.count, &end)) {
            end = ~0ull;
        }
        parameters.ranges.push_back(range);
    }
    if (end != count) {
        return invalid(
            fmt::format("--shapes '{}' have {} elements, the message {}", text, end, count));
    }
    return parameters;
}

Result<Asked> read_options(const ExplainOptions& options) {
    Asked asked;
    SLIMWIRE_TRY_ASSIGN(asked.signature.op, one_of("--op", options.op, parse_op, op_names()));
    SLIMWIRE_TRY_ASSIGN(asked.signature.dtype,
                        one_of("--dtype", options.dtype, parse_dtype, dtype_names()));
    asked.signature.redop = reduces(asked.signature.op) ? RedOp::kSum : RedOp::kNone;
    if (!options.redop.empty()) {
        SLIMWIRE_TRY_ASSIGN(const RedOp redop,
                            one_of("--redop", options.redop, parse_redop, redop_names()));
        if ((redop == RedOp::kNone) == reduces(asked.signature.op)) {
            return invalid(
                fmt::format("--redop {}: {} {}", options.redop, op_name(asked.signature.op),
                            reduces(asked.signature.op) ? "reduces" : "reduces nothing"));
        }
        asked.signature.redop = redop;
    }
    if (!options.direction.empty()) {
        SLIMWIRE_TRY_ASSIGN(asked.signature.direction, one_of("--direction", options.direction,
                                                              parse_direction, direction_names()));
        const Op op = asked.signature.op;
        if (!is_point_to_point(op) && op != Op::kAllToAll && op != Op::kAllGather &&
            op != Op::kReduceScatter) {
            return invalid(
                fmt::format("--direction: {} has none; accepted: with --op send, recv, alltoall, "
                            "allgather or reducescatter",
                            op_name(op)));
        }
    }
    int per_node = 1;
    asked.nodes = options.ranks;
    if (!options.nodes.empty()) {
        SLIMWIRE_TRY_ASSIGN(const NodeShape shape,
                            parse_nodes(options.nodes, "--nodes", kMostRanksOnNodes));
        asked.nodes = shape.nodes;
        per_node = shape.ranks_per_node;
    }
    std::vector<RankIdentity> identities;
    for (int rank = 0; rank < asked.nodes * per_node; ++rank) {
        identities.push_back({.host_id = 1 + static_cast<uint64_t>(rank / per_node),
                              .device = rank % per_node,
                              .launcher_rank = rank});
    }
    SLIMWIRE_TRY_ASSIGN(const CommShape comm, make_comm_shape(identities));
    asked.shape.ranks = comm.ranks;
    asked.shape.scope = comm.scope;
    asked.shape.max_ranks_per_node = comm.max_ranks_per_node;
    asked.shape.nodes = std::make_shared<const NodeTable>(comm);
    asked.shape.go = true;
    asked.shape.name = options.comm;
    SLIMWIRE_TRY_ASSIGN(asked.gpu, find_gpu(options.gpu));
    asked.links.nodes = asked.nodes;
    asked.links.local = per_node;
    asked.links.within = kWithinNode;
    asked.links.within.gb_s = asked.gpu.nvlink_gb_s;
    asked.links.between = kBetweenNodes;
    asked.links.between.gb_s = options.between_gbit_s / 8;
    asked.links.slice_s = ClusterCost().slice_s;
    asked.signature.count = options.count;
    if (options.bytes.empty() == (options.count == 0)) {
        return invalid("accepted: one of --bytes and --count");
    }
    if (!options.bytes.empty()) {
        SLIMWIRE_TRY_ASSIGN(const uint64_t bytes, parse_bytes(options.bytes));
        SLIMWIRE_TRY_ASSIGN(asked.signature.count, count_of(asked.signature, comm.ranks, bytes));
    }
    if (!options.shapes.empty()) {
        SLIMWIRE_TRY_ASSIGN(asked.parameters, read_shapes(options.shapes, asked.signature.count));
        asked.signature.ranges_id = 1;
    }
    return asked;
}

// What the call lacks of the match, the first key; empty where it has everything but what only a
// running job tells.
std::string lacks(const Rule& rule, const Asked& asked, uint64_t bytes) {
    const Match& match = rule.match;
    const auto has = [](uint32_t set, auto value) { return (set & bit_of(value)) != 0; };
    const PlanShape& shape = asked.shape;
    return rule.off                                                         ? "off"
           : !has(match.ops, asked.signature.op)                            ? "op"
           : !has(match.dtypes, asked.signature.dtype)                      ? "dtype"
           : !has(match.redops, asked.signature.redop)                      ? "redop"
           : bytes < match.min_bytes || bytes > match.max_bytes             ? "bytes"
           : shape.ranks < match.min_ranks || shape.ranks > match.max_ranks ? "ranks"
           : match.scope && *match.scope != shape.scope                     ? "scope"
           : match.directions != 0 && asked.signature.direction != Direction::kUnknown &&
                   !has(match.directions, asked.signature.direction)
               ? "direction"
           : !matches_call(match, asked.signature, bytes, shape.ranks, shape.scope, shape.name)
               ? (match.parameters.any() ? "comm or role" : "comm, role or param")
               : "";
}

// What only a running job tells, and the rule asks for; empty where it takes none of the parameters
// that are told.
std::string asks_more(const Match& match, const Asked& asked) {
    std::string text;
    const auto add = [&](bool asks, const char* what) {
        text += asks ? (text.empty() ? "" : ", ") + std::string(what) : "";
    };
    add(!match.parameters.any() && !asked.parameters, "parameters (say --shapes)");
    add(!match.ordinals.empty(), "ordinal");
    add(match.directions != 0 && asked.signature.direction == Direction::kUnknown,
        "direction (say --direction)");
    return text;
}

// Without what error feedback adds to it, which calibrations have none of.
std::string codec_text_of_message(const Plan& plan) {
    const std::string text = codec_text(plan);
    return text.substr(0, text.find('+'));
}

// What a calibration says of the call, where it has such calls.
void look_up(const Calibration& calibration, Explained* found) {
    const double gb_s = calibration.link.gb_s;
    const auto bytes = static_cast<double>(found->bytes);
    found->measured_native_s = calibration.ways.front().seconds(bytes, gb_s);
    const CalibratedWay* way = found->plan.compressed
                                   ? calibration.find(codec_text_of_message(found->plan),
                                                      algorithm_name(found->plan.algorithm))
                                   : nullptr;
    if (way != nullptr) {
        found->measured_s = way->seconds(bytes, gb_s);
        found->pays = calibration.threshold(*way, gb_s, 0.05);
    }
}

// Of the codec that most of the message travels by.
std::vector<AlgorithmTime> times_of(const Explained& found, const Asked& asked) {
    const Plan& plan = found.plan;
    const Piece* most = nullptr;
    for (const Slice& slice : plan.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            most = most == nullptr || piece.count > most->count ? &piece : most;
        }
    }
    if (most == nullptr || asked.shape.ranks < 2) {
        return {};
    }
    CommCost links = asked.links;
    links.slices = static_cast<int>(plan.layout.slices.size());
    CodecCost codec = codec_on(asked.gpu, most->codec, asked.signature.dtype);
    const auto size = static_cast<double>(found.bytes);
    switch (asked.signature.op) {
        case Op::kAllReduce:
            return all_reduce_times(size, links, codec);
        case Op::kReduceScatter:
            return hop_times(CostHop::kReduceScatter, size, links, codec);
        case Op::kAllGather:
            return hop_times(CostHop::kAllGather, size, links, codec);
        case Op::kAllToAll:
            return hop_times(CostHop::kAllToAll, size, links, codec);
        case Op::kSend:
        case Op::kRecv:
            // An answer has no positions.
            codec.ratio = found.wire > 0 ? size / static_cast<double>(found.wire) : codec.ratio;
            return hop_times(CostHop::kMessage, size, links, codec);
        case Op::kReduce:
            return reduce_times(size, links, codec);
        case Op::kBroadcast:
            return hop_times(CostHop::kBroadcast, size, links, codec);
        case Op::kGather:
            return hop_times(CostHop::kGather, size, links, codec);
        case Op::kScatter:
            return hop_times(CostHop::kScatter, size, links, codec);
    }
    return {};
}

Explained explained(const Asked& asked, const Config& config) {
    Explained out;
    out.plan = make_plan(asked.signature, asked.shape, config,
                         asked.parameters ? &*asked.parameters : nullptr);
    out.bytes = message_bytes(asked.signature, asked.shape.ranks);
    CallSignature sender = asked.signature;
    sender.op = sender.op == Op::kRecv ? Op::kSend : sender.op;
    out.native = native_wire_bytes(sender, asked.shape.ranks);
    out.wire = out.native;
    if (out.plan.compressed) {
        const ExchangeSizes sizes = descriptor_of(out.plan.algorithm)
                                        .sizes({out.plan.layout, asked.signature, asked.shape});
        out.wire = sizes.wire_bytes;
        out.node_wire = sizes.node_wire_bytes;
        if (const auto* const averaging = out.plan.part<Averaging>()) {
            out.averaging_wire = averaging_wire_bytes(*averaging, asked.shape, kNeediestRank);
        }
        out.times = times_of(out, asked);
    }
    for (const Rule& rule : config.policy.rules) {
        if (rule.name == out.plan.rule) {
            out.warnings = policy_warnings(config.policy, &rule);
            break;
        }
        const std::string what = lacks(rule, asked, out.bytes);
        const std::string more = asks_more(rule.match, asked);
        out.passed.emplace_back(&rule, !what.empty()   ? what
                                       : !more.empty() ? "what a running job tells: " + more
                                                       : "param");
    }
    return out;
}

// What the command line says wins over the environment.
const ExplainOptions* options_of_this_run;
const char* with_options(const char* name) {
    const std::string_view asked = name;
    const std::string none;
    const std::string& said = asked == "SLIMWIRE_POLICY"        ? options_of_this_run->policy
                              : asked == "SLIMWIRE_CODEC"       ? options_of_this_run->codec
                              : asked == "SLIMWIRE_CALIBRATION" ? options_of_this_run->calibration
                                                                : none;
    return said.empty() ? process_getenv(name) : said.c_str();
}

int explain(const ExplainOptions& options) {
    SLIMWIRE_OR_FAIL_ASSIGN(kUsage, Asked asked, read_options(options));
    options_of_this_run = &options;
    SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, const Config config, load_config(with_options));
    // As in a job, which takes none that it was not given; the user's own is only shown.
    PlanShape& shape = asked.shape;
    shape.costs = CommCosts::make(config.calibrations, shape.ranks, asked.nodes, 0);
    Explained found = explained(asked, config);
    Result<std::vector<Calibration>> kept = std::vector<Calibration>();
    if (config.calibrations == nullptr) {
        kept = load_calibrations(default_calibration_path(false));
    }
    const std::vector<Calibration>* calibrations = config.calibrations != nullptr
                                                       ? config.calibrations.get()
                                                   : kept.ok() ? &kept.value()
                                                               : nullptr;
    const Calibration* calibration =
        calibrations == nullptr ? nullptr
                                : find_calibration(*calibrations, asked.signature.op,
                                                   asked.signature.dtype, shape.ranks, asked.nodes);
    if (!options.calibration.empty() && calibration == nullptr) {
        return fail(kCheckFailed,
                    fmt::format("{} has no {} of {} on {} ranks of {} nodes; slimwire calibrate "
                                "measures them",
                                options.calibration, op_name(asked.signature.op),
                                dtype_name(asked.signature.dtype), asked.shape.ranks, asked.nodes));
    }
    if (calibration != nullptr) {
        look_up(*calibration, &found);
    }
    if (options.json) {
        fmt::print("{}\n", json_line(json_of(found, asked, config)));
    } else {
        print(found, asked, config);
    }
    return kSuccess;
}

}  // namespace

void add_explain_command(CLI::App& app, Invocation* invocation) {
    auto options = std::make_shared<ExplainOptions>();
    CLI::App* command = app.add_subcommand(
        "explain", "what a policy makes of a call: plan, steps, bytes and memory, and why");
    command->add_option("--op", options->op, "allreduce, reducescatter, allgather, send, ...")
        ->capture_default_str();
    command->add_option("--bytes", options->bytes, "of the whole message, as 64MiB");
    command->add_option("--count", options->count, "NCCL's count argument, instead of --bytes")
        ->check(whole_number(1, kMostElems));
    command->add_option("--dtype", options->dtype, "f32, bf16, f16, ...")->capture_default_str();
    command->add_option("--redop", options->redop, "sum, avg, ...; default: sum where it reduces");
    CLI::Option* ranks =
        command->add_option("--ranks", options->ranks, "of the communicator, each on its own node")
            ->check(CLI::Range(1, kMostRanks))
            ->capture_default_str();
    command->add_option("--nodes", options->nodes, "nodes and ranks of each, as 2x8")
        ->excludes(ranks);
    command->add_option("--comm", options->comm, "the communicator's name");
    command->add_option("--direction", options->direction,
                        "of a message or an exchange: forward, backward");
    command->add_option("--shapes", options->shapes,
                        "of the parameters whose gradients it carries, as 1024x512,512");
    command->add_option("--gpu", options->gpu, "for times on paper: v100 a100 h100 h200 b200 ...")
        ->capture_default_str();
    command
        ->add_option("--between", options->between_gbit_s,
                     "for times on paper: Gbit/s between nodes for each rank")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--calibration", options->calibration,
                        "what slimwire calibrate kept of such a communicator; default: of this "
                        "host, GPU and driver, if there is");
    command->add_option("--policy", options->policy,
                        "policy file; default: what the environment says");
    command->add_option("--codec", options->codec,
                        "as SLIMWIRE_CODEC, in front of the policy's rules; int4, int8:block=128");
    command->add_flag("--json", options->json, "one JSON line");
    command->callback([=] { invocation->action = [=] { return explain(*options); }; });
}

}  // namespace slimwire::cli
