#include "tools/cli/bench/bench_overhead.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <ranges>
#include <string_view>

#include "codecs/codec.h"
#include "collectives/call/launcher.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/subprocess.h"
#include "tools/cli/report/report_merge.h"
#include "tools/cli/run/job.h"
#include "tools/cli/run/loader_search.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

struct Program {
    const char* name;        // "all_reduce_perf"; a suffix as _mpi may follow
    const char* operations;  // for SLIMWIRE_OPS
    // Its exchanges follow each other inside one group when one thread has several devices, so that
    // their results are wrong with any NCCL.
    bool thread_per_device = false;
};
// Releases before NCCL 2.28 make the rooted and all-to-all ones of sends and receives.
constexpr Program kPrograms[] = {
    {"all_reduce_perf", "allreduce"}, {"reduce_scatter_perf", "reducescatter"},
    {"all_gather_perf", "allgather"}, {"alltoall_perf", "alltoall,send"},
    {"alltoallv_perf", "send"},       {"broadcast_perf", "broadcast"},
    {"reduce_perf", "reduce"},        {"sendrecv_perf", "send"},
    {"gather_perf", "gather,send"},   {"scatter_perf", "scatter,send"},
    {"hypercube_perf", "send", true}};

const Program* find_program(const std::string& path) {
    const std::string name = fs::path(path).filename().string();
    for (const Program& program : kPrograms) {
        const std::string known = program.name;
        if (name == known || name.starts_with(known + "_")) {
            return &program;
        }
    }
    return nullptr;
}

// "mpirun -np 2 all_reduce_perf -b 1M": what starts the program, the program, its arguments.
struct Command {
    std::vector<std::string> launcher;
    std::string path;
    const Program* program = nullptr;
    std::vector<std::string> arguments;
};

Result<Command> split_command(const std::vector<std::string>& words) {
    const auto path = std::find_if(words.begin(), words.end(), [](const std::string& word) {
        return find_program(word) != nullptr;
    });
    if (path == words.end()) {
        return invalid(
            fmt::format("{}; accepted: {}",
                        words.empty() ? "no program; put it behind --"
                                      : "no program of nccl-tests in '" + words.front() + " ...'",
                        fmt::join(kPrograms | std::views::transform(&Program::name), ", ")));
    }
    return Command{{words.begin(), path}, *path, find_program(*path), {path + 1, words.end()}};
}

// Finds an option of nccl-tests in any spelling: "-g 2", "-g2", "--ngpus 2", "--ngpus=2".
bool has_option(const std::vector<std::string>& arguments, char letter, const std::string& name) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& word) {
        return word == "--" + name || word.starts_with("--" + name + "=") ||
               word.starts_with(std::string{'-', letter});
    });
}

// Emulated ranks are the devices of one process, unless the arguments divide them otherwise. The
// last of two equal options counts in nccl-tests.
std::vector<std::string> run_arguments(const Command& command, int ranks, bool native) {
    std::vector<std::string> arguments = command.arguments;
    if (ranks > 0 && !has_option(arguments, 'g', "ngpus") &&
        !has_option(arguments, 't', "nthreads")) {
        arguments.emplace_back(command.program->thread_per_device ? "-t" : "-g");
        arguments.push_back(std::to_string(ranks));
    }
    if (!native) {
        // The data check compares exactly, and codecs round.
        arguments.insert(arguments.end(), {"-c", "0"});
    }
    return arguments;
}

// The variables go through env(1) behind a launcher, because it need not hand on ours.
std::vector<std::string> full_command(const Command& command,
                                      const std::vector<std::string>& arguments,
                                      const Environment& environment) {
    std::vector<std::string> words = command.launcher;
    if (!words.empty()) {
        words.emplace_back("env");
        const Environment before = Environment::current();
        for (const auto& [name, value] : environment.values()) {
            const char* former = before.get(name);
            if (former == nullptr || value != former) {
                words.push_back(name + "=" + value);
            }
        }
    }
    words.push_back(command.path);
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
}

Result<Environment> run_environment(const NcclTestsOptions& options,
                                    const Command& command,
                                    bool native,
                                    const fs::path& report_folder) {
    Environment base = environment_to_measure_in();
    JobOptions job;
    job.ranks = options.ranks;
    job.nodes = options.nodes;
    job.link = options.link;
    job.native = native;
    if (!native) {
        job.codec = options.codec;
        job.min_bytes = "0";
        job.report = (report_folder / "report-%h-%p.jsonl").string();
        base.set("SLIMWIRE_OPS", command.program->operations);
    }
    const Installation installation = find_installation();
    SLIMWIRE_TRY_ASSIGN(Environment environment,
                        make_job_environment(job, installation, std::move(base)));
    environment.set("SLIMWIRE_POLICY", "[runtime]\nsummary = false\n");
    if (job.ranks > 0) {
        SLIMWIRE_TRY_ASSIGN(std::vector<Environment> ranks,
                            make_rank_environments(job, installation, environment));
        environment = std::move(ranks.front());
        // The ranks are devices of one process, which no launcher started.
        for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                 "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
            environment.unset(name);
        }
        environment.set("SLIMWIRE_EMU_DEVICES", std::to_string(job.ranks));
    }
    return environment;
}

// Why no call was compressed, by these reports; empty when one was.
Result<std::string> why_native(const std::vector<std::string>& files) {
    SLIMWIRE_TRY_ASSIGN(const MergedReport report, merge_reports(files));
    std::string reason = "no call in the report";
    for (const MergedComm& comm : report.comms) {
        for (const MergedKey& key : comm.keys) {
            if (key.codec != "native") {
                return std::string();
            }
            reason = key.reason;
        }
    }
    return reason;
}

// A run's lines of the table, as the program printed them.
struct Table {
    std::vector<std::string> head, rows;
    std::string verdict;     // of its data check: "0 OK", "3 FAILED"
    bool has_report = true;  // of slimwire, in a run by a codec
};

// A launcher may put a rank's number before each line (srun -l, mpirun --tag-output): what stands
// before the table's head is cut off.
Table find_table(const std::string& output) {
    constexpr std::string_view kVerdict = "Out of bounds values : ";
    Table table;
    std::string before;
    for (const std::string& line : split_list(output, "\r\n")) {
        const size_t hash = std::min(line.find('#'), line.size());
        const std::vector<std::string> head = split_list(line.substr(hash), " \t\r");
        // "bytes" in the releases of 2017 and 2018.
        const bool names = head.size() > 2 && (head[1] == "size" || head[1] == "bytes");
        if (names || (head.size() > 1 && head[1] == "(B)")) {
            before = names ? line.substr(0, hash) : before;
            table.head.push_back(line.substr(hash));
        } else if (const size_t at = line.find(kVerdict); at != line.npos) {
            table.verdict = line.substr(at + kVerdict.size());
        } else if (!table.head.empty() && line.starts_with(before)) {
            const std::string row = line.substr(before.size());
            const std::vector<std::string> fields = split_list(row, " \t\r");
            // NCCL's own lines begin with the host, whose name may begin with a digit.
            if (!fields.empty() && fields[0].find_first_not_of("0123456789") == std::string::npos) {
                table.rows.push_back(row);
            }
        }
    }
    return table;
}

// What the reports in the folder say of a run by a codec.
Status check_reports(const fs::path& folder, Table* table) {
    std::vector<std::string> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        files.push_back(entry.path().string());
    }
    table->has_report = !files.empty();
    if (files.empty()) {
        return {};
    }
    SLIMWIRE_TRY_ASSIGN(const std::string reason, why_native(files));
    return reason.empty() ? Status()
                          : Status(Code::kUnsupported, "no call was compressed: " + reason);
}

Result<Table> run(const NcclTestsOptions& options, const Command& command, bool native) {
    SLIMWIRE_TRY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    SLIMWIRE_TRY_ASSIGN(const Environment environment,
                        run_environment(options, command, native, folder.path()));
    const std::vector<std::string> words =
        full_command(command, run_arguments(command, options.ranks, native), environment);
    SLIMWIRE_TRY_ASSIGN(const Captured captured,
                        run_captured(words, environment, options.timeout_seconds, false));
    Table table = find_table(captured.output);
    const bool failed = table.verdict.find("FAILED") != std::string::npos;
    if (captured.exit_code != 0 || failed) {
        return Status(Code::kSystemError,
                      fmt::format("ended with exit code {}{}", captured.exit_code,
                                  failed ? ", out of bounds values: " + table.verdict : ""));
    }
    if (launcher_rank().value_or(0) != 0) {
        return table;  // rank 0 prints
    }
    if (table.rows.empty()) {
        return Status(Code::kNotFound, "printed no nccl-tests table");
    }
    if (!native) {
        SLIMWIRE_TRY(check_reports(folder.path(), &table));
    }
    return table;
}

}  // namespace

int bench_nccl_tests(const NcclTestsOptions& options, const std::vector<std::string>& words) {
    SLIMWIRE_OR_FAIL_ASSIGN(kUsage, const Command command, split_command(words));
    SLIMWIRE_OR_FAIL(kUsage, parse_codec(options.codec).status());
    if (options.ranks == 0 && (!options.link.empty() || !options.nodes.empty())) {
        return fail(kUsage, "--link and --nodes shape emulated ranks: add --ranks");
    }
    SLIMWIRE_OR_FAIL(kUsage, run_environment(options, command, true, {}).status());
    const Result<fs::path> found = find_command(command.path, Environment::current());
    // Behind a launcher it need not be on this host.
    if (command.launcher.empty() && !found.ok()) {
        return fail(found.status().code() == Code::kNotFound ? kNotFound : kNotExecutable,
                    found.status());
    }
    int exit_code = kSuccess;
    bool headed = false;
    for (const bool native : {true, false}) {
        const std::string name = native ? "native" : options.codec;
        const Result<Table> table = run(options, command, native);
        if (!table.ok()) {
            exit_code = fail(kCheckFailed, fmt::format("{} with {}: {}", command.path, name,
                                                       table.status().message()));
            continue;
        }
        for (const std::string& line : headed ? std::vector<std::string>() : table.value().head) {
            fmt::print("{}\n", line);
        }
        headed = true;
        for (const std::string& row : table.value().rows) {
            fmt::print("{}  {}{}\n", row, name, table.value().has_report ? "" : " (no report)");
        }
        if (!table.value().has_report) {
            note(name + ": slimwire wrote no report here, so these rows may be native: it is not " +
                 "in the program (slimwire doctor), or ranks run on other hosts");
        }
        std::fflush(stdout);
    }
    return exit_code;
}

}  // namespace slimwire::cli
