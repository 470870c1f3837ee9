// `slimwire advise --trace`: what codecs would gain a job whose calls were recorded
// (SLIMWIRE_MODE=record). What a call takes natively is what it took; from that follows the
// bandwidth that it found, and what it would take compressed there, by the formulas of
// topology/cost/cost.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/cli/advise/advise.h"
#include "tools/cli/report/trace_table.h"

namespace slimwire::cli {

struct TraceAdviseInput {
    std::vector<CodecSpec> codecs;  // from the careful to the coarse one
    GpuModel gpu{};
    LinkCost link;  // its latencies; gb_s: of calls that were not timed
};

// All calls of one operation, type and size on communicators of as many ranks.
struct TracedKind {
    std::string op, dtype;
    uint64_t count = 0, bytes = 0;  // of the message
    int ranks = 0;
    uint64_t calls = 0, timed_calls = 0;
    double native_s = 0;  // of one call: measured, or by the link where none was timed
    double gb_s = 0;      // that its wire bytes found
    // What shadow calls took to encode and decode, to what the GPU would take on paper; 1: no such
    // times.
    double codec_slowdown = 1;
    // Of one call by each codec; empty: sums that codecs may take are not among them.
    std::vector<double> with_s;
    double break_even_gb_s = 0;  // of the advised codec; 0 where none is
};

struct TraceAdvice {
    std::vector<TracedKind> kinds;  // by native time of all calls, longest first
    double recorded_s = 0;          // by the processes, together
    double native_s = 0;            // of all calls that are sums of floating-point numbers
    std::vector<double> with_s;     // the same by codec, each call whichever way is faster
    // The most careful codec within 2 % of the fastest, if it gains 5 % of these calls' time;
    // -1: stay native.
    int advised = -1;
    uint64_t min_bytes = 0;  // the smallest message that it makes faster
};

[[nodiscard]] TraceAdvice advise_trace(const TraceTable& table, const TraceAdviseInput& input);
[[nodiscard]] std::string trace_advice_text(const TraceAdvice& advice,
                                            const TraceAdviseInput& input);
[[nodiscard]] nlohmann::ordered_json trace_advice_json(const TraceAdvice& advice,
                                                       const TraceAdviseInput& input);
// Empty where native is advised.
[[nodiscard]] std::string trace_advice_policy(const TraceAdvice& advice,
                                              const TraceAdviseInput& input);

}  // namespace slimwire::cli
