// A preload reaches shells, compilers and children that never use NCCL: they must not notice.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

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

struct Outcome {
    Ended end;
    std::set<std::string> files;
    std::string object;
};

// Runs a shell script in a folder of its own, preloaded or not, with slimwire fully configured.
Outcome run_script(const std::string& script, bool preloaded) {
    const TemporaryFolder folder;
    Job job;
    job.command = {"/bin/sh", "-c", script};
    job.working_folder = folder.path();
    if (preloaded) {
        job.preload = {SLIMWIRE_TEST_PRELOAD};
    }
    job.environment = {{"SLIMWIRE_CODEC", "int4"},
                       {"SLIMWIRE_LOG", "info"},
                       {"SLIMWIRE_LOG_FILE", folder.file("log.%p")},
                       {"SLIMWIRE_REPORT", folder.file("report.%p")},
                       {"TMPDIR", folder.path()},
                       {"SLIMWIRE_EMU_JOB", "one"}};
    job.environment["TEST_FOLDER"] = "none";
    Outcome outcome{run_ranks(job)[0], files_in(folder.path()), read_file(folder.file("unit.o"))};
    return outcome;
}

void expect_identical(const std::string& script) {
    const Outcome plain = run_script(script, false);
    const Outcome preloaded = run_script(script, true);
    ASSERT_EQ(unless_all_exit({plain.end}), "");
    EXPECT_EQ(preloaded.end.exit_code, 0);
    EXPECT_EQ(preloaded.end.out, plain.end.out);
    EXPECT_EQ(preloaded.end.err, plain.end.err);
    EXPECT_EQ(preloaded.files, plain.files);
    EXPECT_EQ(preloaded.object, plain.object);
}

TEST(Strangers, AShellAndItsChildrenDoNotNotice) {
    expect_identical(R"sh(
        echo out; echo err >&2
        for i in 1 2 3; do (echo child $i); done
        ls /proc/self/task | wc -l; ls /proc/self/fd | wc -l
        set -- /proc/$$/task/*; echo $# threads
        set -- /proc/$$/fd/*; echo $# files
        ls -a; sh -c 'exec sh -c "echo deep"'; true | cat; echo end
    )sh");
}

TEST(Strangers, ACompilerDoesNotNotice) {
    expect_identical(
        "echo 'int twice(int x) { return 2 * x; }' > unit.cpp; c++ -O1 -c unit.cpp -o unit.o && "
        "ls");
}

TEST(Strangers, ExitCodesAndSignalsPass) {
    EXPECT_EQ(run_script("exit 7", true).end.exit_code, 7);
    EXPECT_EQ(run_script("kill -TERM $$", true).end.exit_code, 128 + 15);
}

// The exact figure is tests/bench/startup_bench's; here only that nobody put work into loading.
#ifndef SLIMWIRE_TEST_SANITIZER_RUNTIME
TEST(Strangers, StartUpIsNotMuchSlower) {
    Job job;
    job.command = {SLIMWIRE_TEST_STARTUP_BENCH, SLIMWIRE_TEST_PRELOAD, "100"};
    const Ended end = run_ranks(job)[0];
    ASSERT_EQ(unless_all_exit({end}), "");
    const auto line = nlohmann::json::parse(end.out);
    EXPECT_LT(line.at("added_p50_us").get<double>(), 1000.0) << end.out;
    RecordProperty("startup", end.out);
}
#endif

}  // namespace
}  // namespace slimwire::test
