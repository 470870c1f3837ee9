#include "tools/cli/codec/codec_trial.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "codecs/base/isa.h"
#include "tools/cli/codec/tensor_file.h"
#include "tools/cli/common/median.h"

namespace slimwire::cli {
namespace {

constexpr size_t kPage = 4096;
constexpr double kRoundSeconds = 0.01;

double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds_of(int repeats, const std::function<void()>& body) {
    const double begin = thread_seconds();
    for (int i = 0; i < repeats; ++i) {
        body();
    }
    return (thread_seconds() - begin) / repeats;
}

int repeats_for(const std::function<void()>& body) {
    const double first = std::max(seconds_of(1, body), 1e-7);
    return static_cast<int>(std::clamp(kRoundSeconds / first, 1.0, 1e5));
}

using Words = uint64_t __attribute__((vector_size(64)));

[[gnu::always_inline]] inline uint64_t sum_words(const uint8_t* from, int64_t bytes) {
    constexpr int kChains = 4;
    Words sums[kChains] = {};
    int64_t i = 0;
    for (; i + kChains * 64 <= bytes; i += kChains * 64) {
        for (int k = 0; k < kChains; ++k) {
            Words words;
            std::memcpy(&words, from + i + k * 64, sizeof(words));
            sums[k] += words;
        }
    }
    const Words all = sums[0] + sums[1] + sums[2] + sums[3];
    uint64_t sum = 0;
    for (int k = 0; k < 8; ++k) {
        sum += all[k];
    }
    for (; i < bytes; ++i) {
        sum += from[i];
    }
    return sum;
}

#if defined(__x86_64__)
[[gnu::target("avx512f")]] uint64_t sum_words_avx512(const uint8_t* from, int64_t bytes) {
    return sum_words(from, bytes);
}
[[gnu::target("avx2")]] uint64_t sum_words_avx2(const uint8_t* from, int64_t bytes) {
    return sum_words(from, bytes);
}
#endif

}  // namespace

Buffer::Buffer(int64_t bytes) {
    const size_t size =
        (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + kPage - 1) / kPage * kPage;
    data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kPage, size)));
    if (!data_) {
        throw std::bad_alloc();
    }
    std::memset(data_.get(), 0, size);
}

void Buffer::Free::operator()(uint8_t* p) const {
    std::free(p);
}

EncodeArgs TrialArgs::encode(const void* input, void* output, float* residual) const {
    return {.input = input,
            .output = output,
            .residual = residual,
            .scale_ptr = nullptr,
            .scale = 1.0f,
            .count = count,
            .chunk_elems = count,
            .slot_bytes = slot,
            .params = spec.params,
            .dtype = dtype,
            .random = {.seed = 1}};
}

DecodeArgs TrialArgs::decode(const void* input, void* output, bool accumulate) const {
    return {.input = input,
            .output = output,
            .count = count,
            .chunk_elems = count,
            .slot_bytes = slot,
            .params = spec.params,
            .dtype = dtype,
            .accumulate = accumulate};
}

DecodeReduceEncodeArgs TrialArgs::reduce(const void* sources, void* output) const {
    return {.input = sources,
            .output = output,
            .residual = nullptr,
            .input_stride = slot,
            .count = count,
            .inputs = inputs,
            .scale = 1.0f / static_cast<float>(inputs),
            .params = spec.params,
            .dtype = dtype,
            .random = {.seed = 1}};
}

DecodeReduceArgs TrialArgs::sum(const void* sources, void* output) const {
    return {.input = sources,
            .output = output,
            .input_stride = slot,
            .count = count,
            .inputs = inputs,
            .scale = 1.0f / static_cast<float>(inputs),
            .params = spec.params,
            .dtype = dtype};
}

CodecTrial::CodecTrial(
    const CodecSpec& spec, DType dtype, int64_t count, const uint8_t* input, int32_t inputs)
    : args_{spec, dtype, count, spec.reduces() ? inputs : 0},
      input_(input),
      output_(args_.bytes),
      encoded_(args_.slot),
      residual_(4 * count),
      sources_(args_.slot * args_.inputs),
      reduced_(args_.inputs > 0 ? args_.slot : 0) {
    if (args_.inputs == 0) {
        return;
    }
    const Buffer rotated(args_.bytes);
    for (int32_t k = 0; k < args_.inputs; ++k) {
        const int64_t at = count * k / args_.inputs * static_cast<int64_t>(dtype_bytes(dtype));
        std::memcpy(rotated.data(), input_ + at, static_cast<size_t>(args_.bytes - at));
        std::memcpy(rotated.data() + args_.bytes - at, input_, static_cast<size_t>(at));
        encode_into(rotated.data(), sources_.data() + k * args_.slot, nullptr);
    }
}

void CodecTrial::encode_into(const uint8_t* input, uint8_t* output, float* residual) {
    args_.spec.codec->host.encode(with_status(args_.encode(input, output, residual)));
}

void CodecTrial::encode() {
    encode_into(input_, encoded_.data(), nullptr);
}

void CodecTrial::encode_residual() {
    encode_into(input_, encoded_.data(), reinterpret_cast<float*>(residual_.data()));
}

void CodecTrial::decode_from(const uint8_t* input, bool accumulate) {
    args_.spec.codec->host.decode(with_status(args_.decode(input, output_.data(), accumulate)));
}

void CodecTrial::decode_reduce_encode() {
    args_.spec.codec->host.decode_reduce_encode(
        with_status(args_.reduce(sources_.data(), reduced_.data())));
}

void CodecTrial::decode_reduce() {
    args_.spec.codec->host.decode_reduce(with_status(args_.sum(sources_.data(), output_.data())));
}

Result<int64_t> CodecTrial::encoded_size() const {
    return check_encoding(args_.spec, args_.dtype, args_.count, encoded_.data(),
                          args_.spec.encoded_bytes(args_.dtype, args_.count));
}

double CodecTrial::error() const {
    return relative_error(args_.dtype, output_.data(), input_, args_.count);
}

bool CodecTrial::exact() const {
    return std::memcmp(output_.data(), input_, static_cast<size_t>(args_.bytes)) == 0;
}

double CodecTrial::reduced_error() {
    decode_from(reduced_.data(), false);
    return summed_error();
}

double CodecTrial::summed_error() const {
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < args_.count; ++i) {
        double mean = 0;
        for (int32_t k = 0; k < args_.inputs; ++k) {
            mean +=
                element(args_.dtype, input_, (i + args_.count * k / args_.inputs) % args_.count);
        }
        mean /= args_.inputs;
        const double off = element(args_.dtype, output_.data(), i) - mean;
        difference += off * off;
        norm += mean * mean;
    }
    return difference == 0 ? 0 : std::sqrt(difference / norm);
}

Timing time_in_turn(const std::function<void()>& body,
                    const std::function<void()>& baseline,
                    int rounds) {
    const int repeats = repeats_for(body);
    const int baseline_repeats = repeats_for(baseline);
    std::vector<double> times;
    std::vector<double> baseline_times;
    for (int round = 0; round < rounds; ++round) {
        baseline_times.push_back(seconds_of(baseline_repeats, baseline));
        times.push_back(seconds_of(repeats, body));
    }
    return {median(times), median(baseline_times)};
}

uint64_t read_all(const uint8_t* from, int64_t bytes) {
#if defined(__x86_64__)
    if (active_isa() == Isa::kAvx512) {
        return sum_words_avx512(from, bytes);
    }
    if (active_isa() == Isa::kAvx2) {
        return sum_words_avx2(from, bytes);
    }
#endif
    return sum_words(from, bytes);
}

}  // namespace slimwire::cli
