// `slimwire report --html`: reads what is given, reports, traces or both, and writes the page.
#include "tools/cli/common/exit_code.h"
#include "tools/cli/common/page_file.h"
#include "tools/cli/report/report_page.h"

namespace slimwire::cli {

int report_html(const std::string& path, const std::vector<std::string>& files) {
    if (const Status status = check_page_path(path, files); !status.ok()) {
        return fail(kUsage, status);
    }
    std::vector<std::string> reports, traces;
    for (const std::string& file : files) {
        (is_trace(file) ? traces : reports).push_back(file);
    }
    const Result<MergedReport> merged = merge_reports(reports);
    if (!merged.ok()) {
        return fail(kCheckFailed, merged.status());
    }
    const Result<TraceTable> table = read_traces(traces);
    if (!table.ok()) {
        return fail(kCheckFailed, table.status());
    }
    const Result<TraceTimeline> timeline = read_timeline(traces);
    if (!timeline.ok()) {
        return fail(kCheckFailed, timeline.status());
    }
    const std::string page = report_page(merged.value(), table.value(), timeline.value());
    if (const Status status = write_page(path, page); !status.ok()) {
        return fail(kCheckFailed, status);
    }
    if (path != "-") {
        note("wrote " + path);
    }
    return kSuccess;
}

}  // namespace slimwire::cli
