// The codecs' kernels on a real GPU, and those of the operations beside them: equal to the host
// bodies to the byte, and the codecs' bandwidth against a device copy of the same bytes in the same
// run. Needs nvcc, meson and ninja to build; tests/gpu/run builds and runs it.
//   gpu_codecs [--mode all|compare|bench] [--values N] [--bytes N] [--seed N] [--codec SPEC]...
//              [--variants all|few] [--threads N] [--most N] [--seconds N]
// --values: elements to compare for each codec, over all its specifications (default 2^30). --most:
// elements of the largest comparison (default 2^25; small for compute-sanitizer). --bytes: size of
// the timed buffer (default 256 MiB). --variants few: only what adds kernels. --threads:
// comparisons at a time (default: processors, at most 16). --seconds: each mode ends after so many
// (default: when done); what was not compared then is a failure, what was not timed is said.
// Prints JSON lines and "N passed, N failed"; exit status 77 without a device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
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
    int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
    double seconds = 0;  // 0: no limit
    bool few = false;
    uint64_t seed = std::random_device{}();
    std::vector<CodecSpec> specs;
};

// Every codec with its defaults, and with those variants that it accepts. The first ones add
// kernels.
constexpr const char* kVariants[] = {
    "",
    ":rounding=stochastic",
    ":scale=ceil,rounding=stochastic",
    ":bits=4",
    ":levels=7",
    ":levels=31",
    ":block=32,rotate=512,rounding=stochastic",
    ":values=int8",
    ":block=16",
    ":block=512,scale=fp32",
    ":block=2048",
    ":block=128,rotate=64",
    ":values=int4",
    ":fraction=0.001",
    ":fraction=0.1",
    ":fraction=0.2",
    ":kept=8",
    ":scale=ceil",
    ":scale=l2",
    ":scale=clip",
    ":scale=max,levels=1",
    ":error=0.3,capacity=0.03",
    ":error=0.000001,capacity=2",
    ":block=2048,rounding=nearest",
};
constexpr size_t kFewVariants = 9;

std::vector<CodecSpec> all_specs(bool few) {
    std::vector<CodecSpec> result;
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    for (size_t v = 0; v < (few ? kFewVariants : std::size(kVariants)); ++v) {
        for (size_t i = 0; i < count; ++i) {
            auto spec = parse_codec(table[i]->name + std::string(kVariants[v]));
            if (spec.ok() && spec.value().codec->cuda.encode != nullptr) {
                result.push_back(spec.value());
            }
        }
    }
    return result;
}

// A moment after which nothing new is begun.
class Deadline {
  public:
    explicit Deadline(double seconds)
        : limited_(seconds > 0),
          end_(std::chrono::steady_clock::now() +
               std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                   std::chrono::duration<double>(seconds))) {}
    [[nodiscard]] bool over() const { return limited_ && std::chrono::steady_clock::now() >= end_; }

  private:
    bool limited_;
    std::chrono::steady_clock::time_point end_;
};

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
        } else if (key == "--seconds") {
            options->seconds = std::atof(value);
        } else if (key == "--variants" &&
                   (value == std::string("all") || value == std::string("few"))) {
            options->few = value == std::string("few");
        } else if (key == "--seed") {
            options->seed = std::strtoull(value, nullptr, 10);
        } else if (key == "--codec") {
            auto spec = parse_codec(value);
            if (!spec.ok()) {
                std::fprintf(stderr, "gpu_codecs: %s\n", spec.status().message().c_str());
                return false;
            }
            if (spec.value().codec->cuda.encode == nullptr) {
                std::fprintf(stderr, "gpu_codecs: %s has no kernels\n", value);
                return false;
            }
            options->specs.push_back(spec.value());
        } else {
            std::fprintf(
                stderr,
                "gpu_codecs: unknown option %s %s; accepted: --mode all|compare|bench, "
                "--variants all|few, --values, --most, --bytes, --threads, --seconds, --seed, "
                "--codec\n",
                key.c_str(), value);
            return false;
        }
    }
    if (options->specs.empty()) {
        options->specs = all_specs(options->few);
    }
    return true;
}

// One specification, compared in pieces by whichever thread comes to it.
struct Comparing {
    CodecSpec spec;
    std::mt19937_64 random;
    int64_t values;  // to compare
    int64_t compared = 0;
    std::vector<std::string> failures;
};

// A few situations: small and ragged ones until a hundredth is done, then larger ones too.
void compare_some(Comparing& work, int64_t most_elems) {
    const bool small = work.compared < work.values / 100;
    const int64_t most = small ? std::min<int64_t>(100000, most_elems) : most_elems;
    for (int i = 0; i < 4 && work.compared < work.values && work.failures.size() < 5; ++i) {
        work.compared += compare(work.spec, random_situation(work.spec, most, work.random),
                                 work.random, &work.failures);
    }
}

// The specifications take turns, so that a deadline leaves none out. The number that failed.
int compare_all(const Options& options, const Deadline& deadline) {
    std::vector<Comparing> work;
    for (const CodecSpec& spec : options.specs) {
        const auto alike =
            std::count_if(options.specs.begin(), options.specs.end(),
                          [&](const CodecSpec& other) { return other.codec == spec.codec; });
        work.push_back(
            {.spec = spec,
             .random = std::mt19937_64(options.seed + std::hash<std::string>{}(spec.to_string())),
             .values = (options.values + alike - 1) / alike,
             .failures = {}});
    }
    std::mutex mutex;
    size_t next = 0;
    std::vector<size_t> waiting(work.size());
    for (size_t i = 0; i < work.size(); ++i) {
        waiting[i] = i;
    }
    const auto run = [&] {
        for (;;) {
            size_t mine = 0;
            {
                const std::lock_guard lock(mutex);
                if (next >= waiting.size() || deadline.over()) {
                    return;
                }
                mine = waiting[next++];
            }
            compare_some(work[mine], options.most);
            if (work[mine].compared < work[mine].values && work[mine].failures.size() < 5) {
                const std::lock_guard lock(mutex);
                waiting.push_back(mine);
            }
        }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < options.threads; ++t) {
        threads.emplace_back(run);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    int failed = 0;
    for (const Comparing& one : work) {
        for (const std::string& failure : one.failures) {
            std::printf("FAILED %s\n", failure.c_str());
        }
        const bool done = one.compared >= one.values;
        failed += one.failures.empty() && done ? 0 : 1;
        std::printf("{\"codec\":\"%s\",\"compared\":%lld,\"wanted\":%lld,\"failures\":%zu}\n",
                    one.spec.to_string().c_str(), static_cast<long long>(one.compared),
                    static_cast<long long>(one.values), one.failures.size());
    }
    std::fflush(stdout);
    return failed;
}

// Defaults first, at the sizes of grids that a training job can spare too; variants with one type.
void measure_all(const Options& options) {
    const Deadline deadline(options.seconds);
    size_t left = 0;
    measure_low_rank();
    for (const CodecSpec& spec : options.specs) {
        const bool plain = spec.to_string().find(':') == std::string::npos;
        bool first = true;
        for (const DType dtype : {DType::kBfloat16, DType::kFloat32, DType::kFloat16}) {
            if (!spec.accepts(dtype) || (!plain && !first)) {
                continue;
            }
            const bool capped = plain && first;
            first = false;
            for (const int32_t blocks : {0, 4, 8, 16, 32}) {
                if (blocks > 0 && !capped) {
                    continue;
                }
                if (deadline.over()) {
                    ++left;
                    continue;
                }
                // A few thread blocks take their time over large buffers.
                constexpr int64_t kCappedBytes = int64_t{64} << 20;
                measure(spec, dtype,
                        blocks > 0 ? std::min(options.bytes, kCappedBytes) : options.bytes, blocks);
            }
        }
    }
    if (left > 0) {
        std::printf("%zu situations were not timed: the time was over\n", left);
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
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what a killed run found out is in its file
    std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
    int failed = 0, operations = 0;
    if (options.mode != "bench") {
        const Deadline deadline(options.seconds);
        std::vector<std::string> failures;
        constexpr int kRounds = 20;
        operations = compare_operations(kRounds, std::min(options.most, int64_t{1} << 22),
                                        options.seed, &failures);
        for (const std::string& failure : failures) {
            std::printf("FAILED %s\n", failure.c_str());
        }
        std::printf("operations compared, %zu failures\n", failures.size());
        failed = compare_all(options, deadline) + static_cast<int>(failures.size());
    }
    if (options.mode != "compare") {
        measure_all(options);
    }
    std::printf(
        "%d passed, %d failed\n",
        options.mode == "bench" ? 0 : static_cast<int>(options.specs.size()) + operations - failed,
        failed);
    return failed == 0 ? 0 : 1;
}
