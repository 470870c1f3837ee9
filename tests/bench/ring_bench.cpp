// What saving beside a job costs it (SLIMWIRE_STATE): an all-reduce of one tensor of fp32 as int4
// with EF14 over two emulated ranks in this process, each a node; rounds of STEPS steps by turns,
// one of which saves the state in its middle and the other does not. One JSON line: the median of
// a step's time in either and their ratio, the longest marking of a step, and the memory of the
// host beside the state's bytes. The disk must be done before the next round's saving.
//   ring_bench FOLDER [ELEMENTS [ROUNDS [STEPS]]]      (8388608 3 500)
// SLIMWIRE_EMU_LINK says how fast the links are, "1gbit" if nothing does.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/bench/in_process_ranks.h"
#include "tools/cli/common/median.h"

namespace {

using Clock = std::chrono::steady_clock;
using slimwire::bench::check;
using slimwire::cli::median;
constexpr int kRanks = 2;
constexpr uint64_t kEvery = 1000;

double us_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Of this process, in bytes.
uint64_t memory() {
    std::ifstream status("/proc/self/statm");
    uint64_t all = 0, resident = 0;
    status >> all >> resident;
    return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string file_of(const std::string& folder, uint64_t step) {
    return folder + "/step-" + std::to_string(step) + ".run-1.of-1/state.0";
}

// Until the saving of `step` is there; `look` meanwhile.
template <class Look>
void await_saving(const std::string& folder, uint64_t step, const Look& look) {
    constexpr double kLimitUs = 120e6;
    const auto begin = Clock::now();
    while (!std::filesystem::exists(file_of(folder, step))) {
        check(us_since(begin) < kLimitUs, "a saving within two minutes (is the disk so slow?)");
        look();
        usleep(1000);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const size_t elements = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : size_t{1} << 23;
    const int rounds = argc > 3 ? std::atoi(argv[3]) : 3,
              steps = argc > 4 ? std::atoi(argv[4]) : 500;
    if (argc < 2 || elements < 65536 || rounds < 1 || steps < 4 || steps >= 1000) {
        std::fprintf(stderr,
                     "ring_bench: accepted: a folder, 65536 elements or more, a round or "
                     "more, 4 to 999 steps\n");
        return 2;
    }
    const std::string folder = std::string(argv[1]) + "/ring_bench_" + std::to_string(getpid());
    ::setenv("SLIMWIRE_CODEC", "int4", 1);
    ::setenv("SLIMWIRE_EF", "ef14", 1);
    ::setenv("SLIMWIRE_STATE", (folder + ",every=" + std::to_string(kEvery)).c_str(), 1);
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "1", 1);
    ::setenv("SLIMWIRE_EMU_DEVICES", std::to_string(kRanks).c_str(), 1);
    ::setenv("SLIMWIRE_EMU_LINK", "1gbit", 0);
    slimwire::bench::Ranks ranks(kRanks, elements);
    double longest_mark_us = 0;
    const auto step = [&](uint64_t number) {
        const auto begin = Clock::now();
        check(slimwire_mark_step(number) == SLIMWIRE_OK, "slimwire_mark_step");
        longest_mark_us = std::max(longest_mark_us, us_since(begin));
        ranks.step(elements);
    };
    // The first saving makes the memory for all.
    step(1);
    step(2);
    const uint64_t before = memory();
    uint64_t most = before;
    step(kEvery);
    await_saving(folder, kEvery, [&] { most = std::max(most, memory()); });
    const auto bytes = static_cast<double>(std::filesystem::file_size(file_of(folder, kEvery)));
    longest_mark_us = 0;
    std::vector<double> without, with, ratios;
    for (uint64_t round = 2; round < 2 + static_cast<uint64_t>(rounds); ++round) {
        for (const bool saves : {false, true}) {
            const uint64_t first = saves ? kEvery * round - static_cast<uint64_t>(steps) / 2 : 1;
            const auto begin = Clock::now();
            for (int i = 0; i < steps; ++i) {
                step(first + static_cast<uint64_t>(i));
            }
            (saves ? with : without).push_back(us_since(begin) / steps);
            if (saves) {
                await_saving(folder, kEvery * round, [] {});
            }
        }
        ratios.push_back(with.back() / without.back());
    }
    std::printf(
        "{\"v\":1,\"record\":\"bench_ring\",\"elements\":%zu,\"ranks\":%d,\"link\":\"%s\","
        "\"rounds\":%d,\"steps\":%d,\"state_bytes\":%.0f,\"step_us\":%.1f,\"saving_step_us\":%.1f,"
        "\"of_step\":%.4f,\"longest_mark_us\":%.1f,\"host_memory\":%.3f}\n",
        elements, kRanks, std::getenv("SLIMWIRE_EMU_LINK"), rounds, steps, bytes, median(without),
        median(with), median(ratios), longest_mark_us, static_cast<double>(most - before) / bytes);
    ranks.end();
    std::filesystem::remove_all(folder);
    return 0;
}
