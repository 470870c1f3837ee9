#include "tools/cli/bench/bench_overhead.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "tools/cli/common/commands.h"
#include "tools/cli/common/environment.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/subprocess.h"
#include "tools/cli/common/text.h"
#include "tools/cli/run/job.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kTimeoutSeconds = 300;

// A rule that is looked at and does not match: the bench calls with fp32.
constexpr char kDecliningPolicy[] =
    "version = 1\n"
    "[[rule]]\n"
    "name = \"only-half-precision\"\n"
    "match = { op = \"allreduce\", dtype = [\"f16\", \"bf16\"] }\n"
    "codec = \"int8\"\n"
    "[runtime]\n"
    "summary = false\n";

// The worker's lines: of the direct calls, and of those of the case.
Result<std::vector<Json>> run_worker(const Installation& installation,
                                     const std::string& name,
                                     const TemporaryFolder& folder,
                                     long calls) {
    // What the caller's environment says about slimwire would change what is measured.
    Environment base;
    const Environment caller = Environment::current();
    for (const auto& [key, value] : caller.values()) {
        if (key.rfind("SLIMWIRE_", 0) != 0) {
            base.set(key, value);
        }
    }
    JobOptions job;
    if (name == "declined") {
        SLIMWIRE_TRY_ASSIGN(job.policy, folder.write("policy.toml", kDecliningPolicy));
        job.report = (folder.path() / "report-%p.jsonl").string();
    }
    if (name == "recorded") {
        job.mode = "record";
        base.set("SLIMWIRE_TRACE", (folder.path() / "trace-%p.jsonl").string());
    }
    SLIMWIRE_TRY_ASSIGN(Environment environment, make_job_environment(job, installation, base));
    if (job.policy.empty()) {
        environment.set("SLIMWIRE_POLICY",
                        "[runtime]\nsummary = false\ntrace_bytes = \"16MiB\"\ntrace_sample = 0\n");
    }
    environment.set("SLIMWIRE_EMU_DEVICES", "2");
    if (!installation.emulator.empty()) {
        environment.prepend("LD_LIBRARY_PATH", installation.emulator.string());
    }
    environment.prepend("LD_LIBRARY_PATH", installation.stub_nccl.string());
    const std::string worker = (installation.helpers / "slimwire-bench-overhead").string();
    SLIMWIRE_TRY_ASSIGN(const Captured captured,
                        run_captured({worker, "--case", name, "--calls", std::to_string(calls)},
                                     environment, kTimeoutSeconds, false));
    if (captured.exit_code != 0) {
        return Status(
            Code::kSystemError,
            fmt::format("the worker of case {} ended with exit code {}", name, captured.exit_code));
    }
    std::vector<Json> cases;
    for (const std::string& line : split_list(captured.output, "\n")) {
        cases.push_back(Json::parse(line, nullptr, false));
    }
    if (cases.size() != 2 || cases[0].is_discarded() || cases[1].is_discarded()) {
        return Status(Code::kInternalError,
                      fmt::format("the worker of case {} said: {}", name, captured.output));
    }
    return cases;
}

// Runs the worker once per case over the stub NCCL: "direct", "declined" (a policy, a report, and
// no rule that matches), "inactive" (no policy), "recorded" (mode record, without samples of the
// data; a call that finds no room in the trace's ring drops its line).
Result<std::vector<Json>> measure(const Installation& installation, long calls) {
    if (installation.stub_nccl.empty() || installation.helpers.empty()) {
        return Status(Code::kNotFound,
                      "the bench programs are not beside this one; build them (ninja -C build)");
    }
    SLIMWIRE_TRY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    std::vector<Json> all;
    for (const char* name : {"declined", "inactive", "recorded"}) {
        SLIMWIRE_TRY_ASSIGN(std::vector<Json> cases, run_worker(installation, name, folder, calls));
        for (Json& one : cases) {
            one["over_direct_ns"] = number_of(one, "p50_ns") - number_of(cases[0], "p50_ns");
        }
        all.insert(all.end(), cases.begin() + (all.empty() ? 0 : 1), cases.end());
    }
    return all;
}

}  // namespace

int bench_overhead(const OverheadOptions& options) {
    SLIMWIRE_OR_FAIL_ASSIGN(kCannotStart, const std::vector<Json> measured,
                            measure(find_installation(), options.calls));
    int exit_code = kSuccess;
    if (!options.json) {
        fmt::print("{:<10} {:>9} {:>9} {:>12} {:>12} {:>10}\n", "case", "p50 ns", "p99 ns",
                   "over direct", "allocations", "calls");
    }
    for (const Json& one : measured) {
        const std::string name = text_of(one, "case");
        const double over = number_of(one, "over_direct_ns");
        // Of a call that slimwire leaves alone; recording it is work.
        const bool failed = options.limit_ns > 0 && name != "recorded" && over > options.limit_ns;
        const std::string reason = fmt::format("p50 {:.1f} ns above the direct call, limit {:g} ns",
                                               over, options.limit_ns);
        if (options.json) {
            Json json = json_record("bench_overhead");
            json.update(one);
            if (failed) {
                json["failed"] = reason;
            }
            fmt::print("{}\n", json_line(json));
        } else {
            fmt::print("{:<10} {:>9.1f} {:>9.1f} {:>12.1f} {:>12} {:>10}\n", name,
                       number_of(one, "p50_ns"), number_of(one, "p99_ns"), over,
                       count_of(one, "allocations"), count_of(one, "calls"));
        }
        if (failed) {
            exit_code = fail(kCheckFailed, fmt::format("case {}: {}", name, reason));
        }
    }
    return exit_code;
}

}  // namespace slimwire::cli
