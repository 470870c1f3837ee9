// `slimwire bench nccl-tests`: reading the tables, and whole runs of a stand-in of ours on the
// emulator.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"
#include "tools/cli/nccl_tests_command.h"
#include "tools/cli/nccl_tests_table.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

constexpr char kHead[] =
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid   4242 on       here device  0 [0000:01:00] A device\n"
    "#  Rank  1 Group  0 Pid   4242 on       here device  1 [0000:02:00] A device\n"
    "#\n"
    "#                                                              out-of-place      in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time "
    "  algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us) "
    " (GB/s)  (GB/s)       \n";

TEST(NcclTestsTable, both_halves_types_and_average) {
    const auto table = parse_nccl_tests(
        std::string(kHead) +
        "    33554432       8388608     float     sum      -1    610.5   54.96   82.44      0    "
        "612.25   54.81   82.21      2\n"
        "host: a line of a library\n"
        "    33554432       4194304    double     avg       3   1.5e+3   22.37   33.55    N/A   "
        "1501.0   22.35   33.53    N/A\n"
        "# Out of bounds values : 1 FAILED\n"
        "# Avg bus bandwidth    : 57.9325 \n#\n");
    ASSERT_TRUE(table.ok()) << table.status().message();
    EXPECT_EQ(table.value().ranks, 2);
    EXPECT_FALSE(table.value().emulated);
    ASSERT_EQ(table.value().rows.size(), 2u);
    const NcclTestsRow& first = table.value().rows[0];
    EXPECT_EQ(first.bytes, 33554432u);
    EXPECT_EQ(first.count, 8388608u);
    EXPECT_EQ(first.type, "float");
    EXPECT_EQ(first.redop, "sum");
    EXPECT_EQ(first.root, -1);
    EXPECT_DOUBLE_EQ(first.out_of_place.time_us, 610.5);
    EXPECT_DOUBLE_EQ(first.out_of_place.algorithm_gbps, 54.96);
    EXPECT_DOUBLE_EQ(first.out_of_place.bus_gbps, 82.44);
    EXPECT_EQ(first.out_of_place.wrong, 0u);
    EXPECT_DOUBLE_EQ(first.in_place.time_us, 612.25);
    EXPECT_EQ(first.in_place.wrong, 2u);
    const NcclTestsRow& second = table.value().rows[1];
    EXPECT_EQ(second.root, 3);
    EXPECT_DOUBLE_EQ(second.out_of_place.time_us, 1500);
    EXPECT_FALSE(second.out_of_place.wrong.has_value());
    EXPECT_DOUBLE_EQ(table.value().average_bus_gbps.value_or(0), 57.9325);
}

// Before the root was a column, and with a time stamp behind the row.
TEST(NcclTestsTable, columns_by_their_names) {
    const auto table = parse_nccl_tests(
        "#       size         count      type   redop     time   algbw   busbw  error     time   "
        "algbw   busbw  error    timestamp\n"
        "        1024           256     float     sum    12.34    0.08    0.16  2e-07    13.50    "
        "0.08    0.15  0e+00 2024-01-01\n");
    ASSERT_TRUE(table.ok()) << table.status().message();
    EXPECT_DOUBLE_EQ(table.value().rows[0].out_of_place.time_us, 12.34);
    EXPECT_DOUBLE_EQ(table.value().rows[0].in_place.time_us, 13.5);
    EXPECT_EQ(table.value().rows[0].out_of_place.wrong, 1u);
    EXPECT_EQ(table.value().rows[0].in_place.wrong, 0u);
    EXPECT_EQ(table.value().ranks, 0);
}

// As hypercube_perf prints it, in 2.19: no reduction's name, the root where it would be.
TEST(NcclTestsTable, blank_reduction) {
    const auto table = parse_nccl_tests(
        "#  Rank  0 Group  0 Pid   4242 on   here device  0 [3990:00:00] slimwire emulated device\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     "
        "time   algbw   busbw  #wrong \n"
        "      131072         32768     float              -1    85.93    1.14    1.15       0    "
        "95.25    1.03    1.04       3\n");
    ASSERT_TRUE(table.ok()) << table.status().message();
    EXPECT_TRUE(table.value().emulated);
    const NcclTestsRow& row = table.value().rows.at(0);
    EXPECT_EQ(row.redop, "none");
    EXPECT_EQ(row.root, -1);
    EXPECT_DOUBLE_EQ(row.out_of_place.time_us, 85.93);
    EXPECT_DOUBLE_EQ(row.in_place.bus_gbps, 1.04);
    EXPECT_EQ(row.in_place.wrong, 3u);
}

TEST(NcclTestsTable, what_is_no_table) {
    EXPECT_EQ(parse_nccl_tests("").status().code(), Code::kNotFound);
    EXPECT_EQ(parse_nccl_tests("1 2 3\nhello\n").status().code(), Code::kNotFound);
    EXPECT_EQ(parse_nccl_tests(kHead).status().code(), Code::kNotFound);
    const auto cut = parse_nccl_tests(std::string(kHead) + "  1024  256  float  sum  -1  12.3\n");
    EXPECT_EQ(cut.status().code(), Code::kInvalidArgument);
    EXPECT_HAS(cut.status().message(), "6 fields under 13 columns");
    const auto garbled =
        parse_nccl_tests(std::string(kHead) + "1024 x6 float sum -1 1 1 1 0 1 1 1 0\n");
    EXPECT_HAS(garbled.status().message(), "'x6' in column count");
}

TEST(NcclTestsCommand, launcher_programs_arguments) {
    const auto split = split_nccl_tests_command(
        {"mpirun", "-np", "2", "./all_reduce_perf", "b/alltoall_perf_mpi", "-b", "1M"});
    ASSERT_TRUE(split.ok());
    EXPECT_EQ(split.value().prefix, (std::vector<std::string>{"mpirun", "-np", "2"}));
    EXPECT_EQ(split.value().programs,
              (std::vector<std::string>{"./all_reduce_perf", "b/alltoall_perf_mpi"}));
    EXPECT_EQ(split.value().arguments, (std::vector<std::string>{"-b", "1M"}));
    EXPECT_FALSE(split_nccl_tests_command({"ls", "-l"}).ok());
    EXPECT_FALSE(split_nccl_tests_command({}).ok());
}

TEST(NcclTestsCommand, every_spelling_of_an_option) {
    for (const std::vector<std::string>& spelt :
         {std::vector<std::string>{"-c", "0"}, {"-c0"}, {"--check", "0"}, {"--check=0"}}) {
        std::vector<std::string> words = {"-b", "8"};
        words.insert(words.end(), spelt.begin(), spelt.end());
        EXPECT_EQ(argument_value(words, 'c', "check"), "0") << spelt[0];
        EXPECT_EQ(with_argument(words, 'c', "check", "1"),
                  (std::vector<std::string>{"-b", "8", "-c", "1"}))
            << spelt[0];
    }
    EXPECT_EQ(argument_value({"-b", "8"}, 'c', "check"), "");
}

std::map<std::string, Json> by_codec(const Ended& ended, const char* record) {
    std::map<std::string, Json> found;
    for (const std::string& line : lines_of(ended.out)) {
        const Json json = Json::parse(line);
        EXPECT_EQ(json["v"], 1);
        if (json["record"] == record) {
            found[json["codec"]] = json;
        }
    }
    return found;
}

// One in place and one out of place, both checked.
TEST(NcclTestsRun, native_half_and_lossy_in_one_table) {
    for (const std::string program : {ALL_REDUCE_PROGRAM, REDUCE_SCATTER_PROGRAM}) {
        SCOPED_TRACE(program);
        const bool all_reduce = program == ALL_REDUCE_PROGRAM;
        const Ended ended =
            run_slimwire({"bench", "nccl-tests", "--ranks", "4", "--codec", "int8", "--json", "--",
                          program, "-b", "1048576", "-e", "1048576"});
        EXPECT_EQ(ended.exit_code, 0) << ended.err << ended.out;
        std::map<std::string, Json> rows = by_codec(ended, "bench_nccl_tests");
        std::map<std::string, Json> runs = by_codec(ended, "bench_nccl_tests_run");
        ASSERT_EQ(rows.size(), 3u) << ended.out;
        ASSERT_EQ(runs.size(), rows.size()) << ended.out;
        const double factor = all_reduce ? 1.5 : 0.75;
        EXPECT_DOUBLE_EQ(rows["native"]["wire_bytes"].get<double>(), factor * 1048576);
        EXPECT_EQ(rows["native"]["out_of_place"]["wrong"], 0);
        EXPECT_EQ(rows["native"]["expected_wrong"], "zero");
        EXPECT_DOUBLE_EQ(rows["native"]["speedup"].get<double>(), 1);
        const Json& half = rows["native 16 bit"];
        EXPECT_EQ(half["dtype"], "bfloat16");
        EXPECT_EQ(half["bytes"], 524288);
        EXPECT_EQ(half["count"], rows["native"]["count"]);
        EXPECT_DOUBLE_EQ(half["wire_bytes"].get<double>(), factor * 524288);
        const Json& lossy = rows["int8"];
        EXPECT_TRUE(lossy["out_of_place"]["wrong"].is_null());
        EXPECT_EQ(lossy["expected_wrong"], "none");
        const double ratio =
            lossy["native_wire_bytes"].get<double>() / lossy["wire_bytes"].get<double>();
        EXPECT_NEAR(ratio, 3.9, 0.12);
        EXPECT_DOUBLE_EQ(lossy["native_wire_bytes"].get<double>(), factor * 1048576);
        EXPECT_NEAR(lossy["efficiency"].get<double>(), lossy["speedup"].get<double>() / ratio,
                    1e-4);
        EXPECT_HAS(lossy["machine"].get<std::string>(), "emulator");
        EXPECT_DOUBLE_EQ(runs["int8"]["average_bus_gbps"].get<double>(), 1.25);
        EXPECT_EQ(runs["int8"]["lossless"], false);
    }
}

// A launcher hands on no variables of ours (here: none at all), and the emulator is the caller's.
TEST(NcclTestsRun, behind_a_launcher) {
    const Ended ended =
        run_slimwire({"bench", "nccl-tests", "--codec", "int8", "--json", "--", "env", "-i",
                      "LD_LIBRARY_PATH=" EMULATOR_FOLDER, "SLIMWIRE_EMU_DEVICES=2",
                      ALL_REDUCE_PROGRAM, "-g", "2", "-b", "131072", "-e", "131072"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    std::map<std::string, Json> rows = by_codec(ended, "bench_nccl_tests");
    EXPECT_LT(rows["int8"]["wire_bytes"], rows["native 16 bit"]["wire_bytes"]);
    EXPECT_HAS(rows["native"]["machine"].get<std::string>(), "emulator");
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

TEST(NcclTestsRun, table_for_people) {
    const Ended ended = run_slimwire({"bench", "nccl-tests", "--ranks", "2", "--codec", "int4",
                                      "--", ALL_REDUCE_PROGRAM, "-b", "131072", "-e", "262144"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    int rows = 0;
    for (const std::string& line : lines_of(ended.out)) {
        rows += line[0] == '#' ? 0 : 1;
    }
    EXPECT_EQ(rows, 6) << ended.out;
    EXPECT_HAS(ended.out, "off, #wrong must be N/A");
    EXPECT_HAS(ended.out, "on, every #wrong must be 0");
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
    EXPECT_HAS(wrong.err, "with native: ended with exit code 1; 3 wrong elements");
    const ScratchFolder folder;
    const Ended silent = run({folder.write("reduce_perf", "#!/bin/sh\necho hello\n", 0755)}, {});
    EXPECT_EQ(silent.exit_code, 1);
    EXPECT_HAS(silent.err, "with int8: printed no nccl-tests table");
    const Ended shaped =
        run_slimwire({"bench", "nccl-tests", "--link", "1gbit", "--", ALL_REDUCE_PROGRAM});
    EXPECT_EQ(shaped.exit_code, 2);
    EXPECT_HAS(shaped.err, "add --ranks");
}

}  // namespace
}  // namespace slimwire::cli::test
