// Speed of the codecs' host bodies on one core against memcpy of the user's side, as JSON lines.
// The first form of `slimwire bench codec`; run it on a quiet machine:
//   build/tests/bench/codec_bench [--codec SPEC]... [--bytes N] [--inputs N] [--isa NAME] [--dtype
//   f32|f16|bf16]
// A line: {"codec","op","dtype","device","isa","data","bytes","gbps","baseline","baseline_gbps",
// "fraction","ratio"}. gbps counts the bytes of the user's side once (of one output for
// decode_reduce_encode); all figures are medians, baseline and operation measured in turn.
#include <nlohmann/json.hpp>

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codecs/base/isa.h"
#include "codecs/codec.h"
#include "codecs/float16.h"

namespace {

using namespace slimwire;

struct Options {
    std::vector<std::string> codecs;
    int64_t bytes = 64 << 20;
    int32_t inputs = 4;
    std::string isa;
    std::string dtype;
};

struct FreeDeleter {
    void operator()(uint8_t* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<uint8_t, FreeDeleter>;

// 64-byte aligned and touched, so that no page fault is timed.
Buffer make_buffer(int64_t bytes) {
    const size_t size = (static_cast<size_t>(bytes) + 4095) / 4096 * 4096;
    Buffer buffer(static_cast<uint8_t*>(std::aligned_alloc(4096, size)));
    if (!buffer) {
        std::fprintf(stderr, "out of memory\n");
        std::exit(1);
    }
    std::memset(buffer.get(), 0, size);
    return buffer;
}

void fill_gaussian(uint8_t* to, DType dtype, int64_t count) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(1 << 16);
    for (float& value : values) {
        value = normal(random);
    }
    for (int64_t i = 0; i < count; ++i) {
        const float value = values[static_cast<size_t>(i) % values.size()];
        if (dtype == DType::kFloat32) {
            std::memcpy(to + 4 * i, &value, 4);
        } else {
            const uint16_t half =
                dtype == DType::kFloat16 ? float_to_float16(value) : float_to_bfloat16(value);
            std::memcpy(to + 2 * i, &half, 2);
        }
    }
}

// Processor time of this thread: other programs on the machine then cost little.
double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Body>
double seconds_of(int repeats, Body body) {
    const double begin = thread_seconds();
    for (int i = 0; i < repeats; ++i) {
        body();
    }
    return (thread_seconds() - begin) / repeats;
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
}

class Bench {
  public:
    Bench(const CodecSpec& spec, DType dtype, const Options& options)
        : spec_(spec),
          dtype_(dtype),
          inputs_(options.inputs),
          count_(options.bytes / static_cast<int64_t>(dtype_bytes(dtype))),
          bytes_(count_ * static_cast<int64_t>(dtype_bytes(dtype))),
          size_(spec.encoded_bytes(dtype, count_)),
          slot_((size_ + 15) / 16 * 16),
          input_(make_buffer(bytes_)),
          output_(make_buffer(bytes_)),
          residual_(make_buffer(4 * count_)),
          encoded_(make_buffer(slot_)),
          sources_(make_buffer(slot_ * inputs_)) {
        fill_gaussian(input_.get(), dtype, count_);
        for (int32_t i = 0; i < inputs_; ++i) {
            encode(sources_.get() + i * slot_, nullptr);
        }
    }

    void run() {
        auto* residual = reinterpret_cast<float*>(residual_.get());
        report("encode", [&] { encode(encoded_.get(), nullptr); });
        report("encode_residual", [&] { encode(encoded_.get(), residual); });
        report("decode", [&] { decode(false); });
        report("decode_accumulate", [&] { decode(true); });
        report("decode_reduce_encode", [&] { reduce(nullptr); });
        report("decode_reduce_encode_residual", [&] { reduce(residual); });
    }

  private:
    void encode(uint8_t* to, float* residual) {
        spec_.codec->host.encode({.input = input_.get(),
                                  .output = to,
                                  .residual = residual,
                                  .scale_ptr = nullptr,
                                  .scale = 1.0f,
                                  .count = count_,
                                  .chunk_elems = count_,
                                  .slot_bytes = slot_,
                                  .params = spec_.params,
                                  .dtype = dtype_});
    }
    void decode(bool accumulate) {
        spec_.codec->host.decode({.input = sources_.get(),
                                  .output = output_.get(),
                                  .count = count_,
                                  .chunk_elems = count_,
                                  .slot_bytes = slot_,
                                  .params = spec_.params,
                                  .dtype = dtype_,
                                  .accumulate = accumulate});
    }
    void reduce(float* residual) {
        spec_.codec->host.decode_reduce_encode({.input = sources_.get(),
                                                .output = encoded_.get(),
                                                .residual = residual,
                                                .input_stride = slot_,
                                                .count = count_,
                                                .inputs = inputs_,
                                                .scale = 1.0f / static_cast<float>(inputs_),
                                                .params = spec_.params,
                                                .dtype = dtype_});
    }

    template <class Body>
    void report(const char* op, Body body) {
        const auto copy = [&] {
            std::memcpy(output_.get(), input_.get(), static_cast<size_t>(bytes_));
        };
        const double first = std::max(seconds_of(1, body), 1e-7);
        const int repeats = static_cast<int>(std::clamp(0.01 / first, 1.0, 1e5));
        std::vector<double> times;
        std::vector<double> copies;
        for (int round = 0; round < 9; ++round) {
            copies.push_back(seconds_of(repeats, copy));
            times.push_back(seconds_of(repeats, body));
        }
        const double gbps = static_cast<double>(bytes_) / median(times) / 1e9;
        const double baseline = static_cast<double>(bytes_) / median(copies) / 1e9;
        const auto rounded = [](double value) { return std::round(value * 1000) / 1000; };
        nlohmann::ordered_json line = {
            {"codec", spec_.to_string()},
            {"op", op},
            {"dtype", dtype_name(dtype_)},
            {"device", "host"},
            {"isa", isa_name(active_isa())},
            {"data", "gaussian"},
            {"bytes", bytes_},
            {"gbps", rounded(gbps)},
            {"baseline", "memcpy"},
            {"baseline_gbps", rounded(baseline)},
            {"fraction", rounded(gbps / baseline)},
            {"ratio", rounded(static_cast<double>(bytes_) / static_cast<double>(size_))}};
        if (std::string(op).rfind("decode_reduce", 0) == 0) {
            line["inputs"] = inputs_;
        }
        std::printf("%s\n", line.dump().c_str());
        std::fflush(stdout);
    }

    CodecSpec spec_;
    DType dtype_;
    int32_t inputs_;
    int64_t count_, bytes_, size_, slot_;
    Buffer input_, output_, residual_, encoded_, sources_;
};

int usage(const std::string& problem) {
    std::fprintf(stderr,
                 "codec_bench: %s\n"
                 "usage: codec_bench [--codec SPEC]... [--bytes N] [--inputs N] "
                 "[--isa scalar|avx2|avx512] [--dtype f32|f16|bf16]\n",
                 problem.c_str());
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string key = argv[i];
        const std::string value = argv[i + 1];
        if (key == "--codec") {
            options.codecs.push_back(value);
        } else if (key == "--bytes") {
            options.bytes = std::atoll(value.c_str());
        } else if (key == "--inputs") {
            options.inputs = std::atoi(value.c_str());
        } else if (key == "--isa") {
            options.isa = value;
        } else if (key == "--dtype") {
            options.dtype = value;
        } else {
            return usage("unknown option " + key);
        }
    }
    if (argc % 2 == 0) {
        return usage("an option lacks its value");
    }
    if (options.bytes < 64 || options.inputs < 1) {
        return usage("--bytes is at least 64 and --inputs at least 1");
    }
    if (!options.isa.empty()) {
        const Status status = force_isa(options.isa);
        if (!status.ok()) {
            return usage(status.message());
        }
    }
    if (options.codecs.empty()) {
        size_t count = 0;
        const CodecDescriptor* const* table = codec_table(&count);
        for (size_t i = 0; i < count; ++i) {
            options.codecs.emplace_back(table[i]->name);
        }
    }
    for (const std::string& text : options.codecs) {
        const auto spec = parse_codec(text);
        if (!spec.ok()) {
            return usage(spec.status().message());
        }
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
            const bool wanted = options.dtype.empty() || options.dtype == dtype_name(dtype);
            if (wanted && spec.value().accepts(dtype)) {
                Bench(spec.value(), dtype, options).run();
            }
        }
    }
    return 0;
}
