// `slimwire report`: the report files of a job's ranks as one table, or as merged JSON lines.
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/cli/common/byte_text.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/exit_code.h"
#include "tools/cli/common/run_metadata.h"
#include "tools/cli/report/report_merge.h"
#include "tools/cli/report/report_page.h"
#include "tools/cli/report/trace_table.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ReportOptions {
    std::vector<std::string> files;
    std::string html;
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
    if (key.thresholds.encodings > 0) {
        (*json)["aims"] = {{"encodings", key.thresholds.encodings},
                           {"exact", key.thresholds.exact},
                           {"moved", key.thresholds.moved},
                           {"survivors", key.thresholds.survivors},
                           {"wanted", key.thresholds.wanted}};
    }
    for (const auto& [place, tensor] : key.accordions) {
        (*json)["accordion"].push_back({{"slot", place.first},
                                        {"ordinal", place.second},
                                        {"windows", tensor.windows},
                                        {"high_windows", tensor.high_windows},
                                        {"lr_drops", tensor.lr_drops},
                                        {"decisions", tensor.decisions}});
    }
    if (key.averages) {
        (*json)["averagings"] = key.averagings;
        (*json)["averaging_wire_bytes"] = key.averaging_wire_bytes;
    }
    if (key.previewed) {
        (*json)["previews"] = key.previews;
        (*json)["step_size"] = key.step_size;
    }
    for (const auto& [call, squares] : key.owed) {
        (*json)["owed"].push_back(
            {{"call", call}, {"gradient_square", squares.first}, {"owed_square", squares.second}});
    }
    if (key.shadow_calls > 0) {
        (*json)["shadow_calls"] = key.shadow_calls;
        (*json)["shadow_wire_bytes"] = key.shadow_wire_bytes;
        (*json)["shadow_native_bytes"] = key.shadow_native_bytes;
        (*json)["shadow_ratio"] = shadow_ratio(key);
    }
}

// `part` / `whole`; 0 of nothing.
double share(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void print_json(const MergedReport& report) {
    for (const MergedComm& comm : report.comms) {
        Json json = json_record("report_comm");
        json["comm"] = comm.comm;
        json["ranks"] = comm.ranks;
        json["nodes"] = comm.nodes;
        json["ranks_seen"] = comm.ranks_seen;
        json["agreements"] = comm.agreements;
        json["scratch_bytes"] = comm.scratch_bytes;
        json["residual_bytes"] = comm.residual_bytes;
        json["residual_tensors"] = comm.residual_tensors;
        json["unfed_calls"] = comm.calls_without_residual;
        json["placed_calls"] = comm.placed_calls;
        json["unplaced_calls"] = comm.unplaced_calls;
        json["step_calls"] = comm.step_calls;
        json["steps"] = comm.steps;
        json["step_flags"] = comm.step_flags;
        json["skipped_steps"] = comm.skipped_steps;
        json["other_flags"] = comm.other_flags;
        json["differences"] = comm.differences;
        fmt::print("{}\n", json.dump());
        for (const MergedKey& key : comm.keys) {
            Json line = json_record("report_key");
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
            if (!key.name().empty()) {
                line["name"] = key.name();
            }
            if (!key.shadow_codec.empty()) {
                line["shadow_codec"] = key.shadow_codec;
                line["shadow_algorithm"] = key.shadow_algorithm;
            }
            line["ranks_reporting"] = key.calls_of_rank.size();
            add_sums(key, &line);
            fmt::print("{}\n", line.dump());
        }
    }
    for (const MergedPeer& peer : report.peers) {
        Json line = json_record("report_net_peer");
        line["direction"] = peer.direction;
        line["peer"] = peer.peer;
        line["wire"] = peer.wire;
        line["device"] = peer.device;
        line["processes"] = peer.processes;
        line["connections"] = peer.connections;
        line["messages"] = peer.messages;
        line["bytes"] = peer.bytes;
        line["wire_bytes"] = peer.wire_bytes;
        line["ratio"] = share(peer.bytes, peer.wire_bytes);
        line["coded_messages"] = peer.coded_messages;
        line["coded_bytes"] = peer.coded_bytes;
        line["coded_wire_bytes"] = peer.coded_wire_bytes;
        line["flagged_messages"] = peer.flagged_messages;
        line["flagged_bytes"] = peer.flagged_bytes;
        line["timed_raw_bytes"] = peer.timed_raw_bytes;
        line["timed_raw_us"] = peer.timed_raw_us;
        line["timed_coded_bytes"] = peer.timed_coded_bytes;
        line["timed_coded_us"] = peer.timed_coded_us;
        fmt::print("{}\n", line.dump());
    }
    Json json = json_record("report_total");
    json["processes"] = report.processes;
    add_sums(report.total, &json);
    json["differences"] = report.differences;
    json["notes"] = report.notes;
    fmt::print("{}\n", json.dump());
}

// Columns: what was called, how it was done, how much it was, why; the last begins with the
// tensor's name where it has one.
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
    if (!key.name().empty()) {
        why = key.name() + (why.empty() ? "" : ": ") + why;
    }
    fmt::print(
        kRow, key.op, key.dtype, key.folded ? "(several)" : std::to_string(key.count), key.codec,
        key.algorithm, key.calls, format_bytes(static_cast<double>(key.input_bytes)),
        format_bytes(static_cast<double>(key.wire_bytes)) + (key.wire_is_estimate ? "~" : ""),
        fmt::format("{:.2f}", wire_ratio(key)), time_per_call(key), why);
}

// bytes / us is MB/s; "-" where nothing was timed.
std::string goodput(uint64_t bytes, double us) {
    return us > 0 ? fmt::format("{:.0f}", static_cast<double>(bytes) / us) : std::string("-");
}

// Columns: where it went, how much it was, what became of it, how fast.
constexpr char kPeerRow[] =
    "{:<8} {:<24} {:<16} {:<10} {:>9} {:>10} {:>10} {:>6} {:>6} {:>7} {:>9} {:>9}\n";

void print_peers(const MergedReport& report) {
    if (report.peers.empty()) {
        return;
    }
    fmt::print("network{}\n", report.throttled ? ", slowed down by SLIMWIRE_NET_LINK" : "");
    fmt::print(kPeerRow, "way", "peer", "wire", "device", "messages", "bytes", "wire", "ratio",
               "coded", "flagged", "raw MB/s", "coded MB/s");
    for (const MergedPeer& peer : report.peers) {
        fmt::print(kPeerRow, peer.direction, peer.peer, peer.wire, peer.device, peer.messages,
                   format_bytes(static_cast<double>(peer.bytes)),
                   format_bytes(static_cast<double>(peer.wire_bytes)),
                   fmt::format("{:.2f}", share(peer.bytes, peer.wire_bytes)),
                   fmt::format("{:.0f}%", 100 * share(peer.coded_bytes, peer.bytes)),
                   peer.direction == "send"
                       ? fmt::format("{:.0f}%", 100 * share(peer.flagged_bytes, peer.bytes))
                       : "-",
                   goodput(peer.timed_raw_bytes, peer.timed_raw_us),
                   goodput(peer.timed_coded_bytes, peer.timed_coded_us));
    }
    fmt::print("\n");
}

// Which tensors went by the stronger of two codecs, and when.
void print_accordions(const MergedComm& comm) {
    constexpr size_t kMostShown = 8;
    for (const MergedKey& key : comm.keys) {
        size_t shown = 0;
        for (const auto& [place, tensor] : key.accordions) {
            if (shown++ == kMostShown) {
                fmt::print("  and {} more tensors of these (--json has all)\n",
                           key.accordions.size() - kMostShown);
                break;
            }
            fmt::print("  {} of {} {}, tensor {}.{}: {} of {} windows by {}{}; the last: {}\n",
                       key.op, key.count, key.dtype, place.first, place.second, tensor.high_windows,
                       tensor.windows, key.codec,
                       tensor.lr_drops == 0
                           ? std::string()
                           : fmt::format(", {} drops of the rate", tensor.lr_drops),
                       tensor.decisions);
        }
    }
}

// What error feedback had to give back.
void print_owed(const MergedComm& comm) {
    for (const MergedKey& key : comm.keys) {
        const std::vector<double> shares = owed_shares(key);
        if (!shares.empty()) {
            fmt::print(
                "  {} of {} {} by {}: residuals of {:.3g} times a gradient's norm at first, {:.3g} "
                "at most, {:.3g} at last\n",
                key.op, key.folded ? "several counts" : std::to_string(key.count), key.dtype,
                key.codec, shares.front(), *std::max_element(shares.begin(), shares.end()),
                shares.back());
        }
    }
}

// How thresholds that follow the data did.
void print_thresholds(const MergedComm& comm) {
    for (const MergedKey& key : comm.keys) {
        if (key.thresholds.encodings > 0) {
            fmt::print(
                "  {} of {} {} by {}: {:.2f} times as many elements survived as were wanted; "
                "{:.2f}% "
                "of the thresholds exact, {:.2f} moved an encoding\n",
                key.op, key.folded ? "several counts" : std::to_string(key.count), key.dtype,
                key.codec, share(key.thresholds.survivors, key.thresholds.wanted),
                100 * share(key.thresholds.exact, key.thresholds.encodings),
                share(key.thresholds.moved, key.thresholds.encodings));
        }
    }
}

// What averaging residuals over the ranks took of the wire.
void print_averagings(const MergedComm& comm) {
    for (const MergedKey& key : comm.keys) {
        if (key.averages) {
            fmt::print("  {} of {} {} by {}: residuals averaged {} times, {} of the {} sent\n",
                       key.op, key.folded ? "several counts" : std::to_string(key.count), key.dtype,
                       key.codec, key.averagings,
                       format_bytes(static_cast<double>(key.averaging_wire_bytes)),
                       format_bytes(static_cast<double>(key.wire_bytes)));
        }
    }
}

void print_previews(const MergedComm& comm) {
    for (const MergedKey& key : comm.keys) {
        if (key.previewed) {
            fmt::print("  {} of {} {} by {}: {} gathers moved by what is owed{}\n", key.op,
                       key.folded ? "several counts" : std::to_string(key.count), key.dtype,
                       key.codec, key.previews,
                       key.step_size == 0 ? "" : fmt::format(", steps of {:.3g}", key.step_size));
        }
    }
}

// Columns: what was called, how mode on would do it, how much that is.
constexpr char kShadowRow[] = "{:<14} {:<6} {:>11} {:<20} {:<12} {:>9} {:>10} {:>10} {:>6}  {}\n";

// Of a job in mode shadow.
void print_shadow(const MergedComm& comm) {
    bool any = false;
    for (const MergedKey& key : comm.keys) {
        if (key.shadow_calls == 0) {
            continue;
        }
        if (!any) {
            fmt::print("  mode on would do\n");
            fmt::print(kShadowRow, "operation", "type", "elements", "codec", "algorithm", "calls",
                       "wire", "native", "ratio", "rule");
            any = true;
        }
        fmt::print(kShadowRow, key.op, key.dtype,
                   key.folded ? "(several)" : std::to_string(key.count), key.shadow_codec,
                   key.shadow_algorithm, key.shadow_calls,
                   format_bytes(static_cast<double>(key.shadow_wire_bytes)),
                   format_bytes(static_cast<double>(key.shadow_native_bytes)) + "~",
                   fmt::format("{:.2f}", shadow_ratio(key)), key.rule);
    }
}

void print_table(const MergedReport& report) {
    for (const MergedComm& comm : report.comms) {
        std::string agreement;
        for (const auto& [text, ranks] : comm.agreements) {
            agreement += fmt::format("{}{}", agreement.empty() ? "" : " / ", text);
        }
        fmt::print(
            "communicator {}: {} of {} ranks reported, {} nodes, {}; scratch {}, residuals {} of "
            "{} tensors\n",
            comm.comm, comm.ranks_seen.size(), comm.ranks, comm.nodes,
            agreement.empty() ? "no agreement recorded" : agreement,
            format_bytes(static_cast<double>(comm.scratch_bytes)),
            format_bytes(static_cast<double>(comm.residual_bytes)), comm.residual_tensors);
        if (comm.calls_without_residual > 0) {
            fmt::print("  {} calls went without their residual: SLIMWIRE_MAX_MEMORY is spent\n",
                       comm.calls_without_residual);
        }
        if (comm.placed_calls + comm.unplaced_calls > 0) {
            fmt::print("  steps: {}, {} followed; place known for {:.1f}% of calls\n",
                       comm.step_calls == 0 ? std::string("none recognised now")
                                            : fmt::format("{} calls each", comm.step_calls),
                       comm.steps,
                       100 * share(comm.placed_calls, comm.placed_calls + comm.unplaced_calls));
        }
        if (comm.other_flags == 0 && comm.step_flags > 0) {
            fmt::print("  skipped steps: {} of {} whose overflow flag was seen\n",
                       comm.skipped_steps, comm.step_flags);
        }
        if (!comm.keys.empty()) {
            fmt::print(kRow, "operation", "type", "elements", "codec", "algorithm", "calls",
                       "bytes", "wire", "ratio", "us/call", "why");
        }
        for (const MergedKey& key : comm.keys) {
            if (key.calls != 0) {  // else a plan that was made and not used
                print_key(key);
            }
        }
        print_thresholds(comm);
        print_owed(comm);
        print_accordions(comm);
        print_averagings(comm);
        print_previews(comm);
        print_shadow(comm);
        for (const std::string& difference : comm.differences) {
            fmt::print("  ! {}\n", difference);
        }
        fmt::print("\n");
    }
    print_peers(report);
    const MergedKey& total = report.total;
    fmt::print(
        "total of {} processes: {} calls, {} in buffers, {} on the wire{}, {} natively: {:.2f} "
        "times fewer bytes\n",
        report.processes, total.calls, format_bytes(static_cast<double>(total.input_bytes)),
        format_bytes(static_cast<double>(total.wire_bytes)),
        total.wire_is_estimate ? " (native calls by formula, ~)" : "",
        format_bytes(static_cast<double>(total.native_wire_bytes)), wire_ratio(total));
    if (total.shadow_calls > 0) {
        fmt::print(
            "mode on would compress {} calls: {} on the wire, {} natively: {:.2f} times fewer "
            "bytes\n",
            total.shadow_calls, format_bytes(static_cast<double>(total.shadow_wire_bytes)),
            format_bytes(static_cast<double>(total.shadow_native_bytes)), shadow_ratio(total));
    }
    for (const std::string& difference : report.differences) {
        fmt::print("! {}\n", difference);
    }
}

int report_traces(const ReportOptions& options) {
    const Result<TraceTable> table = read_traces(options.files);
    if (!table.ok()) {
        return fail(kCheckFailed, table.status());
    }
    for (const std::string& text : table.value().notes) {
        note(text);
    }
    print_traces(table.value(), options.json);
    return kSuccess;
}

int report(const ReportOptions& options) {
    if (!options.html.empty()) {
        return report_html(options.html, options.files);
    }
    const auto traces = std::count_if(options.files.begin(), options.files.end(), is_trace);
    if (traces == static_cast<std::ptrdiff_t>(options.files.size())) {
        return report_traces(options);
    }
    if (traces > 0) {
        return fail(
            kUsage,
            "report: some files are traces and some are reports; accepted: all of one kind");
    }
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
    CLI::App* command = app.add_subcommand(
        "report", "add up the report files of a job's ranks (SLIMWIRE_REPORT), or their traces");
    command
        ->add_option("files", options->files,
                     "report files, one per rank, or traces (SLIMWIRE_MODE=record, shadow)")
        ->required();
    CLI::Option* json =
        command->add_flag("--json", options->json, "merged JSON lines instead of a table");
    command
        ->add_option("--html", options->html,
                     "write a page with pictures to FILE, - for stdout; of reports, traces or both")
        ->excludes(json);
    command->footer(
        "Sums are over all ranks. ~ marks bytes by formula, ! what differs between ranks. Of "
        "traces of "
        "mode shadow, `pays` compares the native time with the bytes' share of it and the codec's "
        "time: "
        "yes, if the time shrank as the bytes do; no, if the codec alone takes as long; ? "
        "between.");
    command->callback([=] { invocation->action = [=] { return report(*options); }; });
}

}  // namespace slimwire::cli
