// `slimwire run --emulate`: what the ranks are given, how their output, ends and signals are
// treated, and that nothing outlives the job. The ranks are shell scripts; no NCCL is involved.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <regex>
#include <set>
#include <tuple>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

std::vector<std::string> emulate(std::vector<std::string> options, const std::string& script) {
    options.insert(options.begin(), "run");
    options.insert(options.end(), {"--", "sh", "-c", script});
    return options;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Process numbers that the ranks' scripts wrote into files of the folder.
std::vector<pid_t> pids_in(const ScratchFolder& folder, size_t expected) {
    std::vector<pid_t> pids;
    for (int i = 0; i < 2000 && pids.size() < expected; ++i) {
        pids.clear();
        for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
            for (const std::string& line : lines_of(read_file(entry.path()))) {
                pids.push_back(std::stoi(line));
            }
        }
        ::usleep(5000);
    }
    return pids;
}

TEST(Launch, RanksKnowTheirPlace) {
    const Ended ended = run_slimwire(
        emulate({"--emulate", "4", "--nodes", "2x2", "--link", "10gbit,50us", "--codec", "int4"},
                "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR "
                "$SLIMWIRE_EMU_NODES $SLIMWIRE_EMU_LINK $SLIMWIRE_BANDWIDTH $SLIMWIRE_CODEC"));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(
        sorted(lines_of(ended.out)),
        (std::vector<std::string>{"[0] 0 4 0 2 127.0.0.1 2x2 10gbit,50us 5000000000bit int4",
                                  "[1] 1 4 1 2 127.0.0.1 2x2 10gbit,50us 5000000000bit int4",
                                  "[2] 2 4 0 2 127.0.0.1 2x2 10gbit,50us 5000000000bit int4",
                                  "[3] 3 4 1 2 127.0.0.1 2x2 10gbit,50us 5000000000bit int4"}));
}

TEST(Launch, LibrariesAndJobToken) {
    std::set<std::string> tokens;
    for (int run = 0; run < 2; ++run) {
        const std::vector<std::string> lines =
            lines_of(succeed(emulate({"--emulate", "2", "--no-prefix", "--hook", "preload"},
                                     "echo \"$LD_LIBRARY_PATH $LD_PRELOAD $SLIMWIRE_EMU_JOB "
                                     "$MASTER_PORT [$SLIMWIRE_EMU_LINK]\""),
                             {{"LD_LIBRARY_PATH", "/kept"}})
                         .out);
        ASSERT_EQ(lines.size(), 2u);
        EXPECT_EQ(lines[0], lines[1]);
        EXPECT_HAS(lines[0], "/emulator:/kept ");
        EXPECT_HAS(lines[0], SLIMWIRE_LIBRARY_PATH);
        EXPECT_HAS(lines[0], " []");  // unshaped without --link
        tokens.insert(lines[0]);
    }
    EXPECT_EQ(tokens.size(), 2u) << "two jobs shared token and port";
}

TEST(Launch, WrongShapesAreToldAtOnce) {
    const std::pair<std::vector<std::string>, const char*> kWrong[] = {
        {{"--emulate", "2", "--link", "1parsec"}, "1parsec"},
        {{"--emulate", "2", "--link", "1gbit,fast"}, "fast"},
        {{"--emulate", "2", "--nodes", "2by1"}, "2by1"},
        {{"--emulate", "2", "--nodes", "2x2"}, "2x2"},
        {{"--link", "1gbit"}, "--emulate"},
    };
    for (const auto& [options, named] : kWrong) {
        expect_says(125, emulate(options, "echo started"), {named});
    }
}

TEST(Launch, TheEnvironmentShapesWhatNoOptionDoes) {
    const std::string script = "echo $SLIMWIRE_EMU_NODES $SLIMWIRE_EMU_LINK $LOCAL_WORLD_SIZE";
    const auto shaped = [&](std::vector<std::string> options,
                            const std::map<std::string, std::string>& environment) {
        options.insert(options.begin(), {"--emulate", "2", "--no-prefix"});
        return run_slimwire(emulate(options, script), environment);
    };
    const std::map<std::string, std::string> both = {{"SLIMWIRE_EMU_NODES", "1x2"},
                                                     {"SLIMWIRE_EMU_LINK", "1mbit"}};
    EXPECT_EQ(shaped({}, both).out, "1x2 1mbit 2\n1x2 1mbit 2\n");
    EXPECT_EQ(shaped({"--nodes", "2x1", "--link", "1gbit"}, both).out,
              "2x1 1gbit 1\n2x1 1gbit 1\n");
    for (const auto& [name, value] : {std::pair("SLIMWIRE_EMU_NODES", "2by1"),
                                      {"SLIMWIRE_EMU_NODES", "2x2"},
                                      {"SLIMWIRE_EMU_LINK", "fast"}}) {
        expect_says(125, emulate({"--emulate", "2"}, script), {name, value}, {{name, value}});
    }
}

TEST(Launch, PortInUseMeansTheNext) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(fd, 1), 0);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    const int taken = ntohs(address.sin_port);
    const Ended ended = run_slimwire(emulate(
        {"--emulate", "1", "--port", std::to_string(taken), "--no-prefix"}, "echo $MASTER_PORT"));
    ::close(fd);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    const int port = std::stoi(ended.out);
    EXPECT_GT(port, taken);
    EXPECT_LE(port, taken + 15);
}

TEST(Launch, OutputIsLineWiseAndApart) {
    const Ended ended = run_slimwire(emulate(
        {"--emulate", "4"},
        "i=0; while [ $i -lt 300 ]; do echo \"out $RANK $i abcdefghijklmnopqrstuvwxyz\"; "
        "printf 'err %s ' $RANK >&2; echo \"$i abcdefghijklmnopqrstuvwxyz\" >&2; i=$((i+1)); done; "
        "printf 'last of %s' $RANK"));
    EXPECT_EQ(ended.exit_code, 0);
    const std::regex out_line(
        "\\[([0-3])\\] (out \\1 [0-9]+ abcdefghijklmnopqrstuvwxyz|last of \\1)");
    const std::regex err_line("\\[([0-3])\\] err \\1 [0-9]+ abcdefghijklmnopqrstuvwxyz");
    const std::vector<std::string> out = lines_of(ended.out);
    const std::vector<std::string> err = lines_of(ended.err);
    EXPECT_EQ(out.size(), 4 * 301u);
    EXPECT_EQ(err.size(), 4 * 300u);
    for (const std::string& line : out) {
        ASSERT_TRUE(std::regex_match(line, out_line)) << line;
    }
    for (const std::string& line : err) {
        ASSERT_TRUE(std::regex_match(line, err_line)) << line;
    }
    // The last line had no newline and is whole.
    EXPECT_HAS(ended.out, "[2] last of 2\n");
}

TEST(Launch, StdinGoesToRankZero) {
    const Ended ended = run_slimwire(emulate({"--emulate", "2"}, "cat"), {}, "to the first\n");
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.out, "[0] to the first\n");
}

TEST(Launch, TheFirstRankThatFailsIsNamed) {
    for (const auto& [script, code, said] :
         {std::tuple("exit 0", 0, ""),
          {"[ $RANK = 2 ] && exit 3; sleep 0.5; exit 9", 3,
           "slimwire: rank 2 ended with exit code 3\n"},
          {"[ $RANK = 1 ] && kill -9 $$; sleep 0.2; exit 0", 128 + SIGKILL,
           "slimwire: rank 1 was killed by signal 9 (SIGKILL)\n"}}) {
        const Ended ended = run_slimwire(emulate({"--emulate", "3"}, script));
        EXPECT_EQ(ended.exit_code, code);
        EXPECT_EQ(ended.err, said);
        EXPECT_EQ(ended.out, "");
    }
}

TEST(Launch, OthersAreEndedAfterTheGrace) {
    const auto begin = std::chrono::steady_clock::now();
    const Ended ended = run_slimwire(
        emulate({"--emulate", "3", "--grace", "0.3"},
                "[ $RANK = 0 ] && exit 5; trap 'echo asked; exit 0' TERM; sleep 60 & wait"));
    EXPECT_EQ(ended.exit_code, 5);
    EXPECT_LT(seconds_since(begin), 20);
    EXPECT_GE(seconds_since(begin), 0.3);
    EXPECT_EQ(sorted(lines_of(ended.out)), (std::vector<std::string>{"[1] asked", "[2] asked"}));
    EXPECT_HAS(ended.err, "rank 1, 2; sending SIGTERM");
}

TEST(Launch, DeafRanksAreKilled) {
    const auto begin = std::chrono::steady_clock::now();
    const Ended ended =
        run_slimwire(emulate({"--emulate", "2", "--grace", "0.1"},
                             "[ $RANK = 0 ] && exit 5; trap '' TERM; while :; do sleep 1; done"));
    EXPECT_EQ(ended.exit_code, 5);
    EXPECT_LT(seconds_since(begin), 30);
    EXPECT_HAS(ended.err, "still running: rank 1; sending SIGKILL");
}

TEST(Launch, SignalsArePassedOnOnce) {
    ::signal(SIGHUP, SIG_DFL);  // a run under nohup ignores it, and so would the children
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
        Program program(slimwire_command(
            emulate({"--emulate", "3"},
                    "for s in INT TERM HUP USR1; do trap \"echo got $s\" $s; done; echo ready; "
                    "n=0; while [ $n -lt 8 ]; do sleep 0.1; n=$((n+1)); done; exit 0")));
        ASSERT_TRUE(program.wait_for_out("[0] ready") && program.wait_for_out("[1] ready") &&
                    program.wait_for_out("[2] ready"));
        program.send(signal);
        const Ended ended = program.wait();
        EXPECT_EQ(ended.exit_code, 0) << ended.err;
        const std::string got = std::string("got ") + ::sigabbrev_np(signal);
        size_t times = 0;
        for (const std::string& line : lines_of(ended.out)) {
            times += line.find(got) != std::string::npos ? 1 : 0;
        }
        EXPECT_EQ(times, 3u) << ended.out;
    }
}

// One ends ranks that do not care, the third one those that do.
TEST(Launch, InterruptsEndTheJob) {
    for (const auto& [script, times, signal] :
         {std::tuple("echo ready; exec sleep 60", 1, SIGINT),
          {"trap '' INT; echo ready; while :; do sleep 1; done", 3, SIGKILL}}) {
        Program program(slimwire_command(emulate({"--emulate", "2"}, script)));
        ASSERT_TRUE(program.wait_for_out("[0] ready") && program.wait_for_out("[1] ready"));
        for (int i = 0; i < times; ++i) {
            program.send(SIGINT);
            ::usleep(100'000);  // else they become one
        }
        const Ended ended = program.wait(20);
        EXPECT_EQ(ended.exit_code, 128 + signal) << ended.err;
    }
}

TEST(Launch, RanksDoNotOutliveAKilledSlimwire) {
    const ScratchFolder folder;
    Program program(
        slimwire_command(emulate({"--emulate", "3"}, "echo $$ > $DIR/$RANK; exec sleep 300")),
        {{"DIR", folder.path().string()}});
    const std::vector<pid_t> pids = pids_in(folder, 3);
    ASSERT_EQ(pids.size(), 3u);
    EXPECT_TRUE(std::all_of(pids.begin(), pids.end(), alive));
    program.send(SIGKILL);
    EXPECT_EQ(program.wait(20).signal, SIGKILL);
    EXPECT_TRUE(all_gone(pids));
}

TEST(Launch, NothingOutlivesTheJob) {
    const ScratchFolder folder;
    const Ended ended =
        run_slimwire(emulate({"--emulate", "2"}, "sleep 300 & echo $! > $DIR/$RANK; exit 0"),
                     {{"DIR", folder.path().string()}});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    const std::vector<pid_t> pids = pids_in(folder, 2);
    ASSERT_EQ(pids.size(), 2u);
    EXPECT_TRUE(all_gone(pids));
}

TEST(Launch, ClosedOutputEndsWriters) {
    Program program(slimwire_command(emulate({"--emulate", "2"}, "while :; do echo line; done")));
    ASSERT_TRUE(program.wait_for_out("line"));
    program.close_out();
    const Ended ended = program.wait(20);
    EXPECT_NE(ended.exit_code, 0);
    EXPECT_HAS(ended.err, "rank ");
}

TEST(Launch, OutputThatDoesNotArriveIsAFailure) {
    expect_lost_output_fails({"run", "--emulate", "2", "--native", "--", "sh", "-c", "echo hi"});
}

TEST(Launch, CommandNotFoundStartsNothing) {
    const ScratchFolder folder;
    // Absent; and found, executable, and yet no program.
    const std::string bad = folder.write("bad", "#!/no/such/interpreter\n", 0755);
    for (const auto& [command, why] :
         {std::pair<std::string, const char*>("no-such-command-here", "no such command"),
          {bad, "cannot start rank 0"}}) {
        const Ended ended = run_slimwire({"run", "--emulate", "2", "--", command});
        EXPECT_EQ(ended.exit_code, 127);
        expect_one_error_line(ended);
        EXPECT_HAS(ended.err, why);
    }
}

}  // namespace
}  // namespace slimwire::cli::test
