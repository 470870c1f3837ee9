#include "tools/cli/bench_nccl_tests.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "codecs/codec.h"
#include "collectives/launcher.h"
#include "collectives/names.h"
#include "tools/cli/bench_collective.h"
#include "tools/cli/job.h"
#include "tools/cli/loader_search.h"
#include "tools/cli/nccl_tests_command.h"
#include "tools/cli/nccl_tests_merge.h"
#include "tools/cli/nccl_tests_print.h"
#include "tools/cli/nccl_tests_table.h"
#include "tools/cli/outcome.h"
#include "tools/cli/report_merge.h"
#include "tools/cli/subprocess.h"
#include "tools/cli/temporary_folder.h"
#include "tools/cli/variables_help.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

Status invalid(std::string text) {
    return {Code::kInvalidArgument, std::move(text)};
}

struct Plan {
    NcclTestsCommand command;
    std::vector<std::string> codecs;
    Installation installation;
    JobOptions job;
    std::string dtype;  // of the base run, nccl-tests' word
    bool speaks = true;
};

Result<Plan> make_plan(const NcclTestsOptions& options, const std::vector<std::string>& words) {
    Plan plan;
    SLIMWIRE_TRY_ASSIGN(plan.command, split_nccl_tests_command(words));
    plan.codecs = split_codecs(options.codecs);
    if (plan.codecs.empty()) {
        return invalid("--codec is empty; accepted: a codec or a comma list of codecs");
    }
    for (const std::string& codec : plan.codecs) {
        SLIMWIRE_TRY(parse_codec_or_native(codec).status());
    }
    if (options.ranks == 0 && (!options.link.empty() || !options.nodes.empty())) {
        return invalid("--link and --nodes shape emulated ranks: add --ranks");
    }
    plan.installation = find_installation();
    if (options.ranks > 0) {
        plan.job.ranks = options.ranks;
        plan.job.nodes = options.nodes;
        plan.job.link = options.link;
    }
    plan.dtype = argument_value(plan.command.arguments, 'd', "datatype");
    if (plan.dtype.empty()) {
        plan.dtype = "float";
    }
    plan.speaks = launcher_rank().value_or(0) == 0;
    return plan;
}

// "-b", "-e" and "-i" over `divisor`, so that as many 16-bit elements travel; the program's own
// default of both ends is 32 MiB.
Result<std::vector<std::string>> with_smaller_sizes(std::vector<std::string> arguments,
                                                    uint64_t divisor) {
    const struct {
        char letter;
        const char* name;
        const char* otherwise;
    } kSizes[] = {{'b', "minbytes", "32M"}, {'e', "maxbytes", "32M"}, {'i', "stepbytes", ""}};
    for (const auto& size : kSizes) {
        std::string text = argument_value(arguments, size.letter, size.name);
        text = text.empty() ? size.otherwise : text;
        if (text.empty()) {
            continue;
        }
        // nccl-tests: a number and K, M, G or T, powers of 1024.
        static const std::string kUnits = "KMGT";
        const size_t unit = kUnits.find(static_cast<char>(std::toupper(text.back())));
        const Result<uint64_t> bytes =
            parse_bytes(unit == std::string::npos ? text : text.substr(0, text.size() - 1));
        if (!bytes.ok()) {
            return invalid(fmt::format("-{} {}: not a size", size.letter, text));
        }
        const uint64_t value = bytes.value() << (unit == std::string::npos ? 0 : 10 * (unit + 1));
        arguments = with_argument(arguments, size.letter, size.name,
                                  std::to_string(std::max<uint64_t>(1, value / divisor)));
    }
    return arguments;
}

// Emulated ranks are the devices of one process, unless the arguments divide them otherwise.
std::vector<std::string> with_devices(std::vector<std::string> arguments,
                                      const NcclTestsProgram& program,
                                      int ranks) {
    if (ranks == 0 || !argument_value(arguments, 'g', "ngpus").empty() ||
        !argument_value(arguments, 't', "nthreads").empty()) {
        return arguments;
    }
    return program.thread_per_device
               ? with_argument(arguments, 't', "nthreads", std::to_string(ranks))
               : with_argument(arguments, 'g', "ngpus", std::to_string(ranks));
}

Result<std::vector<NcclTestsRun>> make_runs(const Plan& plan,
                                            const NcclTestsOptions& options,
                                            const NcclTestsProgram& program) {
    const std::vector<std::string> given =
        with_devices(plan.command.arguments, program, options.ranks);
    const bool no_check = argument_value(given, 'c', "check") == "0";
    const auto checked = [&](std::vector<std::string> arguments, bool on) {
        const std::string asked = argument_value(arguments, 'c', "check");
        return with_argument(arguments, 'c', "check", !on ? "0" : asked.empty() ? "1" : asked);
    };
    std::vector<NcclTestsRun> runs;
    runs.reserve(2 + plan.codecs.size());
    NcclTestsRun& native = runs.emplace_back();
    native.codec = "native";
    native.arguments = checked(given, !no_check);
    native.check = no_check ? NcclTestsCheck::kOff : NcclTestsCheck::kExact;
    const bool wide = plan.dtype == "float" || plan.dtype == "double";
    if (wide && !options.no_16bit) {
        NcclTestsRun& half = runs.emplace_back();
        half.codec = "native 16 bit";
        half.half = true;
        SLIMWIRE_TRY_ASSIGN(half.arguments,
                            with_smaller_sizes(native.arguments, plan.dtype == "float" ? 2 : 4));
        half.arguments = with_argument(half.arguments, 'd', "datatype", "bfloat16");
        half.check = native.check;
    }
    const DType dtype = parse_dtype(plan.dtype).value_or(DType::kFloat32);
    for (const std::string& codec : plan.codecs) {
        NcclTestsRun& run = runs.emplace_back();
        SLIMWIRE_TRY_ASSIGN(const CodecSpec spec, parse_codec(codec));
        run.codec = codec;
        run.compressed = true;
        run.lossless = spec.traits(dtype).lossless;
        run.check = run.lossless && !no_check ? NcclTestsCheck::kExact : NcclTestsCheck::kOff;
        run.arguments = checked(given, run.check == NcclTestsCheck::kExact);
    }
    return runs;
}

// The command behind the launcher's words: its variables go through env(1), because a launcher need
// not hand on ours.
std::vector<std::string> full_command(const Plan& plan,
                                      const std::string& program,
                                      const std::vector<std::string>& arguments,
                                      const Environment& environment) {
    std::vector<std::string> command = plan.command.prefix;
    if (!command.empty()) {
        command.emplace_back("env");
        const Environment before = Environment::current();
        for (const auto& [name, value] : environment.values()) {
            const char* former = before.get(name);
            if (former == nullptr || value != former) {
                command.push_back(name + "=" + value);
            }
        }
    }
    command.push_back(program);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
}

struct Started {
    std::string output;
    int exit_code = 0;
    MergedReport report;
};

Result<Started> start(const Plan& plan,
                      const NcclTestsOptions& options,
                      const NcclTestsProgram& known,
                      const std::string& program,
                      const NcclTestsRun& run) {
    SLIMWIRE_TRY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    Environment base = Environment::current();
    for (const char* name :
         {"SLIMWIRE_POLICY", "SLIMWIRE_CODEC", "SLIMWIRE_EF", "SLIMWIRE_MIN_BYTES", "SLIMWIRE_OPS",
          "SLIMWIRE_RULE_OFF", "SLIMWIRE_REPORT", "SLIMWIRE_MODE"}) {
        base.unset(name);
    }
    JobOptions job = plan.job;
    job.native = !run.compressed;
    if (run.compressed) {
        job.codec = run.codec;
        job.min_bytes = "0";
        job.report = (folder.path() / "report-%h-%p.jsonl").string();
        base.set("SLIMWIRE_OPS", known.operations);
        base.set("SLIMWIRE_SUMMARY", "0");
    }
    SLIMWIRE_TRY_ASSIGN(Environment environment,
                        make_job_environment(job, plan.installation, std::move(base)));
    if (job.ranks > 0) {
        SLIMWIRE_TRY_ASSIGN(std::vector<Environment> ranks,
                            make_rank_environments(job, plan.installation, environment));
        environment = std::move(ranks.front());
        // The ranks are devices of one process, which no launcher started.
        for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                 "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
            environment.unset(name);
        }
        environment.set("SLIMWIRE_EMU_DEVICES", std::to_string(job.ranks));
    }
    SLIMWIRE_TRY_ASSIGN(const Captured captured,
                        run_captured(full_command(plan, program, run.arguments, environment),
                                     environment, options.timeout_seconds, false));
    Started started;
    started.output = captured.output;
    started.exit_code = captured.exit_code;
    std::vector<std::string> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
        files.push_back(entry.path().string());
    }
    if (!files.empty()) {
        SLIMWIRE_TRY_ASSIGN(started.report, merge_reports(files));
    }
    return started;
}

// What the data check must give in this row, and "" or what it gave instead.
std::string wrong_in(const NcclTestsRun& run, const NcclTestsRow& row) {
    for (const NcclTestsTiming* timing : {&row.out_of_place, &row.in_place}) {
        if (run.check == NcclTestsCheck::kExact && timing->wrong.value_or(0) != 0) {
            return fmt::format("{} wrong elements in {} of {} elements", *timing->wrong,
                               timing == &row.in_place ? "place" : "the row", row.count);
        }
    }
    return {};
}

void execute(const Plan& plan,
             const NcclTestsOptions& options,
             const NcclTestsProgram& known,
             const std::string& program,
             NcclTestsRun* run) {
    Result<Started> started = start(plan, options, known, program, *run);
    if (!started.ok()) {
        run->failed = started.status().message();
        return;
    }
    const int exit_code = started.value().exit_code;
    if (exit_code == 0 && !plan.speaks) {
        return;
    }
    Result<NcclTestsTable> table = parse_nccl_tests(started.value().output);
    if (!table.ok()) {
        run->failed = exit_code != 0 ? fmt::format("ended with exit code {}", exit_code)
                                     : table.status().message();
        return;
    }
    run->table = std::move(table).value();
    run->report = std::move(started.value().report);
    if (exit_code != 0) {
        run->failed = fmt::format("ended with exit code {}", exit_code);
    }
    for (const NcclTestsRow& row : run->table.rows) {
        if (const std::string wrong = wrong_in(*run, row); !wrong.empty()) {
            run->failed += (run->failed.empty() ? "" : "; ") + wrong;
            break;
        }
    }
}

}  // namespace

int bench_nccl_tests(const NcclTestsOptions& options, const std::vector<std::string>& words) {
    const Result<Plan> made = make_plan(options, words);
    if (!made.ok()) {
        return fail(kUsage, made.status());
    }
    const Plan& plan = made.value();
    for (const std::string& program : plan.command.programs) {
        const Result<fs::path> found = find_command(program, Environment::current());
        // Behind a launcher it need not be on this host.
        if (plan.command.prefix.empty() && !found.ok()) {
            return fail(found.status().code() == Code::kNotFound ? kNotFound : kNotExecutable,
                        found.status());
        }
    }
    int exit_code = kSuccess;
    for (const std::string& program : plan.command.programs) {
        const NcclTestsProgram& known = *find_nccl_tests_program(program);
        Result<std::vector<NcclTestsRun>> runs = make_runs(plan, options, known);
        if (!runs.ok()) {
            return fail(kUsage, runs.status());
        }
        for (NcclTestsRun& run : runs.value()) {
            execute(plan, options, known, program, &run);
        }
        const std::vector<MergedNcclTestsRow> rows = merge_runs(known, runs.value());
        for (NcclTestsRun& run : runs.value()) {
            const bool compressed =
                std::any_of(rows.begin(), rows.end(), [&](const MergedNcclTestsRow& row) {
                    return row.run == &run && !row.wire.codec.empty() && row.wire.codec != "native";
                });
            if (plan.speaks && run.compressed && run.failed.empty() && !compressed) {
                const auto row =
                    std::find_if(rows.begin(), rows.end(),
                                 [&](const MergedNcclTestsRow& one) { return one.run == &run; });
                run.failed =
                    "no call was compressed: " + (row == rows.end() ? "no row" : row->wire.reason);
            }
            if (!run.failed.empty()) {
                exit_code = kCheckFailed;
                note(fmt::format("{} with {}: {}", program, run.codec, run.failed));
            }
        }
        if (plan.speaks) {
            const NcclTestsAbout about{plan.job.link, plan.dtype};
            if (options.json) {
                for (const MergedNcclTestsRow& row : rows) {
                    print_nccl_tests_json(known, about, row);
                }
            } else {
                print_nccl_tests_table(known, rows);
            }
            for (const NcclTestsRun& run : runs.value()) {
                print_nccl_tests_run(known, about, run, options.json);
            }
            std::fflush(stdout);
        }
    }
    return exit_code;
}

}  // namespace slimwire::cli
