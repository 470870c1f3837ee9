// The plugin between two processes: streams arrive whole, and a rank that dies anywhere is an error
// for the other one, never a wait. The transport and the codec come from the environment
// (meson.build).
#include <gtest/gtest.h>

#include <string>

#include "plugin/net/wrapped/inner_table.h"
#include "tests/plugin/net/long_form.h"
#include "tests/support/ranks.h"
#include "tests/support/seed.h"

extern char** environ;

namespace slimwire::test {
namespace {

// SLIMWIRE_NET_* of this test's environment, which run_ranks does not hand on by itself.
Environment net_environment() {
    Environment all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text(*entry);
        if (text.starts_with("SLIMWIRE_NET_") || text.starts_with("UCX_")) {
            all[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
        }
    }
    return all;
}

std::vector<std::string> peer(int version,
                              const std::string& folder,
                              const std::string& messages,
                              const std::string& bytes) {
    return {SLIMWIRE_TEST_PEER,
            SLIMWIRE_TEST_NET_PLUGIN,
            std::to_string(version),
            folder,
            std::to_string(test_seed()),
            messages,
            bytes,
            "8"};
}

class ProxyPair : public testing::TestWithParam<int> {
  protected:
    Job job(const std::string& messages, const std::string& bytes) {
        Job job;
        job.command = peer(GetParam(), folder_.path(), messages, bytes);
        job.ranks = 2;
        job.environment = net_environment();
        job.environment["SLIMWIRE_SOCKET_IFNAME"] = "lo";
        return job;
    }
    TemporaryFolder folder_;
};

TEST_P(ProxyPair, AStreamArrivesWhole) {
    const bool all = net::plays_all(GetParam());
    EXPECT_EQ(unless_all_exit(run_ranks(job(all ? "150" : "20", "1048576"))), "");
}

// Who dies: the receiver, or the sender; and where.
struct Death {
    int rank;
    const char* where;
};

TEST_P(ProxyPair, ADeadPeerIsAnErrorWhereverItDied) {
    std::vector<Death> deaths = {{0, "listened"},  {1, "connecting"}, {0, "connected"},
                                 {1, "connected"}, {0, "1"},          {1, "1"},
                                 {0, "40"},        {1, "40"}};
    if (GetParam() != net::kNewestTable) {
        deaths = {{0, "17"}, {1, "17"}};  // the rest is the same code below the tables
    }
    for (const Death& death : deaths) {
        const TemporaryFolder folder;
        Job killed = job("100000", "300000");
        killed.command[3] = folder.path();
        killed.command.push_back(std::to_string(death.rank));
        killed.command.push_back(death.where);
        const std::vector<Ended> ranks = run_ranks(killed);
        const Ended& dead = ranks[static_cast<size_t>(death.rank)];
        const Ended& survivor = ranks[static_cast<size_t>(1 - death.rank)];
        const std::string name = "rank " + std::to_string(death.rank) + " died at " + death.where;
        EXPECT_EQ(dead.exit_code, 128 + 9) << name << ": " << dead.out << dead.err;
        EXPECT_FALSE(survivor.expired) << name << ": " << survivor.err;
        const bool nobody_came =
            survivor.exit_code == 4 && std::string(death.where) == "connecting";
        EXPECT_TRUE(survivor.exit_code == 3 || nobody_came)
            << name << ": exit code " << survivor.exit_code << "\n"
            << survivor.out << survivor.err;
        if (survivor.exit_code == 3) {  // one clear line
            EXPECT_NE(survivor.err.find("NET/slimwire: "), std::string::npos) << name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Tables,
                         ProxyPair,
                         testing::Range(net::kOldestTable, net::kNewestTable + 1),
                         [](const auto& info) { return "v" + std::to_string(info.param); });

}  // namespace
}  // namespace slimwire::test
