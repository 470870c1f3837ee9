// What averaging residuals adds to a step: an all-reduce of one tensor of fp32 by top-k at 0.1 %
// with EF14, natively, compressed, and averaged as it is or by a codec, in turn, over emulated
// ranks in this process, each a node. One JSON line a case: median over rounds of the time of a
// step (a round has as many as the largest `every`, so each averaging is in it), and bytes that a
// rank gives to the transport in a step, those of averaging apart; by slimwire's report.
//   averaging_bench [ELEMENTS [ROUNDS [RANKS]]]      (4194304 5 4)
// SLIMWIRE_EMU_LINK says how fast the links are, "1gbit" if nothing does.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/bench/in_process_ranks.h"
#include "tools/cli/common/median.h"

namespace {

using slimwire::bench::check;
using slimwire::cli::median;

constexpr int kMostRanks = 8;
constexpr int kSteps = 100;  // of a round

struct Case {
    const char* name;
    const char* action;
};
constexpr Case kCases[] = {
    {"native", "codec = \"native\""},
    {"payload", ""},
    {"every_20", "average_every = 20"},
    {"every_20_int8", "average_every = 20\naverage_codec = \"int8\""},
    {"every_100_int8", "average_every = 100\naverage_codec = \"int8\""},
    {"every_100_int4", "average_every = 100\naverage_codec = \"int4\""},
};

// Each case has a size of its own, by which its rule knows it.
size_t elements_of(size_t elements, size_t index) {
    return elements + 16 * index;
}

std::string policy_of(size_t elements) {
    std::string text = "version = 1\n";
    for (size_t i = 0; i < std::size(kCases); ++i) {
        const std::string bytes = std::to_string(4 * elements_of(elements, i));
        text += "[[rule]]\nname = \"" + std::string(kCases[i].name) +
                "\"\nmatch = { op = \"allreduce\", bytes = \"" + bytes + ".." + bytes + "\" }\n" +
                (i == 0 ? "" : "codec = \"topk:fraction=0.001\"\nef = \"ef14\"\n") +
                kCases[i].action + "\n";
    }
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    const size_t elements = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{1} << 22;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
    const int count = argc > 3 ? std::atoi(argv[3]) : 4;
    if (elements < 4096 || rounds < 1 || count < 2 || count > kMostRanks) {
        std::fprintf(stderr,
                     "averaging_bench: accepted: 4096 elements or more, a round or more, 2 to %d "
                     "ranks\n",
                     kMostRanks);
        return 2;
    }
    const std::string stem = "/tmp/averaging_bench_" + std::to_string(getpid());
    std::ofstream(stem + ".toml") << policy_of(elements);
    ::setenv("SLIMWIRE_POLICY", (stem + ".toml").c_str(), 1);
    ::setenv("SLIMWIRE_REPORT", (stem + ".jsonl").c_str(), 1);
    ::setenv("SLIMWIRE_EMU_DEVICES", std::to_string(count).c_str(), 1);
    ::setenv("SLIMWIRE_EMU_LINK", "1gbit", 0);
    slimwire::bench::Ranks ranks(count, elements_of(elements, std::size(kCases)));
    uint64_t number = 0;
    std::map<std::string, std::vector<double>> times;
    for (int round = 0; round <= rounds; ++round) {  // one to warm up
        for (size_t i = 0; i < std::size(kCases); ++i) {
            const auto begin = std::chrono::steady_clock::now();
            for (int step = 0; step < kSteps; ++step) {
                check(slimwire_mark_step(++number) == SLIMWIRE_OK, "slimwire_mark_step");
                ranks.step(elements_of(elements, i));
            }
            const std::chrono::duration<double, std::micro> took =
                std::chrono::steady_clock::now() - begin;
            if (round > 0) {
                times[kCases[i].name].push_back(took.count() / kSteps);
            }
        }
    }
    ranks.end();
    std::ifstream report(stem + ".jsonl");
    std::map<std::string, nlohmann::json> keys;
    for (std::string line; std::getline(report, line);) {
        nlohmann::json record = nlohmann::json::parse(line);
        if (record.at("record") == "key" && record.at("rank") == 0 && record.at("calls") != 0) {
            const std::string rule = record.at("rule");
            keys[rule] = std::move(record);
        }
    }
    const double native_us = median(times.at("native"));
    for (size_t i = 0; i < std::size(kCases); ++i) {
        const nlohmann::json& key = keys[kCases[i].name];
        check(!key.is_null(), "the report");
        const auto calls = key.at("calls").get<double>();
        const double averaging = key.value("averaging_wire_bytes", 0.0) / calls;
        const double step_us = median(times.at(kCases[i].name));
        std::printf(
            "{\"v\":1,\"record\":\"bench_averaging\",\"case\":\"%s\",\"elements\":%zu,"
            "\"ranks\":%d,\"link\":\"%s\",\"rounds\":%d,\"step_us\":%.1f,"
            "\"of_native\":%.4f,\"payload_bytes\":%.0f,\"averaging_bytes\":%.0f}\n",
            kCases[i].name, elements_of(elements, i), count, std::getenv("SLIMWIRE_EMU_LINK"),
            rounds, step_us, step_us / native_us,
            key.at("wire_bytes").get<double>() / calls - averaging, averaging);
    }
    (void)std::remove((stem + ".toml").c_str());
    (void)std::remove((stem + ".jsonl").c_str());
    return 0;
}
