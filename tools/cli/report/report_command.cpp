// `slimwire report`: the report files of a job's ranks as one table, or as merged JSON lines.
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "codecs/spec.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/text.h"
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

// `part` / `whole`; 0 of nothing.
double share(double part, double whole) {
    return whole == 0 ? 0 : part / whole;
}

double share_of(const Json& record, const char* part, const char* whole) {
    return share(number_of(record, part), number_of(record, whole));
}

void add_features(const MergedFeatures& features, Json* json) {
    if (const ThresholdTotals& all = features.thresholds; all.encodings > 0) {
        (*json)["aims"] = {{"encodings", all.encodings},
                           {"exact", all.exact},
                           {"moved", all.moved},
                           {"survivors", all.survivors},
                           {"wanted", all.wanted}};
    }
    for (const auto& [place, tensor] : features.accordions) {
        (*json)["accordion"].push_back({{"slot", place.first},
                                        {"ordinal", place.second},
                                        {"windows", tensor.windows},
                                        {"high_windows", tensor.high_windows},
                                        {"lr_drops", tensor.lr_drops},
                                        {"decisions", tensor.decisions}});
    }
    if (features.averages) {
        (*json)["averagings"] = features.averagings;
        (*json)["averaging_wire_bytes"] = features.averaging_wire_bytes;
    }
    if (features.steps_ahead) {
        (*json)["previews"] = features.previews;
        (*json)["step_size"] = features.step_size;
    }
    for (const auto& [call, squares] : features.residual_norms) {
        (*json)["owed"].push_back(
            {{"call", call}, {"gradient_square", squares.first}, {"owed_square", squares.second}});
    }
}

void add_sums(const MergedKey& key, Json* json) {
    (*json)["calls"] = key.calls;
    (*json)["input_bytes"] = key.input_bytes;
    (*json)["wire_bytes"] = key.wire_bytes;
    (*json)["native_wire_bytes"] = key.native_wire_bytes;
    (*json)["wire_is_estimate"] = key.wire_is_estimate;
    (*json)["ratio"] = wire_ratio(key);
    (*json)["timed_calls"] = key.timed_calls;
    (*json)["time_us"] = key.time_us;
    add_features(key.features, json);
    if (key.shadow_calls > 0) {
        (*json)["shadow_calls"] = key.shadow_calls;
        (*json)["shadow_wire_bytes"] = key.shadow_wire_bytes;
        (*json)["shadow_native_bytes"] = key.shadow_native_bytes;
        (*json)["shadow_ratio"] = shadow_ratio(key);
    }
}

Json comm_json(const MergedComm& comm) {
    Json json = json_record("report_comm");
    json["comm"] = comm.comm;
    json["ranks"] = comm.ranks;
    json["nodes"] = comm.nodes;
    json["ranks_seen"] = comm.ranks_seen;
    json["agreements"] = comm.agreements;
    for (const auto& count : kCommCounts<uint64_t>) {
        if (count.over_ranks != OverRanks::kNot) {
            json[count.name] = comm.*count.member;
        }
    }
    json["differences"] = comm.differences;
    return json;
}

Json key_json(const MergedComm& comm, const MergedKey& key) {
    Json line = json_record("report_key");
    line["comm"] = comm.comm;
    line["op"] = key.op;
    if (!key.direction.empty()) {
        line["direction"] = key.direction;
    }
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
    // Of codecs that keep some of the elements: as many times fewer values, positions aside.
    const Result<CodecSpec> codec = parse_codec(key.codec);
    if (codec.ok() && codec.value().params.fraction > 0) {
        line["values_ratio"] = std::round(1e4 / codec.value().params.fraction) / 1e4;
    }
    return line;
}

Json peer_json(const MergedPeer& peer) {
    Json line = json_record("report_net_peer");
    line["direction"] = peer.direction;
    line["peer"] = peer.peer;
    line["wire"] = peer.wire;
    line["device"] = peer.device;
    line["processes"] = peer.processes;
    for (const auto& [name, count] : kPeerCounts) {
        line[name] = peer.*count;
    }
    line["ratio"] = share_of(line, "bytes", "wire_bytes");
    line["timed_raw_us"] = peer.timed_raw_us;
    line["timed_coded_us"] = peer.timed_coded_us;
    return line;
}

Json total_json(const MergedReport& report) {
    Json json = json_record("report_total");
    json["processes"] = report.processes;
    add_sums(report.total, &json);
    json["differences"] = report.differences;
    json["notes"] = report.notes;
    return json;
}

// The text: each row from its record.

std::string ratio_of(const Json& record, const char* name) {
    return fmt::format("{:.2f}", number_of(record, name));
}

std::string elements_of(const Json& key) {
    return key["folded"] ? "(several)" : std::to_string(count_of(key, "count"));
}

// "allreduce of 1024 f32 by int4"
std::string label_of(const Json& key) {
    return fmt::format(
        "{} of {} {} by {}", text_of(key, "op"),
        key["folded"] ? std::string("several counts") : std::to_string(count_of(key, "count")),
        text_of(key, "dtype"), text_of(key, "codec"));
}

// Columns: what was called, how it was done, how much it was, why; the last begins with the
// tensor's name where it has one, the direction of a message and what a sparse codec keeps.
constexpr char kRow[] = "{:<14} {:<6} {:>11} {:<20} {:<9} {:>9} {:>10} {:>10} {:>6} {:>10}  {}\n";

void print_key(const Json& key) {
    // The usual reason of a compressed call is the rule itself.
    const std::string rule = fmt::format("rule '{}'", text_of(key, "rule"));
    std::string why = text_of(key, "reason");
    if (!text_of(key, "rule").empty() && why.find(rule) == std::string::npos) {
        why = why.empty() ? rule : rule + ": " + why;
    }
    const auto put_first = [&](const std::string& what) {
        why = what + (why.empty() ? "" : ": ") + why;
    };
    if (key.contains("values_ratio")) {
        put_first(fmt::format("{:.1f} times fewer values", number_of(key, "values_ratio")));
    }
    for (const char* what : {"direction", "name"}) {
        if (key.contains(what)) {
            put_first(text_of(key, what));
        }
    }
    fmt::print(
        kRow, text_of(key, "op"), text_of(key, "dtype"), elements_of(key), text_of(key, "codec"),
        text_of(key, "algorithm"), count_of(key, "calls"), bytes_of(key, "input_bytes"),
        bytes_of(key, "wire_bytes") + (key["wire_is_estimate"] ? "~" : ""), ratio_of(key, "ratio"),
        count_of(key, "timed_calls") == 0
            ? std::string("-")
            : fmt::format("{:.1f}", share_of(key, "time_us", "timed_calls")),
        why);
}

// bytes / us is MB/s; "-" where nothing was timed.
std::string goodput(const Json& peer, const char* bytes, const char* us) {
    return number_of(peer, us) > 0 ? fmt::format("{:.0f}", share_of(peer, bytes, us)) : "-";
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
    for (const MergedPeer& merged : report.peers) {
        const Json peer = peer_json(merged);
        const auto percent = [&](const char* part) {
            return fmt::format("{:.0f}%", 100 * share_of(peer, part, "bytes"));
        };
        fmt::print(kPeerRow, text_of(peer, "direction"), text_of(peer, "peer"),
                   text_of(peer, "wire"), text_of(peer, "device"), count_of(peer, "messages"),
                   bytes_of(peer, "bytes"), bytes_of(peer, "wire_bytes"), ratio_of(peer, "ratio"),
                   percent("coded_bytes"),
                   merged.direction == "send" ? percent("flagged_bytes") : "-",
                   goodput(peer, "timed_raw_bytes", "timed_raw_us"),
                   goodput(peer, "timed_coded_bytes", "timed_coded_us"));
    }
    fmt::print("\n");
}

// Thresholds that follow the data.
void print_thresholds(const Json& key) {
    if (key.contains("aims")) {
        const Json& aims = key["aims"];
        fmt::print(
            "  {}: {:.2f} times as many elements survived as were wanted; {:.2f}% of the "
            "thresholds exact, {:.2f} moved an encoding\n",
            label_of(key), share_of(aims, "survivors", "wanted"),
            100 * share_of(aims, "exact", "encodings"), share_of(aims, "moved", "encodings"));
    }
}

void print_residuals(const Json& key) {
    std::vector<double> shares;  // quotients of norms, in the order of calls
    for (const Json& call : key.value("owed", Json::array())) {
        const Json& residual = call["owed_square"];
        if (number_of(call, "gradient_square") > 0 && residual.is_number() &&
            std::isfinite(residual.get<double>())) {
            shares.push_back(std::sqrt(share_of(call, "owed_square", "gradient_square")));
        }
    }
    if (!shares.empty()) {
        fmt::print(
            "  {}: residuals of {:.3g} times a gradient's norm at first, {:.3g} at most, {:.3g} at "
            "last\n",
            label_of(key), shares.front(), *std::max_element(shares.begin(), shares.end()),
            shares.back());
    }
}

// Which tensors went by the stronger of two codecs, and when.
void print_accordions(const Json& key) {
    constexpr size_t kMostShown = 8;
    const Json tensors = key.value("accordion", Json::array());
    for (size_t i = 0; i < std::min(tensors.size(), kMostShown); ++i) {
        const Json& tensor = tensors[i];
        const uint64_t drops = count_of(tensor, "lr_drops");
        fmt::print("  {} of {} {}, tensor {}.{}: {} of {} windows by {}{}; the last: {}\n",
                   text_of(key, "op"), count_of(key, "count"), text_of(key, "dtype"),
                   count_of(tensor, "slot"), count_of(tensor, "ordinal"),
                   count_of(tensor, "high_windows"), count_of(tensor, "windows"),
                   text_of(key, "codec"),
                   drops == 0 ? std::string() : fmt::format(", {} drops of the rate", drops),
                   text_of(tensor, "decisions"));
    }
    if (tensors.size() > kMostShown) {
        fmt::print("  and {} more tensors of these (--json has all)\n",
                   tensors.size() - kMostShown);
    }
}

void print_averagings(const Json& key) {
    if (key.contains("averagings")) {
        fmt::print("  {}: residuals averaged {} times, {} of the {} sent\n", label_of(key),
                   count_of(key, "averagings"), bytes_of(key, "averaging_wire_bytes"),
                   bytes_of(key, "wire_bytes"));
    }
}

void print_steps_ahead(const Json& key) {
    if (key.contains("previews")) {
        const double size = number_of(key, "step_size");
        fmt::print("  {}: {} gathers moved by what is owed{}\n", label_of(key),
                   count_of(key, "previews"),
                   size == 0 ? std::string() : fmt::format(", steps of {:.3g}", size));
    }
}

// Columns: what was called, how mode on would do it, how much that is.
constexpr char kShadowRow[] = "{:<14} {:<6} {:>11} {:<20} {:<12} {:>9} {:>10} {:>10} {:>6}  {}\n";

// Of a job in mode shadow.
void print_shadow(const std::vector<Json>& keys) {
    bool any = false;
    for (const Json& key : keys) {
        if (!key.contains("shadow_calls")) {
            continue;
        }
        if (!any) {
            fmt::print("  mode on would do\n");
            fmt::print(kShadowRow, "operation", "type", "elements", "codec", "algorithm", "calls",
                       "wire", "native", "ratio", "rule");
            any = true;
        }
        fmt::print(kShadowRow, text_of(key, "op"), text_of(key, "dtype"), elements_of(key),
                   text_of(key, "shadow_codec"), text_of(key, "shadow_algorithm"),
                   count_of(key, "shadow_calls"), bytes_of(key, "shadow_wire_bytes"),
                   bytes_of(key, "shadow_native_bytes") + "~", ratio_of(key, "shadow_ratio"),
                   text_of(key, "rule"));
    }
}

void print_head(const Json& comm) {
    std::string agreement;
    for (const auto& [text, ranks] : comm["agreements"].items()) {
        agreement += (agreement.empty() ? "" : " / ") + text;
    }
    fmt::print(
        "communicator {}: {} of {} ranks reported, {} nodes, {}; scratch {}, residuals {} of {} "
        "tensors\n",
        text_of(comm, "comm"), comm["ranks_seen"].size(), count_of(comm, "ranks"),
        count_of(comm, "nodes"), agreement.empty() ? "no agreement recorded" : agreement,
        bytes_of(comm, "scratch_bytes"), bytes_of(comm, "residual_bytes"),
        count_of(comm, "residual_tensors"));
    if (count_of(comm, "unfed_calls") > 0) {
        fmt::print("  {} calls went without their residual for want of memory\n",
                   count_of(comm, "unfed_calls"));
    }
    if (count_of(comm, "missed_masks") > 0) {
        fmt::print("  {} gradients came as zeros: the masks they named were not held\n",
                   count_of(comm, "missed_masks"));
    }
    const double placed = number_of(comm, "placed_calls");
    const double unplaced = number_of(comm, "unplaced_calls");
    if (placed + unplaced > 0) {
        const uint64_t step_calls = count_of(comm, "step_calls");
        fmt::print("  steps: {}, {} followed; place known for {:.1f}% of calls\n",
                   step_calls == 0 ? std::string("none recognised now")
                                   : fmt::format("{} calls each", step_calls),
                   count_of(comm, "steps"), 100 * share(placed, placed + unplaced));
    }
    if (count_of(comm, "other_flags") == 0 && count_of(comm, "step_flags") > 0) {
        fmt::print("  skipped steps: {} of {} whose overflow flag was seen\n",
                   count_of(comm, "skipped_steps"), count_of(comm, "step_flags"));
    }
}

void print_comm(const MergedComm& comm) {
    print_head(comm_json(comm));
    if (!comm.keys.empty()) {
        fmt::print(kRow, "operation", "type", "elements", "codec", "algorithm", "calls", "bytes",
                   "wire", "ratio", "us/call", "why");
    }
    std::vector<Json> keys;
    for (const MergedKey& key : comm.keys) {
        keys.push_back(key_json(comm, key));
        if (key.calls != 0) {  // else a plan that was made and not used
            print_key(keys.back());
        }
    }
    for (auto* print : {print_thresholds, print_residuals, print_accordions, print_averagings,
                        print_steps_ahead}) {
        std::for_each(keys.begin(), keys.end(), print);
    }
    print_shadow(keys);
    for (const std::string& difference : comm.differences) {
        fmt::print("  ! {}\n", difference);
    }
    fmt::print("\n");
}

void print_total(const Json& total) {
    fmt::print(
        "total of {} processes: {} calls, {} in buffers, {} on the wire{}, {} natively: {} times "
        "fewer bytes\n",
        count_of(total, "processes"), count_of(total, "calls"), bytes_of(total, "input_bytes"),
        bytes_of(total, "wire_bytes"),
        total["wire_is_estimate"] ? " (native calls by formula, ~)" : "",
        bytes_of(total, "native_wire_bytes"), ratio_of(total, "ratio"));
    if (total.contains("shadow_calls")) {
        fmt::print(
            "mode on would compress {} calls: {} on the wire, {} natively: {} times fewer bytes\n",
            count_of(total, "shadow_calls"), bytes_of(total, "shadow_wire_bytes"),
            bytes_of(total, "shadow_native_bytes"), ratio_of(total, "shadow_ratio"));
    }
    for (const Json& difference : total["differences"]) {
        fmt::print("! {}\n", difference.get<std::string>());
    }
}

void print_report(const MergedReport& report, bool as_json) {
    for (const MergedComm& comm : report.comms) {
        if (!as_json) {
            print_comm(comm);
            continue;
        }
        fmt::print("{}\n", json_line(comm_json(comm)));
        for (const MergedKey& key : comm.keys) {
            fmt::print("{}\n", json_line(key_json(comm, key)));
        }
    }
    if (!as_json) {
        print_peers(report);
        print_total(total_json(report));
        return;
    }
    for (const MergedPeer& peer : report.peers) {
        fmt::print("{}\n", json_line(peer_json(peer)));
    }
    fmt::print("{}\n", json_line(total_json(report)));
}

int report_traces(const ReportOptions& options) {
    SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, const TraceTable table, read_traces(options.files));
    note_all(table.notes);
    print_traces(table, options.json);
    return kSuccess;
}

// Of reports, traces or both.
Status write_html(const std::string& path, const std::vector<std::string>& files) {
    std::vector<std::string> reports, traces;
    for (const std::string& file : files) {
        (is_trace(file) ? traces : reports).push_back(file);
    }
    SLIMWIRE_TRY_ASSIGN(const MergedReport merged, merge_reports(reports));
    SLIMWIRE_TRY_ASSIGN(const TraceTable table, read_traces(traces));
    SLIMWIRE_TRY(write_page(path, report_page(merged, table)));
    if (path != "-") {
        note("wrote " + path);
    }
    return {};
}

int report(const ReportOptions& options) {
    if (!options.html.empty()) {
        SLIMWIRE_OR_FAIL(kUsage, check_page_path(options.html, options.files));
        const Status status = write_html(options.html, options.files);
        return status.ok() ? kSuccess : fail(kCheckFailed, status);
    }
    if (std::any_of(options.files.begin(), options.files.end(), is_trace)) {
        // A rank that is killed early leaves an empty file, of no kind.
        const bool all =
            std::none_of(options.files.begin(), options.files.end(), [](const std::string& path) {
                std::error_code error;
                return std::filesystem::file_size(path, error) > 0 && !error && !is_trace(path);
            });
        if (all) {
            return report_traces(options);
        }
        return fail(
            kUsage,
            "report: some files are traces and some are reports; accepted: all of one kind");
    }
    SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, MergedReport merged, merge_reports(options.files));
    note_all(merged.notes);
    if (merged.processes == 0 && merged.comms.empty()) {
        return fail(kCheckFailed,
                    "report: no record in any file; a process of the job writes its "
                    "first when it makes a communicator");
    }
    print_report(merged, options.json);
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
