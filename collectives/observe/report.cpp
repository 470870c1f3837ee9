// Here, and for the net plugin in plugin/net/report/net_report.cpp, nlohmann-json is included.
#include "collectives/observe/report.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <type_traits>
#include <variant>

#include "codecs/base/number_text.h"

namespace slimwire {
namespace {

// Members in the order written.
using Json = nlohmann::ordered_json;

std::string hex(uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, value);
    return text;
}

// One line; bytes that are no UTF-8 (host names, paths) are replaced.
void append(const Json& record, std::string* out) {
    *out += record.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

Json process_json(const ProcessRecord& p) {
    return {{"v", 1},
            {"record", "process"},
            {"host", p.host},
            {"pid", p.pid},
            {"launcher_rank", p.launcher_rank ? Json(*p.launcher_rank) : Json(nullptr)},
            {"version", p.info.version},
            {"config_hash", hex(p.info.config_hash)},
            {"policy_source", p.info.policy_source},
            {"nccl_version", p.info.nccl_version},
            {"nccl_path", p.info.nccl_path},
            {"backend", p.info.backend},
            {"max_memory_bytes", p.info.max_memory_bytes},
            {"uptime_us", p.uptime_us},
            {"phase", phase_name(p.training.phase)},
            {"step", p.training.step ? Json(*p.training.step) : Json(nullptr)},
            {"learning_rate",
             p.training.learning_rate ? Json(*p.training.learning_rate) : Json(nullptr)},
            {"loss_scale", p.training.loss_scale ? Json(*p.training.loss_scale) : Json(nullptr)}};
}

Json link_json(const RankLink& link) {
    return {{"class", path_class_name(link.path_class)}, {"mb_s", link.mb_s}};
}

// Where ranks agreed.
Json links_json(const CommLinks& links) {
    if (links.shape.nodes == 0) {
        return nullptr;
    }
    return {{"ranks_on_node", links.ranks_on_node},
            {"nv_domains", links.nv_domains},
            {"rails", links.rails},
            {"rails_aligned", links.rails_aligned},
            {"shared_gpus", links.shared_gpus},
            {"slowest_in_node", link_json(links.slowest_in_node)},
            {"slowest_between_nodes", link_json(links.slowest_between_nodes)}};
}

Json thresholds_json(const std::vector<CostThreshold>& thresholds) {
    Json all = Json::array();
    for (const CostThreshold& one : thresholds) {
        all.push_back({{"op", op_name(one.op)},
                       {"dtype", dtype_name(one.dtype)},
                       {"codec", one.codec},
                       {"algorithm", one.algorithm},
                       {"pays_from_bytes",
                        one.pays_from_bytes ? Json(*one.pays_from_bytes) : Json(nullptr)}});
    }
    return all;
}

Json comm_json(const CommRecord& c) {
    Json json = {{"v", 1},
                 {"record", "comm"},
                 {"comm", c.comm},
                 {"rank", c.rank},
                 {"ranks", c.ranks},
                 {"nodes", c.nodes},
                 {"links", links_json(c.links)},
                 {"thresholds", thresholds_json(c.thresholds)},
                 {"device", c.device},
                 {"name", c.name},
                 {"agreement", c.agreement}};
    for (const auto& count : kCommCounts<uint64_t>) {
        json[count.name] = c.*count.member;
    }
    json["retired"] = c.retired;
    json["communicators"] = c.communicators;
    return json;
}

void put(const ReportFields& fields, Json* json) {
    for (const ReportField& field : fields) {
        Json& member = (*json)[field.name];
        std::visit(
            [&](const auto& value) {
                using Value = std::decay_t<decltype(value)>;
                if constexpr (std::is_same_v<Value, ReportFields>) {
                    put(value, &member);
                } else if constexpr (std::is_same_v<Value, std::vector<ReportFields>>) {
                    member = Json::array();
                    for (const ReportFields& one : value) {
                        put(one, &member.emplace_back(Json::object()));
                    }
                } else {
                    member = value;
                }
            },
            field.value);
    }
}

Json key_json(const CommRecord& c, const KeyRecord& k) {
    Json json = {{"v", 1},
                 {"record", "key"},
                 {"comm", c.comm},
                 {"rank", c.rank},
                 {"op", k.one_sided != nullptr ? k.one_sided : op_name(k.signature.op)},
                 {"dtype", dtype_name(k.signature.dtype)},
                 {"redop", redop_name(k.signature.redop)},
                 {"count", k.signature.count},
                 {"root_or_peer", k.signature.root_or_peer},
                 {"rule", k.rule},
                 {"codec", k.codec},
                 {"algorithm", k.algorithm},
                 {"reason", k.reason},
                 {"calls", k.calls},
                 {"input_bytes", k.input_bytes},
                 {"wire_bytes", k.wire_bytes},
                 {"native_wire_bytes", k.native_wire_bytes},
                 {"wire_is_estimate", k.wire_is_estimate},
                 {"timed_calls", k.timed_calls},
                 {"time_us", static_cast<double>(k.time_ns) / 1000.0}};
    if (k.folded) {
        json["folded"] = true;
    }
    if (k.signature.direction != Direction::kUnknown) {
        json["direction"] = direction_name(k.signature.direction);
    }
    if (k.remedy != nullptr) {
        json["remedy"] = k.remedy;
    }
    if (k.lacks_feedback) {
        json["lacks_feedback"] = true;
    }
    if (!k.name.empty()) {
        json["name"] = k.name;
    }
    put(k.fields, &json);
    if (!k.shadow_codec.empty()) {
        json["shadow_codec"] = k.shadow_codec;
        json["shadow_algorithm"] = k.shadow_algorithm;
        json["shadow_wire_bytes"] = k.shadow_wire_bytes;
    }
    return json;
}

// Three digits, or all before the point.
std::string short_text(double value) {
    return value < 999.5 ? general_text(value, 3) : fixed_text(value, 0);
}

// "; at 10 Gbit/s this saves about 2 s on the wire": what the bytes saved would have taken, with
// the slowest link of each communicator; "" where it is not known. Ranks in mode shadow know
// between nodes what they were told themselves.
std::string time_text(const std::vector<CommRecord>& comms, bool shadow, uint32_t stated_mb_s) {
    double seconds = 0;
    uint32_t slowest_mb_s = 0;
    for (const CommRecord& comm : comms) {
        const uint32_t mb_s = !shadow          ? comm.links.slowest().mb_s
                              : comm.nodes > 1 ? stated_mb_s
                                               : 0;
        for (const KeyRecord& key : comm.keys) {
            if (mb_s > 0 && (shadow ? !key.shadow_codec.empty() : key.compressed())) {
                const uint64_t wire_bytes = shadow ? key.shadow_wire_bytes : key.wire_bytes;
                slowest_mb_s = slowest_mb_s == 0 ? mb_s : std::min(slowest_mb_s, mb_s);
                seconds +=
                    (static_cast<double>(key.native_wire_bytes) - static_cast<double>(wire_bytes)) /
                    (1e6 * mb_s);
            }
        }
    }
    if (seconds <= 0) {
        return "";
    }
    const std::string time = seconds >= 1      ? short_text(seconds) + " s"
                             : seconds >= 1e-3 ? short_text(seconds * 1e3) + " ms"
                                               : short_text(seconds * 1e6) + " us";
    return "; at " + short_text(slowest_mb_s * 8e-3) + " Gbit/s this " +
           (shadow ? "would save" : "saves") + " about " + time + " on the wire";
}

// "1 KiB instead of 8 KiB, 8.00 times fewer bytes".
std::string savings_text(uint64_t wire_bytes, uint64_t native_bytes) {
    const std::string both = format_bytes(wire_bytes) + " instead of " + format_bytes(native_bytes);
    if (wire_bytes == 0 || native_bytes == 0) {
        return both;
    }
    const bool fewer = wire_bytes <= native_bytes;
    const double ratio = fewer
                             ? static_cast<double>(native_bytes) / static_cast<double>(wire_bytes)
                             : static_cast<double>(wire_bytes) / static_cast<double>(native_bytes);
    return both + ", " + fixed_text(ratio, 2) + (fewer ? " times fewer" : " times more") + " bytes";
}

std::string some_text(uint64_t calls, const char* without) {
    return calls == 0 ? "" : "; " + std::to_string(calls) + " calls went without " + without;
}

// "rank 0 compressed 9 of its 10 calls by p.toml".
std::string calls_text(const ProcessRecord& process,
                       const std::vector<CommRecord>& comms,
                       uint64_t compressed,
                       uint64_t all) {
    const std::string rank = process.launcher_rank
                                 ? "rank " + std::to_string(*process.launcher_rank)
                             : comms.empty() ? std::string("this process")
                                             : "rank " + std::to_string(comms.front().rank);
    if (all == 0) {
        return rank + " made no calls that slimwire looks at (policy " +
               process.info.policy_source + ")";
    }
    return rank + " compressed " + (compressed == 0 ? "none" : std::to_string(compressed)) +
           " of its " + std::to_string(all) + " calls (policy " + process.info.policy_source + ")";
}

}  // namespace

TrainingRecord training_record(const Training& training) {
    TrainingRecord record;
    record.phase = training.phase.load(std::memory_order_relaxed);
    if (training.marks.load(std::memory_order_acquire) != 0) {
        record.step = training.step.load(std::memory_order_relaxed);
    }
    const double rate = training.learning_rate.load(std::memory_order_relaxed);
    if (!std::isnan(rate)) {
        record.learning_rate = rate;
    }
    const double scale = training.loss_scale.load(std::memory_order_relaxed);
    if (!std::isnan(scale)) {
        record.loss_scale = scale;
    }
    return record;
}

std::string comm_lines(const CommRecord& comm) {
    std::string out;
    append(comm_json(comm), &out);
    for (const KeyRecord& key : comm.keys) {
        append(key_json(comm, key), &out);
    }
    return out;
}

std::string report_lines(const ProcessRecord& process, const std::vector<CommRecord>& comms) {
    std::string out;
    append(process_json(process), &out);
    for (const CommRecord& comm : comms) {
        out += comm_lines(comm);
    }
    return out;
}

namespace {

// With those that differ in the number at their begin alone as one: "4 to 60 bytes are less".
std::map<std::string, uint64_t> merge_numbers(const std::map<std::string, uint64_t>& counts) {
    struct Alike {
        uint64_t least, most, count = 0;
    };
    std::map<std::string, Alike> numbered;
    std::map<std::string, uint64_t> merged;
    for (const auto& [text, count] : counts) {
        uint64_t number = 0;
        const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
        if (read.ec != std::errc()) {
            merged[text] = count;
            continue;
        }
        Alike& alike =
            numbered.try_emplace(std::string(read.ptr), Alike{number, number}).first->second;
        alike = {std::min(alike.least, number), std::max(alike.most, number), alike.count + count};
    }
    for (const auto& [rest, alike] : numbered) {
        const std::string most = std::to_string(alike.most);
        merged[(alike.least == alike.most ? most : std::to_string(alike.least) + " to " + most) +
               rest] = alike.count;
    }
    return merged;
}

}  // namespace

std::string largest_counts(const std::map<std::string, uint64_t>& counts, size_t shown) {
    const std::map<std::string, uint64_t> merged = merge_numbers(counts);
    std::vector<std::pair<std::string, uint64_t>> sorted(merged.begin(), merged.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string out;
    for (size_t i = 0; i < std::min(shown, sorted.size()); ++i) {
        out +=
            (i == 0 ? "" : ", ") + sorted[i].first + " (" + std::to_string(sorted[i].second) + ")";
    }
    return out + (sorted.size() > shown ? ", ..." : "");
}

std::string format_bytes(uint64_t bytes) {
    constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(kUnits)) {
        value /= 1024;
        ++unit;
    }
    const int decimals = unit == 0 || value >= 100 ? 0 : value < 10 ? 2 : 1;
    return fixed_text(value, decimals) + " " + kUnits[unit];
}

std::vector<std::string> summary_lines(const ProcessRecord& process,
                                       const std::vector<CommRecord>& comms,
                                       const std::string& report_path) {
    constexpr std::string_view kNative = "native: ";
    KeyRecord compressed, shadowed;
    uint64_t native_calls = 0, native_bytes = 0, communicators = 0, native_communicators = 0;
    uint64_t residual_bytes = 0, calls_without_residual = 0, missed_masks = 0, lacking = 0;
    std::map<std::string, uint64_t> codecs, reasons, comm_reasons;
    for (const CommRecord& comm : comms) {
        communicators += comm.communicators;
        residual_bytes += comm.residual_bytes;
        calls_without_residual += comm.calls_without_residual;
        missed_masks += comm.missed_masks;
        if (comm.agreement.starts_with(kNative)) {
            comm_reasons[comm.agreement.substr(kNative.size())] += comm.communicators;
            native_communicators += comm.communicators;
        }
        for (const KeyRecord& key : comm.keys) {
            if (key.calls == 0) {
                continue;
            }
            if (key.compressed()) {
                codecs[key.codec] += key.calls;
                lacking += key.lacks_feedback ? key.calls : 0;
                compressed.calls += key.calls;
                compressed.input_bytes += key.input_bytes;
                compressed.wire_bytes += key.wire_bytes;
                compressed.native_wire_bytes += key.native_wire_bytes;
            } else {
                reasons[key.reason] += key.calls;
                if (!key.shadow_codec.empty()) {
                    shadowed.calls += key.calls;
                    shadowed.native_wire_bytes += key.native_wire_bytes;
                    shadowed.shadow_wire_bytes += key.shadow_wire_bytes;
                }
                native_calls += key.calls;
                native_bytes += key.input_bytes;
            }
        }
    }
    if (compressed.calls == 0 && shadowed.calls == 0 && !process.info.active) {
        return {};
    }
    std::vector<std::string> lines = {
        calls_text(process, comms, compressed.calls, compressed.calls + native_calls)};
    if (compressed.calls > 0) {
        lines.back() +=
            " with " + (codecs.size() == 1 ? codecs.begin()->first : largest_counts(codecs, 3));
        lines.push_back("it sent " +
                        savings_text(compressed.wire_bytes, compressed.native_wire_bytes) +
                        time_text(comms, false, 0));
        lines.back() +=
            residual_bytes > 0 ? "; residuals take " + format_bytes(residual_bytes) : "";
        lines.back() += some_text(calls_without_residual, "their residual for want of memory");
        lines.back() += missed_masks == 0 ? ""
                                          : "; " + std::to_string(missed_masks) +
                                                " gradients came as zeros for want of their masks";
        lines.back() += some_text(lacking, "the error feedback that their codec needs");
    }
    if (shadowed.calls > 0) {
        lines.push_back("mode on would compress " + std::to_string(shadowed.calls) +
                        " of them and send " +
                        savings_text(shadowed.shadow_wire_bytes, shadowed.native_wire_bytes) +
                        time_text(comms, true, process.info.stated_mb_s));
    }
    if (native_calls > 0) {
        lines.push_back(std::to_string(native_calls) + " calls of " + format_bytes(native_bytes) +
                        " stayed native: " + largest_counts(reasons, 2));
    }
    if (!comm_reasons.empty() && shadowed.calls == 0) {
        lines.push_back(std::to_string(native_communicators) + " of its " +
                        std::to_string(communicators) +
                        " communicators stayed native: " + largest_counts(comm_reasons, 2));
    }
    if (!report_path.empty()) {
        lines.push_back("the report is " + report_path);
    }
    return lines;
}

}  // namespace slimwire
