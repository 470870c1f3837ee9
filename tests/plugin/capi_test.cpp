// slimwire.h in whole programs: a C99 program that links nothing of slimwire, and ctypes, without
// the library and under every hook.
#include <gtest/gtest.h>

#include "plugin/capi/slimwire.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr char kBadName[] =
    "a name is 1 to 255 printable ASCII characters without quotation mark and backslash";

std::string absent(const std::string& when) {
    return when + ": version -1\n" + when + ": name -1 -1 'slimwire is not in this process'\n" +
           when + ": forget -1 -1\n" + when + ": parameter -1 -1 -1 -1 -1 -1 -1 -1\n" + when +
           ": marks -1 -1 -1 -1 -1 -1 -1\n" + when + ": ahead -1 -1\n" + when + ": state -1 -1\n";
}
std::string present(const std::string& when) {
    return when + ": version 100\n" + when + ": name 0 -2 '" + kBadName + "'\n" + when +
           ": forget 0 -2\n" + when + ": parameter 0 -2 -2 0 0 -2 0 -2\n" + when +
           ": marks 0 0 -2 0 -2 0 -2\n" + when + ": ahead 1 1\n" + when + ": state 1 1\n";
}

Job told(std::vector<std::string> command) {
    return emulated_job(std::move(command), 1);
}
std::string output_of(const Job& job) {
    const Ended end = run_ranks(job)[0];
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.err, "");
    return end.out;
}
const std::string kNccl = SLIMWIRE_TEST_EMULATOR "/libnccl.so.2";
const std::vector<std::string> kPython = {SLIMWIRE_TEST_PYTHON, "-B", SLIMWIRE_TEST_TOLD_PY};

TEST(CApi, AProgramWithoutSlimwireRunsUnchanged) {
    EXPECT_EQ(output_of(told({SLIMWIRE_TEST_TOLD})), absent("first"));
    // An NCCL that is not slimwire's is asked, and has no such functions.
    EXPECT_EQ(output_of(told({SLIMWIRE_TEST_TOLD, kNccl})), absent("first") + absent("then"));
    std::vector<std::string> python = kPython;
    EXPECT_EQ(output_of(told(python)), "absent\n");
}

TEST(CApi, ThePreloadIsFoundAtOnce) {
    Job job = told({SLIMWIRE_TEST_TOLD});
    job.preload = {SLIMWIRE_TEST_PRELOAD};
    EXPECT_EQ(output_of(job), present("first"));
    job.command = kPython;
    EXPECT_EQ(output_of(job).substr(0, 13), "100 0 0 -2 me");
}

// It comes with the program's NCCL, which is opened locally after the first calls.
TEST(CApi, TheDropinIsFoundOnceItIsThere) {
    const TemporaryFolder folder;
    make_dropin(folder.path(), kNccl);
    Job job = told({SLIMWIRE_TEST_TOLD, "libnccl.so.2"});
    put_dropin_before(&job, folder.path());
    EXPECT_EQ(output_of(job), absent("first") + present("then"));
    job.command = kPython;
    job.command.push_back("libnccl.so.2");
    EXPECT_EQ(output_of(job),
              "100 0 0 -2 memory of 64 bytes at null cannot be named\n0 0 -2\n0 0 0 -2 0 1 1\n");
}

// The loader opens the drop-in where the program asks for NCCL, by name or by path.
TEST(CApi, TheAuditHelpersDropinIsFound) {
    for (const std::string& nccl : {std::string("libnccl.so.2"), kNccl}) {
        Job job = told({SLIMWIRE_TEST_TOLD, nccl});
        job.environment["LD_AUDIT"] = SLIMWIRE_TEST_AUDIT;
        EXPECT_EQ(output_of(job), absent("first") + present("then"));
        job.command = kPython;
        job.command.push_back(nccl);
        EXPECT_EQ(output_of(job).substr(0, 13), "100 0 0 -2 me");
    }
}

// The header is C++ too; nothing of slimwire is in this test's own process.
TEST(CApi, TheHeaderIsCpp) {
    EXPECT_EQ(slimwire_version(), SLIMWIRE_ABSENT);
    EXPECT_STREQ(slimwire_last_error(), "slimwire is not in this process");
}

}  // namespace
}  // namespace slimwire::test
