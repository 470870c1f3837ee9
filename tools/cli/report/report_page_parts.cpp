// Parts of the page of `slimwire report --html`: decisions and traces (report_page.h).
#include <fmt/core.h>

#include <algorithm>

#include "tools/cli/common/text.h"
#include "tools/cli/report/report_page.h"

namespace slimwire::cli {
namespace {

constexpr size_t kMostRehearsed = 20;  // that were rehearsed; the rest is added up
constexpr size_t kMostPhases = 12;

std::string rate_text(double bytes_per_s) {
    return format_bytes(bytes_per_s) + "/s";
}
std::string number_text(double value) {
    return fmt::format("{:.4g}", value);
}

std::string training_part(const TraceTimeline& line) {
    if (line.training.empty()) {
        return "<p class=\"soft\">The program told nothing of its training: slimwire_mark_step and "
               "slimwire_set_learning_rate of slimwire.h do.</p>\n";
    }
    std::vector<double> rates(line.used, -1), scales(line.used, -1);
    std::string phases;
    size_t changes = 0;
    for (size_t i = 0; i < line.training.size(); ++i) {
        const TrainingMark& mark = line.training[i];
        const size_t at =
            std::min(line.used - 1, static_cast<size_t>(std::max(mark.at_us, 0.0) / line.slice_us));
        rates[at] = mark.learning_rate >= 0 ? mark.learning_rate : rates[at];
        scales[at] = mark.loss_scale >= 0 ? mark.loss_scale : scales[at];
        if ((i == 0 || mark.phase != line.training[i - 1].phase) && ++changes <= kMostPhases) {
            phases += fmt::format("{}{} from {:.3g} s{}", phases.empty() ? "" : ", ",
                                  escaped(shortened(mark.phase)), 1e-6 * mark.at_us,
                                  mark.step >= 0 ? fmt::format(", step {}", mark.step) : "");
        }
    }
    if (changes > kMostPhases) {
        phases += fmt::format(" and {} changes more", changes - kMostPhases);
    }
    return "<p>The program told: " + phases + ".</p>\n" +
           plot("Learning rate", rates, line.end_us, number_text) +
           plot("Loss scale", scales, line.end_us, number_text);
}

}  // namespace

std::string plot(const std::string& title,
                 const std::vector<double>& values,
                 double end_us,
                 std::string (*text_of)(double)) {
    constexpr double kWide = 1000, kHigh = 150;
    const double most = *std::max_element(values.begin(), values.end());
    if (most < 0) {
        return {};
    }
    std::string path;
    for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] >= 0) {
            path += fmt::format(
                "{}{:.1f} {:.1f}{}", path.empty() ? "M" : "L",
                kWide * (static_cast<double>(i) + 0.5) / static_cast<double>(values.size()),
                kHigh - 2 - (kHigh - 4) * (most > 0 ? values[i] / most : 0),
                path.empty() ? "h1" : "");
        }
    }
    return fmt::format(
        "<p>{0}; most {1}.</p>\n<svg class=\"plot\" preserveAspectRatio=\"none\" viewBox=\"0 0 "
        "{2:.0f} {3:.0f}\" role=\"img\" aria-label=\"{0}\"><path class=\"curve\" d=\"{4}\"/><line "
        "class=\"axis\" x1=\"0\" x2=\"{2:.0f}\" y1=\"{3:.0f}\" y2=\"{3:.0f}\"/></svg><p "
        "class=\"ends soft\"><span>0 s</span><span>{5} s</span></p>\n",
        title, text_of(most), kWide, kHigh, path,
        end_us >= 1e8 ? fmt::format("{:.0f}", 1e-6 * end_us)
                      : fmt::format("{:.3g}", 1e-6 * end_us));
}

std::string timeline_section(const TraceTimeline& line) {
    if (line.used == 0) {
        return {};
    }
    std::vector<double> rates(line.used, -1);
    for (size_t i = 0; i < line.used; ++i) {
        if (line.slices[i].timed_us > 0) {
            rates[i] = 1e6 * static_cast<double>(line.slices[i].timed_wire_bytes) /
                       line.slices[i].timed_us;
        }
    }
    const std::string links = plot(
        "What a rank sent while a call ran, of native calls of 64 KiB and more that were timed",
        rates, line.end_us, rate_text);
    return (links.empty() ? "<p class=\"soft\">How fast links were over time is not known: no call "
                            "of 64 KiB and more outside groups was timed.</p>\n"
                          : links) +
           training_part(line);
}

std::string rehearsed_section(const TraceTable& traces) {
    std::string rows;
    size_t tensors = 0;
    uint64_t wire = 0, native = 0;  // of those left out
    const auto mean = [](double sum, uint64_t count, int digits) {
        return count == 0 ? std::string("-")
                          : fmt::format("{:.{}g}", sum / static_cast<double>(count), digits);
    };
    for (const TracedTensor& of : traces.tensors) {
        if (of.shadow.codec.empty() || of.shadow.algorithm == "native") {
            continue;
        }
        if (++tensors > kMostRehearsed) {
            wire += of.shadow.wire_bytes;
            native += of.shadow.native_bytes;
            continue;
        }
        rows += fmt::format(
            "<tr><td>{}</td><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td "
            "class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td "
            "class=\"num\">{}</td><td>{}</td></tr>\n",
            escaped(fmt::format("{} {} {}", of.op, of.dtype, of.count)),
            escaped(shortened(of.shadow.codec)),
            format_bytes(static_cast<double>(of.shadow.wire_bytes)),
            format_bytes(static_cast<double>(of.shadow.native_bytes)),
            mean(of.shadow.rel_error, of.shadow.rehearsed, 3) + (of.shadow.stand_in ? "*" : ""),
            of.shadow.rehearsed == 0 ? std::string("-")
                                     : fmt::format("{:.3g}", of.shadow.largest_rel_error),
            mean(of.shadow.codec_us, of.shadow.codec_times, 4),
            mean(of.device_us, of.timed_calls, 4), pays(of));
    }
    if (tensors == 0) {
        return {};
    }
    if (tensors > kMostRehearsed) {
        rows += fmt::format(
            "<tr><td>{} more tensors</td><td></td><td class=\"num\">{}</td><td "
            "class=\"num\">{}</td><td></td><td></td><td></td><td></td><td></td></tr>\n",
            tensors - kMostRehearsed, format_bytes(static_cast<double>(wire)),
            format_bytes(static_cast<double>(native)));
    }
    return "<h3>What mode on would do</h3>\n<div "
           "class=\"scroll\"><table><tr><th>call</th><th>by</th>"
           "<th class=\"num\">wire</th><th class=\"num\">natively</th><th "
           "class=\"num\">error</th><th class=\"num\">largest</th><th class=\"num\">codec us</th>"
           "<th class=\"num\">us/call</th><th>pays</th></tr>\n" +
           rows +
           "</table></div>\n<p class=\"soft\">Pays: whether it would be faster if the native time "
           "shrank as the bytes do; ? is between yes and no. *: of the rank's own part in place of "
           "what would be encoded.</p>\n";
}

namespace {

constexpr size_t kMostDecisions = 40;
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
        if (rows++ < kMostDecisions) {
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
