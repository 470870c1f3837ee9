// A rule with 'max_error': each tensor takes the strongest codec of the ladder whose error on the
// exact sum of a probe stays within the bound, whatever the data become, and ranks decide alike.
// One process, two and four emulated devices, a policy and a report of the test's own.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"

namespace {

using Values = std::vector<float>;
constexpr size_t kSmall = 10000;   // measured whole
constexpr size_t kStrict = 12000;  // of a rule that eight bits do not meet
constexpr size_t kAveraged = 14000;
constexpr size_t kLarge = 400000;  // by a sample
// Of 128 rows of 96 numbers; and of 129, for a rule with a bound of its own.
constexpr size_t kMatrix = 128 * 96, kNear = 129 * 96;

class ErrorBudget : public slimwire::test::SeveralDevices<4> {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"strict\"\nmatch = { op = \"allreduce\", bytes = \"48000..48000\" "
            "}\n"
            "codec = \"int8:block=64\"\nef = \"ef14\"\nmax_error = 0.001\nprobe_every = 5\n"
            "[[rule]]\nname = \"matrix\"\nmatch = { op = \"allreduce\", bytes = \"49152..49152\" "
            "}\n"
            "codec = \"powersgd:rank=2,row=96\"\nef = \"ef14\"\n"
            "ladder = [\"powersgd:rank=1,row=96\"]\nmax_error = \"random\"\nprobe_every = 5\n"
            "[[rule]]\nname = \"near\"\nmatch = { op = \"allreduce\", bytes = \"49536..49536\" "
            "}\n"
            "codec = \"powersgd:rank=2,row=96\"\nef = \"ef14\"\n"
            "ladder = [\"powersgd:rank=1,row=96\"]\nmax_error = 0.5\nprobe_every = 5\n"
            "[[rule]]\nname = \"averaged\"\nmatch = { op = \"allreduce\", bytes = "
            "\"56000..56000\" }\n"
            "codec = \"int8:block=64\"\nef = \"ef14\"\nladder = [\"int4:block=64\"]\n"
            "max_error = 0.15\nprobe_every = 5\naverage_every = 3\n"
            "[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int8:block=64\"\nef = \"ef14\"\n"
            "ladder = [\"int2:block=64\", \"int4:block=64\"]\nmax_error = 0.15\nprobe_every = 5\n");
        report_ = testing::TempDir() + "budget_report_" + std::to_string(getpid());
        ::setenv("SLIMWIRE_REPORT", report_.c_str(), 1);
    }
    static void TearDownTestSuite() {
        std::remove(report_.c_str());
        SeveralDevices::TearDownTestSuite();
    }
    ErrorBudget() : SeveralDevices(kLarge * sizeof(float)) {}
    void SetUp() override {
        SeveralDevices::SetUp();
        mark();
    }
    static void mark() {
        static uint64_t step = 0;
        ASSERT_EQ(slimwire_mark_step(++step), SLIMWIRE_OK);
    }

    // All elements of a block the same: any codec has them.
    static Values even(size_t count) {
        Values values(count);
        for (size_t i = 0; i < count; ++i) {
            values[i] = i / 64 % 2 == 0 ? 1.0f : -1.0f;
        }
        return values;
    }
    static Values gaussian(size_t count) {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        Values values(count);
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
        return values;
    }
    // One in each block is so large that 8 bits leave nothing of the others, which are most.
    static Values spiked(size_t count) {
        Values values = gaussian(count);
        for (size_t i = 0; i < count; ++i) {
            values[i] = i % 64 == 5 ? 60.0f : values[i] * 10;
        }
        return values;
    }
    // How many values a block of the sum takes says which codec it was: "p" for exact, then bits.
    std::string taken(const Values& values, int calls) {
        std::string text;
        for (int call = 0; call < calls; ++call) {
            const Values got = reduce(std::vector<Values>(static_cast<size_t>(ranks()), values));
            mark();
            text += of(values, got);
        }
        return text;
    }
    static std::string of(const Values& values, const Values& got) {
        bool exact = true;
        size_t most = 0;
        for (size_t begin = 0; begin + 64 <= got.size(); begin += 64) {
            std::set<float> levels;
            for (size_t i = begin; i < begin + 64; ++i) {
                exact = exact && got[i] == static_cast<float>(ranks()) * values[i];
                levels.insert(got[i]);
            }
            most = std::max(most, levels.size());
        }
        return exact ? "p" : most <= 4 ? "2" : most <= 16 ? "4" : "8";
    }
    static inline std::string report_;
};

TEST_P(ErrorBudget, TheDataSayWhichCodec) {
    for (const size_t count : {kSmall, kLarge}) {
        SCOPED_TRACE(count);
        // The error of Gaussian data is 0.11 by four bits and 0.5 by two.
        EXPECT_EQ(taken(gaussian(count), 5), "p4444");
        EXPECT_EQ(taken(spiked(count), 5), "p8888");
        EXPECT_EQ(taken(gaussian(count), 5), "p4444");
    }
}

// What a codec can send exactly looks like a probe, so by the report: the strongest was taken.
TEST_P(ErrorBudget, WhatIsEasyIsStrong) {
    (void)taken(even(kSmall), 5);
    for (int rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
    }
    std::set<std::string> hashes, chosen;
    std::set<std::string> comms;
    std::ifstream file(report_);
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json record = nlohmann::json::parse(line);
        if (record.at("record") == "key" && record.contains("max_error")) {
            hashes.clear();
            chosen.clear();
            for (const nlohmann::json& tensor : record.at("max_error")) {
                hashes.insert(tensor.at("decisions_hash"));
                chosen.insert(tensor.at("chosen"));
                EXPECT_EQ(tensor.at("squares").size(), 3u);
            }
        }
    }
    EXPECT_EQ(chosen, (std::set<std::string>{"int2:block=64"}));
    EXPECT_EQ(hashes.size(), 1u);
    ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess);
}

// Noise is sent as it is, and so is what nearly is noise; the report says what was kept.
TEST_P(ErrorBudget, FactorsMustKeepMoreThanOfNoise) {
    const auto product = [](size_t count, int rank, float noise) {
        Values values = gaussian(count);
        const Values factors = gaussian(4096);
        for (size_t i = 0; i < count; ++i) {
            values[i] *= noise;
            for (size_t k = 0; k < static_cast<size_t>(rank); ++k) {
                values[i] += factors[i / 96 + 200 * k] * factors[2000 + i % 96 + 200 * k];
            }
        }
        return values;
    };
    // 'p' where the sum is exact, natively, 'f' by factors.
    const auto taken_by = [&](const Values& values) {
        std::string text;
        for (int call = 0; call < 5; ++call) {
            const Values got = reduce(std::vector<Values>(static_cast<size_t>(ranks()), values));
            mark();
            bool exact = true;
            for (size_t i = 0; i < got.size(); ++i) {
                exact = exact && got[i] == static_cast<float>(ranks()) * values[i];
            }
            text += exact ? "p" : "f";
        }
        return text;
    };
    EXPECT_EQ(taken_by(product(kMatrix, 0, 1.0f)), "ppppp");
    EXPECT_EQ(taken_by(product(kMatrix, 1, 0.5f)), "pffff");
    // A direction that holds 2 % of all is lost in the noise.
    EXPECT_EQ(taken_by(product(kMatrix, 1, 7.0f)), "ppppp");
    EXPECT_EQ(taken_by(product(kMatrix, 1, 0.1f)), "pffff");
    // Two directions of one size: a rank of 1 leaves half the energy, and 0.7 of the norm.
    EXPECT_EQ(taken_by(product(kNear, 2, 0.01f)), "pffff");
    EXPECT_EQ(taken_by(product(kNear, 0, 1.0f)), "ppppp");
    EXPECT_EQ(taken_by(product(kNear, 2, 0.01f)), "pffff");
    for (int rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
    }
    std::map<std::string, std::set<std::string>> chosen, hashes;
    std::ifstream file(report_);
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json record = nlohmann::json::parse(line);
        if (record.at("record") == "key" && record.contains("max_error") &&
            record.at("rule") != "sums" && record.at("rule") != "strict") {
            const std::string rule = record.at("rule");
            for (const nlohmann::json& tensor : record.at("max_error")) {
                if (tensor.at("probes") == (rule == "matrix" ? 4 : 3)) {
                    hashes[rule].insert(tensor.at("decisions_hash"));
                    chosen[rule].insert(tensor.at("chosen"));
                    EXPECT_EQ(tensor.contains("bounds"), rule == "matrix");
                    // Of 0.1 noise 1 % is not in the direction; all is in two.
                    EXPECT_NEAR(tensor.at("squares").at(0).get<double>(),
                                rule == "matrix" ? 0.01 : 0.45, rule == "matrix" ? 0.005 : 0.1);
                }
            }
        }
    }
    EXPECT_EQ(chosen["matrix"], (std::set<std::string>{"powersgd:rank=1,row=96"}));
    EXPECT_EQ(chosen["near"], (std::set<std::string>{"powersgd:rank=2,row=96"}));
    EXPECT_EQ(hashes["matrix"].size(), 1u);
    EXPECT_EQ(hashes["near"].size(), 1u);
    ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess);
}

TEST_P(ErrorBudget, WhatNothingMeetsIsNative) {
    EXPECT_EQ(taken(gaussian(kStrict), 7), "ppppppp");
    for (int rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
    }
    uint64_t native = 0, probes = 0;
    std::ifstream file(report_);
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json record = nlohmann::json::parse(line);
        if (record.at("record") == "key" && record.at("rule") == "strict") {
            native += record.at("reason") == "no codec of its ladder is within max_error"
                          ? record.at("calls").get<uint64_t>()
                          : 0;
            probes += record.at("reason") == "probe of max_error"
                          ? record.at("calls").get<uint64_t>()
                          : 0;
        }
    }
    EXPECT_GT(probes, 0u);
    EXPECT_EQ(native * 2, probes * 5) << "two probes of seven calls";
    ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess);
}

TEST_P(ErrorBudget, AProbeThatIsNotFiniteLeavesThingsAsTheyWere) {
    Values values = gaussian(kSmall);
    EXPECT_EQ(taken(values, 5), "p4444");
    Values broken = values;
    broken[100] = INFINITY;
    (void)taken(broken, 1);
    EXPECT_EQ(taken(values, 4), "4444");
}

// What is owed waits while a probe is made, and comes after it.
TEST_P(ErrorBudget, NothingIsLost) {
    const Values values = gaussian(kSmall);
    std::vector<double> error(kSmall);
    for (int call = 0; call < 23; ++call) {
        const Values got = reduce(std::vector<Values>(static_cast<size_t>(ranks()), values));
        mark();
        for (size_t i = 0; i < kSmall; ++i) {
            error[i] += static_cast<double>(got[i]) - ranks() * static_cast<double>(values[i]);
        }
    }
    double worst = 0;
    for (const double one : error) {
        worst = std::max(worst, std::abs(one));
    }
    EXPECT_GT(worst, 0);
    EXPECT_LT(worst, 0.5 * ranks()) << "the last call's error, not the sum of all";
}

// Averaging what the ranks owe goes on beside it, every third call that is no probe, and loses
// nothing either.
TEST_P(ErrorBudget, AveragingGoesOn) {
    std::vector<Values> given;
    std::vector<double> whole(kAveraged), error(kAveraged);
    for (int rank = 0; rank < ranks(); ++rank) {
        Values values = gaussian(kAveraged);
        std::rotate(values.begin(), values.begin() + 64 * rank + 1, values.end());
        for (size_t i = 0; i < kAveraged; ++i) {
            whole[i] += values[i];
        }
        given.push_back(std::move(values));
    }
    for (int call = 0; call < 23; ++call) {
        const Values got = reduce(given);
        mark();
        for (size_t i = 0; i < kAveraged; ++i) {
            error[i] += static_cast<double>(got[i]) - whole[i];
        }
    }
    double worst = 0;
    for (const double one : error) {
        worst = std::max(worst, std::abs(one));
    }
    EXPECT_GT(worst, 0);
    EXPECT_LT(worst, ranks()) << "the last call's error, not the sum of all";
    for (int rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
    }
    std::map<std::string, uint64_t> averagings;  // by communicator and rule's codec
    std::set<std::string> comms;                 // of as many ranks
    std::ifstream file(report_);
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json record = nlohmann::json::parse(line);
        if (record.at("record") == "comm" && record.at("ranks") == ranks()) {
            comms.insert(record.at("comm"));
        }
        if (record.at("record") == "key" && record.at("rule") == "averaged" &&
            record.value("averagings", 0) > 0 && comms.count(record.at("comm")) > 0) {
            averagings[record.at("comm")] += record.at("averagings").get<uint64_t>();
        }
    }
    ASSERT_EQ(averagings.size(), 1u);
    // 18 calls of 23 were no probes.
    EXPECT_EQ(averagings.begin()->second, 6u * static_cast<uint64_t>(ranks()));
    ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess);
}

TEST_P(ErrorBudget, CallsOfADroppedGroupWereNone) {
    const Values values = gaussian(kSmall);
    EXPECT_EQ(taken(values, 4), "p444");
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        queue_floats(std::vector<Values>(static_cast<size_t>(ranks()), values), 0, ncclSum, false);
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        ASSERT_EQ(ncclGroupSimulateEnd(&info), ncclSuccess);
    }
    EXPECT_EQ(taken(values, 3), "4p4");
}

INSTANTIATE_TEST_SUITE_P(Ranks, ErrorBudget, testing::Values(2, 4));

}  // namespace
