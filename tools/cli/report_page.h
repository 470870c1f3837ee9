// The page of `slimwire report --html`: where a job's bytes went, what was decided and when, how
// busy links were, what would be gained next. One file without scripts or references to anything
// outside, in light and dark; the same input makes the same page.
#pragma once

#include <string>

#include "tools/cli/report_merge.h"
#include "tools/cli/trace_table.h"

namespace slimwire::cli {

// Of reports, traces, or both; what was not recorded the page says how to record.
[[nodiscard]] std::string report_page(const MergedReport& report, const TraceTable& traces);

// Its parts (report_page_decisions.cpp): what gates, controllers and bounds of error chose, and
// what native calls could be.
[[nodiscard]] std::string decisions_section(const MergedReport& report);
[[nodiscard]] std::string next_section(const MergedReport& report);

// "allreduce f32 1048576, 'name'", escaped.
[[nodiscard]] std::string call_text(const MergedKey& key);

}  // namespace slimwire::cli
