// What the tests of the sparsifiers share: every instruction set in turn, short ways to encode and
// decode, the words of a header.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "codecs/sparse/sparse_plan.h"
#include "tests/codecs/fixture.h"

namespace slimwire::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr DType kFp32 = DType::kFloat32;

class Sparse : public ::testing::Test {
  protected:
    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
};

inline Guarded buffer_of(const std::vector<float>& values, DType dtype = kFp32) {
    Guarded buffer(static_cast<int64_t>(values.size() * dtype_bytes(dtype)));
    for (size_t i = 0; i < values.size(); ++i) {
        reference::set_element(buffer.data(), dtype, static_cast<int64_t>(i), values[i]);
    }
    return buffer;
}

inline std::vector<float> decoded_of(const CodecSpec& spec, const Encoded& encoded, int64_t count) {
    Guarded output(4 * count);
    decode(spec, kFp32, encoded.bytes.data(), count, output);
    return values_of(output, kFp32, count);
}

// What `values` decode to.
inline std::vector<float> sent_of(const CodecSpec& spec,
                                  const std::vector<float>& values,
                                  std::vector<float>* residual = nullptr) {
    const auto count = static_cast<int64_t>(values.size());
    return decoded_of(spec, encode(spec, kFp32, buffer_of(values), count, residual), count);
}

inline uint32_t word_of(const Encoded& encoded, int word) {
    uint32_t value = 0;
    std::memcpy(&value, encoded.bytes.data() + 4 * word, 4);
    return value;
}

}  // namespace slimwire::testing
