#include "tools/cli/bench_footprint.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "collectives/config.h"
#include "tools/cli/job.h"
#include "tools/cli/launcher.h"
#include "tools/cli/outcome.h"
#include "tools/cli/stamp.h"
#include "tools/cli/temporary_folder.h"
#include "tools/cli/variables_help.h"

namespace slimwire::cli {
namespace {

constexpr const char* kFigures[] = {"device_bytes", "host_bytes",    "sockets",
                                    "creation_us",  "first_call_us", "second_call_us"};
constexpr size_t kFigureCount = std::size(kFigures);
using Figures = std::array<double, kFigureCount>;

struct Plan {
    std::vector<int> ranks;
    uint64_t bytes = 0;
};

Status invalid(std::string text) {
    return {Code::kInvalidArgument, std::move(text)};
}

Result<Plan> make_plan(const FootprintOptions& options) {
    Plan plan;
    SLIMWIRE_TRY_ASSIGN(plan.bytes, parse_bytes(options.bytes));
    if (plan.bytes < 8) {
        return invalid(fmt::format("--bytes {}: at least two elements of fp32", options.bytes));
    }
    for (const std::string& item : split_list(options.ranks, ",")) {
        const int ranks = std::atoi(item.c_str());
        if (ranks < 1 || ranks > 1024 || std::to_string(ranks) != item) {
            return invalid(fmt::format("--ranks '{}': accepted: numbers from 1 to 1024, as 2,4,8",
                                       options.ranks));
        }
        if (ranks % options.ranks_per_node != 0) {
            return invalid(fmt::format("--ranks-per-node {} does not divide --ranks {}",
                                       options.ranks_per_node, ranks));
        }
        plan.ranks.push_back(ranks);
    }
    if (plan.ranks.empty()) {
        return invalid("--ranks is empty; accepted: numbers, as 2,4,8");
    }
    SLIMWIRE_TRY(parse_codec_or_native(options.codec).status());
    if (!options.link.empty()) {
        SLIMWIRE_TRY(parse_link(options.link).status());
    }
    return plan;
}

// One job; the largest figure of its ranks.
Result<Figures> run_job(const FootprintOptions& options,
                        const Installation& installation,
                        uint64_t bytes,
                        int ranks,
                        bool native) {
    SLIMWIRE_TRY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    Environment base;
    const Environment caller = Environment::current();
    for (const auto& [key, value] : caller.values()) {
        if (key.rfind("SLIMWIRE_", 0) != 0) {
            base.set(key, value);
        }
    }
    base.set("SLIMWIRE_SUMMARY", "0");
    JobOptions job;
    job.native = native;
    job.ranks = ranks;
    job.nodes = fmt::format("{}x{}", ranks / options.ranks_per_node, options.ranks_per_node);
    job.link = options.link;
    if (!native) {
        job.codec = options.codec;
        job.error_feedback = options.error_feedback;
        job.min_bytes = "0";
    }
    SLIMWIRE_TRY_ASSIGN(const Environment environment,
                        make_job_environment(job, installation, std::move(base)));
    SLIMWIRE_TRY_ASSIGN(std::vector<Environment> environments,
                        make_rank_environments(job, installation, environment));
    const std::string out = (folder.path() / "rank-").string();
    const int code =
        launch_ranks({.command = {(installation.helpers / "slimwire-bench-footprint").string(),
                                  "--bytes", std::to_string(bytes), "--out", out, "--port",
                                  environments[0].get("MASTER_PORT")},
                      .environments = environments});
    if (code != 0) {
        return Status(Code::kSystemError, fmt::format("{} {} ranks ended with exit code {}", ranks,
                                                      native ? "native" : options.codec, code));
    }
    Figures largest{};
    for (int rank = 0; rank < ranks; ++rank) {
        std::ifstream file(out + std::to_string(rank));
        const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
        if (json.is_discarded()) {
            return Status(Code::kInternalError,
                          fmt::format("rank {} of {} wrote no result", rank, ranks));
        }
        for (size_t i = 0; i < kFigureCount; ++i) {
            const double value = json.at(kFigures[i]);
            largest[i] = rank == 0 ? value : std::max(largest[i], value);
        }
    }
    return largest;
}

// Natively and with the codec in turn; medians over the rounds.
Result<std::array<Figures, 2>> measure(const FootprintOptions& options,
                                       const Installation& installation,
                                       uint64_t bytes,
                                       int ranks) {
    std::vector<double> samples[2][kFigureCount];
    for (int round = 0; round < options.rounds; ++round) {
        for (const bool native : {true, false}) {
            SLIMWIRE_TRY_ASSIGN(const Figures figures,
                                run_job(options, installation, bytes, ranks, native));
            for (size_t i = 0; i < kFigureCount; ++i) {
                samples[native ? 0 : 1][i].push_back(figures[i]);
            }
        }
    }
    std::array<Figures, 2> medians{};
    for (size_t kind = 0; kind < 2; ++kind) {
        for (size_t i = 0; i < kFigureCount; ++i) {
            std::vector<double>& values = samples[kind][i];
            std::sort(values.begin(), values.end());
            medians[kind][i] = values[values.size() / 2];
        }
    }
    return medians;
}

void print(const FootprintOptions& options,
           uint64_t bytes,
           int ranks,
           const Figures& native,
           const Figures& own) {
    if (!options.json) {
        const double mebi = 1024.0 * 1024;
        fmt::print(
            "{:>6} {:>12.1f} {:>12.1f} {:>10.0f} {:>8.0f} {:>9.1f} {:>9.1f} {:>9.1f} "
            "{:>9.1f} {:>9.1f} {:>9.1f}\n",
            ranks, (own[0] - native[0]) / mebi, (own[1] - native[1]) / mebi, own[2], native[2],
            own[3] * 1e-3, native[3] * 1e-3, own[4] * 1e-3, native[4] * 1e-3, own[5] * 1e-3,
            native[5] * 1e-3);
        std::fflush(stdout);
        return;
    }
    auto json = stamped("bench_footprint");
    json["machine"] = json["machine"].get<std::string>() + ", emulator";
    json["codec"] = options.codec;
    json["error_feedback"] = options.error_feedback.empty() ? "none" : options.error_feedback;
    json["bytes"] = bytes;
    json["ranks"] = ranks;
    json["nodes"] = ranks / options.ranks_per_node;
    json["link"] = options.link;
    for (size_t i = 0; i < kFigureCount; ++i) {
        json[kFigures[i]] = std::llround(own[i]);
        json[std::string("native_") + kFigures[i]] = std::llround(native[i]);
    }
    fmt::print("{}\n", json.dump());
    std::fflush(stdout);
}

}  // namespace

int bench_footprint(const FootprintOptions& options) {
    const Result<Plan> plan = make_plan(options);
    if (!plan.ok()) {
        return fail(kUsage, plan.status());
    }
    const Installation installation = find_installation();
    if (installation.helpers.empty()) {
        return fail(kCannotStart,
                    "slimwire-bench-footprint is not beside this program; build it (ninja -C "
                    "build)");
    }
    if (!options.json) {
        fmt::print(
            "# all_reduce of {}, {}{}; the largest rank, median of {}\n"
            "{:>6} {:>12} {:>12} {:>19} {:>19} {:>19} {:>19}\n"
            "{:>6} {:>12} {:>12} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
            options.bytes, options.codec, options.link.empty() ? ", unshaped" : ", " + options.link,
            options.rounds, "", "extra device", "extra host", "sockets", "creation (ms)",
            "first call (ms)", "second call (ms)", "ranks", "MiB", "MiB", "own", "native", "own",
            "native", "own", "native", "own", "native");
    }
    for (const int ranks : plan.value().ranks) {
        const auto medians = measure(options, installation, plan.value().bytes, ranks);
        if (!medians.ok()) {
            return fail(kCannotStart, medians.status());
        }
        print(options, plan.value().bytes, ranks, medians.value()[0], medians.value()[1]);
    }
    return kSuccess;
}

}  // namespace slimwire::cli
