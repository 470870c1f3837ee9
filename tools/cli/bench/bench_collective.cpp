#include "tools/cli/bench/bench_collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ranges>

#include "codecs/codec.h"
#include "collectives/call/launcher.h"
#include "collectives/policy/config.h"
#include "collectives/policy/names.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/median.h"
#include "tools/cli/common/subprocess.h"
#include "tools/cli/common/text.h"
#include "tools/cli/report/report_merge.h"
#include "tools/cli/run/launcher.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kJobTimeoutSeconds = 3600;

// What the benchmark can run: its word for the worker, and the call of slimwire's report.
struct Operation {
    const char* word;
    Op op;
};
constexpr Operation kOperations[] = {
    {"all_reduce", Op::kAllReduce}, {"reduce_scatter", Op::kReduceScatter},
    {"all_gather", Op::kAllGather}, {"all_to_all", Op::kAllToAll},
    {"broadcast", Op::kBroadcast},  {"reduce", Op::kReduce},
    {"send_recv", Op::kSend},       {"pairs", Op::kSend},
};

struct Plan {
    Operation operation = kOperations[0];
    std::vector<std::string> codecs;
    std::string bytes;  // plain numbers, comma separated
    JobOptions job;     // without a codec
    bool own_job = false;
    int ranks = 0;
    int rank = 0;
    int nodes = 0;
    double bits_per_second = 0;  // 0: unshaped or unknown
    int port = 0;
};

// Checks every argument before anything starts.
Result<Plan> make_plan(const CollectiveOptions& options) {
    Plan plan;
    const auto* const end = std::end(kOperations);
    const auto* found = std::find_if(std::begin(kOperations), end, [&](const Operation& operation) {
        return options.op == operation.word;
    });
    if (found == end && parse_op(options.op).has_value()) {  // NCCL's spelling
        found = std::find_if(std::begin(kOperations), end, [&](const Operation& operation) {
            return parse_op(options.op) == operation.op;
        });
    }
    if (found == end) {
        return invalid(
            fmt::format("--op '{}': accepted: {}", options.op,
                        fmt::join(kOperations | std::views::transform(&Operation::word), ", ")));
    }
    plan.operation = *found;
    plan.codecs = split_codecs(options.codecs);
    if (plan.codecs.empty()) {
        return invalid("--codec is empty; accepted: a codec, a comma list of codecs, or native");
    }
    for (const std::string& codec : plan.codecs) {
        SLIMWIRE_TRY(parse_codec_or_native(codec).status());
    }
    for (const std::string& size : split_list(options.bytes, ",")) {
        SLIMWIRE_TRY_ASSIGN(const uint64_t bytes, parse_bytes(size));
        if (bytes < 4) {
            return invalid(fmt::format("--bytes {}: at least one element", size));
        }
        plan.bytes += fmt::format("{}{}", plan.bytes.empty() ? "" : ",", bytes);
    }
    if (plan.bytes.empty()) {
        return invalid("--bytes is empty; accepted: sizes, as 1MiB,64MiB");
    }
    plan.own_job = measures_own_job(options);
    if (plan.own_job) {
        if (!options.link.empty() || options.nodes != 0) {
            return invalid("--link and --nodes shape emulated ranks: add --ranks");
        }
        plan.rank = *launcher_rank();
        plan.ranks = *launcher_size();
        const char* port = std::getenv("MASTER_PORT");
        // The launcher's own store usually sits on MASTER_PORT.
        plan.port = (port != nullptr ? std::atoi(port) : 29500) + 1;
        return plan;
    }
    plan.ranks = options.ranks == 0 ? 4 : options.ranks;
    plan.nodes = options.nodes == 0 ? plan.ranks : options.nodes;
    if (plan.ranks % plan.nodes != 0) {
        return invalid(
            fmt::format("--nodes {} does not divide --ranks {}", plan.nodes, plan.ranks));
    }
    if (!options.link.empty()) {
        SLIMWIRE_TRY_ASSIGN(const LinkSpec link, parse_link(options.link));
        plan.bits_per_second = link.bits_per_second;
    }
    plan.job.ranks = plan.ranks;
    plan.job.nodes = fmt::format("{}x{}", plan.nodes, plan.ranks / plan.nodes);
    plan.job.link = options.link;
    return plan;
}

bool by_policy(const CollectiveOptions& options) {
    return !options.algorithm.empty() && options.algorithm != "auto";
}

// What SLIMWIRE_CODEC would make, with an algorithm.
Result<std::string> write_policy(const Plan& plan,
                                 const CollectiveOptions& options,
                                 const std::string& codec,
                                 const TemporaryFolder& folder) {
    return folder.write(
        "policy.toml",
        fmt::format(
            "version = 1\n[[rule]]\nname = \"bench\"\nmatch = {{ op = \"{}\" }}\ncodec = \"{}\"\n"
            "algorithm = \"{}\"\nmin_bytes = 0\n{}[runtime]\nsummary = false\n",
            op_name(plan.operation.op), codec, options.algorithm,
            options.error_feedback.empty() ? ""
                                           : fmt::format("ef = \"{}\"\n", options.error_feedback)));
}

// Runs the ranks (or our one of the surrounding job) with `codec`; rank 0's lines lie in `out`.
Status run_ranks(const Plan& plan,
                 const CollectiveOptions& options,
                 const Installation& installation,
                 const std::string& codec,
                 const TemporaryFolder& folder) {
    Environment base = environment_to_measure_in();
    base.unset("SLIMWIRE_CALIBRATION");  // which `calibrate` makes of what is measured here
    if (!plan.own_job) {
        base.unset("SLIMWIRE_EMU_LINK");
    }
    JobOptions job = plan.job;
    if (codec != "native" && by_policy(options)) {
        SLIMWIRE_TRY_ASSIGN(job.policy, write_policy(plan, options, codec, folder));
    } else {
        job.codec = codec;
        job.min_bytes = "0";
    }
    if (codec != "native" && !by_policy(options)) {
        job.error_feedback = options.error_feedback;
        base.set("SLIMWIRE_OPS", op_name(plan.operation.op));
    }
    job.report = (folder.path() / "report-%r.jsonl").string();
    SLIMWIRE_TRY_ASSIGN(Environment environment,
                        make_job_environment(job, installation, std::move(base)));
    if (job.policy.empty()) {
        environment.set("SLIMWIRE_POLICY", "[runtime]\nsummary = false\n");
    }
    const std::string worker = (installation.helpers / "slimwire-bench-worker").string();
    std::vector<std::string> command{worker,
                                     fmt::format("--op={}", plan.operation.word),
                                     fmt::format("--dtype={}", options.dtype),
                                     fmt::format("--bytes={}", plan.bytes),
                                     fmt::format("--rounds={}", options.rounds),
                                     fmt::format("--warmup={}", options.warmup),
                                     fmt::format("--seed={}", options.seed),
                                     fmt::format("--out={}/out.jsonl", folder.path().string()),
                                     "--port"};
    if (plan.own_job) {
        // Whatever the launcher calls them.
        environment.set("RANK", std::to_string(plan.rank));
        environment.set("WORLD_SIZE", std::to_string(plan.ranks));
        if (const std::optional<int> local = launcher_local_rank(); local.has_value()) {
            environment.set("LOCAL_RANK", std::to_string(*local));
        }
        command.push_back(std::to_string(plan.port));
        SLIMWIRE_TRY_ASSIGN(const Captured captured,
                            run_captured(command, environment, kJobTimeoutSeconds, false));
        return captured.exit_code == 0
                   ? Status()
                   : Status(Code::kSystemError, fmt::format("rank {} ended with exit code {}",
                                                            plan.rank, captured.exit_code));
    }
    SLIMWIRE_TRY_ASSIGN(std::vector<Environment> environments,
                        make_rank_environments(job, installation, environment));
    command.emplace_back(environments[0].get("MASTER_PORT"));
    const int code = launch_ranks({.command = command, .environments = std::move(environments)});
    return code == 0
               ? Status()
               : Status(Code::kSystemError, fmt::format("the ranks of codec {} ended with exit "
                                                        "code {}",
                                                        codec, code));
}

// The call of `count` elements in the ranks' reports, compressed ones first.
const MergedKey* find_key(const MergedReport& report,
                          Op op,
                          const std::string& dtype,
                          uint64_t count) {
    const MergedKey* best = nullptr;
    for (const MergedComm& comm : report.comms) {
        for (const MergedKey& key : comm.keys) {
            if (key.op == op_name(op) && key.dtype == dtype && key.count == count &&
                (best == nullptr || best->codec == "native")) {
                best = &key;
            }
        }
    }
    return best;
}

Result<std::vector<CollectiveMeasurement>> collect(const Plan& plan,
                                                   const CollectiveOptions& options,
                                                   const std::string& codec,
                                                   const TemporaryFolder& folder) {
    std::vector<std::string> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
        if (entry.path().filename().string().rfind("report-", 0) == 0) {
            files.push_back(entry.path().string());
        }
    }
    SLIMWIRE_TRY_ASSIGN(const MergedReport report, merge_reports(files));
    std::vector<CollectiveMeasurement> measurements;
    std::ifstream lines(folder.path() / "out.jsonl");
    for (std::string line; std::getline(lines, line);) {
        const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
        if (json.is_discarded()) {
            return Status(Code::kInternalError, fmt::format("the worker wrote: {}", line));
        }
        CollectiveMeasurement& one = measurements.emplace_back();
        one.codec = codec;
        one.op = plan.operation.op;
        one.ranks = plan.ranks;
        one.bytes = json.at("bytes");
        one.count = json.at("count");
        one.native_us = json.at("native_us").get<std::vector<double>>();
        one.time_us = json.at("time_us").get<std::vector<double>>();
        one.raw_us = json.at("raw_us").get<std::vector<double>>();
        one.counted = json.at("counted");
        one.wire_bytes = json.at("wire_bytes");
        one.native_wire_bytes = json.at("native_wire_bytes");
        one.between_nodes_bytes = json.at("between_nodes_bytes");
        one.native_between_nodes_bytes = json.at("native_between_nodes_bytes");
        one.rel_error = json.at("rel_error").is_null() ? NAN : json.at("rel_error").get<double>();
        one.identical = json.at("identical");
        one.formula_bytes = native_bytes(one.op, static_cast<double>(one.bytes), plan.ranks);
        if (plan.bits_per_second > 0 && plan.nodes > 1) {
            one.ideal_us = one.formula_bytes * 8 / plan.bits_per_second * 1e6;
        }
        one.nodes = plan.nodes;
        for (const MergedComm& comm : report.comms) {
            one.reported_nodes = std::max(one.reported_nodes, comm.nodes);
        }
        if (const MergedKey* key = find_key(report, plan.operation.op, options.dtype, one.count)) {
            one.reported_codec = key->codec;
            one.algorithm = key->algorithm;
            one.reason = key->reason;
            one.reported_wire_bytes = static_cast<double>(key->wire_bytes) /
                                      static_cast<double>(std::max<uint64_t>(1, key->calls));
        }
    }
    return measurements;
}

// Of one codec; empty on ranks other than a job's first.
Result<std::vector<CollectiveMeasurement>> measure(const Plan& plan,
                                                   const CollectiveOptions& options,
                                                   const std::string& codec) {
    const Installation installation = find_installation();
    if (installation.helpers.empty()) {
        return Status(Code::kNotFound,
                      "slimwire-bench-worker is not beside this program; build it (ninja -C "
                      "build)");
    }
    SLIMWIRE_TRY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    SLIMWIRE_TRY(run_ranks(plan, options, installation, codec, folder));
    return plan.rank == 0 ? collect(plan, options, codec, folder)
                          : std::vector<CollectiveMeasurement>();
}

// False: it is no result.
bool print_result(const CollectiveMeasurement& measured,
                  const Plan& plan,
                  const CollectiveOptions& options) {
    Json json = json_record("bench_collective");
    if (!plan.own_job) {
        json["machine"] = text_of(json, "machine") + ", emulator";
    }
    json["op"] = plan.operation.word;
    json["dtype"] = options.dtype;
    json["ranks"] = plan.ranks;
    json["nodes"] = plan.nodes;
    json["link"] = options.link;
    json.update(judge(measured));
    const std::string failed = json.value("failed", "");
    if (options.json) {
        fmt::print("{}\n", json_line(json));
    } else {
        fmt::print(
            "{:>12} {:>12} {:>6} {:>6} {:>11.1f} {:>8.3f} {:>8.3f}  {:<22} {:>11.1f} {:>11.1f} "
            "{:>10} {:>7.2f} {:>10.3f} {:>10.2e}{}\n",
            measured.bytes, measured.count, options.dtype,
            reduces(plan.operation.op) ? "sum" : "none", number_of(json, "time_us"),
            number_of(json, "algorithm_gbps"), number_of(json, "bus_gbps"), text_of(json, "codec"),
            number_of(json, "native_us"), number_of(json, "raw_us"), bytes_of(json, "wire_bytes"),
            number_of(json, "speedup"), number_of(json, "efficiency"), measured.rel_error,
            failed.empty() ? "" : "  failed: " + failed);
    }
    std::fflush(stdout);
    return failed.empty();
}

}  // namespace

std::vector<std::string> split_codecs(const std::string& text) {
    std::vector<std::string> codecs;
    for (const std::string& item : split_list(text, ",")) {
        // "scale=f32" continues the specification before it.
        const bool parameter =
            item.find('=') != std::string::npos && item.find(':') == std::string::npos;
        if (parameter && !codecs.empty()) {
            codecs.back() += ',' + item;
        } else {
            codecs.push_back(item);
        }
    }
    return codecs;
}

bool measures_own_job(const CollectiveOptions& options) {
    // One process alone (srun --pty) has nobody to exchange with.
    return options.ranks == 0 && launcher_rank().has_value() && launcher_size().value_or(1) > 1;
}

Status check_collectives(const CollectiveOptions& options) {
    return make_plan(options).status();
}

Result<std::vector<CollectiveMeasurement>> measure_collectives(const CollectiveOptions& options) {
    SLIMWIRE_TRY_ASSIGN(const Plan plan, make_plan(options));
    std::vector<CollectiveMeasurement> all;
    for (const std::string& codec : plan.codecs) {
        SLIMWIRE_TRY_ASSIGN(const std::vector<CollectiveMeasurement> measured,
                            measure(plan, options, codec));
        all.insert(all.end(), measured.begin(), measured.end());
    }
    return all;
}

int bench_collective(const CollectiveOptions& options) {
    SLIMWIRE_OR_FAIL_ASSIGN(kUsage, const Plan plan, make_plan(options));
    if (plan.rank == 0 && !options.json) {
        fmt::print("# {}, {} ranks on {}{}\n", plan.operation.word, plan.ranks,
                   plan.own_job ? "the job's GPUs" : fmt::format("{} emulated nodes", plan.nodes),
                   options.link.empty() ? ", unshaped" : ", " + options.link);
        fmt::print(
            "{:>12} {:>12} {:>6} {:>6} {:>11} {:>8} {:>8}  {:<22} {:>11} {:>11} {:>10} {:>7} "
            "{:>10} "
            "{:>10}\n",
            "size (B)", "count", "type", "redop", "time (us)", "algbw", "busbw", "codec",
            "native us", "raw us", "wire", "speedup", "efficiency", "rel error");
        std::fflush(stdout);
    }
    int exit_code = kSuccess;
    for (const std::string& codec : plan.codecs) {
        SLIMWIRE_OR_FAIL_ASSIGN(kCannotStart, const std::vector<CollectiveMeasurement> measured,
                                measure(plan, options, codec));
        for (const CollectiveMeasurement& measurement : measured) {
            exit_code = print_result(measurement, plan, options) ? exit_code : kCheckFailed;
        }
    }
    return exit_code;
}

// What the figures of one size of `slimwire bench collective` say: medians, bandwidths, ratios, and
// whether they can be right at all. No process, no file, no output.

namespace {

// Above these a figure says that the measurement is wrong, not that slimwire is good or the link
// bad.
constexpr double kMaxEfficiency = 1.02;
constexpr double kMaxNativeOverIdeal = 1.05;

// nccl-tests' factor from algorithm to bus bandwidth.
double bus_factor(Op op, int ranks) {
    const double n = ranks;
    switch (op) {
        case Op::kAllReduce:
            return 2 * (n - 1) / n;
        case Op::kReduceScatter:
        case Op::kAllGather:
        case Op::kAllToAll:
            return (n - 1) / n;
        default:
            return 1;
    }
}

}  // namespace

double native_bytes(Op op, double bytes, int ranks) {
    return bytes * bus_factor(op, ranks);
}

Json judge(const CollectiveMeasurement& m) {
    const bool native = m.codec == "native";
    const bool compressed = !m.reported_codec.empty() && m.reported_codec != "native";
    const double time_us = median(m.time_us), native_us = median(m.native_us);
    const double wire_bytes = m.counted ? m.wire_bytes : m.reported_wire_bytes;
    const double native_wire_bytes = m.counted ? m.native_wire_bytes : m.formula_bytes;
    // The slow link is what saves time; what nodes of several ranks pass around inside does not.
    const double between = m.counted ? m.between_nodes_bytes : 0;
    const double native_between = m.counted ? m.native_between_nodes_bytes : 0;
    const auto ratio = [](double above, double below) { return below > 0 ? above / below : 0; };
    const double byte_ratio = between > 0 && native_between > 0
                                  ? native_between / between
                                  : ratio(native_wire_bytes, wire_bytes);
    const double speedup = ratio(native_us, time_us), efficiency = ratio(speedup, byte_ratio);
    const double algorithm_gbps = ratio(static_cast<double>(m.bytes), time_us) * 1e-3;
    Json json{{"codec", native || !compressed ? m.codec : m.reported_codec},
              {"algorithm", m.algorithm.empty() ? "native" : m.algorithm},
              {"bytes", m.bytes},
              {"time_us", time_us},
              {"native_us", native_us},
              {"native_ideal_us", m.ideal_us},
              {"raw_us", median(m.raw_us)},
              {"algorithm_gbps", algorithm_gbps},
              {"bus_gbps", algorithm_gbps * bus_factor(m.op, m.ranks)},
              {"wire_bytes", std::llround(wire_bytes)},
              {"native_wire_bytes", std::llround(native_wire_bytes)},
              {"between_nodes_bytes", std::llround(between)},
              {"native_between_nodes_bytes", std::llround(native_between)},
              {"speedup", speedup},
              {"efficiency", efficiency},
              {"rel_error", m.rel_error}};
    if (!native && !compressed) {
        json["failed"] = m.reported_codec.empty() ? "slimwire's report does not have the call"
                                                  : fmt::format("not compressed: {}", m.reason);
    } else if (!native && m.nodes != 0 && m.reported_nodes != m.nodes) {
        json["failed"] =
            fmt::format("the ranks stand on {} nodes, not {}", m.reported_nodes, m.nodes);
    } else if (!std::isfinite(m.rel_error)) {
        json["failed"] = "the result is not finite";
    } else if (!m.identical) {
        json["failed"] = "the ranks' results differ";
    } else if (!native && m.counted && m.reported_wire_bytes != m.wire_bytes) {
        json["failed"] =
            fmt::format("slimwire reports {:.0f} bytes a call, the transport counted {:.0f}",
                        m.reported_wire_bytes, m.wire_bytes);
    } else if (m.ideal_us > 0 && native_us > kMaxNativeOverIdeal * m.ideal_us) {
        json["failed"] = fmt::format("native time is {:.3f} of its ideal, limit {:g}",
                                     native_us / m.ideal_us, kMaxNativeOverIdeal);
    } else if (!native && efficiency > kMaxEfficiency) {
        json["failed"] = fmt::format("efficiency {:.3f} is above {:g}", efficiency, kMaxEfficiency);
    }
    return json;
}

}  // namespace slimwire::cli
