// `slimwire calibrate`: what it keeps, that a second run replaces the same and nothing else, what
// `explain` makes of it, and files that are none.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "tests/tools/cli_program.h"
#include "tools/cli/common/free_port.h"

namespace slimwire::cli::test {
namespace {

class Calibrate : public testing::Test {
  protected:
    Ended calibrate(const std::string& link, const std::vector<std::string>& more = {}) const {
        return run_slimwire(with(words(link, file_), more));
    }
    static std::vector<std::string> words(const std::string& link, const std::string& file) {
        return {"calibrate", "--ranks",    "2",        "--link", link,    "--codec", "int4",
                "--bytes",   "16KiB,1MiB", "--rounds", "3",      "--out", file};
    }
    std::vector<nlohmann::json> kept() const {
        std::vector<nlohmann::json> lines;
        std::ifstream file(file_);
        for (std::string line; std::getline(file, line);) {
            lines.push_back(nlohmann::json::parse(line));
        }
        return lines;
    }
    ScratchFolder folder_;
    std::string file_ = folder_.path().string() + "/kept/calibration.jsonl";
    std::string policy_ =
        folder_.write("p.toml",
                      "version = 1\n[[rule]]\nname = \"all\"\nmatch = { op = \"allreduce\" }\n"
                      "codec = \"int4\"\nef = \"ef14\"\n");
};

TEST_F(Calibrate, WhatWasMeasuredIsKeptAndExplained) {
    const Ended first = calibrate("100mbit");
    ASSERT_EQ(first.exit_code, 0) << first.err;
    EXPECT_HAS(first.out, "int4");
    ASSERT_EQ(calibrate("1gbit").exit_code, 0);
    ASSERT_EQ(calibrate("100mbit").exit_code, 0);
    const std::vector<nlohmann::json> lines = kept();
    ASSERT_EQ(lines.size(), 2u);
    for (const nlohmann::json& line : lines) {
        EXPECT_EQ(line.at("record"), "calibration");
        EXPECT_EQ(line.at("ranks"), 2);
        EXPECT_EQ(line.at("nodes"), 2);
        ASSERT_EQ(line.at("ways").size(), 3u);
        EXPECT_EQ(line.at("ways")[0].at("codec"), "native");
        const nlohmann::json& sample = line.at("ways")[0].at("samples")[1];
        EXPECT_EQ(sample.at("bytes"), 1 << 20);
        EXPECT_NEAR(sample.at("wire_bytes").get<double>(), 1 << 20, 1000) << "2 (N-1)/N of it";
        EXPECT_NEAR(line.at("ways")[1].at("samples")[1].at("wire_bytes").get<double>(),
                    4.25 / 32 * (1 << 20), 2000);
        // With two ranks a whole contribution is as many bytes as two halves.
        EXPECT_EQ(line.at("ways")[1].at("algorithm"), "two_shot");
        EXPECT_EQ(line.at("ways")[2].at("algorithm"), "gather");
        EXPECT_EQ(line.at("ways")[2].at("codec"), "int4");
        EXPECT_NEAR(line.at("ways")[2].at("samples")[1].at("wire_bytes").get<double>(),
                    4.25 / 32 * (1 << 20), 2000);
    }
    // The links are what they are said to be.
    EXPECT_EQ(lines[0].at("link"), "1gbit");
    EXPECT_NEAR(lines[1].at("gb_s").get<double>(), 0.0125, 0.003);
    const nlohmann::json calibrated = record_of({"explain", "--policy", policy_, "--ranks", "2",
                                                 "--bytes", "1MiB", "--calibration", file_})
                                          .at("calibrated");
    EXPECT_GT(calibrated.at("native_s"), 2 * calibrated.at("compressed_s").get<double>());
    EXPECT_LE(calibrated.at("pays_from_bytes"), 1 << 20);
}

TEST_F(Calibrate, RanksOfASlurmJobMeasureTogether) {
    const std::string port = std::to_string(find_free_port(0).value() - 1);
    std::vector<std::unique_ptr<Program>> ranks;
    for (const char* rank : {"0", "1", "2"}) {
        ranks.push_back(std::make_unique<Program>(
            slimwire_command({"calibrate", "--codec", "int4", "--bytes", "16KiB,1MiB", "--rounds",
                              "3", "--out", file_}),
            std::map<std::string, std::string>{{"SLURM_PROCID", rank},
                                               {"SLURM_NTASKS", "3"},
                                               {"MASTER_PORT", port},
                                               {"LD_LIBRARY_PATH", emulator_folder()}}));
    }
    for (const std::unique_ptr<Program>& rank : ranks) {
        const Ended ended = rank->wait();
        EXPECT_EQ(ended.exit_code, 0) << ended.err;
        EXPECT_EQ(ended.out.empty(), rank != ranks.front()) << ended.out;
    }
    const std::vector<nlohmann::json> lines = kept();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].at("ranks"), 3);
}

TEST_F(Calibrate, OutputIsJsonWhateverTheFileIsCalledAndArrives) {
    const std::vector<std::string> command = words("100mbit", folder_.file("caf\xe9.jsonl"));
    EXPECT_FALSE(records_of(command).empty());
    expect_lost_output_fails(command);
}

// Held-out sizes on another link: within a wide bound here, since CI's machine is shared.
TEST_F(Calibrate, OtherSizesArePredicted) {
    const Ended ended =
        calibrate("100mbit", {"--check", "256KiB", "--check-links", "50mbit", "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    std::istringstream lines(ended.out);
    int points = 0, choices = 0;
    for (std::string line; std::getline(lines, line);) {
        const nlohmann::json json = nlohmann::json::parse(line);
        EXPECT_EQ(json.at("link"), "50mbit");
        if (json.at("record") == "calibration_check") {
            EXPECT_NEAR(json.at("error").get<double>(), 0, 0.5) << line;
            ++points;
            continue;
        }
        EXPECT_EQ(json.at("record"), "calibration_choice");
        EXPECT_NE(json.at("chosen"), "native") << line;
        EXPECT_GE(json.at("loss").get<double>(), 0) << line;
        ++choices;
    }
    EXPECT_EQ(points, 3);
    EXPECT_EQ(choices, 1);
}

TEST_F(Calibrate, OnlyTheAlgorithmsThatAreAskedFor) {
    ASSERT_EQ(calibrate("100mbit", {"--algorithm", "gather"}).exit_code, 0);
    const std::vector<nlohmann::json> lines = kept();
    ASSERT_EQ(lines.size(), 1u);
    ASSERT_EQ(lines[0].at("ways").size(), 2u);
    EXPECT_EQ(lines[0].at("ways")[1].at("algorithm"), "gather");
}

// Told before anything is measured: rounds enough for minutes.
TEST_F(Calibrate, WhatCannotBeIsToldFirst) {
    const auto error = [&](int exit_code, const std::vector<std::string>& more,
                           const std::string& why) {
        expect_says(exit_code, with({"calibrate", "--rounds", "10000"}, more), {why});
    };
    error(2, {"--bytes", "x"}, "'x'");
    error(2, {"--codec", "foo"}, "foo");
    error(2, {"--op", "foo"}, "--op 'foo': accepted: all_reduce");
    error(2, {"--ranks", "2", "--nodes", "3"}, "--nodes 3 does not divide --ranks 2");
    error(2, {"--ranks", "1"}, "--ranks");
    error(2, {"--link", "fast", "--ranks", "2"}, "fast");
    error(2, {"--algorithm", "gathering"}, "'gathering': accepted: ");
    error(2, {"--bytes", "1MiB,1024KiB"}, "one size; accepted: two or more");
    error(2, {"--check", "y"}, "'y'");
    error(2, {"--check", "1MiB", "--check-links", "fast"}, "--link 'fast'");
    const std::string folder = folder_.path();
    const std::string file = folder_.write("file", "");
    for (const std::string& out : {folder, file + "/kept.jsonl"}) {
        error(1, {"--out", out}, out + " cannot be written; accepted: --out");
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2);
    // What would take the place of something else.
    const std::string notes = folder_.write("notes", "mine\n");
    error(1, {"--out", notes}, "notes:1: no calibration; accepted: lines that slimwire");
    EXPECT_EQ(read_file(notes), "mine\n");
    const std::string pipe = folder_.path() / "pipe";
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    error(1, {"--out", pipe}, "pipe is no regular file; accepted: --out with a new");
    EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST_F(Calibrate, FilesThatAreNone) {
    ASSERT_EQ(calibrate("100mbit").exit_code, 0);
    const std::string wrong = folder_.write("wrong.jsonl", "{\"v\":1,\"record\":\"key\"}\n");
    const std::string half =
        folder_.write("half.jsonl", "{\"record\":\"calibration\",\"op\":\"all_re");
    for (const auto& [file, ranks, why] :
         {std::tuple(wrong, "2", "wrong.jsonl:1: no calibration"),
          {half, "2", "half.jsonl:1: no calibration"},
          {folder_.file("nothing.jsonl"), "2", "nothing.jsonl cannot be read or is empty"},
          {file_, "4", "has no allreduce of f32 on 4 ranks of 4 nodes"}}) {
        expect_says(1,
                    {"explain", "--policy", policy_, "--ranks", ranks, "--bytes", "1MiB",
                     "--calibration", file},
                    {why});
    }
}

}  // namespace
}  // namespace slimwire::cli::test
