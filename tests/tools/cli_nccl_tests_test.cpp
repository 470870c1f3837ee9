// `slimwire bench nccl-tests`: whole runs of a stand-in of ours on the emulator.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

// Rows of the table; `mark` stands at their ends.
int rows_marked(const Ended& ended, const std::string& mark) {
    int rows = 0;
    for (const std::string& line : lines_of(ended.out)) {
        rows += line[0] != '#' && line.ends_with("  " + mark) ? 1 : 0;
    }
    return rows;
}

// The stand-in checks its sums exactly where it is asked to.
TEST(NcclTestsRun, native_and_codec_in_one_table) {
    for (const std::string program : {ALL_REDUCE_PROGRAM, REDUCE_SCATTER_PROGRAM}) {
        SCOPED_TRACE(program);
        const Ended ended = run_slimwire({"bench", "nccl-tests", "--ranks", "4", "--codec", "int8",
                                          "--", program, "-b", "524288", "-e", "1048576"});
        EXPECT_EQ(ended.exit_code, 0) << ended.err << ended.out;
        EXPECT_EQ(rows_marked(ended, "native"), 2) << ended.out;
        EXPECT_EQ(rows_marked(ended, "int8"), 2) << ended.out;
        const std::vector<std::string> lines = lines_of(ended.out);
        ASSERT_EQ(lines.size(), 5u) << ended.out;
        EXPECT_HAS(lines[0], "algbw   busbw #wrong");
        EXPECT_HAS(lines[1], " 0  native");
        EXPECT_HAS(lines[3], " N/A  int8");
    }
}

// A launcher hands on no variables of ours (here: none at all), and the emulator is the caller's.
TEST(NcclTestsRun, behind_a_launcher) {
    const Ended ended =
        run_slimwire({"bench", "nccl-tests", "--codec", "int8", "--", "env", "-i",
                      "LD_LIBRARY_PATH=" EMULATOR_FOLDER, "SLIMWIRE_EMU_DEVICES=2",
                      ALL_REDUCE_PROGRAM, "-g", "2", "-b", "131072", "-e", "131072"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(rows_marked(ended, "native"), 1) << ended.out;
    EXPECT_EQ(rows_marked(ended, "int8"), 1) << ended.out;
}

// A ring of one rank has nothing to compress.
TEST(NcclTestsRun, a_run_that_compressed_nothing_is_no_result) {
    const Ended ended = run_slimwire(
        {"bench", "nccl-tests", "--ranks", "1", "--codec", "int8", "--", ALL_REDUCE_PROGRAM});
    EXPECT_EQ(ended.exit_code, 1) << ended.out;
    EXPECT_HAS(ended.err, "with int8: no call was compressed: ");
    EXPECT_EQ(rows_marked(ended, "native"), 1) << ended.out;
    EXPECT_EQ(rows_marked(ended, "int8"), 0) << ended.out;
}

// Where one thread's devices would share a group, each device gets a thread.
TEST(NcclTestsRun, hypercube_has_a_thread_for_each_device) {
    const ScratchFolder folder;
    const std::string program =
        folder.write("hypercube_perf", "#!/bin/sh\necho \"$@\" >&2\nexit 3\n", 0755);
    const Ended ended = run_slimwire(
        {"bench", "nccl-tests", "--ranks", "4", "--codec", "int8", "--", program, "-b", "8"});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "-t 4");
    EXPECT_HAS_NOT(ended.err, "-g 4");
}

// Tables of three releases, and behind launchers that begin each line with the rank.
TEST(NcclTestsRun, tables_of_every_release) {
    const std::string oldest =
        "#      bytes             N    type      op     time  algbw  busbw      res\n"
        "     1048576        262144   float     sum    0.144   7.28   7.28    2e-07\n"
        " Out of bounds values : 0 OK\n";
    const std::string older =
        "#       size         count    type   redop     time   algbw   busbw  error\n"
        "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)       \n"
        "     1048576        262144   float     sum   144.10    7.28    7.28  5e-07\n"
        "# Out of bounds values : 0 OK\n";
    const std::string newest =
        "# Collective test starting: all_reduce_perf\n"
        "#       size         count    type   redop    root     time   algbw   busbw  #wrong \n"
        "4f2a-worker:31:40 [0] NCCL INFO Connected all rings\n"
        "     1048576        262144   float     sum      -1   144.10    7.28    7.28       0\n"
        "# Out of bounds values : 0 OK\n"
        "# Collective test concluded: all_reduce_perf\n";
    const auto behind = [](const std::string& begin, const std::string& table) {
        std::string text;
        for (const std::string& line : lines_of(table)) {
            text += begin + line + "\n";
        }
        return text;
    };
    const ScratchFolder folder;
    const auto run = [&](const std::string& table) {
        return run_slimwire(
            {"bench", "nccl-tests", "--codec", "int8", "--no-16bit", "--",
             folder.write("all_reduce_perf", "#!/bin/sh\ncat <<'END'\n" + table + "END\n", 0755)});
    };
    for (const std::string& table :
         {oldest, older, newest, behind("0: ", older), behind("[1,0]<stdout>:", newest)}) {
        const Ended ended = run(table);
        EXPECT_EQ(ended.exit_code, 0) << ended.err;
        EXPECT_EQ(rows_marked(ended, "native"), 1) << ended.out;
        EXPECT_EQ(rows_marked(ended, "int8 (no report)"), 1) << ended.out;
        EXPECT_HAS(ended.err, "int8: slimwire wrote no report here, so these rows may be native");
        EXPECT_HAS_NOT(ended.out, "stdout");
    }
    std::string failed = newest;
    failed.replace(failed.find("0 OK"), 4, "3 FAILED");
    const Ended ended = run(failed);
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "native: ended with exit code 0, out of bounds values: 3 FAILED");
    EXPECT_EQ(rows_marked(ended, "native"), 0) << ended.out;
}

TEST(NcclTestsRun, what_goes_wrong_is_said) {
    const std::vector<std::string> begin = {"bench",   "nccl-tests", "--ranks", "2",
                                            "--codec", "int8",       "--"};
    const auto run = [&](std::vector<std::string> rest, std::map<std::string, std::string> with) {
        std::vector<std::string> words = begin;
        words.insert(words.end(), rest.begin(), rest.end());
        return run_slimwire(words, with);
    };
    const Ended stranger = run({"/bin/true"}, {});
    EXPECT_EQ(stranger.exit_code, 2);
    EXPECT_HAS(stranger.err, "no program of nccl-tests in '/bin/true");
    const Ended absent = run({"/nowhere/all_reduce_perf"}, {});
    EXPECT_EQ(absent.exit_code, 127);
    const Ended failing = run({ALL_REDUCE_PROGRAM}, {{"TABLE_FAILS", "1"}});
    EXPECT_EQ(failing.exit_code, 1);
    EXPECT_HAS(failing.err, "with native: ended with exit code 7");
    const Ended wrong = run({ALL_REDUCE_PROGRAM}, {{"TABLE_CLAIMS_WRONG", "1"}});
    EXPECT_EQ(wrong.exit_code, 1);
    EXPECT_HAS(wrong.err, "with native: ended with exit code 1");
    const ScratchFolder folder;
    const Ended silent = run({folder.write("reduce_perf", "#!/bin/sh\necho hello\n", 0755)}, {});
    EXPECT_EQ(silent.exit_code, 1);
    EXPECT_HAS(silent.err, "with int8: printed no nccl-tests table");
    expect_says(2, {"bench", "nccl-tests", "--link", "1gbit", "--", ALL_REDUCE_PROGRAM},
                {"add --ranks"});
    const Ended link = run_slimwire(
        {"bench", "nccl-tests", "--ranks", "2", "--link", "fast", "--", ALL_REDUCE_PROGRAM});
    EXPECT_EQ(link.exit_code, 2);
    EXPECT_EQ(lines_of(link.err).size(), 1u) << "not one for each run: " << link.err;
    EXPECT_HAS(link.err, "--link 'fast'");
    // A script that starts the program, which would go on and keep its GPU.
    const std::string started = folder.path() / "started";
    expect_says(1,
                {"bench", "nccl-tests", "--timeout", "1", "--",
                 folder.write("all_gather_perf",
                              "#!/bin/sh\nsleep 3600 &\necho $! >> " + started + "\nwait\n", 0755)},
                {"no answer within 1 s"});
    std::ifstream numbers(started);
    for (std::string number; numbers >> number;) {
        const auto runs = [&] {
            const std::string status = read_file("/proc/" + number + "/status");
            return !status.empty() && status.find("State:\tZ") == std::string::npos;
        };
        for (int i = 0; i < 6000 && runs(); ++i) {  // it was killed, and is ending
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        EXPECT_FALSE(runs()) << number;
    }
}

}  // namespace
}  // namespace slimwire::cli::test
