// `slimwire calibrate`: measures what collectives take here, natively and by codecs, and keeps that
// for `slimwire explain` and for jobs (SLIMWIRE_CALIBRATION); with --check it says how well other
// sizes and links are predicted.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "collectives/call/launcher.h"
#include "collectives/plan/comm_costs.h"
#include "collectives/policy/config.h"
#include "tools/cli/advise/advise.h"
#include "tools/cli/bench/bench_collective.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/environment.h"
#include "tools/cli/common/median.h"
#include "tools/cli/common/text.h"
#include "tools/cli/run/job.h"

namespace slimwire::cli {
namespace {

// Ranks of which each hears of all others' whole contributions.
constexpr int kMostGathering = 8;

struct CalibrateOptions {
    CollectiveOptions run;
    std::string algorithms;  // comma list; empty: those that can be the fastest here
    std::string out;
    std::string check_bytes;
    std::string check_links;
    bool json = false;
};

// A way to do a call of one size.
struct Candidate {
    std::string algorithm;
    double measured_s = 0, predicted_s = 0;
};

// Bytes that leave the busiest port: a node's between nodes, else a rank's.
double wire_bytes(const CollectiveMeasurement& of, int nodes, bool native) {
    const double between = native ? of.native_between_nodes_bytes : of.between_nodes_bytes;
    if (of.counted && nodes > 1 && between > 0) {
        return between / nodes;
    }
    const double counted = native ? of.native_wire_bytes : of.wire_bytes;
    return of.counted && counted > 0 ? counted : native ? of.formula_bytes : of.reported_wire_bytes;
}

// Beside what `auto` means, those that can be faster on such a communicator.
std::vector<std::string> other_algorithms(const std::string& op, int ranks, int nodes) {
    const bool levels = nodes > 1 && ranks > nodes;
    std::vector<std::string> others;
    if (levels && (op == "all_reduce" || op == "reduce")) {
        others.emplace_back("two_shot");
    }
    if (levels && op == "reduce_scatter") {
        others.emplace_back("direct");
    }
    if (op == "all_reduce" && ranks <= kMostGathering) {
        others.emplace_back("gather");
    }
    return others;
}

// Of every codec by every algorithm, and of the native calls beside, by size; also how many ranks
// and nodes there are.
Result<std::vector<CalibratedWay>> measure(const CalibrateOptions& asked,
                                           CollectiveOptions options,
                                           int* ranks,
                                           int* nodes) {
    std::vector<std::string> algorithms = split_list(asked.algorithms, ",");
    const bool by_shape = algorithms.empty();
    if (by_shape) {
        algorithms.emplace_back("auto");
    }
    std::vector<CollectiveMeasurement> measured;
    for (size_t i = 0; i < algorithms.size(); ++i) {
        options.algorithm = algorithms[i];
        SLIMWIRE_TRY_ASSIGN(std::vector<CollectiveMeasurement> more, measure_collectives(options));
        // Ranks of a job go on alike; the first alone has figures.
        const bool own = measures_own_job(options);
        if (i == 0 && by_shape && (own || !more.empty())) {
            const int there = own ? *launcher_size() : more.front().ranks;
            const int local = own ? std::max(1, launcher_local_size().value_or(1)) : 1;
            const int nodes_there = own ? std::max(1, there / local) : more.front().nodes;
            for (std::string& other : other_algorithms(options.op, there, nodes_there)) {
                algorithms.push_back(std::move(other));
            }
        }
        std::move(more.begin(), more.end(), std::back_inserter(measured));
    }
    std::vector<CalibratedWay> ways(1);
    ways[0].codec = ways[0].algorithm = "native";
    std::map<uint64_t, std::vector<double>> native_us;
    for (const CollectiveMeasurement& one : measured) {
        *ranks = one.ranks;
        *nodes = one.nodes != 0 ? one.nodes : std::max(1, one.reported_nodes);
        std::vector<double>& all = native_us[one.bytes];
        all.insert(all.end(), one.native_us.begin(), one.native_us.end());
        const double bytes = static_cast<double>(one.bytes);
        if (all.size() == one.native_us.size()) {
            ways[0].samples.push_back({bytes, wire_bytes(one, *nodes, true), 0});
        }
        if (one.codec == "native") {
            continue;
        }
        if (one.reported_codec.empty() || one.reported_codec == "native") {
            continue;  // too small for it, or it takes no such call
        }
        auto way = std::find_if(ways.begin(), ways.end(), [&](const CalibratedWay& known) {
            return known.codec == one.reported_codec && known.algorithm == one.algorithm;
        });
        if (way == ways.end()) {
            way = ways.insert(ways.end(), {one.reported_codec, one.algorithm, {}, {}});
        }
        // Once, where what was asked for became what `auto` means.
        if (std::none_of(way->samples.begin(), way->samples.end(),
                         [&](const CalibrationSample& sample) { return sample.bytes == bytes; })) {
            way->samples.push_back(
                {bytes, wire_bytes(one, *nodes, false), median(one.time_us) * 1e-6});
        }
    }
    for (CalibrationSample& sample : ways[0].samples) {
        sample.seconds = median(native_us[static_cast<uint64_t>(sample.bytes)]) * 1e-6;
    }
    for (CalibratedWay& way : ways) {
        std::sort(way.samples.begin(), way.samples.end(),
                  [](const CalibrationSample& a, const CalibrationSample& b) {
                      return a.bytes < b.bytes;
                  });
    }
    return ways;
}

Result<double> nominal_gb_s(const std::string& link) {
    if (link.empty()) {
        return 0.0;
    }
    SLIMWIRE_TRY_ASSIGN(const LinkSpec spec, parse_link(link));
    return static_cast<double>(spec.bits_per_second) / 8e9;
}

void print(const Calibration& calibration, const std::string& link, const std::string& path) {
    fmt::print(
        "{} of {} on {} ranks of {} node{}{}: {:.0f} us and {:.3g} GB/s, off by {:.0f} % in the "
        "median and {:.0f} % at most\n",
        calibration.op, calibration.dtype, calibration.ranks, calibration.nodes,
        calibration.nodes == 1 ? "" : "s", link.empty() ? "" : ", " + link,
        calibration.link.alpha_s * 1e6, calibration.link.gb_s,
        100 * calibration.quality.median_error, 100 * calibration.quality.worst_error);
    for (const CalibratedWay& way : calibration.ways) {
        if (way.codec == "native") {
            continue;
        }
        const Threshold threshold = calibration.threshold(way, calibration.link.gb_s, 0.05);
        fmt::print("  {:<24} {:<12} {}\n", way.codec, way.algorithm,
                   threshold.pays
                       ? fmt::format("pays from {} on",
                                     format_bytes(static_cast<double>(threshold.enter_bytes)))
                       : "pays at no size measured");
    }
    if (!path.empty()) {
        fmt::print("kept in {}\n", path);
    }
}

// What a check came to: how far off predictions were, and by how much what they choose among all
// ways of a codec is slower than the fastest.
struct Checked {
    std::vector<double> errors;
    std::vector<double> losses;
};

nlohmann::ordered_json checked_json(const char* record,
                                    const CalibrateOptions& options,
                                    const Calibration& calibration,
                                    const std::string& link,
                                    const std::string& codec,
                                    double bytes) {
    auto json = json_record(record);
    json["op"] = calibration.op;
    json["dtype"] = calibration.dtype;
    json["ranks"] = calibration.ranks;
    json["nodes"] = calibration.nodes;
    json["calibrated_link"] = options.run.link;
    json["link"] = link;
    json["codec"] = codec;
    json["bytes"] = bytes;
    return json;
}

// What a job would take (collectives/plan/comm_costs.h). Native comes first, then what
// the communicator's shape suggests.
const Candidate& chosen_of(const std::vector<Candidate>& candidates) {
    const auto sooner = [](const Candidate& a, const Candidate& b) {
        return a.predicted_s < b.predicted_s;
    };
    const Candidate& native = candidates.front();
    if (candidates.size() == 1) {
        return native;
    }
    const Candidate& usual = candidates[1];
    const Candidate& fastest = *std::min_element(candidates.begin() + 1, candidates.end(), sooner);
    if (fastest.predicted_s > (1 - CommCosts::kLeastSaved) * native.predicted_s) {
        return native;
    }
    return fastest.predicted_s <= (1 - CommCosts::kSavedByAlgorithm) * usual.predicted_s ? fastest
                                                                                         : usual;
}

void judge_choices(const CalibrateOptions& options,
                   const Calibration& calibration,
                   const std::string& link,
                   double gb_s,
                   const std::vector<CalibratedWay>& ways,
                   Checked* checked) {
    std::map<std::pair<std::string, double>, std::vector<Candidate>> points;
    std::map<double, Candidate> native;
    for (const CalibratedWay& way : ways) {
        const CalibratedWay* known = calibration.find(way.codec, way.algorithm);
        for (const CalibrationSample& sample : way.samples) {
            if (known == nullptr) {
                continue;
            }
            const Candidate one{way.algorithm, sample.seconds, known->seconds(sample.bytes, gb_s)};
            if (&way == &ways.front()) {
                native[sample.bytes] = one;
            } else {
                std::vector<Candidate>& all = points[{way.codec, sample.bytes}];
                if (all.empty() && native.count(sample.bytes) != 0) {
                    all.push_back(native[sample.bytes]);
                }
                all.push_back(one);
            }
        }
    }
    for (const auto& [point, candidates] : points) {
        const auto& [codec, bytes] = point;
        const Candidate& chosen = chosen_of(candidates);
        const auto& fastest = *std::min_element(
            candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.measured_s < b.measured_s; });
        checked->losses.push_back(chosen.measured_s / fastest.measured_s - 1);
        if (options.json) {
            auto json =
                checked_json("calibration_choice", options, calibration, link, codec, bytes);
            json["chosen"] = chosen.algorithm;
            json["fastest"] = fastest.algorithm;
            json["loss"] = checked->losses.back();
            fmt::print("{}\n", json_line(json));
        }
    }
}

// Measures other sizes, and other links, and says how far off they were predicted, and what that
// does to choices.
Status check(const CalibrateOptions& options, const Calibration& calibration) {
    std::vector<std::string> links = split_list(options.check_links, ",");
    if (links.empty()) {
        links.push_back(options.run.link);
    }
    Checked checked;
    for (const std::string& link : links) {
        CollectiveOptions run = options.run;
        run.link = link;
        run.bytes = options.check_bytes;
        SLIMWIRE_TRY_ASSIGN(const double nominal, nominal_gb_s(link));
        const double gb_s =
            nominal > 0 ? calibration.expected_gb_s(nominal) : calibration.link.gb_s;
        int ranks = 0, nodes = 0;
        SLIMWIRE_TRY_ASSIGN(const std::vector<CalibratedWay> ways,
                            measure(options, run, &ranks, &nodes));
        for (const CalibratedWay& way : ways) {
            const CalibratedWay* known = calibration.find(way.codec, way.algorithm);
            if (known == nullptr) {
                continue;
            }
            for (const CalibrationSample& sample : way.samples) {
                const double predicted = known->seconds(sample.bytes, gb_s);
                const double off = predicted / sample.seconds - 1;
                checked.errors.push_back(std::abs(off));
                if (options.json) {
                    auto json = checked_json("calibration_check", options, calibration, link,
                                             way.codec, sample.bytes);
                    json["algorithm"] = way.algorithm;
                    json["measured_us"] = sample.seconds * 1e6;
                    json["predicted_us"] = predicted * 1e6;
                    json["error"] = off;
                    fmt::print("{}\n", json_line(json));
                } else {
                    fmt::print(
                        "  {:<10} {:<24} {:<12} {:>10} {:>12.1f} us, predicted {:>12.1f}: "
                        "{:+.1f} %\n",
                        link, way.codec, way.algorithm, format_bytes(sample.bytes),
                        sample.seconds * 1e6, predicted * 1e6, 100 * off);
                }
            }
        }
        judge_choices(options, calibration, link, gb_s, ways, &checked);
    }
    if (!options.json) {
        fmt::print("{} points, off by {:.1f} % in the median\n", checked.errors.size(),
                   100 * median(checked.errors));
        if (!checked.losses.empty()) {
            fmt::print("{} choices, {} within 5 % of the fastest, the worst {:.1f} % slower\n",
                       checked.losses.size(),
                       std::count_if(checked.losses.begin(), checked.losses.end(),
                                     [](double loss) { return loss <= 0.05; }),
                       100 * *std::max_element(checked.losses.begin(), checked.losses.end()));
        }
    }
    return {};
}

// What is wrong with the options, before anything is measured.
Status check_options(const CalibrateOptions& options) {
    for (const std::string& algorithm : split_list(options.algorithms, ",")) {
        if (std::count(kBenchedAlgorithms.begin(), kBenchedAlgorithms.end(), algorithm) == 0) {
            return invalid(fmt::format("--algorithm '{}': accepted: {}", algorithm,
                                       fmt::join(kBenchedAlgorithms, ", ")));
        }
    }
    SLIMWIRE_TRY(check_collectives(options.run));
    std::set<uint64_t> sizes;
    for (const std::string& size : split_list(options.run.bytes, ",")) {
        SLIMWIRE_TRY_ASSIGN(const uint64_t bytes, parse_bytes(size));
        sizes.insert(bytes);
    }
    if (sizes.size() < 2) {
        return invalid(fmt::format("--bytes {}: one size; accepted: two or more, as 64KiB,1MiB",
                                   options.run.bytes));
    }
    if (!options.check_bytes.empty()) {
        CollectiveOptions run = options.run;
        run.bytes = options.check_bytes;
        SLIMWIRE_TRY(check_collectives(run));
    }
    for (const std::string& link : split_list(options.check_links, ",")) {
        SLIMWIRE_TRY(nominal_gb_s(link).status());
    }
    return {};
}

int calibrate(const CalibrateOptions& options) {
    SLIMWIRE_OR_FAIL(kUsage, check_options(options));
    const bool emulated = !measures_own_job(options.run);
    const std::string path = options.out.empty() ? default_calibration_path(emulated) : options.out;
    if (emulated || launcher_rank() == 0) {
        SLIMWIRE_OR_FAIL(kCheckFailed, check_calibration_path(path));
    }
    Calibration calibration;
    calibration.op = options.run.op;
    calibration.dtype = options.run.dtype;
    SLIMWIRE_OR_FAIL_ASSIGN(kUsage, calibration.nominal_gb_s, nominal_gb_s(options.run.link));
    SLIMWIRE_OR_FAIL_ASSIGN(kCannotStart, calibration.ways,
                            measure(options, options.run, &calibration.ranks, &calibration.nodes));
    if (calibration.ways[0].samples.empty()) {
        return kSuccess;  // another rank of the job speaks
    }
    SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, const Calibration fitted,
                            fit_calibration(std::move(calibration)));
    const Status kept = keep_calibration(path, fitted, options.run.link);
    if (!options.json) {
        print(fitted, options.run.link, kept.ok() ? path : "");
    } else if (options.check_bytes.empty() || !kept.ok()) {
        fmt::print("{}\n", json_line(calibration_json(fitted, options.run.link)));
    }
    SLIMWIRE_OR_FAIL(kCheckFailed, kept);
    if (!options.check_bytes.empty()) {
        SLIMWIRE_OR_FAIL(kCannotStart, check(options, fitted));
    }
    return kSuccess;
}

}  // namespace

void add_calibrate_command(CLI::App& app, Invocation* invocation) {
    auto options = std::make_shared<CalibrateOptions>();
    CollectiveOptions& run = options->run;
    run.bytes = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB";
    run.codecs = "int4,int8";
    run.rounds = 9;
    run.warmup = 3;
    CLI::App* command = app.add_subcommand(
        "calibrate",
        "measure what collectives take here, natively and by codecs, for slimwire explain and for "
        "jobs (SLIMWIRE_CALIBRATION)");
    add_run_options(command, &run);
    command->get_option("--ranks")->check(CLI::Range(2, 1024));
    command->get_option("--bytes")->description("sizes to measure, two or more, as 1MiB,64MiB");
    command->add_option("--algorithm", options->algorithms,
                        "comma list; default: auto, and those that can be faster on such a "
                        "communicator");
    command->add_option("--out", options->out,
                        "file to keep it in; default: one of this host, GPU and driver in the "
                        "user's cache");
    CLI::Option* check_bytes = command->add_option(
        "--check", options->check_bytes, "then measure these sizes and compare with predictions");
    command->add_option("--check-links", options->check_links, "on these links, as 300mbit,3gbit")
        ->needs(check_bytes);
    command->add_flag("--json", options->json, "JSON lines (collectives/SCHEMA.md)");
    command->callback([=] { invocation->action = [=] { return calibrate(*options); }; });
}

}  // namespace slimwire::cli
