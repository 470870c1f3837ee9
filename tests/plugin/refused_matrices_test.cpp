// PowerSGD with max_error = "random" on messages of several matrices: those that are noise travel
// as they are beside the factors of the others. DDP's own calls tell the matrices. One process, two
// and four emulated devices.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"

namespace {

using Values = std::vector<float>;

struct Parameter {
    size_t rows, cols;  // cols 0: of one dimension
    [[nodiscard]] size_t count() const { return cols == 0 ? rows : rows * cols; }
};
constexpr Parameter kModel[] = {{96, 64}, {100, 0}, {80, 70}, {64, 96}};
constexpr size_t kParameters = std::size(kModel);
constexpr size_t kCount = 96 * 64 + 100 + 80 * 70 + 64 * 96;

class RefusedMatrices : public slimwire::test::SeveralDevices<4> {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"factors\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"powersgd:rank=2\"\nef = \"ef14\"\nladder = [\"powersgd:rank=1\"]\n"
            "max_error = \"random\"\nprobe_every = 6\n");
        report_ = testing::TempDir() + "refused_report_" + std::to_string(getpid());
        ::setenv("SLIMWIRE_REPORT", report_.c_str(), 1);
    }
    static void TearDownTestSuite() {
        std::remove(report_.c_str());
        SeveralDevices::TearDownTestSuite();
    }
    RefusedMatrices() : SeveralDevices(kCount * sizeof(float)) {}
    void SetUp() override {
        SeveralDevices::SetUp();
        mark();
        tell_model();
    }
    static void mark() {
        static uint64_t step = 0;
        ASSERT_EQ(slimwire_mark_step(++step), SLIMWIRE_OK);
    }

    template <class Element>
    void broadcast(const std::vector<Element>& values, ncclDataType_t type) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaMemcpy(send_[rank], values.data(), values.size() * sizeof(Element),
                                 cudaMemcpyHostToDevice),
                      cudaSuccess);
            ASSERT_EQ(ncclBroadcast(send_[rank], recv_[rank], values.size(), type, 0, comms_[rank],
                                    nullptr),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        (void)result<char>(0, values.size() * sizeof(Element), false);
    }
    // What DistributedDataParallel sends when it is made, and when it has its buckets.
    void tell_model() {
        const auto count = static_cast<int64_t>(kParameters);
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaMemcpy(send_[rank], &count, sizeof count, cudaMemcpyHostToDevice),
                      cudaSuccess);
            ASSERT_EQ(ncclAllGather(send_[rank], recv_[rank], 1, ncclInt64, comms_[rank], nullptr),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        std::vector<int64_t> shapes;
        for (const Parameter& of : kModel) {
            const auto rows = static_cast<int64_t>(of.rows), cols = static_cast<int64_t>(of.cols);
            if (of.cols == 0) {
                shapes.insert(shapes.end(), {rows, 1});
            } else {
                shapes.insert(shapes.end(), {rows, cols, cols, 1});
            }
        }
        broadcast(shapes, ncclInt64);
        broadcast(Values(1000, 0.5f), ncclFloat32);
        (void)reduce(std::vector<Values>(static_cast<size_t>(ranks()), Values(kCount, 1.0f)));
        mark();
        broadcast(std::vector<int32_t>{0, 1, 2, 3, 1}, ncclInt32);
        broadcast(std::vector<int32_t>{static_cast<int32_t>(kParameters)}, ncclInt32);
    }

    // Two directions under some noise where `structured` says so, else noise alone.
    static Values gradient(const std::vector<bool>& structured, unsigned seed) {
        std::mt19937 random(seed), fixed(11);
        std::normal_distribution<float> normal;
        Values values;
        for (size_t p = 0; p < kParameters; ++p) {
            const Parameter& of = kModel[p];
            Values left(2 * of.rows), right(2 * std::max<size_t>(of.cols, 1));
            for (Values* factor : {&left, &right}) {
                std::generate(factor->begin(), factor->end(), [&] { return normal(fixed); });
            }
            for (size_t i = 0; i < of.count(); ++i) {
                float value = (structured[p] ? 0.3f : 1.0f) * normal(random);
                if (structured[p]) {
                    const size_t row = i / of.cols, col = i % of.cols;
                    value +=
                        2 * left[row] * right[col] + left[of.rows + row] * right[of.cols + col];
                }
                values.push_back(value);
            }
        }
        return values;
    }
    // A letter a parameter: as it is, or by factors.
    std::string call(const std::vector<bool>& structured, unsigned seed) {
        const Values given = gradient(structured, seed);
        const Values got = reduce(std::vector<Values>(static_cast<size_t>(ranks()), given));
        mark();
        std::string taken;
        size_t begin = 0;
        for (const Parameter& of : kModel) {
            bool exact = true;
            for (size_t i = begin; i < begin + of.count(); ++i) {
                exact = exact && got[i] == static_cast<float>(ranks()) * given[i];
            }
            taken += exact ? 'e' : 'f';
            begin += of.count();
        }
        return taken;
    }
    static inline std::string report_;
};

TEST_P(RefusedMatrices, NoiseTravelsBesideTheFactorsOfOthers) {
    const std::vector<bool> first{true, false, false, true}, second{false, false, true, true};
    std::vector<std::string> taken;
    for (unsigned step = 0; step < 18; ++step) {
        taken.push_back(call(step < 6 ? first : second, 100 + step));
    }
    std::vector<std::string> expected(18);
    for (size_t step = 0; step < 18; ++step) {
        // Probes are exact; the change is seen by the probe of call 6.
        expected[step] = step % 6 == 0 ? "eeee" : step < 6 ? "feef" : "eeff";
    }
    EXPECT_EQ(taken, expected);
    for (int rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
    }
    std::set<std::string> hashes;
    std::ifstream file(report_);
    const auto n = static_cast<uint64_t>(ranks());
    std::set<std::string> comms;  // of as many ranks
    bool seen = false;
    uint64_t calls = 0, wire = 0;
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json record = nlohmann::json::parse(line);
        if (record.at("record") == "comm" && record.at("ranks") == ranks()) {
            comms.insert(record.at("comm"));
        }
        if (record.at("record") != "key" || comms.count(record.at("comm")) == 0) {
            continue;
        }
        if (record.at("codec") != "native" && record.at("calls") > 0) {
            calls += record.at("calls").get<uint64_t>();
            wire += record.at("wire_bytes").get<uint64_t>();
        }
        if (record.contains("max_error")) {
            for (const nlohmann::json& tensor : record.at("max_error")) {
                if (tensor.at("probes") == 3) {
                    seen = true;
                    hashes.insert(tensor.at("decisions_hash"));
                    EXPECT_EQ(tensor.at("matrices"), 3);
                    EXPECT_EQ(tensor.at("refused"), nlohmann::json({0}));
                }
            }
        }
    }
    EXPECT_TRUE(seen);
    EXPECT_EQ(hashes.size(), 1u) << "ranks decided otherwise";
    // By a ring each: five calls with the third matrix raw, ten with the first.
    const auto ring = [&](uint64_t elems) { return 2 * (n - 1) * 4 * elems / n; };
    const auto sends = [&](uint64_t rank, size_t raw) {
        uint64_t bytes = 0, rest = 0;
        uint64_t left = 0, right = 0;
        for (size_t p = 0; p < kParameters; ++p) {
            const Parameter& of = kModel[p];
            if (of.cols == 0 || p == raw) {
                rest += of.count();
            } else {
                left += rank * of.rows;
                right += rank * of.cols;
            }
        }
        bytes = ring(left) + ring(right) + ring(rest);
        return bytes;
    };
    EXPECT_EQ(calls, 15 * n);
    const uint64_t by_one = n * (5 * sends(1, 2) + 10 * sends(1, 0));
    const uint64_t by_two = n * (5 * sends(2, 2) + 10 * sends(2, 0));
    EXPECT_TRUE(wire == by_one || wire == by_two) << wire << ' ' << by_one << ' ' << by_two;
    ASSERT_EQ(ncclCommInitAll(comms_, ranks(), nullptr), ncclSuccess);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RefusedMatrices, testing::Values(2, 4));

}  // namespace
