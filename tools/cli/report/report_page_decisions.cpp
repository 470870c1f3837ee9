#include <fmt/core.h>

#include <algorithm>

#include "tools/cli/common/byte_text.h"
#include "tools/cli/common/html_text.h"
#include "tools/cli/report/report_page.h"

namespace slimwire::cli {
namespace {

constexpr size_t kMostRows = 40;
constexpr size_t kMostNext = 12;

// One cell a decision: filled where it compresses strongly, grey where it does not.
std::string cell(bool strong, const std::string& title) {
    return fmt::format("<i class=\"{}\" title=\"{}\"></i>", strong ? "c" : "n", escaped(title));
}

std::string row(const std::string& what, const std::string& cells, const std::string& now) {
    return fmt::format(
        "<div class=\"row\"><div>{}</div><div class=\"cells\">{}</div><div "
        "class=\"soft\">{}</div></div>\n",
        what, cells, now);
}

std::string accordion_row(const MergedKey& key,
                          const std::pair<uint32_t, uint32_t>& place,
                          const MergedAccordion& of) {
    std::string cells;
    uint64_t window = of.windows - std::min<uint64_t>(of.windows, of.decisions.size());
    for (const char decision : of.decisions) {
        cells += cell(decision == 'H', fmt::format("window {}: {} compression", window++,
                                                   decision == 'H' ? "high" : "low"));
    }
    return row(fmt::format("{}, tensor {}.{}", call_text(key), place.first, place.second), cells,
               fmt::format("accordion: high in {} of {} windows", of.high_windows, of.windows));
}

// What a user could do about native calls, by why they are.
std::string hint(const MergedKey& key) {
    if (!key.shadow_codec.empty()) {
        return "would go by " + key.shadow_codec + ": SLIMWIRE_MODE=on";
    }
    if (key.reason == "no rule matches") {
        return "a rule with op = \"" + key.op + "\" would take it, if what it carries may lose";
    }
    return key.remedy;
}

}  // namespace

std::string decisions_section(const MergedReport& report) {
    std::string text;
    size_t rows = 0, left = 0;
    const auto add = [&](const std::string& line) {
        if (rows++ < kMostRows) {
            text += line;
        } else {
            ++left;
        }
    };
    for (const MergedComm& comm : report.comms) {
        for (const MergedKey& key : comm.keys) {
            for (const auto& [place, of] : key.features.accordions) {
                add(accordion_row(key, place, of));
            }
        }
        if (comm.skipped_steps > 0) {
            add(row("communicator " + escaped(comm.comm), "",
                    fmt::format("{} of {} steps skipped", comm.skipped_steps, comm.step_flags)));
        }
    }
    if (rows == 0) {
        return "<h2>Decisions</h2>\n<p class=\"soft\">None were made while the job ran: rules with "
               "'accordion' make them.</p>\n";
    }
    if (left > 0) {
        text += fmt::format("<p class=\"soft\">and {} more</p>\n", left);
    }
    return "<h2>Decisions</h2>\n<p class=\"key soft\">in their order <span "
           "class=\"c\"></span>compressed, or strongly <span class=\"n\"></span>native, or "
           "weakly</p>\n" +
           text;
}

std::string next_section(const MergedReport& report) {
    std::vector<const MergedKey*> native;
    uint64_t all = 0;
    for (const MergedComm& comm : report.comms) {
        for (const MergedKey& key : comm.keys) {
            all += key.wire_bytes;
            if (key.codec == "native" && key.wire_bytes > 0) {
                native.push_back(&key);
            }
        }
    }
    if (native.empty()) {
        return "<h2>What would be gained next</h2>\n<p class=\"good\">No bytes go natively.</p>\n";
    }
    std::stable_sort(native.begin(), native.end(), [](const MergedKey* a, const MergedKey* b) {
        return a->wire_bytes > b->wire_bytes;
    });
    std::string text =
        "<h2>What would be gained next</h2>\n<p class=\"soft\">Native calls, by their part of all "
        "bytes on the wire.</p>\n<div class=\"scroll\"><table><tr><th>call</th><th "
        "class=\"num\">wire</th><th class=\"num\">of all</th><th>why native</th><th>what would "
        "help</th></tr>\n";
    for (size_t i = 0; i < std::min(kMostNext, native.size()); ++i) {
        const MergedKey& key = *native[i];
        text += fmt::format(
            "<tr><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{:.1f} %</td><td "
            "class=\"why soft\">{}</td><td class=\"why\">{}</td></tr>\n",
            call_text(key), format_bytes(static_cast<double>(key.wire_bytes)),
            100 * static_cast<double>(key.wire_bytes) /
                static_cast<double>(std::max<uint64_t>(1, all)),
            escaped(shortened(key.reason)), escaped(hint(key)));
    }
    text += "</table></div>\n";
    if (report.total.shadow_calls > 0) {
        text += fmt::format(
            "<p>SLIMWIRE_MODE=on would send {} instead of {} of these: {:.2f} times fewer.</p>\n",
            format_bytes(static_cast<double>(report.total.shadow_wire_bytes)),
            format_bytes(static_cast<double>(report.total.shadow_native_bytes)),
            shadow_ratio(report.total));
    }
    return text;
}

}  // namespace slimwire::cli
