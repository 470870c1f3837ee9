// What holds for the output of every command: --json is JSON whatever bytes a file name has, and
// output that does not arrive is a failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

// One command of each kind, "FILE" for the name of what it reads; all end with success. Those of
// `state` are in cli_state_test.cpp, `calibrate` is in cli_calibrate_test.cpp.
struct Command {
    const char* content;
    std::vector<std::string> words;
};
const Command kCommands[] = {
    {"version = 1\n", {"policy", "check", "FILE", "--json"}},
    {"version = 1\n", {"explain", "--bytes", "1MiB", "--policy", "FILE", "--json"}},
    {"12345678", {"codec", "FILE", "--codec", "int8", "--dtype", "f32", "--json"}},
    {R"({"v":1,"record":"process","host":"h","pid":1})"
     "\n"
     R"({"v":1,"record":"comm","comm":"ab","rank":0,"ranks":1,"nodes":1,"agreement":"go"})"
     "\n",
     {"report", "FILE", "--json"}},
    {"<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x030200\" "
     "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"0\" sm=\"90\" rank=\"0\"/></pci>"
     "</cpu></system>",
     {"topo", "--xml", "FILE", "--json"}},
    {"", {"doctor", "--json"}},
    {"", {"policy", "env", "--json"}},
    {R"({"batch":1,"sequence":64,"hidden":64,"seconds":0.01})",
     {"advise", "--layer-times", "FILE", "--json"}},
    {"",
     {"bench", "codec", "--codec", "int8", "--op", "encode", "--bytes", "64KiB", "--rounds", "1",
      "--data-folder", "FILE", "--json"}},
};

std::vector<std::string> words_of(const Command& command, const std::string& file) {
    std::vector<std::string> words = command.words;
    std::replace(words.begin(), words.end(), std::string("FILE"), file);
    return words;
}

TEST(Output, IsJsonWhateverAFileIsCalled) {
    const ScratchFolder folder;
    for (const Command& command : kCommands) {
        const std::string file = folder.write("caf\xe9.in", command.content);
        const std::vector<std::string> words = words_of(command, file);
        const Ended ended = run_slimwire(words);
        EXPECT_LE(ended.exit_code, words[0] == "doctor" ? 1 : 0) << words[0] << ended.err;
        EXPECT_FALSE(lines_of(ended.out).empty()) << words[0];
        for (const std::string& line : lines_of(ended.out)) {
            EXPECT_TRUE(nlohmann::json::accept(line)) << words[0] << ": " << line;
        }
    }
}

TEST(Output, ThatDoesNotArriveIsAFailure) {
    const ScratchFolder folder;
    // The table of ways is longer than a buffer.
    std::vector<std::vector<std::string>> all = {
        {"--help"},
        {"--version"},
        {"run", "--help"},
        {"topo", "--xml", std::string(TOPOLOGY_DATA) + "/nvswitch_8gpu_8nic.xml"}};
    for (const Command& command : kCommands) {
        all.push_back(words_of(command, folder.write(command.words[0], command.content)));
    }
    for (const std::vector<std::string>& words : all) {
        expect_lost_output_fails(words);
    }
}

TEST(Output, AnUnknownCommandNamesTheNearest) {
    expect_says(2, {"rnu", "--codec", "int8"},
                {"unknown command 'rnu' (did you mean 'run'?); accepted: run, policy, "});
    EXPECT_HAS(run_slimwire({"quantise"}).err, "unknown command 'quantise'; accepted: run, ");
    // Of a command that has commands, too.
    EXPECT_HAS(run_slimwire({"policy", "chekc", "p.toml"}).err,
               "unknown command 'policy chekc' (did you mean 'check'?); accepted: check, env");
    EXPECT_HAS(run_slimwire({"state", "hsow"}).err, "(did you mean 'show'?)");
    EXPECT_HAS(run_slimwire({"bench", "codce"}).err, "(did you mean 'codec'?)");
}

// What has no end, or nobody who writes it, would be read for ever.
TEST(Output, WhatIsNoFileIsNotRead) {
    const ScratchFolder folder;
    const std::string pipe = folder.path() / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const std::string machine = std::string(TOPOLOGY_DATA) + "/xgmi_4gpu.xml";
    for (const std::string& path : {pipe, std::string("/dev/zero")}) {
        for (const std::vector<std::string>& words :
             {std::vector<std::string>{"topo", "--xml", machine, "--calibration", path},
              {"advise", "--layer-times", path},
              {"advise", "--calibration", path},
              {"codec", path, "--codec", "int8", "--dtype", "f32"},
              {"report", path},
              {"report", "--html", folder.file("page.html"), path},
              {"topo", "--report", path},
              {"advise", "--trace", path},
              {"policy", "check", path},
              {"state", "check", path}}) {
            const Ended ended = run_slimwire(words);
            EXPECT_GT(ended.exit_code, 0) << testing::PrintToString(words);
            EXPECT_LT(ended.exit_code, 3) << testing::PrintToString(words);
            EXPECT_HAS(ended.err, path);
        }
    }
    for (const char* command : {"topo", "advise"}) {
        EXPECT_HAS(run_slimwire({command, "--xml", "/dev/zero"}).err,
                   "/dev/zero is no regular file; accepted: a file");
    }
}

TEST(Output, AnUnknownOptionNamesTheNearest) {
    EXPECT_EQ(
        run_slimwire({"explain", "--byte", "1MiB", "--codec", "int8"}).err,
        "slimwire: error: unknown option '--byte' (did you mean '--bytes'?); a command stands "
        "behind --, see slimwire explain --help\n");
    EXPECT_HAS(run_slimwire({"run", "--codce=int8", "--", "true"}).err,
               "unknown option '--codce' (did you mean '--codec'?); ");
    expect_says(2, {"state", "show", "--everything", "x"},
                {"unknown option '--everything'; a command stands behind --, see slimwire "
                 "state show --help"});
    EXPECT_HAS(run_slimwire({"topo", "x.xml"}).err, "'x.xml' was not expected; ");
    // One that must be there and is spelt wrong.
    EXPECT_HAS(run_slimwire({"codec", "x.npy", "--codce", "int8"}).err,
               "unknown option '--codce' (did you mean '--codec'?); ");
    EXPECT_HAS(run_slimwire({"state", "convert", "a", "--rank", "2", "--out", "b"}).err,
               "unknown option '--rank' (did you mean '--ranks'?); ");
    EXPECT_HAS(run_slimwire({"--versoin"}).err, "'--versoin' (did you mean '--version'?); ");
    EXPECT_EQ(run_slimwire({"codec", "x.npy"}).err, "slimwire: error: --codec is required\n");
    EXPECT_EQ(run_slimwire({"policy"}).err,
              "slimwire: error: no command behind slimwire policy; accepted: check, env\n");
}

// As a shell's variable leaves it that is not set.
TEST(Output, AnEmptyValueIsNoAbsentOption) {
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"run", "--codec", "", "--", "true"},
             {"run", "--policy", "", "--", "true"},
             {"run", "--report", "", "--", "true"},
             {"run", "--emulate", "2", "--link", "", "--", "true"},
             {"explain", "--bytes", "1MiB", "--codec", ""},
             {"advise", "--policy", ""},
             {"report", ""}}) {
        expect_says(2, words, {"is empty; accepted: "});
    }
}

TEST(Output, ShowsACarriageReturn) {
    const Ended ended = run_slimwire({"policy", "env"}, {{"SLIMWIRE_CODEC", "int8\r"}});
    EXPECT_HAS(ended.err, "bad value 'int8\\r'");
}

}  // namespace
}  // namespace slimwire::cli::test
