#include "tools/cli/codec/codec_trial.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "codecs/base/isa.h"
#include "tools/cli/codec/elements.h"
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

CodecTrial::CodecTrial(
    const CodecSpec& spec, DType dtype, int64_t count, const uint8_t* input, int32_t inputs)
    : spec_(spec),
      dtype_(dtype),
      count_(count),
      bytes_(count * static_cast<int64_t>(dtype_bytes(dtype))),
      slot_((spec.encoded_bytes(dtype, count) + 15) / 16 * 16),
      inputs_(spec.reduces() ? inputs : 0),
      input_(input),
      output_(bytes_),
      encoded_(slot_),
      residual_(4 * count),
      sources_(slot_ * inputs_),
      reduced_(inputs_ > 0 ? slot_ : 0) {
    if (inputs_ == 0) {
        return;
    }
    const Buffer rotated(bytes_);
    for (int32_t k = 0; k < inputs_; ++k) {
        const int64_t at = count_ * k / inputs_ * static_cast<int64_t>(dtype_bytes(dtype_));
        std::memcpy(rotated.data(), input_ + at, static_cast<size_t>(bytes_ - at));
        std::memcpy(rotated.data() + bytes_ - at, input_, static_cast<size_t>(at));
        encode_into(rotated.data(), sources_.data() + k * slot_, nullptr);
    }
}

void CodecTrial::encode_into(const uint8_t* input, uint8_t* output, float* residual) {
    spec_.codec->host.encode({.input = input,
                              .output = output,
                              .residual = residual,
                              .count = count_,
                              .chunk_elems = count_,
                              .slot_bytes = slot_,
                              .params = spec_.params,
                              .dtype = dtype_,
                              .random = {.seed = 1},
                              .status = &status_});
}

void CodecTrial::encode() {
    encode_into(input_, encoded_.data(), nullptr);
}

void CodecTrial::encode_residual() {
    encode_into(input_, encoded_.data(), reinterpret_cast<float*>(residual_.data()));
}

void CodecTrial::decode_from(const uint8_t* input, bool accumulate) {
    spec_.codec->host.decode({.input = input,
                              .output = output_.data(),
                              .count = count_,
                              .chunk_elems = count_,
                              .slot_bytes = slot_,
                              .params = spec_.params,
                              .dtype = dtype_,
                              .accumulate = accumulate,
                              .status = &status_});
}

void CodecTrial::decode_reduce_encode() {
    spec_.codec->host.decode_reduce_encode({.input = sources_.data(),
                                            .output = reduced_.data(),
                                            .input_stride = slot_,
                                            .count = count_,
                                            .inputs = inputs_,
                                            .scale = 1.0f / static_cast<float>(inputs_),
                                            .params = spec_.params,
                                            .dtype = dtype_,
                                            .random = {.seed = 1},
                                            .status = &status_});
}

void CodecTrial::decode_reduce() {
    spec_.codec->host.decode_reduce({.input = sources_.data(),
                                     .output = output_.data(),
                                     .input_stride = slot_,
                                     .count = count_,
                                     .inputs = inputs_,
                                     .scale = 1.0f / static_cast<float>(inputs_),
                                     .params = spec_.params,
                                     .dtype = dtype_,
                                     .status = &status_});
}

Result<int64_t> CodecTrial::encoded_size() const {
    return check_encoding(spec_, dtype_, count_, encoded_.data(),
                          spec_.encoded_bytes(dtype_, count_));
}

double CodecTrial::error() const {
    return relative_error(dtype_, output_.data(), input_, count_);
}

bool CodecTrial::exact() const {
    return std::memcmp(output_.data(), input_, static_cast<size_t>(bytes_)) == 0;
}

double CodecTrial::reduced_error() {
    decode_from(reduced_.data(), false);
    return summed_error();
}

double CodecTrial::summed_error() const {
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < count_; ++i) {
        double mean = 0;
        for (int32_t k = 0; k < inputs_; ++k) {
            mean += element(dtype_, input_, (i + count_ * k / inputs_) % count_);
        }
        mean /= inputs_;
        const double off = element(dtype_, output_.data(), i) - mean;
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
