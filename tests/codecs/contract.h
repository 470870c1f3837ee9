// The contract of codec.h, for every codec of the registry, element type and instruction set, in
// the files contract_*_test.cpp, one a concern. What is asked of a codec follows from its traits
// and its operations, never from its name: one that is added is covered by what stands there, and
// its own file adds what only it promises.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/codecs/fixture.h"

namespace slimwire::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Contract : public ::testing::Test {
  protected:
    // Runs `body` for each specification of a lossy codec, float type and, in turn, instruction
    // set.
    template <class Body>
    void for_all(Body body) {
        for_some(
            [](const CodecSpec& spec, DType dtype) { return is_float(dtype) && !lossless(spec); },
            body);
    }
    // Each of a lossless codec and element type that it takes.
    template <class Body>
    void for_lossless(Body body) {
        for_some([](const CodecSpec& spec,
                    DType dtype) { return lossless(spec) && spec.accepts(dtype); },
                 body);
    }
    // Each codec with the float types that it takes.
    template <class Body>
    void for_every(Body body) {
        for_some([](const CodecSpec& spec,
                    DType dtype) { return is_float(dtype) && spec.accepts(dtype); },
                 body);
    }

    // What the reference decodes, as elements; -0 and +0 count as one where a codec may leave
    // elements alone.
    void expect_decodes_to(const CodecSpec& spec,
                           DType dtype,
                           const uint8_t* bytes,
                           int64_t count,
                           const std::vector<float>& before,
                           bool accumulate);

    static bool is_float(DType dtype) {
        return std::find(std::begin(kFloatTypes), std::end(kFloatTypes), dtype) !=
               std::end(kFloatTypes);
    }
    static bool lossless(const CodecSpec& spec) { return spec.traits(DType::kBfloat16).lossless; }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};

  private:
    // In the sanitizer build only what is checked there: the others run optimised, as they ship.
    static std::vector<Isa> isas() {
#ifdef __SANITIZE_ADDRESS__
        return {Isa::kScalar};
#else
        return all_isas();
#endif
    }

    template <class Choose, class Body>
    void for_some(Choose choose, Body body) {
        uint32_t number = 0;
        for (const CodecSpec& spec : all_specs()) {
            for (int type = 0; type < kDTypeCount; ++type) {
                const auto dtype = static_cast<DType>(type);
                ++number;
                if (!choose(spec, dtype)) {
                    continue;
                }
                for (const Isa isa : isas()) {
                    ASSERT_TRUE(force_isa(isa).ok());
                    // The same on machines that have other instruction sets.
                    std::seed_seq own{seed_, number, static_cast<uint32_t>(isa)};
                    random_.seed(own);
                    SCOPED_TRACE(std::string(isa_name(isa)) + " " + spec.to_string() + " " +
                                 dtype_name(dtype) + " seed " + std::to_string(seed_));
                    body(spec, dtype);
                    if (HasFailure()) {
                        return;
                    }
                }
            }
        }
    }
};

inline void Contract::expect_decodes_to(const CodecSpec& spec,
                                        DType dtype,
                                        const uint8_t* bytes,
                                        int64_t count,
                                        const std::vector<float>& before,
                                        bool accumulate) {
    const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
    Guarded output(count * element_bytes);
    Guarded expected(count * element_bytes);
    const std::vector<float> decoded = reference::decode(spec, bytes, count, dtype);
    for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        reference::set_element(output.data(), dtype, i, before[at]);
        const float old = reference::element(output.data(), dtype, i);
        reference::set_element(expected.data(), dtype, i,
                               accumulate ? old + decoded[at] : decoded[at]);
    }
    decode(spec, dtype, bytes, count, output, accumulate);
    for (int64_t i = 0; accumulate && i < count && spec.traits(dtype).poison_elems == 0; ++i) {
        // A sparsifier leaves -0 alone where it adds nothing.
        if (reference::element(output.data(), dtype, i) == 0 &&
            reference::element(expected.data(), dtype, i) == 0) {
            reference::set_element(output.data(), dtype, i, 0);
            reference::set_element(expected.data(), dtype, i, 0);
        }
    }
    EXPECT_EQ(output.copy(output.size()), expected.copy(expected.size()));
}

// Elements whose error and poison go together.
inline int64_t unit_of(const CodecSpec& spec, DType dtype, int64_t count) {
    const int64_t elems = spec.traits(dtype).poison_elems;
    return elems == 0 ? count : elems;
}

inline bool draws(const CodecSpec& spec) {
    return spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
}

inline bool all_finite(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

inline std::vector<int64_t> edge_sizes(const CodecSpec& spec, DType dtype) {
    const int64_t granule = spec.granule(dtype);
    return {0,    1,           2,       15,          16,           17,  31,
            127,  granule - 1, granule, granule + 1, 2 * granule,  251, 3 * granule + 7,
            1009, 2047,        2048,    2049,        4 * 1024 + 33};
}

}  // namespace slimwire::testing
