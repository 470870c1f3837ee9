// Whether a gate takes the faster way: all-reduces of fp32 natively, always compressed and with
// gate = "measured", in turn, over emulated ranks in this process. One JSON line a size: medians,
// the median of the paired ratios gated to native with its 95 % interval by order statistics, what
// the gate chose, and the gated time to the better of the two others.
//   gate_bench LINK NODES BYTES,... [CODEC [PAIRS]]      gate_bench 1gbit 2x1 65536,1048576 int4 31
// NODES: nodes x ranks of each. Exit code 1: an interval lies above 1.02.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kMostRanks = 8;
constexpr size_t kLooked = 256;  // elements that tell exact sums from others
constexpr double kQuickUs = 3000;

enum Way : size_t { kNative, kAlways, kGated, kWays };

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "gate_bench: %s failed: %s\n", what, ncclGetLastError(nullptr));
    std::exit(1);
}
void check(bool good, const char* what) {
    if (!good) {
        fail(what);
    }
}

// Each way has communicators of its own, by whose name its rule knows them.
constexpr const char* kNames[kWays] = {"native", "always", "gated"};

std::string policy_of(const std::string& codec) {
    std::string text = "version = 1\n";
    for (const Way way : {kNative, kAlways, kGated}) {
        text += "[[rule]]\nname = \"" + std::string(kNames[way]) +
                "\"\nmatch = { op = \"allreduce\", comm = \"" + kNames[way] + "\" }\ncodec = \"" +
                (way == kNative ? "native" : codec) + "\"\n" +
                (way == kGated ? "min_bytes = \"auto\"\n" : "");
    }
    return text;
}

struct Ranks {
    int count = 0;
    ncclComm_t comms[kWays][kMostRanks] = {};
    float* send[kMostRanks] = {};
    float* recv[kMostRanks] = {};

    void create() {
        for (const Way way : {kNative, kAlways, kGated}) {
            ncclUniqueId id;
            check(ncclGetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId");
            check(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
            for (int rank = 0; rank < count; ++rank) {
                ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
                config.commName = kNames[way];
                check(cudaSetDevice(rank) == cudaSuccess &&
                          ncclCommInitRankConfig(&comms[way][rank], count, id, rank, &config) ==
                              ncclSuccess,
                      "ncclCommInitRankConfig");
            }
            check(ncclGroupEnd() == ncclSuccess, "ncclGroupEnd");
        }
    }
    // Microseconds.
    double time(Way way, size_t elements, int calls) const {
        const auto begin = std::chrono::steady_clock::now();
        for (int call = 0; call < calls; ++call) {
            check(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
            for (int rank = 0; rank < count; ++rank) {
                check(ncclAllReduce(send[rank], recv[rank], elements, ncclFloat32, ncclSum,
                                    comms[way][rank], nullptr) == ncclSuccess,
                      "ncclAllReduce");
            }
            check(ncclGroupEnd() == ncclSuccess, "ncclGroupEnd");
            for (int rank = 0; rank < count; ++rank) {
                check(cudaSetDevice(rank) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess,
                      "a call");
            }
        }
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - begin;
        return took.count() / calls;
    }
    // Whether the last sum is the exact one.
    [[nodiscard]] bool exact() const {
        std::vector<float> given(kLooked), got(kLooked);
        const size_t bytes = kLooked * sizeof(float);
        check(cudaSetDevice(0) == cudaSuccess &&
                  cudaMemcpy(given.data(), send[0], bytes, cudaMemcpyDeviceToHost) == cudaSuccess &&
                  cudaMemcpy(got.data(), recv[0], bytes, cudaMemcpyDeviceToHost) == cudaSuccess,
              "cudaMemcpy");
        return std::equal(given.begin(), given.end(), got.begin(), [&](float one, float sum) {
            return static_cast<float>(count) * one == sum;
        });
    }
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// The gate's choice: native or not. Calls that are quick are made as many times as the longest
// trial and the first looks at it take; the others differ too much for that.
bool decided_native(const Ranks& ranks, size_t elements) {
    const double first = ranks.time(kGated, elements, 15);
    (void)ranks.time(kGated, elements, first < kQuickUs ? 700 : 1);
    int native = 0;
    constexpr int kAsked = 13;  // a look has as many of both
    for (int call = 0; call < kAsked; ++call) {
        (void)ranks.time(kGated, elements, 1);
        native += ranks.exact() ? 1 : 0;
    }
    return native > kAsked / 2;
}

}  // namespace

int main(int argc, char** argv) {
    int nodes = 0, local = 0;
    if (argc < 4 || std::sscanf(argv[2], "%dx%d", &nodes, &local) != 2 || nodes < 1 || local < 1 ||
        nodes * local < 2 || nodes * local > kMostRanks) {
        std::fprintf(stderr,
                     "gate_bench LINK NODES BYTES,... [CODEC [PAIRS]]; NODES: nodes x ranks, 2 to "
                     "%d ranks\n",
                     kMostRanks);
        return 2;
    }
    std::vector<size_t> sizes;
    std::istringstream list(argv[3]);
    for (std::string word; std::getline(list, word, ',');) {
        sizes.push_back(std::strtoull(word.c_str(), nullptr, 10));
        check(sizes.back() >= 4 * kLooked, "a size of 1024 bytes or more");
    }
    const std::string codec = argc > 4 ? argv[4] : "int4";
    const int pairs = argc > 5 ? std::atoi(argv[5]) : 31;
    check(pairs >= 1 && !sizes.empty(), "a size and a pair");
    Ranks ranks;
    ranks.count = nodes * local;
    const std::string stem = "/tmp/gate_bench_" + std::to_string(getpid());
    std::ofstream(stem + ".toml") << policy_of(codec);
    ::setenv("SLIMWIRE_POLICY", (stem + ".toml").c_str(), 1);
    ::setenv("SLIMWIRE_SUMMARY", "0", 1);
    ::setenv("SLIMWIRE_EMU_DEVICES", std::to_string(ranks.count).c_str(), 1);
    ::setenv("SLIMWIRE_EMU_NODES", argv[2], 1);
    ::setenv("SLIMWIRE_EMU_LINK", argv[1], 1);
    ranks.create();
    (void)std::remove((stem + ".toml").c_str());
    const size_t most = *std::max_element(sizes.begin(), sizes.end()) / 4;
    std::vector<float> data(most);
    for (size_t i = 0; i < most; ++i) {
        data[i] = std::sin(0.7f * static_cast<float>(i % 100003));
    }
    for (int rank = 0; rank < ranks.count; ++rank) {
        check(cudaSetDevice(rank) == cudaSuccess, "cudaSetDevice");
        for (float** buffer : {&ranks.send[rank], &ranks.recv[rank]}) {
            check(cudaMalloc(reinterpret_cast<void**>(buffer), 4 * most) == cudaSuccess,
                  "cudaMalloc");
        }
        check(cudaMemcpy(ranks.send[rank], data.data(), 4 * most, cudaMemcpyHostToDevice) ==
                  cudaSuccess,
              "cudaMemcpy");
    }
    int status = 0;
    for (const size_t bytes : sizes) {
        const bool native = decided_native(ranks, bytes / 4);
        (void)ranks.time(kAlways, bytes / 4, 2);
        const double once = ranks.time(kNative, bytes / 4, 2);
        const int calls = std::clamp(static_cast<int>(4000 / once), 1, 16);
        std::vector<double> times[kWays], ratios;
        for (int pair = 0; pair < pairs; ++pair) {
            for (size_t turn = 0; turn < kWays; ++turn) {
                const auto way = static_cast<Way>((turn + static_cast<size_t>(pair)) % kWays);
                times[way].push_back(ranks.time(way, bytes / 4, calls));
            }
            ratios.push_back(times[kGated].back() / times[kNative].back());
        }
        std::sort(ratios.begin(), ratios.end());
        // n/2 -+ 0.98 sqrt(n): 95 % for the median.
        const double half = 0.98 * std::sqrt(static_cast<double>(pairs));
        const auto at = [&](double index) {
            return ratios[static_cast<size_t>(std::clamp(index, 0.0, pairs - 1.0))];
        };
        const double low = at(std::floor(pairs / 2.0 - half));
        const double high = at(std::ceil(pairs / 2.0 + half) - 1);
        const double native_us = median(times[kNative]), always_us = median(times[kAlways]);
        const double gated_us = median(times[kGated]), best_us = std::min(native_us, always_us);
        const bool slower = low > 1.02;
        status = slower ? 1 : status;
        std::printf(
            "{\"v\":1,\"record\":\"bench_gate\",\"codec\":\"%s\",\"link\":\"%s\",\"ranks\":%d,"
            "\"nodes\":%d,\"bytes\":%zu,\"pairs\":%d,\"native_us\":%.1f,\"compressed_us\":%.1f,"
            "\"gated_us\":%.1f,\"choice\":\"%s\",\"chosen_to_best\":%.4f,\"ratio_low\":%.4f,"
            "\"ratio\":%.4f,\"ratio_high\":%.4f%s}\n",
            codec.c_str(), argv[1], ranks.count, nodes, bytes, pairs, native_us, always_us,
            gated_us, native ? "native" : "compressed", (native ? native_us : always_us) / best_us,
            low, median(ratios), high, slower ? ",\"failed\":\"slower than native\"" : "");
        std::fflush(stdout);
    }
    for (int rank = 0; rank < ranks.count; ++rank) {
        for (ncclComm_t* comms : ranks.comms) {
            check(ncclCommDestroy(comms[rank]) == ncclSuccess, "ncclCommDestroy");
        }
        (void)cudaFree(ranks.send[rank]);
        (void)cudaFree(ranks.recv[rank]);
    }
    return status;
}
