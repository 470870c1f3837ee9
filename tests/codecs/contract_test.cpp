// The contract of codec.h, for every codec of the registry, element type and instruction set. A
// codec that is added is covered by what stands here; its own file adds what only it promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/codecs/fixture.h"

namespace slimwire::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Contract : public ::testing::Test {
  protected:
    void TearDown() override {
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());  // the best one again
        }
    }

    // Runs `body` for each instruction set, specification and element type.
    template <class Body>
    void for_all(Body body) {
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            for (const CodecSpec& spec : all_specs()) {
                for (const DType dtype : kFloatTypes) {
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

    void expect_decodes_to(const CodecSpec& spec,
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

    uint32_t seed_ = fresh_seed();
    std::mt19937 random_{seed_};
};

// Elements whose error and poison go together; 1 without blocks.
int64_t unit_of(const CodecSpec& spec) {
    return std::max({int64_t{1}, int64_t{spec.params.block}, int64_t{spec.params.rotate}});
}

bool draws(const CodecSpec& spec) {
    return spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
}

// Whether the number of the chunk changes the encoding.
bool depends_on_chunk(const CodecSpec& spec) {
    return draws(spec) || spec.codec->name == std::string("randomk");
}

bool all_finite(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

std::vector<int64_t> edge_sizes(const CodecSpec& spec, DType dtype) {
    const int64_t granule = spec.granule(dtype);
    return {0,    1,           2,       15,          16,           17,  31,
            127,  granule - 1, granule, granule + 1, 2 * granule,  251, 3 * granule + 7,
            1009, 2047,        2048,    2049,        4 * 1024 + 33};
}

TEST_F(Contract, SizesAroundEveryEdgeEqualTheReference) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        for (const int64_t count : edge_sizes(spec, dtype)) {
            const Guarded input = random_input(dtype, count, 1.0, random_);
            const std::vector<float> p = values_of(input, dtype, count);
            const Encoded encoded = encode(spec, dtype, input, count);
            EXPECT_EQ(encoded.size == 0, count == 0);
            const auto expected = reference::encode(spec, p, {}, dtype);
            if (expected) {
                ASSERT_EQ(encoded.bytes.copy(encoded.size), *expected) << count;
            }
            expect_decodes_to(spec, dtype, encoded.bytes.data(), count, p, false);
            expect_decodes_to(spec, dtype, encoded.bytes.data(), count, p, true);
        }
    });
}

TEST_F(Contract, ErrorStaysWithinTheBound) {
    for_all([&](const CodecSpec& spec, DType) {
        const int64_t count = 4 * 2048 + 5;
        const int64_t block = unit_of(spec);
        const double bound = spec.codec->block_error_bound(spec.params, DType::kFloat32);
        const double smallest = spec.traits(DType::kFloat32).smallest_error;
        for (const double magnitude : {1e-30, 1e-3, 1.0, 300.0}) {
            const Guarded input = random_input(DType::kFloat32, count, magnitude, random_);
            const std::vector<float> p = values_of(input, DType::kFloat32, count);
            const Encoded encoded = encode(spec, DType::kFloat32, input, count);
            Guarded output(4 * count);
            decode(spec, DType::kFloat32, encoded.bytes.data(), count, output);
            for (int64_t b = 0; b < count; b += block) {
                double largest = 0;
                double error = 0;
                for (int64_t i = b; i < std::min(b + block, count); ++i) {
                    const double value = p[static_cast<size_t>(i)];
                    largest = std::max(largest, std::abs(value));
                    error = std::max(
                        error,
                        std::abs(value - reference::element(output.data(), DType::kFloat32, i)));
                }
                ASSERT_LE(error, bound * largest + smallest) << "block at " << b;
            }
        }
    });
}

TEST_F(Contract, EveryAlignmentGivesTheSameBytes) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t count = 2 * spec.granule(dtype) + 3;
        const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
        const Guarded straight = random_input(dtype, count, 1.0, random_);
        const Encoded expected = encode(spec, dtype, straight, count);
        Guarded decoded(straight.size());
        decode(spec, dtype, expected.bytes.data(), count, decoded);
        for (int64_t shift = element_bytes; shift < 64; shift += element_bytes) {
            Guarded input(straight.size(), shift);
            std::memcpy(input.data(), straight.data(), static_cast<size_t>(straight.size()));
            const Encoded encoded = encode(spec, dtype, input, count);
            ASSERT_EQ(encoded.bytes.copy(encoded.size), expected.bytes.copy(expected.size));
            Guarded output(straight.size(), shift);
            decode(spec, dtype, encoded.bytes.data(), count, output);
            ASSERT_EQ(output.copy(output.size()), decoded.copy(decoded.size()));
        }
    });
}

TEST_F(Contract, ChunksAreIndependentAndEmptySlotsUntouched) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t chunk = 3 * spec.granule(dtype);
        const int64_t count = 2 * chunk + 5;
        const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
        const int64_t slot = slot_for(spec.encoded_bytes(dtype, chunk));
        const Guarded input = random_input(dtype, count, 1.0, random_);
        Guarded output(4 * slot);  // three chunks hold elements
        std::vector<float> residual(static_cast<size_t>(count), 0.25f);
        spec.codec->host.encode({.input = input.data(),
                                 .output = output.data(),
                                 .residual = residual.data(),
                                 .scale_ptr = nullptr,
                                 .scale = 0.5f,
                                 .count = count,
                                 .chunk_elems = chunk,
                                 .slot_bytes = slot,
                                 .params = spec.params,
                                 .dtype = dtype,
                                 .random = reference::kKey});
        EXPECT_TRUE(output.margins_intact());
        for (int64_t c = 0; c < 3; ++c) {
            const int64_t elems = std::min(chunk, count - c * chunk);
            Guarded part(elems * element_bytes);
            std::memcpy(part.data(), input.data() + c * chunk * element_bytes,
                        static_cast<size_t>(part.size()));
            std::vector<float> old(static_cast<size_t>(elems), 0.25f);
            const std::vector<float> p = expected_p(values_of(part, dtype, elems), 0.5f, &old);
            const Encoded alone = encode(spec, dtype, part, elems, &old, 0.5f);
            const uint8_t* begin = output.data() + c * slot;
            const std::vector<uint8_t> bytes(begin, begin + alone.size);
            const auto expected =
                reference::encode(spec, p, {.chunk = static_cast<uint32_t>(c)}, dtype);
            if (expected) {
                ASSERT_EQ(bytes, *expected) << "chunk " << c;
            }
            ASSERT_TRUE(std::all_of(begin + alone.size, begin + slot,
                                    [](uint8_t byte) { return byte == 0xA5; }));
            if (c == 0 || !depends_on_chunk(spec)) {
                ASSERT_EQ(bytes, alone.bytes.copy(alone.size));
                ASSERT_TRUE(std::equal(old.begin(), old.end(), residual.begin() + c * chunk));
            }
        }
        EXPECT_TRUE(output.untouched_from(3 * slot));

        Guarded decoded(count * element_bytes);
        spec.codec->host.decode({.input = output.data(),
                                 .output = decoded.data(),
                                 .count = count,
                                 .chunk_elems = chunk,
                                 .slot_bytes = slot,
                                 .params = spec.params,
                                 .dtype = dtype,
                                 .accumulate = false});
        EXPECT_TRUE(decoded.margins_intact());
        Guarded last(5 * element_bytes);
        decode(spec, dtype, output.data() + 2 * slot, 5, last);
        EXPECT_EQ(std::memcmp(last.data(), decoded.data() + 2 * chunk * element_bytes,
                              static_cast<size_t>(last.size())),
                  0);
    });
}

TEST_F(Contract, ResidualIsExactlyWhatWasLost) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t count = 2 * spec.granule(dtype) + 21;
        std::vector<float> residual(static_cast<size_t>(count));
        for (int step = 0; step < 4; ++step) {
            const Guarded input = random_input(dtype, count, 1.0, random_);
            const std::vector<float> p =
                expected_p(values_of(input, dtype, count), 0.75f, &residual);
            const Encoded encoded = encode(spec, dtype, input, count, &residual, 0.75f);
            const std::vector<float> decoded =
                reference::decode(spec, encoded.bytes.data(), count, dtype);
            const auto expected = reference::encode(spec, p, {}, dtype);
            if (expected) {
                ASSERT_EQ(encoded.bytes.copy(encoded.size), *expected);
            }
            for (size_t i = 0; i < p.size(); ++i) {
                const double lost = static_cast<double>(p[i]) - static_cast<double>(decoded[i]);
                ASSERT_TRUE(same_bits(residual[i], static_cast<float>(lost)) ||
                            (lost == 0 && residual[i] == 0))
                    << i << ": " << residual[i] << " of " << lost;
            }
        }
    });
}

TEST_F(Contract, EveryPartOfTheKeyChangesWhatIsDrawnAndTheStepPointerAdds) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (dtype != DType::kFloat32 || !draws(spec)) {
            return;
        }
        const int64_t count = 2 * spec.granule(dtype) + 100;
        const Guarded input = random_input(dtype, count, 1.0, random_);
        const auto encoding = [&](const RandomKey& key) {
            const Encoded encoded = encode(spec, dtype, input, count, nullptr, 1.0f, nullptr, key);
            return encoded.bytes.copy(encoded.size);
        };
        const RandomKey key = {.seed = 1, .tensor = 2, .rank = 3, .step = 4};
        std::vector<RandomKey> others(5, key);
        ++others[0].seed;
        ++others[1].tensor;
        ++others[2].rank;
        ++others[3].step;
        const uint32_t steps = 0xFFFFFFFFu;
        others[4].step_ptr = &steps;
        for (const RandomKey& other : others) {
            EXPECT_NE(encoding(other), encoding(key));
        }
        others[4].step = 5;
        EXPECT_EQ(encoding(others[4]), encoding(key));
    });
}

// Errors of many draws, as fractions of the bound, towards larger values and away from zero.
TEST_F(Contract, StochasticRoundingHasNoBias) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (dtype != DType::kFloat32 || !draws(spec) || spec.traits(dtype).poison_elems == 0) {
            return;
        }
        const int64_t block = spec.traits(dtype).poison_elems;
        const int64_t count = 8 * std::max<int64_t>(block, 128);
        const Guarded input = random_input(dtype, count, 1.0, random_);
        const std::vector<float> p = values_of(input, dtype, count);
        const double bound = spec.codec->block_error_bound(spec.params, dtype);
        constexpr uint32_t kSteps = 100;
        double up = 0;
        double away = 0;
        Guarded output(4 * count);
        for (uint32_t step = 0; step < kSteps; ++step) {
            const Encoded encoded = encode(spec, dtype, input, count, nullptr, 1.0f, nullptr,
                                           {.seed = seed_, .step = step});
            decode(spec, dtype, encoded.bytes.data(), count, output);
            for (int64_t b = 0; b < count; b += block) {
                double largest = 0;
                for (int64_t i = b; i < b + block; ++i) {
                    largest = std::max(largest, std::abs(double{p[static_cast<size_t>(i)]}));
                }
                for (int64_t i = b; i < b + block; ++i) {
                    const double value = p[static_cast<size_t>(i)];
                    const double error =
                        (reference::element(output.data(), dtype, i) - value) / (bound * largest);
                    up += error;
                    away += value < 0 ? -error : error;
                }
            }
        }
        const double draws_made = static_cast<double>(count) * kSteps;
        const double limit = 1.0 / 512 + 5 * 0.5 / std::sqrt(draws_made);
        EXPECT_LE(std::abs(up / draws_made), limit);
        EXPECT_LE(std::abs(away / draws_made), limit);
    });
}

TEST_F(Contract, ScalePointerIsReadInTheElementType) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t count = spec.granule(dtype) + 9;
        const Guarded input = random_input(dtype, count, 2.0, random_);
        Guarded factor(static_cast<int64_t>(dtype_bytes(dtype)));
        reference::set_element(factor.data(), dtype, 0, 0.3f);
        const float product = 0.7f * reference::element(factor.data(), dtype, 0);
        const Encoded by_pointer = encode(spec, dtype, input, count, nullptr, 0.7f, factor.data());
        const Encoded by_value = encode(spec, dtype, input, count, nullptr, product);
        EXPECT_EQ(by_pointer.bytes.copy(by_pointer.size), by_value.bytes.copy(by_value.size));
        const Encoded plain = encode(spec, dtype, input, count);
        EXPECT_NE(by_value.bytes.copy(by_value.size), plain.bytes.copy(plain.size));
    });
}

TEST_F(Contract, NonFiniteAtEveryPositionPoisonsItsBlockOnly) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t block = unit_of(spec);
        const int64_t count = std::min<int64_t>(2 * block, 300) + 17;
        const int64_t step = block > 128 ? 37 : 1;
        const Guarded clean = random_input(dtype, count, 1.0, random_);
        for (const float special : {kNan, -kNan, kInfinity, -kInfinity}) {
            for (int64_t at = 0; at < count; at += step) {
                Guarded input = clean;
                reference::set_element(input.data(), dtype, at, special);
                std::vector<float> residual(static_cast<size_t>(count), 0.125f);
                const Encoded encoded = encode(spec, dtype, input, count, &residual);
                Guarded output(input.size());
                decode(spec, dtype, encoded.bytes.data(), count, output);
                if (spec.traits(dtype).poison_elems == 0) {
                    ASSERT_TRUE(all_finite(residual));
                    ASSERT_FALSE(all_finite(values_of(output, dtype, count)))
                        << special << " at " << at;
                    ASSERT_EQ(residual[static_cast<size_t>(at)], 0.125f);
                    continue;
                }
                for (int64_t i = 0; i < count; ++i) {
                    const float value = reference::element(output.data(), dtype, i);
                    const float left = residual[static_cast<size_t>(i)];
                    ASSERT_TRUE(std::isfinite(left));
                    if (i / block == at / block) {
                        ASSERT_FALSE(std::isfinite(value)) << special << " at " << at << ", " << i;
                        ASSERT_EQ(left, 0.125f);
                    } else {
                        ASSERT_TRUE(std::isfinite(value)) << special << " at " << at << ", " << i;
                    }
                }
            }
        }
    });
}

TEST_F(Contract, FiniteExtremesStayFinite) {
    const float extremes[] = {
        0.0f,      -0.0f,           0x1p-149f,        -0x1p-149f, 0x1.fffffcp-127f,
        0x1p-126f, 0x1.fffffep127f, -0x1.fffffep127f, 0x1p127f,   65504.0f,
        65520.0f};
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t count = std::min<int64_t>(spec.granule(dtype), 128) + 17;
        for (const float extreme : extremes) {
            for (const float other : {0.0f, 1e-42f, 1.0f, 1e38f}) {
                Guarded input(count * static_cast<int64_t>(dtype_bytes(dtype)));
                for (int64_t i = 0; i < count; ++i) {
                    reference::set_element(input.data(), dtype, i, i % 5 == 3 ? extreme : other);
                }
                std::vector<float> residual(static_cast<size_t>(count));
                const std::vector<float> p =
                    expected_p(values_of(input, dtype, count), 1.0f, &residual);
                const Encoded encoded = encode(spec, dtype, input, count, &residual);
                const auto expected = reference::encode(spec, p, {}, dtype);
                if (expected) {
                    ASSERT_EQ(encoded.bytes.copy(encoded.size), *expected)
                        << extreme << " among " << other;
                }
                const std::vector<float> decoded =
                    reference::decode(spec, encoded.bytes.data(), count, dtype);
                for (size_t i = 0; i < p.size(); ++i) {
                    if (std::isfinite(p[i])) {
                        ASSERT_TRUE(std::isfinite(residual[i]));
                    }
                }
                // The sums of a rotation must stay finite too.
                const double room =
                    std::numeric_limits<float>::max() / std::max<double>(spec.params.rotate, 1);
                if (std::all_of(p.begin(), p.end(),
                                [&](float v) { return std::abs(double{v}) <= room; })) {
                    ASSERT_TRUE(std::all_of(decoded.begin(), decoded.end(),
                                            [](float v) { return std::isfinite(v); }))
                        << extreme << " among " << other;
                }
            }
        }
    });
}

TEST_F(Contract, All65536PatternsOfSixteenBitElements) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (dtype == DType::kFloat32) {
            return;
        }
        constexpr int64_t kCount = 65536;
        Guarded input(2 * kCount);
        for (int64_t i = 0; i < kCount; ++i) {
            const auto bits = static_cast<uint16_t>(i);
            std::memcpy(input.data() + 2 * i, &bits, 2);
        }
        const std::vector<float> p = values_of(input, dtype, kCount);
        const Encoded encoded = encode(spec, dtype, input, kCount);
        const auto expected = reference::encode(spec, p, {}, dtype);
        if (expected) {
            ASSERT_EQ(encoded.bytes.copy(encoded.size), *expected);
        }
        expect_decodes_to(spec, dtype, encoded.bytes.data(), kCount, p, false);
        expect_decodes_to(spec, dtype, encoded.bytes.data(), kCount, p, true);
    });
}

TEST_F(Contract, DecodeReduceEncodeEqualsTheUnfusedSequence) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        // Sums before and after a rotation round differently: block_int_test.cpp has those.
        if (dtype != DType::kFloat32 || !spec.reduces() || spec.params.rotate != 0) {
            return;
        }
        for (const int32_t inputs : {1, 2, 4, 7}) {
            for (const int64_t count :
                 {int64_t{1}, spec.granule(dtype) + 5, int64_t{2048}, int64_t{5000}}) {
                const int64_t size = spec.encoded_bytes(dtype, count);
                const int64_t stride = slot_for(size);
                Guarded sources(stride * inputs);
                Guarded sum(4 * count);
                for (int32_t i = 0; i < inputs; ++i) {
                    const Guarded input = random_input(dtype, count, 1.0 + i, random_);
                    const Encoded encoded = encode(spec, dtype, input, count);
                    std::memcpy(sources.data() + i * stride, encoded.bytes.data(),
                                static_cast<size_t>(size));
                    decode(spec, dtype, sources.data() + i * stride, count, sum, i > 0);
                }
                for (const bool feedback : {false, true}) {
                    std::vector<float> residual(static_cast<size_t>(count), 0.0625f);
                    std::vector<float> expected_residual = residual;
                    Guarded output(stride);
                    spec.codec->host.decode_reduce_encode(
                        {.input = sources.data(),
                         .output = output.data(),
                         .residual = feedback ? residual.data() : nullptr,
                         .input_stride = stride,
                         .count = count,
                         .inputs = inputs,
                         .scale = 0.25f,
                         .params = spec.params,
                         .dtype = dtype,
                         .random = reference::kKey});
                    const std::vector<float> p =
                        expected_p(values_of(sum, dtype, count), 0.25f,
                                   feedback ? &expected_residual : nullptr);
                    const auto bytes =
                        reference::encode(spec, p, {.purpose = RandomPurpose::kReduce}, dtype);
                    if (bytes) {
                        ASSERT_EQ(output.copy(size), *bytes) << inputs << " inputs of " << count;
                    }
                    if (!draws(spec)) {
                        const Encoded unfused =
                            encode(spec, dtype, sum, count, feedback ? &expected_residual : nullptr,
                                   0.25f);
                        ASSERT_EQ(output.copy(size), unfused.bytes.copy(size))
                            << inputs << " inputs of " << count;
                        ASSERT_EQ(residual, expected_residual);
                    }
                    ASSERT_TRUE(output.margins_intact() && output.untouched_from(size));
                }
            }
        }
    });
}

TEST_F(Contract, NonFiniteSurvivesDecodeReduceEncode) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (!spec.reduces()) {
            return;
        }
        const int64_t count = spec.granule(dtype) + 19;
        const int64_t size = spec.encoded_bytes(dtype, count);
        const int64_t stride = slot_for(size);
        for (const float special : {kNan, kInfinity, -kInfinity}) {
            for (int32_t rank = 0; rank < 3; ++rank) {
                Guarded sources(stride * 3);
                for (int32_t i = 0; i < 3; ++i) {
                    Guarded input = random_input(dtype, count, 1.0, random_);
                    if (i == rank) {
                        reference::set_element(input.data(), dtype, count - 2, special);
                    }
                    const Encoded encoded = encode(spec, dtype, input, count);
                    std::memcpy(sources.data() + i * stride, encoded.bytes.data(),
                                static_cast<size_t>(size));
                }
                std::vector<float> residual(static_cast<size_t>(count), 0.5f);
                Guarded output(stride);
                spec.codec->host.decode_reduce_encode({.input = sources.data(),
                                                       .output = output.data(),
                                                       .residual = residual.data(),
                                                       .input_stride = stride,
                                                       .count = count,
                                                       .inputs = 3,
                                                       .scale = 1.0f / 3,
                                                       .params = spec.params,
                                                       .dtype = dtype,
                                                       .random = reference::kKey});
                Guarded decoded(count * static_cast<int64_t>(dtype_bytes(dtype)));
                decode(spec, dtype, output.data(), count, decoded);
                if (spec.traits(dtype).poison_elems == 0) {
                    EXPECT_FALSE(all_finite(values_of(decoded, dtype, count)));
                } else {
                    EXPECT_FALSE(
                        std::isfinite(reference::element(decoded.data(), dtype, count - 2)));
                }
                EXPECT_EQ(residual[static_cast<size_t>(count - 2)], 0.5f);
                EXPECT_TRUE(std::all_of(residual.begin(), residual.end(),
                                        [](float v) { return std::isfinite(v); }));
            }
        }
    });
}

TEST_F(Contract, AnyBytesDecodeWithinTheOutput) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        for (int round = 0; round < 20; ++round) {
            const int64_t count = static_cast<int64_t>(random_() % 3000);
            const int64_t size = spec.encoded_bytes(dtype, count);
            Guarded bytes(slot_for(size));
            for (int64_t i = 0; i < size; ++i) {
                bytes.data()[i] = static_cast<uint8_t>(random_() % (round < 10 ? 256 : 2) *
                                                       (round < 10 ? 1 : 255));
            }
            const std::vector<float> before(static_cast<size_t>(count), 1.5f);
            expect_decodes_to(spec, dtype, bytes.data(), count, before, false);
            expect_decodes_to(spec, dtype, bytes.data(), count, before, true);
        }
    });
}

TEST_F(Contract, InstructionSetsAgreeOnRandomBits) {
    for (const CodecSpec& spec : all_specs()) {
        for (const DType dtype : kFloatTypes) {
            SCOPED_TRACE(spec.to_string() + " " + dtype_name(dtype) + " seed " +
                         std::to_string(seed_));
            constexpr int64_t kCount = 20011;
            Guarded input(kCount * static_cast<int64_t>(dtype_bytes(dtype)));
            for (int64_t i = 0; i < input.size(); ++i) {
                input.data()[i] = static_cast<uint8_t>(random_());
            }
            std::vector<std::vector<uint8_t>> encodings;
            std::vector<std::vector<float>> residuals;
            for (const Isa isa : all_isas()) {
                ASSERT_TRUE(force_isa(isa).ok());
                std::vector<float> residual(kCount, 0.1f);
                const Encoded encoded = encode(spec, dtype, input, kCount, &residual, 1.7f);
                encodings.push_back(encoded.bytes.copy(encoded.size));
                residuals.push_back(residual);
            }
            for (size_t i = 1; i < encodings.size(); ++i) {
                EXPECT_EQ(encodings[i], encodings[0]);
                EXPECT_EQ(residuals[i], residuals[0]);
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::testing
