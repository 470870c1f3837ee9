// The page of `slimwire report --html`: where a job's bytes went, what was decided and when, how
// busy links were, what would be gained next. One file without scripts or references to anything
// outside, in light and dark; the same input makes the same page.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/report/report_merge.h"
#include "tools/cli/report/trace_table.h"

namespace slimwire::cli {

// Of reports, traces, or both; what was not recorded the page says how to record.
[[nodiscard]] std::string report_page(const MergedReport& report, const TraceTable& traces);

// Its parts (report_page_parts.cpp): what controllers chose, and what native calls could be.
[[nodiscard]] std::string decisions_section(const MergedReport& report);
[[nodiscard]] std::string next_section(const MergedReport& report);

// What only traces know: how fast links were and when, what the program
// told of its training, and what mode on would do to each tensor.
[[nodiscard]] std::string timeline_section(const TraceTimeline& timeline);
[[nodiscard]] std::string rehearsed_section(const TraceTable& traces);

// A line over slices of time, from 0 to the largest, that `text_of` says; below 0 is none, which
// the line goes over.
[[nodiscard]] std::string plot(const std::string& title,
                               const std::vector<double>& values,
                               double end_us,
                               std::string (*text_of)(double));

// A name from the job, its middle left out where it is long; to be escaped.
[[nodiscard]] std::string shortened(const std::string& name);

// "allreduce f32 1048576, 'name'", escaped.
[[nodiscard]] std::string call_text(const MergedKey& key);

}  // namespace slimwire::cli
