// A rule with gate = "measured": calls go the way that is faster on the link there is, the sums are
// what they are either way, and ranks decide alike. One process, two and four emulated devices,
// each a node of its own behind a slow link or none, a policy and a report of the test's own.
#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/plugin/several_devices.h"

namespace {

using Values = std::vector<float>;
// Of a codec that saves much of a link's time, and of one that takes longer than memory does.
constexpr size_t kSaving = 40000, kLosing = 39000;

class Gate : public slimwire::test::SeveralDevices<4> {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"losing\"\nmatch = { op = \"allreduce\", bytes = \"156000..156000\" "
            "}\n"
            "codec = \"topk:fraction=0.01\"\ngate = \"measured\"\ngate_every = 12\n"
            "[[rule]]\nname = \"saving\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int4:block=64\"\ngate = \"measured\"\ngate_every = 12\n"
            "[[rule]]\nname = \"others\"\nmatch = { op = [\"reducescatter\", \"allgather\", "
            "\"broadcast\", \"reduce\", \"alltoall\", \"gather\", \"scatter\"] }\n"
            "codec = \"int4:block=64\"\ngate = \"measured\"\ngate_every = 12\n");
        report_ = testing::TempDir() + "gate_report_" + std::to_string(getpid());
        ::setenv("SLIMWIRE_REPORT", report_.c_str(), 1);
    }
    static void TearDownTestSuite() {
        std::remove(report_.c_str());
        SeveralDevices::TearDownTestSuite();
    }
    Gate() : SeveralDevices(4 * kSaving * sizeof(float)) {}

    static Values gaussian(size_t count) {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        Values values(count);
        for (float& value : values) {
            value = normal(random);
        }
        return values;
    }
    // 'n' where the sum is exact, natively, else 'c'. int4 of Gaussian values is never exact, nor
    // is what leaves a tenth of them out.
    std::string taken(const Values& values, int calls) {
        std::string text;
        for (int call = 0; call < calls; ++call) {
            const Values got = reduce(std::vector<Values>(static_cast<size_t>(ranks()), values));
            bool exact = true;
            for (size_t i = 0; i < values.size(); ++i) {
                exact = exact && got[i] == static_cast<float>(ranks()) * values[i];
            }
            text += exact ? 'n' : 'c';
        }
        return text;
    }
    void end_communicators() {
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
        }
    }
    // The gates of a rule's plans as the communicators that ended last reported them.
    std::vector<nlohmann::json> gates(const std::string& rule) {
        std::vector<nlohmann::json> found;
        std::ifstream file(report_);
        for (std::string line; std::getline(file, line);) {
            const nlohmann::json record = nlohmann::json::parse(line);
            if (record.at("record") == "key" && record.at("rule") == rule &&
                record.contains("gate")) {
                found.push_back(record.at("gate"));
            }
        }
        return found;
    }
    static inline std::string report_;
};

TEST_P(Gate, WhatSavesTimeIsCompressed) {
    EXPECT_EQ(taken(gaussian(kSaving), 15), "cnnccnnccnncccc");
    const std::string later = taken(gaussian(kSaving), 40);
    // Every 12 calls two pairs look at it.
    EXPECT_EQ(later.substr(0, 19), "ccccccccccccnccnccc");
    EXPECT_LE(std::count(later.begin(), later.end(), 'n'), 8) << later;
    end_communicators();
    std::set<std::string> hashes;
    for (const nlohmann::json& gate : gates("saving")) {
        EXPECT_EQ(gate.at("choice"), "compressed") << gate;
        const nlohmann::json& first = gate.at("decisions").at(0);
        EXPECT_GT(first.at("native_us"), first.at("compressed_us"));
        EXPECT_EQ(first.at("call"), 15);
        hashes.insert(gate.at("decisions_hash"));
    }
    EXPECT_FALSE(hashes.empty());
    ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess);
}

// In a run of its own, without a link and in small slices (..._fast).
TEST_P(Gate, WhatCostsTimeIsNative) {
    const std::string trial = taken(gaussian(kLosing), 130);  // as long as the longest
    EXPECT_EQ(trial.substr(0, 15), "cnnccnnccnncccc");
    const std::string later = taken(gaussian(kLosing), 40);
    EXPECT_LE(std::count(later.begin(), later.end(), 'c'), 8) << later;
    end_communicators();
    size_t decided = 0;
    for (const nlohmann::json& gate : gates("losing")) {
        EXPECT_EQ(gate.at("choice"), "native") << gate;
        ++decided;
    }
    EXPECT_GT(decided, 0u);
    ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess);
}

// Natively, every operation is the program's own; by turns both are near what they should be.
TEST_P(Gate, EveryOperationGoesBothWays) {
    const auto n = static_cast<size_t>(ranks());
    const size_t count = 20000;
    const Values values = gaussian(count * n);
    const std::vector<std::pair<const char*, std::function<ncclResult_t(int)>>> operations = {
        {"reducescatter",
         [&](int rank) {
             return ncclReduceScatter(send_[rank], recv_[rank], count, ncclFloat32, ncclSum,
                                      comms_[rank], nullptr);
         }},
        {"allgather",
         [&](int rank) {
             return ncclAllGather(send_[rank], recv_[rank], count, ncclFloat32, comms_[rank],
                                  nullptr);
         }},
        {"broadcast",
         [&](int rank) {
             return ncclBroadcast(send_[rank], recv_[rank], count, ncclFloat32, 1, comms_[rank],
                                  nullptr);
         }},
        {"reduce",
         [&](int rank) {
             return ncclReduce(send_[rank], recv_[rank], count, ncclFloat32, ncclSum, 1,
                               comms_[rank], nullptr);
         }},
        {"alltoall",
         [&](int rank) {
             return ncclAlltoAll(send_[rank], recv_[rank], count, ncclFloat32, comms_[rank],
                                 nullptr);
         }},
        {"gather",
         [&](int rank) {
             return ncclGather(send_[rank], recv_[rank], count, ncclFloat32, 1, comms_[rank],
                               nullptr);
         }},
        {"scatter",
         [&](int rank) {
             return ncclScatter(send_[rank], recv_[rank], count, ncclFloat32, 1, comms_[rank],
                                nullptr);
         }},
    };
    for (const auto& [name, operation] : operations) {
        SCOPED_TRACE(name);
        const std::string op = name;
        const bool sums = op == "reducescatter" || op == "reduce";
        const size_t results = op == "allgather" || op == "alltoall" || op == "gather" ? n : 1;
        // All ranks give the same, so rank 1 gets this; of a scatter, where it is the root, rank 0.
        Values expected(results * count);
        for (size_t i = 0; i < expected.size(); ++i) {
            const size_t at = op == "reducescatter"                 ? count + i
                              : op == "alltoall"                    ? count + i % count
                              : op == "broadcast" || op == "reduce" ? i
                                                                    : i % count;
            expected[i] = values[at] * (sums ? static_cast<float>(n) : 1.0f);
        }
        int exact = 0;
        for (int call = 0; call < 14; ++call) {
            for (int rank = 0; rank < ranks(); ++rank) {
                ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
                ASSERT_EQ(cudaMemcpy(send_[rank], values.data(), values.size() * sizeof(float),
                                     cudaMemcpyHostToDevice),
                          cudaSuccess);
                ASSERT_EQ(cudaMemset(recv_[rank], 0, values.size() * sizeof(float)), cudaSuccess);
            }
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            for (int rank = 0; rank < ranks(); ++rank) {
                ASSERT_EQ(operation(rank), ncclSuccess) << ncclGetLastError(nullptr);
            }
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
            Values got(expected.size());
            for (int rank = 0; rank < ranks(); ++rank) {
                ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
                ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            }
            ASSERT_EQ(cudaMemcpy(got.data(), recv_[op == "scatter" ? 0 : 1],
                                 got.size() * sizeof(float), cudaMemcpyDeviceToHost),
                      cudaSuccess);
            double off = 0, all = 0;
            for (size_t i = 0; i < got.size(); ++i) {
                off += (got[i] - expected[i]) * (got[i] - expected[i]);
                all += expected[i] * expected[i];
            }
            EXPECT_LT(off, 0.03 * all);
            exact += off == 0 ? 1 : 0;
        }
        EXPECT_EQ(exact, 6) << "the native ones of five pairs, and one before";
    }
}

// Of the calls of a plan in one group the first counts, and the others go its way.
TEST_P(Gate, CallsOfOneGroupGoOneWay) {
    const Values values = gaussian(kSaving);
    std::string first, third;
    for (int call = 0; call < 15; ++call) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (size_t i = 0; i < 3; ++i) {
            queue_floats(std::vector<Values>(static_cast<size_t>(ranks()), values),
                         i * kSaving * sizeof(float), ncclSum, false);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        for (const auto& [i, text] : {std::pair(0, &first), {2, &third}}) {
            const auto offset = static_cast<size_t>(i) * kSaving * sizeof(float);
            const Values got = result<float>(offset, kSaving, false);
            bool exact = true;
            for (size_t k = 0; k < kSaving; ++k) {
                exact = exact && got[k] == static_cast<float>(ranks()) * values[k];
            }
            *text += exact ? 'n' : 'c';
        }
    }
    EXPECT_EQ(first, "cnnccnnccnncccc");
    EXPECT_EQ(third, first);
}

// A captured call counts for nothing, whatever it would have been.
TEST_P(Gate, CapturedCallsDoNotCount) {
    const Values values = gaussian(kSaving);
    EXPECT_EQ(taken(values, 3), "cnn");
    capture_sum(kSaving);
    for (int launch = 0; launch < 3; ++launch) {
        (void)replay(kSaving);
    }
    EXPECT_EQ(taken(values, 12), "ccnnccnncccc");
    drop_graphs();
}

INSTANTIATE_TEST_SUITE_P(Ranks, Gate, testing::Values(2, 4), [](const auto& info) {
    return "ranks" + std::to_string(info.param);
});

}  // namespace
