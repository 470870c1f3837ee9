// What the codec tests share: the specifications that stand for the registry, buffers with poisoned
// margins, and one call per operation that checks those margins.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codecs/base/isa.h"
#include "codecs/codec.h"
#include "tests/codecs/reference.h"
#include "tests/support/seed.h"

namespace slimwire::testing {

// Every codec of the registry with its defaults, and with those parameter variants that it accepts.
std::vector<CodecSpec> all_specs();
CodecSpec spec_of(const std::string& text);
inline constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBfloat16};
std::vector<Isa> all_isas();
// Runs `body` for each instruction set, the best one last.
template <class Body>
void on_all_isas(Body body) {
    for (const Isa isa : all_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        SCOPED_TRACE(isa_name(isa));
        body();
    }
}
// Finite magnitudes from this one on may become non-finite: by fp16, and where a rotation adds up.
double overflows_from(const CodecSpec& spec);

// True, but for three of four calls under a sanitizer: what takes long, and more so there, draws a
// sample of its situations, another one for each seed.
bool sampled(std::mt19937& random);

// Bytes between two margins of a known pattern, at a chosen distance from a 64-byte line. Less than
// a line behind them is a page that cannot be read or written.
class Guarded {
  public:
    explicit Guarded(int64_t bytes, int64_t misalignment = 0);
    Guarded(const Guarded& other);
    Guarded(Guarded&& other) noexcept = default;
    Guarded& operator=(Guarded other) noexcept;
    ~Guarded() = default;
    [[nodiscard]] uint8_t* data() { return pages_.get() + begin_; }
    [[nodiscard]] const uint8_t* data() const { return pages_.get() + begin_; }
    [[nodiscard]] int64_t size() const { return bytes_; }
    [[nodiscard]] bool margins_intact() const;
    // True when bytes [from, size) still have the pattern that they were created with.
    [[nodiscard]] bool untouched_from(int64_t from) const;
    [[nodiscard]] std::vector<uint8_t> copy(int64_t bytes) const {
        return {data(), data() + bytes};
    }

  private:
    struct Return {
        size_t bytes;
        void operator()(uint8_t* pages) const;
    };
    std::unique_ptr<uint8_t, Return> pages_{nullptr, Return{0}};
    size_t begin_;
    int64_t bytes_;
    int64_t misalignment_;
};

[[nodiscard]] int64_t slot_for(int64_t bytes);

// `count` elements of `dtype` with values around `magnitude`, and their fp32 values.
Guarded random_input(
    DType dtype, int64_t count, double magnitude, std::mt19937& random, int64_t misalignment = 0);
std::vector<float> values_of(const Guarded& buffer, DType dtype, int64_t count);

// p = factor * input + residual, with the roundings of the contract; `dtype` is the user's.
std::vector<float> expected_p(const std::vector<float>& input,
                              float factor,
                              const std::vector<float>* residual,
                              DType dtype = DType::kFloat32);

// Of one chunk of `count` elements in a slot of slot_for() its encoding; draws by reference::kKey.
EncodeArgs encode_args(
    const CodecSpec& spec, DType dtype, int64_t count, const void* input, void* output);
DecodeArgs decode_args(
    const CodecSpec& spec, DType dtype, int64_t count, const void* input, void* output);

// Of encodings, slot_for(their size) apart, their sum; draws by reference::kKey.
DecodeReduceEncodeArgs reduce_args(const CodecSpec& spec,
                                   DType dtype,
                                   int64_t count,
                                   const Guarded& sources,
                                   int32_t inputs,
                                   Guarded& output);

struct Encoded {
    Guarded bytes;
    int64_t size;
};
// Encodes one chunk; checks that nothing outside the encoding was written.
Encoded encode(const CodecSpec& spec,
               DType dtype,
               const Guarded& input,
               int64_t count,
               std::vector<float>* residual = nullptr,
               float scale = 1.0f,
               const void* scale_ptr = nullptr,
               const RandomKey& random = reference::kKey);

// Encodes one chunk as number `source` of sources, slot_for(their size) apart.
void put_source(const CodecSpec& spec,
                DType dtype,
                const Guarded& input,
                int64_t count,
                Guarded& sources,
                int64_t source);

// Decodes one chunk into `output`, checks its margins; the status comes back.
uint32_t decode(const CodecSpec& spec,
                DType dtype,
                const uint8_t* bytes,
                int64_t count,
                Guarded& output,
                bool accumulate = false);

// Sums `inputs` encodings of `count` elements, slot_for(their size) apart, into `output`, checks
// its margins; the status comes back.
uint32_t decode_reduce(const CodecSpec& spec,
                       DType dtype,
                       const uint8_t* sources,
                       int32_t inputs,
                       int64_t count,
                       float scale,
                       Guarded& output,
                       float input_scale = 1.0f,
                       SumLimit sum_limit = {});

bool same_bits(float a, float b);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

// Values with a margin behind them.
inline constexpr size_t kMarginElems = 16;
std::vector<float> guarded(std::vector<float> values);
bool margin_intact(const std::vector<float>& values);

}  // namespace slimwire::testing
