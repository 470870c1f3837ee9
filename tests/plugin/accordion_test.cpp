// A rule with 'accordion': tensors whose reduced gradients stay as they are travel by the stronger
// codec, and by the weaker one at first, after a jump and after a drop of the learning rate; what
// is owed and what factors follow from stays. One process, two and four emulated devices, a policy
// and a report of the test's own.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"
#include "tests/support/async_comm.h"

namespace {

using Values = std::vector<float>;
constexpr size_t kSparse = 16000, kDropped = 12000;
constexpr size_t kRows = 64, kPlainRows = 60, kRampedRows = 56, kCols = 48, kMatrix = kRows * kCols;

class Accordion : public slimwire::test::SeveralDevices<4> {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"sparse\"\nmatch = { op = \"allreduce\", bytes = \"64000..64000\" "
            "}\n"
            "codec = \"topk:fraction=0.1\"\nef = \"ef14\"\n"
            "accordion = { low = \"topk:fraction=0.3\", window = 3 }\n"
            "[[rule]]\nname = \"dropped\"\nmatch = { op = \"allreduce\", bytes = \"48000..48000\" "
            "}\n"
            "codec = \"topk:fraction=0.1\"\nef = \"ef14\"\n"
            "accordion = { low = \"topk:fraction=0.3\", window = 3, lr_drops = [13] }\n"
            "[[rule]]\nname = \"parts\"\nmatch = { op = \"reducescatter\" }\n"
            "codec = \"topk:fraction=0.1\"\nef = \"ef14\"\n"
            "accordion = { low = \"topk:fraction=0.3\", window = 3 }\n"
            "[[rule]]\nname = \"matrix\"\nmatch = { op = \"allreduce\", bytes = \"12288..12288\" "
            "}\n"
            "codec = \"powersgd:rank=1,row=48\"\nef = \"ef14\"\n"
            "accordion = { low = \"powersgd:rank=4,row=48\", window = 4 }\n"
            "[[rule]]\nname = \"plain\"\nmatch = { op = \"allreduce\", bytes = \"11520..11520\" }\n"
            "codec = \"powersgd:rank=1,row=48\"\n"
            "accordion = { low = \"powersgd:rank=4,row=48\", window = 4 }\n"
            "[[rule]]\nname = \"ramped\"\nmatch = { op = \"allreduce\", bytes = \"10752..10752\" "
            "}\n"
            "codec = \"powersgd:rank=1,row=48\"\nef = \"ef14\"\n"
            "ramp = [{ until = 3, codec = \"powersgd:rank=4,row=48\" },\n"
            "        { until = 5, codec = \"powersgd:rank=2,row=48\" }]\n");
        ask_for_report();
    }
    Accordion() : SeveralDevices(kSparse) {}
    void SetUp() override {
        SeveralDevices::SetUp();
        mark();
    }
    // The same of all ranks: one in twenty elements is large.
    static std::vector<Values> sparse(size_t count, float scale) {
        Values values(count);
        for (size_t i = 0; i < count; ++i) {
            values[i] = scale * (i % 20 == 3 ? 1.0f : 0.002f) *
                        (1 + 0.5f * std::sin(0.7f * static_cast<float>(i)));
        }
        return std::vector<Values>(static_cast<size_t>(ranks()), values);
    }
    // 'h' of a call that took the stronger codec, else 'l', by how much arrived.
    static char taken_by(const Values& got) {
        const auto arrived = static_cast<double>(
            std::count_if(got.begin(), got.end(), [](float x) { return x != 0.0f; }));
        const double share = arrived / static_cast<double>(got.size());
        EXPECT_TRUE(std::abs(share - 0.1) < 0.01 || std::abs(share - 0.3) < 0.02) << share;
        return share < 0.2 ? 'h' : 'l';
    }
    std::string taken(size_t count, float scale, int calls) {
        std::string text;
        for (int call = 0; call < calls; ++call) {
            text += taken_by(reduce(sparse(count, scale)));
            mark();
        }
        return text;
    }
    // A call of what is in the buffers, and the step's end.
    void enqueue() {
        group([&](int rank) { return sum_of(rank, kSparse); });
        mark();
    }
    // A reduce-scatter of `count` elements a rank, of which `scale` says how large each rank's part
    // is; 'h' or 'l' by how much of rank 0's part arrived, which must be as much as of the others'.
    char scattered(size_t count, const std::vector<float>& scale) {
        Values values;
        for (int part = 0; part < ranks(); ++part) {
            const Values own = sparse(count, scale[static_cast<size_t>(part)])[0];
            values.insert(values.end(), own.begin(), own.end());
        }
        for (int rank = 0; rank < ranks(); ++rank) {
            fill(rank, values);
        }
        group([&](int rank) {
            return ncclReduceScatter(send_[rank], recv_[rank], count, ncclFloat32, ncclSum,
                                     comms_[rank], nullptr);
        });
        std::string taken;
        for (int rank = 0; rank < ranks(); ++rank) {
            taken += taken_by(result(rank, count));
        }
        mark();
        EXPECT_EQ(taken, std::string(taken.size(), taken[0])) << "ranks decided otherwise";
        return taken[0];
    }
};

TEST_P(Accordion, StaysStrongWhereNothingChanges) {
    // Decisions count from the third call of a window on, and take two quiet windows.
    EXPECT_EQ(taken(kSparse, 1, 18), "lllllllllllhhhhhhh");
    // Four times as much: seen at the end of window 6, whose calls are 18, 19 and 20.
    EXPECT_EQ(taken(kSparse, 4, 6), "hhhhhl");
    EXPECT_EQ(taken(kSparse, 4, 6), "lllllh") << "two quiet windows later";
}

// By the rule's lr_drops, or as the program tells it.
TEST_P(Accordion, ADropOfTheLearningRateIsLow) {
    for (const size_t count : {kDropped, kSparse}) {
        ASSERT_EQ(slimwire_set_learning_rate(0.1), SLIMWIRE_OK);
        EXPECT_EQ(taken(count, 1, 13), "lllllllllllhh");
        // In window 4, so all of window 5; then it takes its quiet windows again.
        ASSERT_EQ(slimwire_set_learning_rate(count == kSparse ? 0.01 : 0.1), SLIMWIRE_OK);
        EXPECT_EQ(taken(count, 1, 12), "llllllllllhh");
    }
}

TEST_P(Accordion, ANonFiniteStepIsNotCounted) {
    EXPECT_EQ(taken(kSparse, 1, 12), "lllllllllllh");
    std::vector<Values> given = sparse(kSparse, 1);
    given.back()[17] = NAN;
    const Values got = reduce(given);
    mark();
    EXPECT_TRUE(std::any_of(got.begin(), got.end(), [](float x) { return !std::isfinite(x); }));
    EXPECT_EQ(taken(kSparse, 1, 8), "hhhhhhhh");
}

TEST_P(Accordion, CallsOfADroppedGroupWereNone) {
    EXPECT_EQ(taken(kSparse, 1, 9), "lllllllll");
    for (int i = 0; i < 5; ++i) {
        simulate_sum(kSparse);
    }
    EXPECT_EQ(taken(kSparse, 1, 3), "llh");
}

// Messages from rank 0 to rank 1, which come before the call that is enqueued next.
class Mail {
  public:
    Mail(int ranks, void* from, void* to) : ranks_(ranks), from_(from), to_(to) {
        EXPECT_EQ(ncclCommInitAll(comms_, ranks, nullptr), ncclSuccess);
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        EXPECT_EQ(cudaStreamCreateWithFlags(&sends_, cudaStreamNonBlocking), cudaSuccess);
    }
    ~Mail() {
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(sends_), cudaSuccess);
        for (int rank = 0; rank < ranks_; ++rank) {
            slimwire::test::OwnFiles::end(comms_[rank]);
        }
    }
    Mail(const Mail&) = delete;
    Mail& operator=(const Mail&) = delete;
    void receive() {
        ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
        ASSERT_EQ(ncclRecv(to_, 16, ncclFloat32, 0, comms_[1], nullptr), ncclSuccess);
    }
    void send() {
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
        ASSERT_EQ(ncclSend(from_, 16, ncclFloat32, 1, comms_[0], sends_), ncclSuccess);
    }

  private:
    const int ranks_;
    void* const from_;
    void* const to_;
    ncclComm_t comms_[4] = {};
    cudaStream_t sends_ = nullptr;
};

// Where the host is further ahead of the device than two steps it waits for what it decides by, and
// for nothing behind: the call before waits for a message that is sent once the next one is made.
TEST_P(Accordion, WaitsForWhatItDecidesByAlone) {
    EXPECT_EQ(taken(kSparse, 1, 12), "lllllllllllh");
    Mail mail(ranks(), send_[0], recv_[1]);
    std::future<void> made = std::async(std::launch::async, [&] {
        const slimwire::test::CallsMayWait waits(
            "the device is further behind than ranks agree on");
        for (int call = 12; call < 18; ++call) {  // the last goes by the window that 14 ends
            if (call == 12 || call == 16) {
                mail.receive();
            }
            enqueue();
        }
    });
    EXPECT_EQ(made.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
    mail.send();
    EXPECT_EQ(made.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    mail.send();
    made.get();
    (void)equal_result(kSparse);
    EXPECT_EQ(taken(kSparse, 1, 1), "h");
}

// What each rank gets differs; they decide by all parts together, where one alone would decide
// otherwise.
TEST_P(Accordion, PartsOfAReduceScatterDecideTogether) {
    const size_t count = kSparse / static_cast<size_t>(kRanks);
    const auto calls = [&](std::vector<float> scale, int number) {
        scale.resize(static_cast<size_t>(ranks()), scale.back());
        std::string text;
        for (int call = 0; call < number; ++call) {
            text += scattered(count, scale);
        }
        return text;
    };
    EXPECT_EQ(calls({8, 1}, 18), "lllllllllllhhhhhhh");
    // The largest part stays as it is, the others fall tenfold: the norm is nearly the same.
    EXPECT_EQ(calls({8, 0.1f}, 6), "hhhhhh");
    // Only the first part falls: of the others nothing changes, and all see it.
    EXPECT_EQ(calls({1, 0.1f}, 6), "hhhhhl");
    renew_communicators();
    std::set<std::string> hashes;
    for (const nlohmann::json& key : keys("parts")) {
        if (!key.contains("accordion")) {
            continue;
        }
        for (const nlohmann::json& tensor : key.at("accordion")) {
            EXPECT_GE(tensor.at("windows"), 9);
            hashes.insert(tensor.at("decisions_hash"));
        }
    }
    EXPECT_EQ(hashes.size(), 1u);
}

// Rows of `values` that are no sums of others: singular directions above 1e-3.
int rank_of(const Values& values) {
    std::vector<std::vector<double>> rows;
    double largest = 0;
    for (size_t i = 0; i < values.size() / kCols; ++i) {
        rows.emplace_back(values.begin() + static_cast<std::ptrdiff_t>(i * kCols),
                          values.begin() + static_cast<std::ptrdiff_t>((i + 1) * kCols));
    }
    for (int rank = 0;; ++rank) {
        const auto square = [](const std::vector<double>& row) {
            double sum = 0;
            for (const double x : row) {
                sum += x * x;
            }
            return sum;
        };
        const auto longest =
            std::max_element(rows.begin(), rows.end(),
                             [&](const auto& a, const auto& b) { return square(a) < square(b); });
        const double length = square(*longest);
        largest = std::max(largest, length);
        if (length <= 1e-6 * largest) {
            return rank;
        }
        const std::vector<double> direction = *longest;
        for (std::vector<double>& row : rows) {
            double product = 0;
            for (size_t j = 0; j < kCols; ++j) {
                product += row[j] * direction[j];
            }
            for (size_t j = 0; j < kCols; ++j) {
                row[j] -= product / length * direction[j];
            }
        }
    }
}

// Four directions that fall slowly, and a tail.
std::vector<Values> matrices(int ranks, size_t rows, float scale) {
    Values values(rows * kCols);
    for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < kCols; ++j) {
            double x = 0;
            for (size_t k = 0; k < 24; ++k) {
                const double weight = k < 4 ? 1 - 0.1 * static_cast<double>(k) : 0.25;
                const auto turn = 0.5 * M_PI * static_cast<double>(k + 1);
                x += weight *
                     std::cos(turn * static_cast<double>(2 * i + 1) / static_cast<double>(rows)) *
                     std::cos(turn * static_cast<double>(2 * j + 1) / kCols);
            }
            values[i * kCols + j] = scale * static_cast<float>(x);
        }
    }
    return std::vector<Values>(static_cast<size_t>(ranks), values);
}

TEST_P(Accordion, FactorsOfTwoRanks) {
    std::vector<int> taken;
    const auto call = [&](float scale) {
        const Values got = reduce(matrices(ranks(), kRows, scale));
        mark();
        taken.push_back(rank_of(got));
        return got;
    };
    for (int i = 0; i < 16; ++i) {
        (void)call(1);
    }
    EXPECT_EQ(taken, (std::vector<int>{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1, 1}));
    renew_communicators();
    std::map<std::string, uint64_t> calls;
    std::set<std::string> hashes;
    size_t tensors = 0;
    for (const nlohmann::json& key : keys("matrix")) {
        const bool low = key.at("codec") == "powersgd:row=48+ef14";
        ASSERT_TRUE(low || key.at("codec") == "powersgd:rank=1,row=48+ef14") << key.at("codec");
        if (key.at("calls") == 0) {
            continue;
        }
        // Both factors in fp32 by a ring.
        const auto n = static_cast<uint64_t>(ranks());
        EXPECT_EQ(key.at("wire_bytes").get<uint64_t>() / key.at("calls").get<uint64_t>(),
                  2 * (n - 1) * 4 * (low ? 4 : 1) * (kRows + kCols) / n);
        if (low) {
            continue;
        }
        for (const nlohmann::json& tensor : key.at("accordion")) {
            ++tensors;
            EXPECT_EQ(tensor.at("windows"), 3);
            EXPECT_EQ(tensor.at("high_windows"), 1);
            ASSERT_EQ(tensor.at("decisions").size(), 3u);
            EXPECT_EQ(tensor.at("decisions")[2].at("high"), true);
            hashes.insert(tensor.at("decisions_hash"));
        }
    }
    EXPECT_EQ(tensors % static_cast<size_t>(ranks()), 0u);
    EXPECT_GE(tensors, static_cast<size_t>(ranks()));
    EXPECT_EQ(hashes.size(), 1u) << "ranks decided otherwise";
}

// Ranks of a ramp share the tensor's state, too.
TEST_P(Accordion, RanksOfARamp) {
    std::vector<int> taken;
    for (int call = 0; call < 7; ++call) {
        taken.push_back(rank_of(reduce(matrices(ranks(), kRampedRows, 1))));
        mark();
    }
    EXPECT_EQ(taken, (std::vector<int>{4, 4, 4, 2, 2, 1, 1}));
}

// The first call of the larger rank after some of the smaller one is as near as the last before
// them: the columns that only the larger one uses were kept. Without error feedback, so that each
// call delivers the same.
TEST_P(Accordion, ColumnsOfTheLargerRankAreKept) {
    std::vector<double> lost;
    for (int call = 0; call < 19; ++call) {
        // From call 14 on rank 1; the jump in window 3 is seen at call 18.
        const std::vector<Values> given = matrices(ranks(), kPlainRows, call < 13 ? 1.0f : 4.0f);
        const Values got = reduce(given);
        mark();
        double whole = 0, rest = 0;
        for (size_t i = 0; i < got.size(); ++i) {
            const double x = static_cast<double>(ranks()) * given[0][i];
            whole += x * x;
            rest += (x - got[i]) * (x - got[i]);
        }
        lost.push_back(rest / whole);
    }
    EXPECT_LT(lost[12], 0.35);
    EXPECT_GT(lost[14], 0.7) << "rank 1";
    EXPECT_GT(lost[17], 0.7) << "rank 1";
    EXPECT_NEAR(lost[18], lost[12], 0.02);
    EXPECT_GT(lost[0], lost[18] + 0.05) << "columns that are drawn are worse";
}

INSTANTIATE_TEST_SUITE_P(Ranks, Accordion, testing::Values(2, 4));

}  // namespace
