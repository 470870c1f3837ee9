// For averaging_test.cpp: ranks that owe, and what they owe, read from a saved state.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "codecs/float16.h"
#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"

namespace slimwire::test {

using Values = std::vector<float>;
using Owed = std::map<int, Values>;  // by rank

// Elements by which the policy knows its tensors.
inline constexpr size_t kRaw = 5000, kEvery = 5004, kInt8 = 5008, kTopk = 5012, kOff = 5016,
                        kBf16 = 5020, kAuto = 5024, kSummed = 5028, kMatrix = 64 * 80, kDead = 5036,
                        kAverage = 5044, kScattered = 1500, kMost = 8192;

inline std::string rule(const char* name, size_t bytes, const std::string& rest) {
    const std::string size = std::to_string(bytes);
    return std::string("[[rule]]\nname = \"") + name +
           "\"\nmatch = { op = \"allreduce\", bytes = \"" + size + ".." + size + "\" }\n" + rest +
           "\n";
}

class Averaging : public SeveralDevices<4> {
  protected:
    static void SetUpTestSuite() {
        const std::string topk = "codec = \"topk:fraction=0.1\"\nef = \"ef14\"\n";
        const std::string once = "algorithm = \"gather\"\n";
        write_policy(
            "version = 1\n" + rule("raw", 4 * kRaw, topk + once + "average_every = 3") +
            rule("every", 4 * kEvery, topk + once + "average_every = 1") +
            rule("int8", 4 * kInt8, topk + once + "average_every = 1\naverage_codec = \"int8\"") +
            rule("topk", 4 * kTopk,
                 topk + once + "average_every = 2\naverage_codec = \"topk:fraction=0.2\"") +
            rule("off", 4 * kOff, topk + once) +
            rule("bf16", 4 * kBf16, topk + once + "residual = \"bf16\"\naverage_every = 1") +
            rule("auto", 4 * kAuto, topk + "average_every = 2") +
            rule("summed", 4 * kSummed,
                 "codec = \"randomk:fraction=0.25\"\nef = \"ef14\"\nalgorithm = \"summable\"\n"
                 "average_every = 1") +
            rule("matrix", 4 * kMatrix,
                 "codec = \"powersgd:rank=1,row=80\"\nef = \"ef14\"\naverage_every = 2") +
            rule("dead", 4 * kDead, topk + "average_every = 1") +
            rule("average", 4 * kAverage,
                 "codec = \"int4\"\nef = \"ema\"\naverage_every = 1\naverage_codec = \"int8\"") +
            "[[rule]]\nname = \"small\"\nmatch = { op = \"allreduce\", bytes = \"..8KiB\" }\n"
            "codec = \"int4\"\nef = \"ef14\"\naverage_every = 1\n"
            "[[rule]]\nname = \"scattered\"\nmatch = { op = \"reducescatter\" }\n" +
            topk + "average_every = 2\n");
        ask_for_report();
        ::setenv("SLIMWIRE_RULE_OFF", "dead", 1);
    }
    static void TearDownTestSuite() {
        std::remove(state_path().c_str());
        SeveralDevices::TearDownTestSuite();
    }
    Averaging() : SeveralDevices(kMost) {}
    void SetUp() override {
        SeveralDevices::SetUp();
        mark();
    }
    static std::string state_path() {
        return testing::TempDir() + "averaging_state_" + std::to_string(getpid());
    }
    static bool sliced() { return std::getenv("TEST_SLICE_BYTES") != nullptr; }
    static bool on_nodes() { return std::getenv("SLIMWIRE_EMU_NODES") != nullptr && ranks() > 2; }

    // Another one for each rank and step, a few elements large.
    static std::vector<Values> gradients(size_t count, int step) {
        std::vector<Values> all;
        for (int rank = 0; rank < ranks(); ++rank) {
            Values values(count);
            for (size_t i = 0; i < count; ++i) {
                values[i] =
                    std::sin(0.7f * static_cast<float>(i) + 2.0f * static_cast<float>(rank) +
                             0.9f * static_cast<float>(step)) *
                    ((i + static_cast<size_t>(rank)) % 13 == 0 ? 3.0f : 0.3f);
            }
            all.push_back(std::move(values));
        }
        return all;
    }

    // What a tensor of `count` elements owes on each rank, as it is stored: that of a message of so
    // many elements, of all workers and owners of sums.
    static Owed owed(size_t count, size_t state_elems = 0) {
        EXPECT_EQ(slimwire_save_state(state_path().c_str()), SLIMWIRE_OK);
        std::ostringstream text;
        text << std::ifstream(state_path(), std::ios::binary).rdbuf();
        const std::string file = text.str();
        const auto word = [&](size_t at, size_t bytes) {
            uint64_t value = 0;
            std::memcpy(&value, file.data() + at, bytes);
            return value;
        };
        constexpr size_t kComm = 56;  // bytes (FORMAT.md, "Saved state")
        std::map<uint64_t, int> rank_of;
        const size_t comms = word(12, 4), tensors = word(16, 4);
        for (size_t i = 0; i < comms; ++i) {
            rank_of[word(64 + kComm * i, 8)] = static_cast<int>(word(64 + kComm * i + 8, 4));
        }
        Owed found;
        size_t at = 64 + kComm * comms + 80 * tensors;
        for (size_t i = 0; i < tensors; ++i) {
            const size_t row = 64 + kComm * comms + 80 * i, bytes = word(row + 40, 8);
            const bool owes = word(row + 63, 1) < 2;  // else a count
            if (owes && word(row + 16, 8) == count) {
                Values& values = found[rank_of.at(word(row, 8))];
                EXPECT_TRUE(values.empty()) << "two tensors of " << count;
                if (count == kBf16 && bytes < 4 * count) {
                    for (size_t k = 0; k < bytes / 2; ++k) {
                        values.push_back(
                            bfloat16_to_float(static_cast<uint16_t>(word(at + 2 * k, 2))));
                    }
                } else {
                    values.resize((bytes - 4 * state_elems) / 4);
                    std::memcpy(values.data(), file.data() + at + 4 * state_elems,
                                4 * values.size());
                }
            }
            at += (bytes + 7) / 8 * 8;
        }
        return found;
    }

    struct Account {
        std::vector<double> open;  // given and not sent
        void give(const std::vector<Values>& given) {
            open.resize(given[0].size());
            for (const Values& of : given) {
                for (size_t i = 0; i < of.size(); ++i) {
                    open[i] += static_cast<double>(of[i]);
                }
            }
        }
        void send(const Values& sent) {
            for (size_t i = 0; i < sent.size(); ++i) {
                open[i] -= static_cast<double>(sent[i]);
            }
        }
        // Element by element where owners of sums owe nothing.
        void expect_owed(const Owed& owed, double tolerance) const {
            ASSERT_EQ(owed.size(), static_cast<size_t>(ranks()));
            size_t lost = 0;
            for (size_t i = 0; i < open.size(); ++i) {
                double left = open[i];
                for (const auto& [rank, values] : owed) {
                    left -= static_cast<double>(values[i]);
                }
                lost += std::abs(left) <= tolerance ? 0 : 1;
            }
            EXPECT_EQ(lost, 0u) << "elements beyond " << tolerance;
        }
        void expect_owed_in_all(const Owed& owed, double tolerance) const {
            ASSERT_EQ(owed.size(), static_cast<size_t>(ranks()));
            double left = 0;
            for (const double one : open) {
                left += one;
            }
            for (const auto& [rank, values] : owed) {
                for (const float value : values) {
                    left -= static_cast<double>(value);
                }
            }
            EXPECT_LE(std::abs(left), tolerance);
        }
    };

    Values step(size_t count, int number, Account* account) {
        const std::vector<Values> given = gradients(count, number);
        account->give(given);
        const Values sent = reduce(given);
        account->send(sent);
        mark();
        return sent;
    }

    // How far what ranks owe is from what rank 0 does: largest difference, and norm.
    static std::pair<double, double> spread(const Owed& owed, size_t count) {
        double most = 0, square = 0;
        for (const auto& [rank, values] : owed) {
            for (size_t i = 0; i < count; ++i) {
                const double apart = static_cast<double>(values[i]) - owed.at(0)[i];
                most = std::max(most, std::abs(apart));
                square += apart * apart;
            }
        }
        return {most, std::sqrt(square)};
    }
    static void expect_same(
        const Values& a, size_t at_a, const Values& b, size_t at_b, size_t count) {
        ASSERT_LE(std::max(at_a + count, at_b + count), std::min(a.size(), b.size()));
        EXPECT_EQ(std::memcmp(a.data() + at_a, b.data() + at_b, count * sizeof(float)), 0);
        EXPECT_TRUE(std::any_of(a.data() + at_a, a.data() + at_a + count,
                                [](float x) { return x != 0.0f; }));
    }
    static double largest(const Owed& owed) {
        double most = 0;
        for (const auto& [rank, values] : owed) {
            for (const float value : values) {
                most = std::max(most, std::abs(static_cast<double>(value)));
            }
        }
        return most;
    }
};

}  // namespace slimwire::test
