// average_every: every so many calls of a tensor what ranks owe becomes the mean over them, as it
// is or by a codec, and nothing of it is lost: what was sent and what is owed add up to what was
// given, element by element, after every step. What is owed is read from a saved state. One
// process, up to four emulated devices, a policy of the test's own.
#include "tests/plugin/averaging_fixture.h"

#include "codecs/codec.h"

namespace slimwire::test {
namespace {

// Of sums of a few hundred terms around 3.
constexpr double kRounding = 2e-4;

TEST_P(Averaging, EveryThirdCallRanksOweTheMean) {
    Account account;
    for (int number = 1; number <= 7; ++number) {
        SCOPED_TRACE(number);
        (void)step(kRaw, number, &account);
        const Owed now = owed(kRaw);
        account.expect_owed(now, kRounding);
        // All that is owed is shared equally: with what the account says, the mean.
        if (number % 3 == 0) {
            EXPECT_EQ(spread(now, kRaw).first, 0.0);
        } else {
            EXPECT_GT(spread(now, kRaw).first, 0.1);
        }
    }
    renew_communicators();
    const auto n = static_cast<uint64_t>(ranks());
    ASSERT_FALSE(keys("raw").empty());
    for (const nlohmann::json& key : keys("raw")) {
        EXPECT_EQ(key.at("calls"), 7);
        EXPECT_EQ(key.at("averagings"), 2);
        if (!sliced()) {  // else the ring's formula is of each part
            EXPECT_EQ(key.at("averaging_wire_bytes"), 2 * (2 * (n - 1) * 4 * kRaw / n));
        }
        const uint64_t slot =
            key.at("wire_bytes").get<uint64_t>() - key.at("averaging_wire_bytes").get<uint64_t>();
        EXPECT_EQ(slot % (7 * (n - 1)), 0u) << "of calls, and apart from them";
    }
}

TEST_P(Averaging, EveryCallAndStoredInHalfTheBytes) {
    Account every, halved;
    for (int number = 1; number <= 5; ++number) {
        SCOPED_TRACE(number);
        (void)step(kEvery, number, &every);
        const Owed now = owed(kEvery);
        every.expect_owed(now, kRounding);
        EXPECT_EQ(spread(now, kEvery).first, 0.0);
        (void)step(kBf16, number, &halved);
        const Owed stored = owed(kBf16);
        // Each rank rounds its copy of the mean, this step's and those before.
        const double rounded = std::ldexp(largest(stored), -7);
        EXPECT_LE(spread(stored, kBf16).first, rounded);
        EXPECT_GT(spread(stored, kBf16).first, 0.0) << "rounded stochastically";
        // Behind the call, and behind averaging; of all elements where runs begin at blocks.
        const double in_all = 2 * number * ranks() * rounded;
        if (sliced()) {
            halved.expect_owed_in_all(stored, std::sqrt(kBf16) * in_all);
        } else {
            halved.expect_owed(stored, in_all);
        }
    }
}

TEST_P(Averaging, ByACodecTheSumStaysAsItWas) {
    Account int8, topk, off;
    for (int number = 1; number <= 8; ++number) {
        SCOPED_TRACE(number);
        (void)step(kInt8, number, &int8);
        const Owed by_int8 = owed(kInt8);
        int8.expect_owed(by_int8, kRounding);
        // Half a step of the quantiser on either side, of blocks as large as the largest.
        EXPECT_LT(spread(by_int8, kInt8).first, 1.05 * 6 * number / 127);
        EXPECT_GT(spread(by_int8, kInt8).first, 0.0) << "as they are?";
        (void)step(kTopk, number, &topk);
        const Owed by_topk = owed(kTopk);
        topk.expect_owed(by_topk, kRounding);
        (void)step(kOff, number, &off);
        const Owed without = owed(kOff);
        off.expect_owed(without, kRounding);
        if (number == 2) {  // of the same history so far, but for an element
            EXPECT_LT(spread(by_topk, kTopk).second, 0.9 * spread(without, kOff).second);
        }
    }
    renew_communicators();
    const CodecSpec codec = parse_codec("int8").value();
    const auto n = static_cast<size_t>(ranks());
    const auto slot = [&](size_t count) {
        return static_cast<uint64_t>(
            (codec.encoded_bytes(DType::kFloat32, static_cast<int64_t>(count)) + 15) / 16 * 16);
    };
    const size_t chunk = ((kInt8 + n - 1) / n + 63) / 64 * 64;
    ASSERT_FALSE(keys("int8").empty());
    for (const nlohmann::json& key : keys("int8")) {
        EXPECT_EQ(key.at("averagings"), 8);
        if (!sliced()) {
            EXPECT_EQ(key.at("averaging_wire_bytes"),
                      8 * std::min((n - 1) * slot(kInt8), 2 * (n - 1) * slot(chunk)));
        }
    }
}

// With workers and owners of sums, or with nodes and the owners of their columns.
TEST_P(Averaging, OfOtherAlgorithms) {
    Account sums, random, factors;
    for (int number = 1; number <= 6; ++number) {
        SCOPED_TRACE(number);
        (void)step(kAuto, number, &sums);
        const Owed now = owed(kAuto);
        sums.expect_owed_in_all(now, 100 * kRounding);
        if (!sliced() && number % 2 == 0 && on_nodes()) {
            // Of a column that it owns a rank has the node's sum, of two chunks, and one chunk.
            const size_t chunk = now.at(0).size() / (ranks() == 3 ? 6 : 3);
            expect_same(now.at(0), 0, now.at(2), 0, 2 * chunk);
            if (ranks() == 3) {
                expect_same(now.at(1), 0, now.at(2), 3 * chunk, 2 * chunk);
            } else {
                expect_same(now.at(1), 0, now.at(3), 0, 2 * chunk);
            }
        } else if (!on_nodes()) {
            EXPECT_EQ(number % 2 == 0, spread(now, kAuto).first == 0.0);
        }
        (void)step(kSummed, number, &random);
        const Owed by_random = owed(kSummed);
        random.expect_owed(by_random, kRounding);
        EXPECT_EQ(spread(by_random, kSummed).first, 0.0);
        (void)step(kMatrix, number, &factors);
        const Owed beside = owed(kMatrix, 128);
        factors.expect_owed(beside, 5 * kRounding);
        EXPECT_EQ(number % 2 == 0, spread(beside, kMatrix).first == 0.0);
    }
    renew_communicators();
    const auto n = static_cast<uint64_t>(ranks());
    ASSERT_FALSE(keys("auto").empty());
    for (const nlohmann::json& key : keys("auto")) {
        EXPECT_EQ(key.at("algorithm"), on_nodes() ? "hierarchical" : "sparse");
        EXPECT_EQ(key.at("averagings"), 3);
        if (!sliced()) {
            EXPECT_EQ(key.at("averaging_wire_bytes"), 3 * (2 * (n - 1) * 4 * kAuto / n));
        }
    }
    ASSERT_FALSE(keys("matrix").empty());
    for (const nlohmann::json& key : keys("matrix")) {
        EXPECT_EQ(key.at("averagings"), 3);
    }
}

TEST_P(Averaging, OfAReduceScatter) {
    const size_t all = kScattered * static_cast<size_t>(ranks());
    Account account;
    for (int number = 1; number <= 4; ++number) {
        SCOPED_TRACE(number);
        const std::vector<Values> given = gradients(all, number);
        account.give(given);
        for (int rank = 0; rank < ranks(); ++rank) {
            fill(rank, given[static_cast<size_t>(rank)]);
        }
        group([&](int rank) {
            return ncclReduceScatter(send_[rank], recv_[rank], kScattered, ncclFloat32, ncclSum,
                                     comms_[rank], nullptr);
        });
        Values sent;
        for (int rank = 0; rank < ranks(); ++rank) {
            const Values got = result(rank, kScattered);
            sent.insert(sent.end(), got.begin(), got.end());
        }
        account.send(sent);
        mark();
        const Owed now = owed(kScattered);
        account.expect_owed_in_all(now, 100 * kRounding);
        // Where nodes differ in size, a reduce-scatter is cheaper flat.
        EXPECT_EQ(now.at(0).size() == all, !on_nodes() || ranks() == 3);
        if (now.at(0).size() == all) {
            account.expect_owed(now, kRounding);
            EXPECT_EQ(number % 2 == 0, spread(now, all).first == 0.0);
        } else if (number % 2 == 0) {
            // For the sums of a node's ranks, block after block of a column.
            expect_same(now.at(0), 0, now.at(2), 0, 2 * kScattered);
            expect_same(now.at(1), 0, now.at(3), 0, 2 * kScattered);
        } else {
            EXPECT_NE(Values(now.at(0).begin(), now.at(0).begin() + kScattered),
                      Values(now.at(2).begin(), now.at(2).begin() + kScattered));
        }
    }
}

// Of any size: those of which nothing is compressed are exact and owe nothing.
TEST_P(Averaging, SizesFromOneElement) {
    for (const size_t count : {1, 2, 3, 31, 64, 65, 130, 257, 1000, 1027, 2047}) {
        SCOPED_TRACE(count);
        Account account;
        bool compressed = false;
        for (int number = 1; number <= 4; ++number) {
            (void)step(count, number, &account);
            const Owed now = owed(count);
            compressed = !now.empty();
            if (compressed) {
                account.expect_owed_in_all(now, 20 * kRounding);
            } else {
                for (const double left : account.open) {
                    EXPECT_NEAR(left, 0, kRounding);
                }
            }
        }
        EXPECT_TRUE(compressed || count < 100);
    }
}

TEST_P(Averaging, AMovingAverageInBytes) {
    Account account;
    for (int number = 1; number <= 60; ++number) {
        (void)step(kAverage, number, &account);
    }
    // Five times what is stored: of blocks of a step of 3 / 7 and their owners.
    for (const double left : account.open) {
        ASSERT_LT(std::abs(left), 2.0 * (ranks() + 1));
    }
    renew_communicators();
    ASSERT_FALSE(keys("average").empty());
    for (const nlohmann::json& key : keys("average")) {
        EXPECT_EQ(key.at("averagings"), 60);
    }
}

TEST_P(Averaging, CallsOfADroppedGroupWereNone) {
    Account account;
    (void)step(kRaw, 1, &account);
    for (int i = 0; i < 4; ++i) {
        simulate_sum(kRaw);
    }
    (void)step(kRaw, 2, &account);
    EXPECT_GT(spread(owed(kRaw), kRaw).first, 0.1);
    (void)step(kRaw, 3, &account);
    EXPECT_EQ(spread(owed(kRaw), kRaw).first, 0.0);
}

TEST_P(Averaging, WhatIsNotFiniteStaysOutOfIt) {
    Account account;
    (void)step(kInt8, 1, &account);
    const Owed before = owed(kInt8);
    std::vector<Values> given = gradients(kInt8, 2);
    given.back()[17] = NAN;
    const Values got = reduce(given);
    mark();
    EXPECT_TRUE(std::any_of(got.begin(), got.end(), [](float x) { return !std::isfinite(x); }));
    for (const auto& [rank, values] : owed(kInt8)) {
        for (const float value : values) {
            ASSERT_TRUE(std::isfinite(value));
        }
    }
}

TEST_P(Averaging, ARuleThatIsOffIsNative) {
    Account account;
    (void)step(kDead, 1, &account);
    for (const double left : account.open) {
        EXPECT_NEAR(left, 0, kRounding);
    }
    EXPECT_TRUE(owed(kDead).empty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, Averaging, testing::Values(2, 3, 4));

}  // namespace
}  // namespace slimwire::test
