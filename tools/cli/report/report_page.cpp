#include "tools/cli/report/report_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/cli/common/text.h"

namespace slimwire::cli {
namespace {

constexpr size_t kMostKeys = 60;  // of a communicator; the rest is added up
constexpr size_t kMostComms = 40;
constexpr size_t kMostRows = 300, kLeastKeys = 5;  // of all; and of one, however many there were
constexpr size_t kMostPeers = 24;                  // in a direction; the rest is added up
constexpr size_t kMostLines = 12;                  // of what differs
constexpr size_t kMostTensors = 12;                // with a curve of errors

constexpr const char* kStyle =
    ":root{color-scheme:light dark;--ink:#1b2733;--soft:#5b6b7a;--line:#dde3ea;--paper:#fff;"
    "--panel:#f5f7fa;--wire:#2f7ed8;--native:#98a5b3;--saved:#dcebfb;--bad:#b83227;--good:#2c8a57}"
    "@media(prefers-color-scheme:dark){:root{--ink:#dfe6ee;--soft:#93a3b3;--line:#2c3742;"
    "--paper:#12181f;--panel:#1a222b;--wire:#5aa2f0;--native:#66747f;--saved:#1d3248;"
    "--bad:#ef7b6d;--good:#5cc48c}}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:0;color:var(--ink);background:var(--paper)}"
    "main{max-width:1120px;margin:0 auto;padding:24px 16px 64px}h1{font-size:22px;margin:0 0 4px}"
    "h2{font-size:17px;margin:36px 0 8px}h3{font-size:15px;margin:20px 0 6px}"
    "p{margin:6px 0}.soft{color:var(--soft)}.bad{color:var(--bad)}.good{color:var(--good)}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;"
    "margin:16px 0}.tiles div{background:var(--panel);border-radius:8px;padding:10px 14px}"
    ".tiles b{display:block;font-size:20px;font-weight:600}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}"
    "td,th{padding:4px 10px 4px 0;border-bottom:1px solid var(--line);text-align:left;"
    "white-space:nowrap;vertical-align:top}td.why{white-space:normal;min-width:180px}"
    "th{font-weight:600;color:var(--soft);font-size:13px}.num{text-align:right}"
    ".bar{display:flex;height:14px;background:var(--saved);border-radius:3px;overflow:hidden;"
    "min-width:80px}.bar i{display:block;height:100%}.c{background:var(--wire)}"
    ".n{background:var(--native)}.row "
    ".bar{min-width:2px}.row{display:grid;grid-template-columns:130px 1fr 210px;gap:12px;"
    "align-items:center;margin:6px 0}@media(max-width:640px){.row{grid-template-columns:1fr}}"
    ".cells i{display:inline-block;width:8px;height:14px;margin-right:1px;border-radius:1px}"
    "svg{display:block;width:100%;height:auto}svg.plot{height:150px}svg.plot *{vector-effect:"
    "non-scaling-stroke}.ends{display:flex;justify-content:space-between;margin:0;font-size:12px}"
    "p,h3,td.why,.row{overflow-wrap:anywhere}"
    ".curve{fill:none;stroke:var(--wire);stroke-width:1.5}.axis{stroke:var(--line)}"
    ".key span{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 5px 0 14px;"
    "vertical-align:-1px}";

double part(double of, double whole) {
    return whole > 0 ? of / whole : 0;
}

std::string bytes(uint64_t count) {
    return format_bytes(static_cast<double>(count));
}

// Wire bytes of compressed and of native calls, as parts of `whole`.
std::string bar(uint64_t compressed, uint64_t native, double whole) {
    return fmt::format(
        "<div class=\"bar\"><i class=\"c\" style=\"width:{:.2f}%\"></i><i class=\"n\" "
        "style=\"width:{:.2f}%\"></i></div>",
        100 * part(static_cast<double>(compressed), whole),
        100 * part(static_cast<double>(native), whole));
}

std::string time_text(double us) {
    return us >= 3.6e9  ? fmt::format("{:.1f} h", us / 3.6e9)
           : us >= 6e7  ? fmt::format("{:.1f} min", us / 6e7)
           : us >= 1e6  ? fmt::format("{:.1f} s", us / 1e6)
           : us >= 1000 ? fmt::format("{:.1f} ms", us / 1000)
                        : fmt::format("{:.1f} us", us);
}

std::string tiles(const MergedReport& report, const TraceTable& traces) {
    const MergedKey& total = report.total;
    std::string text = "<div class=\"tiles\">";
    const auto tile = [&](const std::string& value, const std::string& what) {
        text += fmt::format("<div><b>{}</b>{}</div>", value, what);
    };
    if (report.processes > 0) {
        tile(fmt::format("{:.2f} x", wire_ratio(total)), "fewer bytes on the wire");
        tile(bytes(total.wire_bytes),
             total.wire_is_estimate ? "sent, native calls by formula" : "sent");
        tile(bytes(total.native_wire_bytes), "natively");
        tile(fmt::format("{}", total.calls), "calls");
        tile(fmt::format("{}", report.processes), report.processes == 1 ? "process" : "processes");
        tile(time_text(report.uptime_us), "since the first communicator");
    }
    if (traces.files > 0) {
        tile(fmt::format("{}", traces.calls), "calls in traces");
        tile(bytes(traces.bytes), "in their buffers");
    }
    return text + "</div>\n";
}

std::string bad_lines(const std::vector<std::string>& lines) {
    std::string text;
    for (size_t i = 0; i < std::min(kMostLines, lines.size()); ++i) {
        text += "<p class=\"bad\">! " + escaped(lines[i]) + "</p>\n";
    }
    return lines.size() <= kMostLines
               ? text
               : text + fmt::format("<p class=\"bad\">! and {} more (report --json has all)</p>\n",
                                    lines.size() - kMostLines);
}

struct Sums {
    uint64_t compressed = 0, native = 0, would = 0;
    void add(const MergedKey& key) {
        (key.codec == "native" ? native : compressed) += key.wire_bytes;
        would += key.native_wire_bytes;
    }
};

std::string where_section(const MergedReport& report) {
    std::map<std::string, Sums> by_op;
    for (const MergedComm& comm : report.comms) {
        for (const MergedKey& key : comm.keys) {
            by_op[key.op].add(key);
        }
    }
    std::vector<std::pair<std::string, Sums>> ops(by_op.begin(), by_op.end());
    std::stable_sort(ops.begin(), ops.end(),
                     [](const auto& a, const auto& b) { return a.second.would > b.second.would; });
    std::string text =
        "<h2>Where the bytes went</h2>\n<p class=\"key soft\">on the wire <span "
        "class=\"c\"></span>compressed <span class=\"n\"></span>native <span "
        "style=\"background:var(--saved)\"></span>not sent</p>\n";
    const double most = ops.empty() ? 0 : static_cast<double>(ops.front().second.would);
    for (const auto& [op, sums] : ops) {
        // The row's bar is as long as what would have been sent natively.
        text += fmt::format(
            "<div class=\"row\"><div>{}</div><div style=\"width:{:.2f}%\">{}</div><div "
            "class=\"soft\">{} of {}</div></div>\n",
            escaped(op), std::max(0.3, 100 * part(static_cast<double>(sums.would), most)),
            bar(sums.compressed, sums.native, static_cast<double>(sums.would)),
            bytes(sums.compressed + sums.native), bytes(sums.would));
    }
    return text;
}

std::string key_row(const MergedKey& key) {
    const bool native = key.codec == "native";
    std::string state = native ? "" : escaped(shortened(key.codec)) + ", " + escaped(key.algorithm);
    if (key.features.thresholds.wanted > 0) {
        state += fmt::format(", survivors {:.3f} of wanted",
                             static_cast<double>(key.features.thresholds.survivors) /
                                 static_cast<double>(key.features.thresholds.wanted));
    }
    return fmt::format(
        "<tr><td>{}</td><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td "
        "class=\"num\">{:.2f}</td><td>{}</td><td class=\"num\">{}</td><td class=\"why "
        "soft\">{}</td></tr>\n",
        call_text(key), native ? "native" : state, key.calls, bytes(key.wire_bytes),
        wire_ratio(key),
        bar(native ? 0 : key.wire_bytes, native ? key.wire_bytes : 0,
            static_cast<double>(key.native_wire_bytes)),
        key.timed_calls == 0
            ? std::string("-")
            : fmt::format("{:.1f}", key.time_us / static_cast<double>(key.timed_calls)),
        escaped(shortened(key.reason)));
}

// `rows`: of tables so far.
std::string comm_section(const MergedComm& comm, double uptime_us, size_t* rows) {
    std::string agreement;
    for (const auto& [text, ranks] : comm.agreements) {
        agreement += (agreement.empty() ? "" : "; ") + text;
    }
    std::string text = fmt::format(
        "<h3>Communicator {}</h3>\n<p class=\"soft\">{} of {} ranks reported, {} node{}, {}</p>\n",
        escaped(comm.comm), comm.ranks_seen.size(), comm.ranks, comm.nodes,
        comm.nodes == 1 ? "" : "s", escaped(agreement.empty() ? "no agreement" : agreement));
    uint64_t wire = 0;
    for (const MergedKey& key : comm.keys) {
        wire += key.wire_bytes;
    }
    const double mb_s = part(static_cast<double>(wire), uptime_us) /
                        std::max<double>(1, static_cast<double>(comm.ranks_seen.size()));
    if (comm.links.slowest().mb_s > 0) {
        const double used = 100 * mb_s / static_cast<double>(comm.links.slowest().mb_s);
        text += fmt::format(
            "<p>Slowest link {}, {} MB/s; {:.3g} MB/s a rank sent over the whole run: {:.1f} % of "
            "it.</p>\n<div class=\"bar\" style=\"max-width:420px\"><i class=\"c\" "
            "style=\"width:{:.2f}%\"></i></div>\n",
            escaped(path_class_name(comm.links.slowest().path_class)), comm.links.slowest().mb_s,
            mb_s, used, std::min(100.0, used));
    } else {
        text += fmt::format(
            "<p class=\"soft\">{:.3g} MB/s a rank sent over the whole run. How busy its links "
            "were is not known, because no bandwidth is: SLIMWIRE_BANDWIDTH or NCCL_TOPO_FILE say "
            "it.</p>\n",
            mb_s);
    }
    text +=
        "<div class=\"scroll\"><table><tr><th>call</th><th>by</th><th class=\"num\">calls</th><th "
        "class=\"num\">wire</th><th class=\"num\">ratio</th><th></th><th "
        "class=\"num\">us/call</th><th>why</th></tr>\n";
    MergedKey rest;
    size_t left = 0;
    const size_t most = std::clamp(kMostRows - std::min(kMostRows, *rows), kLeastKeys, kMostKeys);
    for (size_t i = 0; i < comm.keys.size(); ++i) {
        const MergedKey& key = comm.keys[i];
        if (key.calls == 0) {
            continue;
        }
        if (i < most) {
            ++*rows;
            text += key_row(key);
            continue;
        }
        ++left;
        rest.calls += key.calls;
        rest.wire_bytes += key.wire_bytes;
        rest.native_wire_bytes += key.native_wire_bytes;
    }
    if (left > 0) {
        text += fmt::format(
            "<tr><td>{} more kinds of calls</td><td></td><td class=\"num\">{}</td><td "
            "class=\"num\">{}</td><td class=\"num\">{:.2f}</td><td></td><td></td><td></td></tr>\n",
            left, rest.calls, bytes(rest.wire_bytes), wire_ratio(rest));
    }
    text += "</table></div>\n";
    return text + bad_lines(comm.differences);
}

// A line through (x, y >= 0) in the order of x, and behind it what `says` of the largest y.
std::string curve_row(const std::string& name,
                      const char* label,
                      const std::vector<std::pair<double, double>>& points,
                      const std::string& says) {
    double largest = 1e-12;
    for (const auto& [x, y] : points) {
        largest = std::max(largest, y);
    }
    const double first = points.front().first;
    const double span = std::max(1e-9, points.back().first - first);
    std::string path;
    for (const auto& [x, y] : points) {
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", 600 * (x - first) / span,
                            40 - 38 * y / largest);
    }
    return fmt::format(
        "<div class=\"row\"><div>{}</div><svg viewBox=\"0 0 600 42\" role=\"img\" "
        "aria-label=\"{}\"><path class=\"curve\" d=\"{}\"/></svg><div class=\"soft\">{} "
        "{:.3g}</div></div>\n",
        escaped(name), label, path, escaped(says), largest);
}

// What error feedback kept back, over the calls of each kind.
std::string owed_section(const MergedReport& report) {
    std::string text;
    size_t shown = 0, left = 0;
    for (const MergedComm& comm : report.comms) {
        for (const MergedKey& key : comm.keys) {
            std::vector<std::pair<double, double>> points;
            for (const auto& [call, squares] : key.features.residual_norms) {
                if (squares.first > 0) {
                    points.emplace_back(static_cast<double>(call),
                                        std::sqrt(squares.second / squares.first));
                }
            }
            if (points.size() < 2) {
                continue;
            }
            if (shown == kMostTensors) {
                ++left;
                continue;
            }
            ++shown;
            text += curve_row(fmt::format("{} {} {}", key.op, key.dtype, key.count),
                              "residual over calls", points, "by " + key.codec + ", up to");
        }
    }
    if (left > 0) {
        text += fmt::format("<p class=\"soft\">and {} more</p>\n", left);
    }
    return text.empty() ? text
                        : "<h2>What is owed</h2>\n<p class=\"soft\">Norm of the residuals over "
                          "that of the gradient, call after call.</p>\n" +
                              text;
}

// Of what each second's calls had in their buffers.
std::string time_section(const TraceTable& traces) {
    std::string text = "<h2>Over time</h2>\n";
    if (traces.files == 0) {
        return text +
               "<p class=\"soft\">Reports hold sums. What happened when, and the error of each "
               "tensor's encodings, is in traces: run with SLIMWIRE_MODE=record, or shadow for "
               "errors, and give the trace files to this command, too.</p>\n";
    }
    if (!traces.bytes_by_second.empty()) {
        const uint64_t last = traces.bytes_by_second.rbegin()->first;
        const uint64_t step = last / 400 + 1;
        std::vector<double> columns(last / step + 1);
        for (const auto& [second, count] : traces.bytes_by_second) {
            columns[second / step] += static_cast<double>(count);
        }
        text += plot(fmt::format("Bytes in buffers, by {} of all traces together",
                                 step == 1 ? "second" : fmt::format("{} seconds", step)),
                     columns, 1e6 * static_cast<double>(last + 1), format_bytes);
    }
    size_t shown = 0;
    for (const TracedTensor& of : traces.tensors) {
        if (of.shadow.errors.empty() || shown++ >= kMostTensors) {
            continue;
        }
        text += curve_row(fmt::format("{} {} {}", of.op, of.dtype, of.count), "error over time",
                          of.shadow.errors, "error of " + of.shadow.codec + " up to");
    }
    if (shown == 0) {
        text +=
            "<p class=\"soft\">These traces have no errors of encodings: SLIMWIRE_MODE=shadow "
            "tries what the policy would do.</p>\n";
    }
    return text;
}

std::string network_section(const MergedReport& report) {
    if (report.peers.empty()) {
        return {};
    }
    std::string text =
        "<h2>Network</h2>\n<p class=\"soft\">What the net plugin carried, losslessly "
        "compressed.</p>\n<div class=\"scroll\"><table><tr><th>way</th><th>peer</th><th>wire</th>"
        "<th class=\"num\">messages</th><th class=\"num\">bytes</th><th class=\"num\">on the "
        "wire</th><th class=\"num\">ratio</th></tr>\n";
    std::map<std::string, size_t> shown;
    std::map<std::string, MergedPeer> rest;
    const auto row = [&text](const MergedPeer& peer, const std::string& who) {
        text += fmt::format(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"num\">{}</td><td "
            "class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{:.2f}</td></tr>\n",
            escaped(peer.direction), who, escaped(peer.wire), peer.messages, bytes(peer.bytes),
            bytes(peer.wire_bytes),
            peer.wire_bytes == 0
                ? 1.0
                : static_cast<double>(peer.bytes) / static_cast<double>(peer.wire_bytes));
    };
    for (const MergedPeer& peer : report.peers) {
        if (++shown[peer.direction] <= kMostPeers) {
            row(peer, escaped(shortened(peer.peer)));
            continue;
        }
        MergedPeer& sum = rest[peer.direction];
        sum.direction = peer.direction;
        sum.messages += peer.messages;
        sum.bytes += peer.bytes;
        sum.wire_bytes += peer.wire_bytes;
    }
    for (const auto& [direction, sum] : rest) {
        row(sum, fmt::format("{} more", shown[direction] - kMostPeers));
    }
    return text + "</table></div>\n";
}

}  // namespace

std::string shortened(const std::string& name) {
    constexpr size_t kMost = 160, kEnd = 40;
    // Not within a character.
    const auto at = [&](size_t cut) {
        while (cut > 0 && (static_cast<unsigned char>(name[cut]) & 0xC0) == 0x80) {
            --cut;
        }
        return cut;
    };
    return name.size() <= kMost
               ? name
               : name.substr(0, at(kMost - kEnd)) + "..." + name.substr(at(name.size() - kEnd));
}

std::string call_text(const MergedKey& key) {
    std::string text = key.op + " " + key.dtype;
    text += key.folded ? ", many sizes" : " " + std::to_string(key.count);
    const std::string name = shortened(key.name());
    return escaped(name.empty() ? text : text + ", '" + name + "'");
}

std::string report_page(const MergedReport& report, const TraceTable& traces) {
    std::string text = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta "
        "name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>slimwire "
        "report</title><style>{}</style></head>\n<body><main>\n<h1>slimwire report</h1>\n",
        kStyle);
    text += tiles(report, traces);
    for (const auto* lines : {&report.differences, &report.notes, &traces.notes}) {
        text += bad_lines(*lines);
    }
    if (report.processes > 0) {
        text += where_section(report);
        text += decisions_section(report);
        text += owed_section(report);
        text += next_section(report);
    } else {
        text +=
            "<p class=\"soft\">No report files were given: SLIMWIRE_REPORT writes them, and this "
            "page then says what was sent and decided.</p>\n";
    }
    text += time_section(traces) + timeline_section(traces.timeline) + rehearsed_section(traces);
    text += network_section(report);
    if (!report.comms.empty()) {
        text += "<h2>Communicators</h2>\n";
    }
    size_t rows = 0;
    for (size_t i = 0; i < std::min(kMostComms, report.comms.size()); ++i) {
        text += comm_section(report.comms[i], report.uptime_us, &rows);
    }
    if (report.comms.size() > kMostComms) {
        text +=
            fmt::format("<p class=\"soft\">and {} communicators more, which the sums have</p>\n",
                        report.comms.size() - kMostComms);
    }
    return text + "</main></body></html>\n";
}

}  // namespace slimwire::cli
