#include "collectives/bench_fill.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <numbers>
#include <set>
#include <type_traits>

#include "codecs/float16.h"
#include "codecs/threefry.h"
#include "collectives/log.h"
#include "collectives/npy.h"

namespace slimwire {
namespace {

constexpr uint64_t kLayerElems = uint64_t{1} << 18;
constexpr uint64_t kRowElems = 1024;
constexpr double kRowScaleSigma = 0.5;
// Ranks begin this many elements apart, in another row and layer.
constexpr uint64_t kRankStrideElems = 3 * kLayerElems / 2 + 7 * kRowElems;

// What a counter belongs to; part of the key.
enum class Stream : uint32_t { kElements = 10, kLayers = 11, kRows = 12 };

double uniform(Stream stream, uint64_t counter, int word) noexcept {
    uint32_t x[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
    threefry(x, RandomWords{{2026, static_cast<uint32_t>(stream), 0,
                             static_cast<uint32_t>(RandomPurpose::kData)}});
    return (x[word] + 0.5) * 0x1p-32;
}

// Of libm, which only those load who ask for data: the library that is loaded into every process
// does not.
struct Libm {
    double (*exp)(double);
    double (*log)(double);
    double (*cos)(double);
    double (*pow)(double, double);
};

Result<Libm> open_libm() {
    void* const library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    Libm libm{};
    const auto find = [library](const char* name, auto* function) {
        *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(
            dlsym(library != nullptr ? library : RTLD_DEFAULT, name));
        return *function != nullptr;
    };
    if (!find("exp", &libm.exp) || !find("log", &libm.log) || !find("cos", &libm.cos) ||
        !find("pow", &libm.pow)) {
        return Status{Code::kUnsupported, "data for a benchmark needs libm.so.6"};
    }
    return libm;
}

// Box and Muller.
double normal(const Libm& libm, Stream stream, uint64_t counter) noexcept {
    return std::sqrt(-2 * libm.log(uniform(stream, counter, 0))) *
           libm.cos(2 * std::numbers::pi * uniform(stream, counter, 1));
}

bool fills(DType dtype) noexcept {
    return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
           dtype == DType::kBfloat16;
}

template <class T>
void append(std::vector<uint8_t>* to, T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    to->insert(to->end(), bytes, bytes + sizeof(T));
}

void append_number(std::vector<uint8_t>* to, DType dtype, double value) {
    switch (dtype) {
        case DType::kFloat64:
            return append(to, value);
        case DType::kFloat32:
            return append(to, static_cast<float>(value));
        case DType::kFloat16:
            return append(to, float_to_float16(static_cast<float>(value)));
        case DType::kBfloat16:
            return append(to, float_to_bfloat16(static_cast<float>(value)));
        case DType::kInt8:
        case DType::kUint8:
        case DType::kInt32:
        case DType::kUint32:
        case DType::kInt64:
        case DType::kUint64:
        case DType::kFloat8e4m3:
        case DType::kFloat8e5m2:
            return;  // fills() keeps them out
    }
}

Status bad_file(const std::string& path, const std::string& what) {
    return {Code::kInvalidArgument, "SLIMWIRE_BENCH_FILL: " + path + ": " + what};
}

Result<std::vector<uint8_t>> from_file(const std::string& path, DType dtype) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    if (!file.is_open()) {
        return bad_file(path, "cannot be read; accepted: gaussian, gradient, or a file");
    }
    std::vector<uint8_t> out(bytes.begin(), bytes.end());
    if (bytes.starts_with(kNpyMagic)) {
        const Result<NpyArray> array = parse_npy(bytes);
        if (!array.ok()) {
            return bad_file(path, array.status().message());
        }
        out.clear();
        for (const double value : array.value().values) {
            append_number(&out, dtype, value);
        }
    }
    out.resize(out.size() / dtype_bytes(dtype) * dtype_bytes(dtype));
    return out.empty() ? Result<std::vector<uint8_t>>(bad_file(path, "has no element"))
                       : Result<std::vector<uint8_t>>(std::move(out));
}

// What the process has made and filled; kept to its end, because copies may be under way.
struct Filled {
    std::mutex mutex;
    std::map<DType, std::vector<uint8_t>> patterns;
    std::set<std::pair<const void*, uint64_t>> buffers;
};
Filled& filled() {
    static Filled* const kept = new Filled;
    return *kept;
}

}  // namespace

uint64_t sent_elems(const CallFacts& facts, int rank, int ranks) noexcept {
    const bool at_root = facts.root_or_peer == rank;
    switch (facts.op) {
        case Op::kAllReduce:
        case Op::kReduce:
        case Op::kAllGather:
        case Op::kGather:
        case Op::kSend:
            return facts.count;
        case Op::kReduceScatter:
        case Op::kAllToAll:
            return facts.count * static_cast<uint64_t>(ranks);
        case Op::kBroadcast:
            return at_root ? facts.count : 0;
        case Op::kScatter:
            return at_root ? facts.count * static_cast<uint64_t>(ranks) : 0;
        case Op::kRecv:
            return 0;
    }
    return 0;
}

Result<std::vector<uint8_t>> benchmark_pattern(const std::string& source, DType dtype) {
    if (source != "gaussian" && source != "gradient") {
        return from_file(source, dtype);
    }
    SLIMWIRE_TRY_ASSIGN(const Libm libm, open_libm());
    std::vector<uint8_t> out;
    out.reserve(kPatternElems * dtype_bytes(dtype));
    double layer = 1;
    double scale = 1;
    for (uint64_t i = 0; i < kPatternElems; ++i) {
        if (source == "gradient" && i % kLayerElems == 0) {
            layer = libm.pow(10.0, 4 * uniform(Stream::kLayers, i / kLayerElems, 0) - 6);
        }
        if (source == "gradient" && i % kRowElems == 0) {
            scale = layer * libm.exp(kRowScaleSigma * normal(libm, Stream::kRows, i / kRowElems));
        }
        append_number(&out, dtype, scale * normal(libm, Stream::kElements, i));
    }
    return out;
}

Status fill_for_benchmark(Runtime& runtime, const CollectiveCall& call, const CommState& state) {
    const uint64_t bytes =
        sent_elems(call.facts, state.rank, state.shape.ranks) * dtype_bytes(call.facts.dtype);
    const std::string& source = runtime.config.settings.bench_fill;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const DeviceApi& api = runtime.api();
    if (bytes == 0 || !fills(call.facts.dtype) ||
        api.stream_is_capturing(call.stream, &capture) != cudaSuccess ||
        capture != cudaStreamCaptureStatusNone) {
        return {};
    }
    Filled& kept = filled();
    const std::lock_guard<std::mutex> lock(kept.mutex);
    if (!kept.buffers.insert({call.send, bytes}).second) {
        return {};
    }
    log_once(LogLevel::kWarn, "bench_fill",
             "SLIMWIRE_BENCH_FILL=" + source +
                 ": THE PROGRAM'S SEND BUFFERS ARE OVERWRITTEN with these data before the first "
                 "compressed call of each; for benchmarks only, results are not the program's");
    std::vector<uint8_t>& pattern = kept.patterns[call.facts.dtype];
    if (pattern.empty()) {
        SLIMWIRE_TRY_ASSIGN(pattern, benchmark_pattern(source, call.facts.dtype));
    }
    uint64_t from = kRankStrideElems * static_cast<uint64_t>(state.rank) *
                    dtype_bytes(call.facts.dtype) % pattern.size();
    auto* const to = static_cast<uint8_t*>(const_cast<void*>(call.send));
    for (uint64_t at = 0; at < bytes;) {
        const uint64_t part = std::min(bytes - at, pattern.size() - from);
        if (const cudaError_t error = api.memcpy_async(to + at, pattern.data() + from, part,
                                                       cudaMemcpyHostToDevice, call.stream);
            error != cudaSuccess) {
            return cuda_status(api, error, "filling a benchmark's send buffer");
        }
        at += part;
        from = 0;
    }
    return {};
}

}  // namespace slimwire
