// The codecs' kernels on a real GPU: equal to the host bodies to the byte, and their bandwidth
// against a device copy of the same bytes in the same run. Needs nvcc, meson and ninja to build;
// tests/gpu/codecs/run builds it and runs everything.
//   gpu_codecs [--mode all|compare|bench] [--values N] [--bytes N] [--seed N] [--codec SPEC]...
//              [--threads N] [--most N]
// --values: elements to compare for each specification (default 2^30). --most: elements of the
// largest comparison (default 2^25; small for compute-sanitizer). --bytes: size of the timed buffer
// (default 256 MiB). --threads: comparisons at a time (default 8). Prints JSON lines and "N passed,
// N failed"; exit status 77 without a device.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "tests/gpu/codecs/compare.h"
#include "tests/gpu/codecs/measure.h"

namespace {

using namespace slimwire;
using namespace slimwire::gpu;

struct Options {
    std::string mode = "all";
    int64_t values = int64_t{1} << 30;
    int64_t most = int64_t{1} << 25;
    int64_t bytes = int64_t{256} << 20;
    int threads = 8;
    uint64_t seed = std::random_device{}();
    std::vector<CodecSpec> specs;
};

// Every codec with its defaults, and with those variants that it accepts.
constexpr const char* kVariants[] = {
    "",
    ":block=16",
    ":block=512,scale=fp32",
    ":block=2048",
    ":rounding=stochastic",
    ":block=128,rotate=64",
    ":block=32,rotate=1024,rounding=stochastic",
    ":spike=minmax",
    ":slot=0.75",
    ":values=int8",
    ":values=int4",
    ":fraction=0.001",
    ":fraction=0.2",
    ":kept=8",
};

std::vector<CodecSpec> all_specs() {
    std::vector<CodecSpec> result;
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    for (size_t i = 0; i < count; ++i) {
        for (const char* variant : kVariants) {
            auto spec = parse_codec(table[i]->name + std::string(variant));
            if (spec.ok()) {
                result.push_back(spec.value());
            }
        }
    }
    return result;
}

bool read_options(int argc, char** argv, Options* options) {
    for (int i = 1; i < argc; i += 2) {
        const std::string key = argv[i];
        const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
        if (value == nullptr) {
            std::fprintf(stderr, "gpu_codecs: %s lacks its value\n", key.c_str());
            return false;
        }
        if (key == "--mode" && (value == std::string("all") || value == std::string("compare") ||
                                value == std::string("bench"))) {
            options->mode = value;
        } else if (key == "--values") {
            options->values = std::atoll(value);
        } else if (key == "--most") {
            options->most = std::max<int64_t>(std::atoll(value), 2);
        } else if (key == "--bytes") {
            options->bytes = std::max<int64_t>(std::atoll(value), 1 << 16);
        } else if (key == "--threads") {
            options->threads = std::max(std::atoi(value), 1);
        } else if (key == "--seed") {
            options->seed = std::strtoull(value, nullptr, 10);
        } else if (key == "--codec") {
            auto spec = parse_codec(value);
            if (!spec.ok()) {
                std::fprintf(stderr, "gpu_codecs: %s\n", spec.status().message().c_str());
                return false;
            }
            options->specs.push_back(spec.value());
        } else {
            std::fprintf(stderr,
                         "gpu_codecs: unknown option %s %s; accepted: --mode all|compare|bench, "
                         "--values, --most, --bytes, --threads, --seed, --codec\n",
                         key.c_str(), value);
            return false;
        }
    }
    if (options->specs.empty()) {
        options->specs = all_specs();
    }
    return true;
}

// Compares one specification; true when all was equal.
bool compare_spec(const CodecSpec& spec, const Options& options, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::string> failures;
    int64_t compared = 0;
    while (compared < options.values && failures.size() < 5) {
        // Small and ragged sizes until a hundredth is done, then larger ones too.
        const int64_t most = std::min<int64_t>(
            compared < options.values / 100 ? 100000 : options.most, options.most);
        compared += compare(spec, random_situation(spec, most, random), random, &failures);
    }
    static std::mutex output;
    const std::lock_guard lock(output);
    for (const std::string& failure : failures) {
        std::printf("FAILED %s\n", failure.c_str());
    }
    std::printf("{\"codec\":\"%s\",\"seed\":%llu,\"compared\":%lld,\"failures\":%zu}\n",
                spec.to_string().c_str(), static_cast<unsigned long long>(seed),
                static_cast<long long>(compared), failures.size());
    std::fflush(stdout);
    return failures.empty();
}

int compare_all(const Options& options) {
    std::atomic<size_t> next{0};
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < options.threads; ++t) {
        threads.emplace_back([&] {
            for (size_t i = next++; i < options.specs.size(); i = next++) {
                failed += compare_spec(options.specs[i], options, options.seed + i) ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return failed;
}

void measure_all(const Options& options) {
    for (const CodecSpec& spec : options.specs) {
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
            if (!spec.accepts(dtype)) {
                continue;
            }
            measure(spec, dtype, options.bytes, 0);
            // What a training job can spare.
            const bool plain = spec.to_string().find(':') == std::string::npos;
            for (const int32_t blocks : {4, 8, 16, 32}) {
                if (plain && dtype == DType::kBfloat16) {
                    measure(spec, dtype, options.bytes, blocks);
                }
            }
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    slimwire::register_cuda_kernels();
    Options options;
    if (!read_options(argc, argv, &options)) {
        return 2;
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("skipped: no CUDA device\n");
        return 77;
    }
    std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
    int failed = 0;
    if (options.mode != "bench") {
        failed = compare_all(options);
    }
    if (options.mode != "compare") {
        measure_all(options);
    }
    std::printf("%d passed, %d failed\n",
                options.mode == "bench" ? 0 : static_cast<int>(options.specs.size()) - failed,
                failed);
    return failed == 0 ? 0 : 1;
}
