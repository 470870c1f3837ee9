// `slimwire bench` over the emulator: the shape of its lines and what must hold whatever the
// machine's speed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"
#include "tools/cli/common/free_port.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

std::vector<Json> json_lines(const Ended& ended) {
    std::vector<Json> lines;
    for (const std::string& line : lines_of(ended.out)) {
        lines.push_back(Json::parse(line));
        EXPECT_EQ(lines.back()["v"], 1);
        for (const char* member : {"record", "machine", "compiler", "commit"}) {
            EXPECT_TRUE(lines.back()[member].is_string()) << member;
        }
    }
    return lines;
}

// On a busy machine a line may be judged too fast or too slow to be true; nothing else may be wrong
// with it, and the exit code says so.
void expect_only_timing_failed(const std::vector<Json>& lines, const Ended& ended) {
    bool failed = false;
    for (const Json& line : lines) {
        if (line.contains("failed")) {
            failed = true;
            const std::string why = line["failed"];
            EXPECT_TRUE(why.rfind("efficiency ", 0) == 0 || why.rfind("native time ", 0) == 0)
                << why;
        }
    }
    EXPECT_EQ(ended.exit_code, failed ? 1 : 0) << ended.err << ended.out;
}

TEST(BenchOverhead, CasesAndAllocations) {
    const Ended ended = run_slimwire({"bench", "overhead", "--calls", "20000", "--json"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    const std::vector<Json> lines = json_lines(ended);
    ASSERT_EQ(lines.size(), 4u) << ended.out;
    const char* const cases[] = {"direct", "declined", "inactive", "recorded"};
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(lines[i]["record"], "bench_overhead");
        EXPECT_EQ(lines[i]["case"], cases[i]);
        EXPECT_EQ(lines[i]["calls"], 20000);
        // The emulated CUDA allocates for each of the two events around one of sixteen calls, and
        // again where its queue grows because the stream's thread is behind.
        const int allowed = i == 3 ? 20000 / 16 * 4 + 100 : 0;
        EXPECT_LE(lines[i]["allocations"], allowed) << cases[i];
        EXPECT_GT(lines[i]["p50_ns"].get<double>(), 0);
        EXPECT_GE(lines[i]["p99_ns"].get<double>(), lines[i]["p50_ns"].get<double>());
    }
    // Going through slimwire costs something; a bench that measured the wrong function would not
    // show it.
    EXPECT_GT(lines[1]["over_direct_ns"].get<double>(), 0);
}

TEST(BenchOverhead, LimitFails) {
    const Ended ended =
        run_slimwire({"bench", "overhead", "--calls", "10000", "--limit-ns", "0.0001", "--json"});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "case declined");
    EXPECT_HAS(ended.out, "\"failed\":");
}

TEST(BenchCollective, ContractMembersAndHonestBytes) {
    const Ended ended = run_slimwire({"bench", "collective", "--op", "all_reduce", "--codec",
                                      "int8,bf16", "--dtype", "fp32", "--bytes", "256KiB,1MiB",
                                      "--ranks", "4", "--nodes", "4", "--rounds", "3", "--json"});
    const std::vector<Json> lines = json_lines(ended);
    expect_only_timing_failed(lines, ended);
    ASSERT_EQ(lines.size(), 4u) << ended.out;
    for (const Json& line : lines) {
        expect_members(line, {{"record", "bench_collective"},
                              {"op", "all_reduce"},
                              {"algorithm", "two_shot"},
                              {"ranks", 4},
                              {"nodes", 4},
                              {"link", ""}});
        const double bytes = line["bytes"];
        // Native is a ring: 2 (N-1)/N of the buffer from each rank.
        EXPECT_DOUBLE_EQ(line["native_wire_bytes"].get<double>(), 1.5 * bytes);
        const bool cast = line["codec"] == "bf16";
        const double ratio =
            line["native_wire_bytes"].get<double>() / line["wire_bytes"].get<double>();
        EXPECT_NEAR(ratio, cast ? 2.0 : 3.9, cast ? 0.01 : 0.12);
        EXPECT_GT(line["rel_error"].get<double>(), 1e-5);  // lossy, and only a little
        EXPECT_LT(line["rel_error"].get<double>(), 0.02);
        EXPECT_GT(line["time_us"].get<double>(), 0);
        EXPECT_NEAR(line["speedup"].get<double>(),
                    line["native_us"].get<double>() / line["time_us"].get<double>(), 1e-9);
        EXPECT_NEAR(line["efficiency"].get<double>(), line["speedup"].get<double>() / ratio, 1e-6);
        EXPECT_HAS(line["machine"].get<std::string>(), "emulator");
    }
}

TEST(BenchCollective, EveryOperationWithItsBytesAndError) {
    // Native bytes of the transport, in units of the buffer, for 4 ranks.
    for (const auto& [op, native_bytes] : {std::pair("reduce_scatter", 0.75),
                                           {"all_gather", 0.75},
                                           {"all_to_all", 0.75},
                                           {"broadcast", 0.75},
                                           {"send_recv", 1.0},
                                           {"pairs", 1.0}}) {
        SCOPED_TRACE(op);
        const Ended ended =
            run_slimwire({"bench", "collective", "--op", op, "--codec", "int8", "--bytes", "512KiB",
                          "--ranks", "4", "--rounds", "1", "--json"});
        const std::vector<Json> lines = json_lines(ended);
        expect_only_timing_failed(lines, ended);
        ASSERT_EQ(lines.size(), 1u) << ended.out << ended.err;
        expect_members(lines[0], {{"op", op}, {"algorithm", "direct"}});
        const double native = lines[0]["native_wire_bytes"];
        EXPECT_DOUBLE_EQ(native, native_bytes * 524288.0);
        EXPECT_NEAR(native / lines[0]["wire_bytes"].get<double>(), 3.9, 0.12);
        EXPECT_GT(lines[0]["rel_error"].get<double>(), 1e-5);
        EXPECT_LT(lines[0]["rel_error"].get<double>(), 0.02);
        EXPECT_GT(lines[0]["raw_us"].get<double>(), 0);
    }
}

TEST(BenchCollective, ErrorFeedbackHalfAndNative) {
    const Ended ended =
        run_slimwire({"bench", "collective", "--codec", "native,int4", "--dtype", "f16", "--bytes",
                      "128KiB", "--ranks", "2", "--ef", "ef14", "--rounds", "2", "--json"});
    const std::vector<Json> lines = json_lines(ended);
    expect_only_timing_failed(lines, ended);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0]["codec"], "native");
    EXPECT_EQ(lines[0]["algorithm"], "native");
    EXPECT_LT(lines[0]["rel_error"].get<double>(), 1e-3);
    EXPECT_GT(lines[1]["rel_error"].get<double>(), lines[0]["rel_error"].get<double>());
}

TEST(BenchCollective, ShapedLinkHasAnIdeal) {
    // The bench's own verdict on a busy machine may be "failed"; the ideal is arithmetic.
    const Ended ended =
        run_slimwire({"bench", "collective", "--codec", "int4", "--bytes", "2MiB", "--ranks", "2",
                      "--link", "200mbit", "--rounds", "1", "--json"});
    const std::vector<Json> lines = json_lines(ended);
    ASSERT_EQ(lines.size(), 1u) << ended.err;
    const double ideal = lines[0]["native_ideal_us"];
    EXPECT_NEAR(ideal, 2097152.0 * 8 / 200e6 * 1e6, 1);
    EXPECT_GE(lines[0]["native_us"].get<double>(), 0.97 * ideal);
    expect_only_timing_failed(lines, ended);
}

TEST(BenchCollective, SeveralRanksShareANode) {
    const Ended ended = run_slimwire({"bench", "collective", "--codec", "int8", "--bytes", "256KiB",
                                      "--ranks", "4", "--nodes", "2", "--rounds", "1", "--json"});
    const std::vector<Json> lines = json_lines(ended);
    ASSERT_EQ(lines.size(), 1u) << ended.err;
    EXPECT_EQ(lines[0]["nodes"], 2);
    EXPECT_EQ(lines[0]["algorithm"], "hierarchical");
    // Two nodes exchange what a native ring sends over each of its two links between them.
    const double between = lines[0]["between_nodes_bytes"];
    const double native_between = lines[0]["native_between_nodes_bytes"];
    EXPECT_DOUBLE_EQ(native_between, 2 * 1.5 * 262144);
    EXPECT_LT(between, native_between / 3.8);
    EXPECT_NEAR(lines[0]["efficiency"].get<double>(),
                lines[0]["speedup"].get<double>() / (native_between / between), 1e-9);
    expect_only_timing_failed(lines, ended);
}

TEST(BenchCollective, RanksThatAnyLauncherStartedAreMeasured) {
    const std::vector<std::string> command = slimwire_command(
        {"bench", "collective", "--codec", "int8", "--bytes", "256KiB", "--rounds", "1", "--json"});
    for (const auto& [rank_name, size_name] :
         {std::pair{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
          {"PMI_RANK", "PMI_SIZE"},
          {"PMIX_RANK", "SLURM_NTASKS"},
          {"SLURM_PROCID", "SLURM_NTASKS"}}) {
        SCOPED_TRACE(rank_name);
        const Result<int> port = find_free_port(0);
        ASSERT_TRUE(port.ok());
        const auto environment = [&](const char* rank) {
            return std::map<std::string, std::string>{
                {rank_name, rank},
                {size_name, "2"},
                {"LD_LIBRARY_PATH", emulator_folder()},
                {"MASTER_PORT", std::to_string(port.value() - 1)}};
        };
        Program other(command, environment("1"));
        const Ended first = run_slimwire({command.begin() + 1, command.end()}, environment("0"));
        const Ended second = other.wait();
        const std::vector<Json> lines = json_lines(first);
        expect_only_timing_failed(lines, first);
        ASSERT_EQ(lines.size(), 1u) << first.err;
        EXPECT_EQ(lines[0]["ranks"], 2);
        EXPECT_HAS_NOT(lines[0]["machine"].get<std::string>(), "emulator");
        EXPECT_EQ(second.exit_code, 0) << second.err;
        EXPECT_EQ(second.out, "");
    }
}

TEST(BenchCollective, OutputThatDoesNotArriveIsAFailure) {
    expect_lost_output_fails(
        {"bench", "collective", "--ranks", "2", "--bytes", "64KiB", "--rounds", "1"});
}

TEST(BenchCollective, WrongArgumentsAreOneLine) {
    using Words = std::vector<std::string>;
    for (const Words& arguments : {Words{"--op", "all_dance"},
                                   {"--codec", "int5"},
                                   {"--codec", ""},
                                   {"--bytes", "3x"},
                                   {"--bytes", "1"},
                                   {"--dtype", "i32"},
                                   {"--ranks", "0"},
                                   {"--ranks", "4", "--nodes", "3"},
                                   {"--ranks", "2", "--link", "fast"}}) {
        expect_says(2, with({"bench", "collective"}, arguments), {});
    }
}

}  // namespace
}  // namespace slimwire::cli::test
