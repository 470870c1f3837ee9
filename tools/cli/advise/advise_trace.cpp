#include "tools/cli/advise/advise.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "collectives/policy/names.h"
#include "collectives/policy/policy.h"
#include "tools/cli/common/text.h"

namespace slimwire::cli {
namespace {

constexpr uint64_t kLeastBytes = 4096;  // of a call that compression is asked about
constexpr size_t kShown = 20;

// Gradients travel by these; what the others carry is often state that must stay exact.
bool is_sum(const TracedTensor& of) {
    return (of.op == "allreduce" || of.op == "reducescatter") &&
           (of.redop == "sum" || of.redop == "avg" || of.redop == "premulsum");
}

// Of an all-reduce; a reduce-scatter is its first half.
double half_of(const TracedKind& kind) {
    return kind.op == "reducescatter" ? 0.5 : 1.0;
}

double native_s(const TracedKind& kind, const LinkCost& link) {
    return half_of(kind) *
           dense_ring_cost(static_cast<double>(kind.bytes), kind.ranks, link).total_s();
}

double wire_bytes(const TracedKind& kind) {
    const double n = kind.ranks;
    return half_of(kind) * 2 * (n - 1) / n * static_cast<double>(kind.bytes);
}

// What the call found, if what is beyond its latency is the wire's.
double found_gb_s(const TracedKind& kind, const LinkCost& link) {
    const double latency = half_of(kind) * 2 * (kind.ranks - 1) * link.alpha_s;
    return wire_bytes(kind) / std::max(kind.native_s - latency, 0.1 * kind.native_s) / 1e9;
}

CodecCost codec_of(const TracedKind& kind, const TraceAdviseInput& input, const CodecSpec& codec) {
    CodecCost cost = codec_on(input.gpu, codec, *parse_dtype(kind.dtype));
    for (TimeBySize* time : {&cost.encode, &cost.decode}) {
        for (TimeBySize::Point& point : time->points) {
            point.seconds *= kind.codec_slowdown;
        }
    }
    return cost;
}

// What the timed calls of a kind took: of its native calls, and of a codec, also on paper.
struct Timed {
    double native_us = 0, codec_s = 0, paper_s = 0;
};

// Adds shadow calls, which encode and decode the whole message; those of other codecs say as much
// of the machine.
void add_codec_times(const TracedTensor& of,
                     const TraceAdviseInput& input,
                     const TracedKind& kind,
                     Timed* timed) {
    const Result<CodecSpec> codec = parse_codec(of.shadow.codec);
    if (of.shadow.codec_times == 0 || !codec.ok() ||
        !codec.value().accepts(*parse_dtype(of.dtype))) {
        return;
    }
    const auto bytes = static_cast<double>(kind.bytes);
    const CodecCost paper = codec_on(input.gpu, codec.value(), *parse_dtype(of.dtype));
    timed->codec_s += of.shadow.codec_us * 1e-6;
    timed->paper_s += static_cast<double>(of.shadow.codec_times) *
                      (paper.encode.seconds(bytes) + paper.decode.seconds(bytes));
}

double with_s(const TracedKind& kind, const TraceAdviseInput& input, const CodecSpec& codec) {
    LinkCost link = input.link;
    link.gb_s = kind.gb_s;
    const CallCost cost = two_shot_cost(static_cast<double>(kind.bytes), kind.ranks, link,
                                        codec_of(kind, input, codec));
    return half_of(kind) * cost.best_sliced_s(16, ClusterCost().slice_s);
}

}  // namespace

TraceAdvice advise_trace(const TraceTable& table, const TraceAdviseInput& input) {
    std::map<std::tuple<std::string, std::string, uint64_t, int, bool>, TracedKind> kinds;
    std::map<TracedKind*, Timed> times;
    for (const TracedTensor& of : table.tensors) {
        const std::optional<DType> dtype = parse_dtype(of.dtype);
        if (!dtype.has_value() || of.count == 0) {
            continue;
        }
        TracedKind& kind = kinds[{of.op, of.dtype, of.count, of.ranks, is_sum(of)}];
        kind.op = of.op;
        kind.dtype = of.dtype;
        kind.count = of.count;
        kind.ranks = of.ranks;
        const uint64_t each = of.count * dtype_bytes(*dtype);
        kind.bytes =
            of.op == "reducescatter" ? each * static_cast<uint64_t>(std::max(1, of.ranks)) : each;
        kind.calls += of.calls;
        kind.timed_calls += of.timed_calls;
        times[&kind].native_us += of.device_us;
        add_codec_times(of, input, kind, &times[&kind]);
    }
    TraceAdvice advice;
    advice.recorded_s = table.recorded_us * 1e-6;
    advice.with_s.assign(input.codecs.size(), 0);
    for (auto& [key, kind] : kinds) {
        const bool sums = std::get<4>(key) && kind.ranks > 1;
        const Timed& timed = times[&kind];
        kind.codec_slowdown = timed.paper_s > 0 ? timed.codec_s / timed.paper_s : 1;
        if (kind.timed_calls > 0) {
            kind.native_s = timed.native_us * 1e-6 / static_cast<double>(kind.timed_calls);
        } else if (sums) {
            kind.native_s = native_s(kind, input.link);
        }
        if (sums && kind.native_s > 0) {
            kind.gb_s = kind.timed_calls > 0 ? found_gb_s(kind, input.link) : input.link.gb_s;
            const auto calls = static_cast<double>(kind.calls);
            advice.native_s += calls * kind.native_s;
            for (size_t i = 0; i < input.codecs.size(); ++i) {
                const bool takes =
                    kind.bytes >= kLeastBytes && input.codecs[i].accepts(*parse_dtype(kind.dtype));
                const double seconds = takes ? with_s(kind, input, input.codecs[i]) : kind.native_s;
                kind.with_s.push_back(seconds);
                advice.with_s[i] += calls * std::min(seconds, kind.native_s);
            }
        }
        advice.kinds.push_back(kind);
    }
    std::stable_sort(advice.kinds.begin(), advice.kinds.end(),
                     [](const TracedKind& a, const TracedKind& b) {
                         return static_cast<double>(a.calls) * a.native_s >
                                static_cast<double>(b.calls) * b.native_s;
                     });
    const double fastest = advice.with_s.empty()
                               ? advice.native_s
                               : *std::min_element(advice.with_s.begin(), advice.with_s.end());
    for (size_t i = 0; i < advice.with_s.size() && advice.advised < 0; ++i) {
        if (advice.with_s[i] <= kNearBest * fastest &&
            advice.with_s[i] < (1 - kLeastGain) * advice.native_s) {
            advice.advised = static_cast<int>(i);
        }
    }
    if (advice.advised >= 0) {
        const auto best = static_cast<size_t>(advice.advised);
        uint64_t least = ~uint64_t{0};
        for (TracedKind& kind : advice.kinds) {
            if (kind.with_s.empty() || !input.codecs[best].accepts(*parse_dtype(kind.dtype))) {
                continue;
            }
            kind.break_even_gb_s = break_even_gb_s(
                dense_ring_cost(static_cast<double>(kind.bytes), kind.ranks, input.link),
                two_shot_cost(static_cast<double>(kind.bytes), kind.ranks, input.link,
                              codec_of(kind, input, input.codecs[best])));
            least = kind.with_s[best] < (1 - kLeastGain) * kind.native_s
                        ? std::min(least, kind.bytes)
                        : least;
        }
        advice.min_bytes = least == ~uint64_t{0} ? 0 : least;
    }
    return advice;
}

std::string trace_advice_text(const TraceAdvice& advice, const TraceAdviseInput& input) {
    std::string text = fmt::format("{:<14} {:<5} {:>10} {:>6} {:>8} {:>10} {:>9}", "operation",
                                   "type", "message", "ranks", "calls", "us/call", "Gbit/s");
    for (const CodecSpec& codec : input.codecs) {
        text += fmt::format(" {:>16}", codec.to_string());
    }
    text += fmt::format(" {:>12}\n", "pays below");
    for (size_t i = 0; i < std::min(kShown, advice.kinds.size()); ++i) {
        const TracedKind& kind = advice.kinds[i];
        text += fmt::format("{:<14} {:<5} {:>10} {:>6} {:>8} {:>10} {:>9}", kind.op, kind.dtype,
                            format_bytes(static_cast<double>(kind.bytes)), kind.ranks, kind.calls,
                            kind.native_s > 0 ? fmt::format("{:.1f}", kind.native_s * 1e6) : "-",
                            kind.gb_s > 0 ? gbit_s_text(kind.gb_s) : "-");
        for (const double seconds : kind.with_s) {
            text += fmt::format(" {:>16.1f}", seconds * 1e6);
        }
        for (size_t k = kind.with_s.size(); k < input.codecs.size(); ++k) {
            text += fmt::format(" {:>16}", "-");
        }
        text += fmt::format(" {:>12}\n", kind.break_even_gb_s <= 0 ? std::string("-")
                                         : kind.break_even_gb_s >= kNoLimit
                                             ? std::string("any")
                                             : gbit_s_text(kind.break_even_gb_s) + " Gbit/s");
    }
    if (advice.kinds.size() > kShown) {
        text += fmt::format("and {} kinds of calls that take less\n", advice.kinds.size() - kShown);
    }
    if (advice.native_s <= 0) {
        return text + "No sums of floating-point numbers over several ranks were recorded.\n";
    }
    text += fmt::format(
        "\nSums take {:.3g} s{} natively, of all processes together.\n", advice.native_s,
        advice.recorded_s > 0 ? fmt::format(", {:.1f} % of the time recorded,",
                                            100 * advice.native_s / advice.recorded_s)
                              : "");
    for (size_t i = 0; i < input.codecs.size(); ++i) {
        text += fmt::format("  {:<24} {:.3g} s, {:.2f} times faster\n", input.codecs[i].to_string(),
                            advice.with_s[i], advice.native_s / advice.with_s[i]);
    }
    text += advice.advised < 0
                ? std::string("Stay native: no codec gains 5 % of that.\n")
                : fmt::format("Advised: {} from {} a message on.\n",
                              input.codecs[static_cast<size_t>(advice.advised)].to_string(),
                              format_bytes(static_cast<double>(advice.min_bytes)));
    return text;
}

nlohmann::ordered_json trace_advice_json(const TraceAdvice& advice, const TraceAdviseInput& input) {
    nlohmann::ordered_json json = json_record("advise_trace");
    json["gpu"] = input.gpu.name;
    json["recorded_s"] = advice.recorded_s;
    json["native_s"] = advice.native_s;
    json["codecs"] = nlohmann::json::array();
    for (size_t i = 0; i < input.codecs.size(); ++i) {
        json["codecs"].push_back(
            {{"codec", input.codecs[i].to_string()}, {"seconds", advice.with_s[i]}});
    }
    json["advised"] = advice.advised;
    json["min_bytes"] = advice.min_bytes;
    json["kinds"] = nlohmann::json::array();
    for (const TracedKind& kind : advice.kinds) {
        nlohmann::ordered_json one{{"op", kind.op},
                                   {"dtype", kind.dtype},
                                   {"count", kind.count},
                                   {"bytes", kind.bytes},
                                   {"ranks", kind.ranks},
                                   {"calls", kind.calls},
                                   {"timed_calls", kind.timed_calls},
                                   {"native_s", kind.native_s},
                                   {"gb_s", kind.gb_s},
                                   {"codec_slowdown", kind.codec_slowdown},
                                   {"with_s", kind.with_s}};
        one["break_even_gb_s"] = kind.break_even_gb_s >= kNoLimit
                                     ? nlohmann::ordered_json(nullptr)
                                     : nlohmann::ordered_json(kind.break_even_gb_s);
        json["kinds"].push_back(std::move(one));
    }
    return json;
}

std::string trace_advice_policy(const TraceAdvice& advice, const TraceAdviseInput& input) {
    if (advice.advised < 0) {
        return {};
    }
    const auto best = static_cast<size_t>(advice.advised);
    const CodecSpec& codec = input.codecs[best];
    std::set<std::string> ops, dtypes;
    for (const TracedKind& kind : advice.kinds) {
        if (kind.with_s.size() > best && kind.with_s[best] < kind.native_s) {
            ops.insert(kind.op);
            dtypes.insert(kind.dtype);
        }
    }
    return fmt::format(
        "{} from a recorded job: its sums would take {:.3g} s instead of "
        "{:.3g}.\n# Look at the loss before you rely on it.\nversion = 1\n\n[[rule]]\nname = "
        "\"sums\"\nmatch = {{ op = [\"{}\"], dtype = [\"{}\"], redop = [\"sum\", \"avg\", "
        "\"premulsum\"], "
        "bytes = \"{}..\" }}\ncodec = \"{}\"\n{}",
        kWrittenByAdvise, advice.with_s[best], advice.native_s, fmt::join(ops, "\", \""),
        fmt::join(dtypes, "\", \""), advice.min_bytes, codec.to_string(),
        casts_only(codec) ? "" : "error_feedback = \"ef14\"\n");
}

}  // namespace slimwire::cli
