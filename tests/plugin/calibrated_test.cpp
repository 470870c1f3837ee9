// SLIMWIRE_CALIBRATION: what calls of a communicator were measured to take says which algorithm a
// rule that leaves it open gets and which sizes stay native, alike on all ranks, and the sums are
// sums. One process, four emulated devices on two nodes.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/plugin/several_devices.h"

namespace {

using Json = nlohmann::json;
using Values = std::vector<float>;
constexpr size_t kSmall = 2000, kMiddle = 20000, kLarge = 400000;

// Of a way whose calls take `fixed_us` and 1 ns for each of their `wire` bytes of a message's one.
Json way(const char* codec, const char* algorithm, double fixed_us, double wire) {
    Json samples = Json::array();
    for (double bytes = 4096; bytes <= 16 << 20; bytes *= 4) {
        samples.push_back({{"bytes", bytes},
                           {"wire_bytes", wire * bytes},
                           {"seconds", fixed_us * 1e-6 + wire * bytes * 1e-9}});
    }
    return {{"codec", codec}, {"algorithm", algorithm}, {"samples", samples}};
}

class Calibrated : public slimwire::test::SeveralDevices<4> {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int8\"\nmin_bytes = \"auto\"\n");
        ask_for_report();
        path_ = testing::TempDir() + "calibrated_" + std::to_string(getpid());
        ::setenv("SLIMWIRE_CALIBRATION", path_.c_str(), 1);
        // gather saves 5 % of the native time from 30 kB on, hierarchical takes less than it from
        // 533 kB on.
        const Json calibration = {{"record", "calibration"},
                                  {"op", "all_reduce"},
                                  {"dtype", "f32"},
                                  {"ranks", 4},
                                  {"nodes", 2},
                                  {"nominal_gb_s", 1},
                                  {"ways",
                                   {way("native", "native", 20, 1), way("int8", "gather", 30, 0.6),
                                    way("int8", "hierarchical", 190, 0.3)}}};
        std::ofstream(path_) << calibration.dump() << "\n";
    }
    static void TearDownTestSuite() {
        std::remove(path_.c_str());
        SeveralDevices::TearDownTestSuite();
    }
    Calibrated() : SeveralDevices(kLarge) {}

    static std::vector<Values> given(size_t count) {
        std::vector<Values> all(4, Values(count));
        for (size_t rank = 0; rank < 4; ++rank) {
            for (size_t i = 0; i < count; ++i) {
                all[rank][i] = static_cast<float>((i * 31 + rank * 17) % 101) - 50.0f;
            }
        }
        return all;
    }
    static inline std::string path_;
};

TEST_P(Calibrated, EachSizeGoesByTheFastestWay) {
    for (const size_t count : {kSmall, kMiddle, kLarge}) {
        const std::vector<Values> all = given(count);
        const Values got = reduce(all);
        for (size_t i = 0; i < count; ++i) {
            const float sum = all[0][i] + all[1][i] + all[2][i] + all[3][i];
            ASSERT_NEAR(got[i], sum, count == kSmall ? 0 : 2.5) << i;
        }
    }
    renew_communicators();
    std::map<size_t, std::set<std::string>> taken;
    std::map<size_t, std::set<std::string>> reasons;
    std::set<Json> thresholds;
    size_t keys = 0;
    for (const Json& record : report()) {
        if (record.at("record") == "key") {
            const size_t count = record.at("count");
            taken[count].insert(record.at("algorithm"));
            reasons[count].insert(record.at("reason"));
            ++keys;
        }
        if (record.at("record") == "comm") {
            thresholds.insert(record.at("thresholds"));
        }
    }
    EXPECT_EQ(keys, 12u) << "one each on every rank";
    EXPECT_EQ(taken[kSmall], std::set<std::string>{"native"});
    EXPECT_EQ(taken[kMiddle], std::set<std::string>{"gather"});
    EXPECT_EQ(taken[kLarge], std::set<std::string>{"hierarchical"});
    EXPECT_NE(reasons[kSmall].begin()->find("natively, as calibrated"), std::string::npos)
        << *reasons[kSmall].begin();
    ASSERT_EQ(thresholds.size(), 1u);
    const Json& of_gather = thresholds.begin()->at(0);
    EXPECT_EQ(of_gather.at("algorithm"), "gather");
    EXPECT_NEAR(of_gather.at("pays_from_bytes").get<double>(), 31.4e3, 1.5e3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Calibrated, testing::Values(4), [](const auto& info) {
    return "ranks" + std::to_string(info.param);
});

}  // namespace
