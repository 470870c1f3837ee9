// `slimwire run --emulate N --namespaces`: each emulated node's ranks in Linux namespaces of their
// own, joined by a switch. What they see of the network, that all-reduces cross it and are fewer
// bytes when compressed, and that nothing stays behind. Skipped where the machine forbids it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

constexpr char kOwnNetwork[] = "/proc/self/ns/net";

std::vector<std::string> on_two_nodes(std::vector<std::string> options, const std::string& script) {
    const std::vector<std::string> shape = {"run",     "--emulate", "4",
                                            "--nodes", "2x2",       "--namespaces"};
    options.insert(options.begin(), shape.begin(), shape.end());
    options.insert(options.end(), {"--", "sh", "-c", script});
    return options;
}

// Interfaces of the machine, as this process sees them.
std::set<std::string> own_interfaces() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net")) {
        names.insert(entry.path().filename().string());
    }
    return names;
}

// Of each rank, what its script said, without the prefix.
std::map<int, std::string> by_rank(const std::string& out) {
    std::map<int, std::string> lines;
    for (const std::string& line : lines_of(out)) {
        if (line.size() > 4 && line[0] == '[') {
            lines[std::stoi(line.substr(1))] = line.substr(line.find(' ') + 1);
        }
    }
    return lines;
}

class Namespaces : public testing::Test {
  protected:
    void SetUp() override {
        const Ended trial = run_slimwire({"run", "--emulate", "1", "--namespaces", "--", "true"});
        if (trial.exit_code == 125 &&
            trial.err.find("needs root or unprivileged user namespaces") != std::string::npos) {
            GTEST_SKIP() << "this user may make no namespaces here: " << trial.err;
        }
        ASSERT_EQ(trial.exit_code, 0) << trial.err;
    }
};

TEST_F(Namespaces, RanksOfANodeShareANetworkOfTheirOwn) {
    const std::set<std::string> before = own_interfaces();
    const Ended ended = run_slimwire(
        on_two_nodes({},
                     "echo $(readlink /proc/self/ns/net /proc/self/ns/ipc) $(hostname) $(ls "
                     "/sys/class/net) $MASTER_ADDR"));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    std::map<int, std::string> lines = by_rank(ended.out);
    ASSERT_EQ(lines.size(), 4u) << ended.out;
    EXPECT_EQ(lines[0], lines[1]);
    EXPECT_EQ(lines[2], lines[3]);
    EXPECT_HAS(lines[0], " node0 eth0 lo 10.77.0.1");
    EXPECT_HAS(lines[2], " node1 eth0 lo 10.77.0.1");
    std::set<std::string> networks = {std::filesystem::read_symlink(kOwnNetwork).string()};
    networks.insert(lines[0].substr(0, lines[0].find(' ')));
    networks.insert(lines[2].substr(0, lines[2].find(' ')));
    EXPECT_EQ(networks.size(), 3u);
    EXPECT_EQ(own_interfaces(), before);
}

// Bytes that left the first node while 4 ranks made 3 all-reduces of 4 MB and checked them.
double bytes_of_all_reduces(const std::vector<std::string>& options) {
    const ScratchFolder folder;
    const Ended ended =
        run_slimwire(on_two_nodes(options, std::string(REDUCE_PROGRAM) +
                                               " --calls 3 --count 1000000 && cat "
                                               "/sys/class/net/eth0/statistics/tx_bytes"),
                     {{"TEST_FOLDER", folder.path().string()}, {"SLIMWIRE_SUMMARY", "0"}});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    const std::map<int, std::string> lines = by_rank(ended.out);
    return lines.size() == 4 ? std::stod(lines.at(0)) : 0;
}

// A ring of 4 ranks takes 3/2 of the buffer over each of the two links between nodes; int8 sends
// the sum of a node once, a quarter of its bytes.
TEST_F(Namespaces, AllReducesCrossTheLinkNativeAndCompressed) {
    const double native = bytes_of_all_reduces({"--native"});
    EXPECT_GT(native, 3 * 1.5 * 4e6);
    EXPECT_LT(native, 3 * 1.7 * 4e6);
    const double compressed =
        bytes_of_all_reduces({"--codec", "int8:block=64", "--min-bytes", "1KiB"});
    EXPECT_GT(compressed, 3 * 0.2 * 4e6);
    EXPECT_LT(compressed, 3 * 0.3 * 4e6);
}

TEST_F(Namespaces, NothingIsLeftWhenTheLauncherIsKilled) {
    const ScratchFolder folder;
    const std::string script =
        "echo $$ > " + folder.path().string() + "/$RANK; echo up; exec sleep 600";
    Program program(slimwire_command(on_two_nodes({}, script)));
    std::vector<pid_t> pids;
    for (int i = 0; i < 2000 && pids.size() < 4; ++i) {
        pids.clear();
        for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
            for (const std::string& line : lines_of(read_file(entry.path()))) {
                pids.push_back(std::stoi(line));
            }
        }
        ::usleep(5000);
    }
    ASSERT_EQ(pids.size(), 4u);
    const std::string network =
        std::filesystem::read_symlink("/proc/" + std::to_string(pids[0]) + "/ns/net").string();
    program.send(SIGKILL);
    program.wait(20);
    EXPECT_TRUE(all_gone(pids));
    // Only processes, descriptors and mounts keep a namespace: nobody else is in it, none is named.
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        std::error_code ignored;
        EXPECT_NE(std::filesystem::read_symlink(entry.path() / "ns/net", ignored).string(), network)
            << entry.path();
    }
    EXPECT_EQ(read_file("/proc/self/mountinfo").find(network), std::string::npos);
}

TEST(NamespacesUnavailable, WithoutIpTheMessageSaysWhatToInstall) {
    const ScratchFolder folder;
    std::filesystem::create_symlink("/bin/true", folder.path() / "true");
    const Ended ended = run_slimwire({"run", "--emulate", "1", "--namespaces", "--", "true"},
                                     {{"PATH", folder.path().string()}});
    EXPECT_EQ(ended.exit_code, 125) << ended.err;
    EXPECT_HAS(ended.err, "apt-get install iproute2");
}

TEST(NamespacesUnavailable, OnlyEmulatedNodesHaveThem) {
    const Ended ended = run_slimwire({"run", "--namespaces", "--", "true"});
    EXPECT_EQ(ended.exit_code, 125);
    EXPECT_HAS(ended.err, "--namespaces shapes an emulated job: add --emulate RANKS");
}

}  // namespace
}  // namespace slimwire::cli::test
