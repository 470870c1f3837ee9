// `slimwire report`: the report files of a job's ranks as one table, or as merged JSON lines.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/cli/commands.h"
#include "tools/cli/outcome.h"
#include "tools/cli/report_merge.h"
#include "tools/cli/stamp.h"
#include "tools/cli/variables_help.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ReportOptions {
    std::vector<std::string> files;
    bool json = false;
};

void add_sums(const MergedKey& key, Json* json) {
    (*json)["calls"] = key.calls;
    (*json)["input_bytes"] = key.input_bytes;
    (*json)["wire_bytes"] = key.wire_bytes;
    (*json)["native_wire_bytes"] = key.native_wire_bytes;
    (*json)["wire_is_estimate"] = key.wire_is_estimate;
    (*json)["ratio"] = wire_ratio(key);
    (*json)["timed_calls"] = key.timed_calls;
    (*json)["time_us"] = key.time_us;
}

void print_json(const MergedReport& report) {
    for (const MergedComm& comm : report.comms) {
        Json json = stamped("report_comm");
        json["comm"] = comm.comm;
        json["ranks"] = comm.ranks;
        json["nodes"] = comm.nodes;
        json["ranks_seen"] = comm.ranks_seen;
        json["agreements"] = comm.agreements;
        json["scratch_bytes"] = comm.scratch_bytes;
        json["residual_bytes"] = comm.residual_bytes;
        json["differences"] = comm.differences;
        fmt::print("{}\n", json.dump());
        for (const MergedKey& key : comm.keys) {
            Json line = stamped("report_key");
            line["comm"] = comm.comm;
            line["op"] = key.op;
            line["dtype"] = key.dtype;
            line["redop"] = key.redop;
            line["count"] = key.count;
            line["rule"] = key.rule;
            line["codec"] = key.codec;
            line["algorithm"] = key.algorithm;
            line["reason"] = key.reason;
            line["folded"] = key.folded;
            line["ranks_reporting"] = key.calls_of_rank.size();
            add_sums(key, &line);
            fmt::print("{}\n", line.dump());
        }
    }
    Json json = stamped("report_total");
    json["processes"] = report.processes;
    add_sums(report.total, &json);
    json["differences"] = report.differences;
    json["notes"] = report.notes;
    fmt::print("{}\n", json.dump());
}

// Columns: what was called, how it was done, how much it was, why.
constexpr char kRow[] = "{:<14} {:<6} {:>11} {:<20} {:<9} {:>9} {:>10} {:>10} {:>6} {:>10}  {}\n";

std::string time_per_call(const MergedKey& key) {
    return key.timed_calls == 0
               ? std::string("-")
               : fmt::format("{:.1f}", key.time_us / static_cast<double>(key.timed_calls));
}

void print_key(const MergedKey& key) {
    // The usual reason of a compressed call is the rule itself.
    const std::string rule = fmt::format("rule '{}'", key.rule);
    std::string why = key.reason;
    if (!key.rule.empty() && why.find(rule) == std::string::npos) {
        why = why.empty() ? rule : rule + ": " + why;
    }
    fmt::print(
        kRow, key.op, key.dtype, key.folded ? "(several)" : std::to_string(key.count), key.codec,
        key.algorithm, key.calls, format_bytes(static_cast<double>(key.input_bytes)),
        format_bytes(static_cast<double>(key.wire_bytes)) + (key.wire_is_estimate ? "~" : ""),
        fmt::format("{:.2f}", wire_ratio(key)), time_per_call(key), why);
}

void print_table(const MergedReport& report) {
    for (const MergedComm& comm : report.comms) {
        std::string agreement;
        for (const auto& [text, ranks] : comm.agreements) {
            agreement += fmt::format("{}{}", agreement.empty() ? "" : " / ", text);
        }
        fmt::print(
            "communicator {}: {} of {} ranks reported, {} nodes, {}; scratch {}, residuals {}\n",
            comm.comm, comm.ranks_seen.size(), comm.ranks, comm.nodes,
            agreement.empty() ? "no agreement recorded" : agreement,
            format_bytes(static_cast<double>(comm.scratch_bytes)),
            format_bytes(static_cast<double>(comm.residual_bytes)));
        if (!comm.keys.empty()) {
            fmt::print(kRow, "operation", "type", "elements", "codec", "algorithm", "calls",
                       "bytes", "wire", "ratio", "us/call", "why");
        }
        for (const MergedKey& key : comm.keys) {
            if (key.calls != 0) {  // else a plan that was made and not used
                print_key(key);
            }
        }
        for (const std::string& difference : comm.differences) {
            fmt::print("  ! {}\n", difference);
        }
        fmt::print("\n");
    }
    const MergedKey& total = report.total;
    fmt::print(
        "total of {} processes: {} calls, {} in buffers, {} on the wire{}, {} natively: {:.2f} "
        "times fewer bytes\n",
        report.processes, total.calls, format_bytes(static_cast<double>(total.input_bytes)),
        format_bytes(static_cast<double>(total.wire_bytes)),
        total.wire_is_estimate ? " (native calls by formula, ~)" : "",
        format_bytes(static_cast<double>(total.native_wire_bytes)), wire_ratio(total));
    for (const std::string& difference : report.differences) {
        fmt::print("! {}\n", difference);
    }
}

int report(const ReportOptions& options) {
    Result<MergedReport> merged = merge_reports(options.files);
    if (!merged.ok()) {
        return fail(kCheckFailed, merged.status());
    }
    for (const std::string& text : merged.value().notes) {
        note(text);
    }
    if (options.json) {
        print_json(merged.value());
    } else {
        print_table(merged.value());
    }
    return kSuccess;
}

}  // namespace

void add_report_command(CLI::App& app, Invocation* invocation) {
    auto options = std::make_shared<ReportOptions>();
    CLI::App* command =
        app.add_subcommand("report", "add up the report files of a job's ranks (SLIMWIRE_REPORT)");
    command->add_option("files", options->files, "report files, one per rank")->required();
    command->add_flag("--json", options->json, "merged JSON lines instead of a table");
    command->footer(
        "Sums are over all ranks. ~ marks bytes by formula, ! what differs between ranks.");
    command->callback([=] { invocation->action = [=] { return report(*options); }; });
}

}  // namespace slimwire::cli
