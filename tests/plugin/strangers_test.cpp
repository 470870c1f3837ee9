// A job-wide hook reaches shells, compilers and children that never use NCCL: they must not notice.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

// Names of all files under a folder.
std::set<std::string> files_in(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        names.insert(entry.path().lexically_relative(folder).string());
    }
    return names;
}

struct StrangersOutcome {
    Ended end;
    std::set<std::string> files;
    std::string object;
};

// One way in: what LD_PRELOAD and LD_AUDIT hold.
struct StrangersHook {
    const char* name;
    std::vector<std::string> preload;
    std::string audit;
};

const StrangersHook kStrangersHooks[] = {
    {"preload", {SLIMWIRE_TEST_PRELOAD}, ""},
    {"audit", {}, SLIMWIRE_TEST_AUDIT},
};

// Runs a shell script in a folder of its own, hooked or not (null), with slimwire fully configured.
StrangersOutcome run_script(const std::string& script, const StrangersHook* hook) {
    const TemporaryFolder folder;
    Job job;
    job.command = {"/bin/sh", "-c", script};
    job.working_folder = folder.path();
    if (hook != nullptr) {
        job.preload = hook->preload;
    }
    job.environment = {{"SLIMWIRE_CODEC", "int4"},
                       {"SLIMWIRE_LOG", "info"},
                       {"runtime.log_file", folder.file("log.%p")},
                       {"SLIMWIRE_REPORT", folder.file("report.%p")},
                       {"TMPDIR", folder.path()},
                       {"SLIMWIRE_EMU_JOB", "one"}};
    job.environment["TEST_FOLDER"] = "none";
    if (hook != nullptr && !hook->audit.empty()) {
        job.environment["LD_AUDIT"] = hook->audit;
    }
    StrangersOutcome outcome{run_ranks(job)[0], files_in(folder.path()),
                             read_file(folder.file("unit.o"))};
    return outcome;
}

class Strangers : public testing::TestWithParam<StrangersHook> {
  protected:
    static void expect_identical(const std::string& script) {
        const StrangersOutcome plain = run_script(script, nullptr);
        const StrangersOutcome hooked = run_script(script, &GetParam());
        ASSERT_EQ(unless_all_exit({plain.end}), "");
        EXPECT_EQ(hooked.end.exit_code, 0);
        EXPECT_EQ(hooked.end.out, plain.end.out);
        EXPECT_EQ(hooked.end.err, plain.end.err);
        EXPECT_EQ(hooked.files, plain.files);
        EXPECT_EQ(hooked.object, plain.object);
    }
};

INSTANTIATE_TEST_SUITE_P(Hooks,
                         Strangers,
                         testing::ValuesIn(kStrangersHooks),
                         [](const auto& hook) { return hook.param.name; });

TEST_P(Strangers, AShellAndItsChildrenDoNotNotice) {
    expect_identical(R"sh(
        echo out; echo err >&2
        for i in 1 2 3; do (echo child $i); done
        ls /proc/self/task | wc -l; ls /proc/self/fd | wc -l
        set -- /proc/$$/task/*; echo $# threads
        set -- /proc/$$/fd/*; echo $# files
        ls -a; sh -c 'exec sh -c "echo deep"'; true | cat; echo end
    )sh");
}

TEST_P(Strangers, ACompilerDoesNotNotice) {
    expect_identical(
        "echo 'int twice(int x) { return 2 * x; }' > unit.cpp; c++ -O1 -c unit.cpp -o unit.o && "
        "ls");
}

// It opens modules, looks symbols up in handles and asks for what may not be there. No rank: one
// that has NCCL and never calls it is warned (hooks_test.cpp).
TEST_P(Strangers, AnInterpreterDoesNotNotice) {
    expect_identical(
        "unset RANK; " SLIMWIRE_TEST_PYTHON
        " -c 'import ctypes, json, sqlite3, ssl\n"
        "m = ctypes.CDLL(\"libm.so.6\"); m.cos.restype = ctypes.c_double\n"
        "print(m.cos(ctypes.c_double(1)), hasattr(m, \"ncclAllReduce\"), json.dumps({}))\n"
        "try: ctypes.CDLL(\"libnccl.so.2\")\n"
        "except OSError as error: print(error)'");
}

TEST_P(Strangers, ExitCodesAndSignalsPass) {
    EXPECT_EQ(run_script("exit 7", &GetParam()).end.exit_code, 7);
    EXPECT_EQ(run_script("kill -TERM $$", &GetParam()).end.exit_code, 128 + 15);
}

// The exact figure is tests/bench/startup_bench's; here only that nobody put work into loading, by
// processor time, of a machine of any speed that others use, too.
#ifndef SLIMWIRE_TEST_SANITIZER_RUNTIME
TEST_P(Strangers, StartUpIsNotMuchSlower) {
    Job job;
    const StrangersHook& hook = GetParam();
    std::string libraries = hook.audit;
    for (const std::string& library : hook.preload) {
        libraries += (libraries.empty() ? "" : ":") + library;
    }
    job.command = {SLIMWIRE_TEST_STARTUP_BENCH, libraries, "100"};
    if (!hook.audit.empty()) {
        job.command.insert(job.command.begin() + 1, "--audit");
    }
    const Ended end = run_ranks(job)[0];
    ASSERT_EQ(unless_all_exit({end}), "");
    const auto line = nlohmann::json::parse(end.out);
    EXPECT_LT(line.at("added_cpu_us").get<double>(), 2 * line.at("plain_cpu_us").get<double>())
        << end.out;
    RecordProperty("startup", end.out);
}
#endif

// As under `slimwire run`.
TEST(RelativePaths, are_of_the_folder_where_the_program_began) {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder.file("elsewhere"));
    std::ofstream(folder.file("p.toml")) << "version = 1\n[[rule]]\nname = \"all\"\n"
                                            "match = { op = \"allreduce\" }\ncodec = \"int8\"\n";
    Job job = slimwire_job({SLIMWIRE_TEST_REDUCE, "--chdir", "elsewhere"}, 2);
    job.working_folder = folder.path();
    job.environment["SLIMWIRE_POLICY"] = "p.toml";
    job.environment["SLIMWIRE_REPORT"] = "report.%r";
    ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
    EXPECT_HAS(read_file(folder.file("report.1")), "int8");
    job.environment.erase("SLIMWIRE_REPORT");
    job.environment["SLIMWIRE_MODE"] = "record";
    ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
    EXPECT_TRUE(std::filesystem::is_empty(folder.file("elsewhere")));
    EXPECT_EQ(files_in(folder.path()).size(), 6u);  // two traces
}

}  // namespace
}  // namespace slimwire::test
