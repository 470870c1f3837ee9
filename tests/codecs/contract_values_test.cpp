// Values: error bound, bias, what is not finite, the ends of the range, every 16-bit pattern.
#include <bit>
#include <map>
#include <string_view>

#include "tests/codecs/contract.h"

namespace slimwire::testing {
namespace {

TEST_F(Contract, ErrorStaysWithinTheBound) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (dtype != DType::kFloat32) {
            return;
        }
        const int64_t count = 4 * 2048 + 5;
        const int64_t block = unit_of(spec, dtype, count);
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

TEST_F(Contract, StochasticRoundingHasNoBias) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (dtype != DType::kFloat32 || !draws(spec) || spec.traits(dtype).poison_elems == 0 ||
            !sampled(random_)) {
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

TEST_F(Contract, NonFiniteAtEveryPositionPoisonsItsBlockOnly) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (!sampled(random_)) {
            return;
        }
        const int64_t block = unit_of(spec, dtype, 64);
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

TEST_F(Contract, NonFiniteSurvivesReductions) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (!spec.reduces()) {
            return;
        }
        const int64_t count = spec.granule(dtype) + 19;
        const int64_t stride = slot_for(spec.encoded_bytes(dtype, count));
        for (const float special : {kNan, kInfinity, -kInfinity}) {
            for (int32_t rank = 0; rank < 3; ++rank) {
                if (!sampled(random_)) {
                    continue;
                }
                Guarded sources(stride * 3);
                for (int32_t i = 0; i < 3; ++i) {
                    Guarded input = random_input(dtype, count, 1.0, random_);
                    if (i == rank) {
                        reference::set_element(input.data(), dtype, count - 2, special);
                    }
                    put_source(spec, dtype, input, count, sources, i);
                }
                std::vector<float> residual(static_cast<size_t>(count), 0.5f);
                Guarded output(stride);
                DecodeReduceEncodeArgs reduce = reduce_args(spec, dtype, count, sources, 3, output);
                reduce.residual = residual.data();
                reduce.scale = 1.0f / 3;
                spec.codec->host.decode_reduce_encode(reduce);
                Guarded decoded(count * static_cast<int64_t>(dtype_bytes(dtype)));
                Guarded summed(decoded.size());
                decode(spec, dtype, output.data(), count, decoded);
                (void)decode_reduce(spec, dtype, sources.data(), 3, count, 1.0f / 3, summed);
                for (const Guarded* result : {&decoded, &summed}) {
                    if (spec.traits(dtype).poison_elems == 0) {
                        EXPECT_FALSE(all_finite(values_of(*result, dtype, count)));
                    } else {
                        EXPECT_FALSE(
                            std::isfinite(reference::element(result->data(), dtype, count - 2)));
                    }
                }
                EXPECT_EQ(residual[static_cast<size_t>(count - 2)], 0.5f);
                EXPECT_TRUE(all_finite(residual));
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
                if (!sampled(random_)) {
                    continue;
                }
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
                const double end = overflows_from(spec);
                if (std::all_of(p.begin(), p.end(),
                                [&](float v) { return std::abs(double{v}) < end; })) {
                    ASSERT_TRUE(all_finite(decoded)) << extreme << " among " << other;
                }
            }
        }
    });
}

// Magnitudes of a type: its end, where rounding up leaves it, halves of it, and any other.
float extreme_of(DType dtype, double end, std::mt19937& random) {
    const double most = dtype == DType::kFloat32   ? std::numeric_limits<float>::max()
                        : dtype == DType::kFloat16 ? reference::kFloat16.max_finite
                                                   : reference::kBfloat16.max_finite;
    const double largest = std::min(most, end * 0.999);
    const double share[] = {1.0, 1.0, 0.999, 0.99, 0.75, 0.5, 0.3};
    const double least = dtype == DType::kFloat16 ? 1e-8 : 1e-45;
    const double part = std::uniform_real_distribution<>(0, 1)(random);
    const double magnitude =
        random() % 4 != 0 ? largest * share[random() % std::size(share)]
                          : std::exp(std::log(least) * part + std::log(largest) * (1 - part));
    return static_cast<float>(random() % 2 == 0 ? magnitude : -magnitude);
}

TEST_F(Contract, FiniteNumbersOfAnyMagnitudeStayFinite) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (!spec.accepts(dtype)) {
            return;
        }
        const double end = overflows_from(spec);
        const int64_t count = std::min<int64_t>(2 * spec.granule(dtype), 256) + 19;
        for (int round = 0; round < 6; ++round) {
            Guarded input(count * static_cast<int64_t>(dtype_bytes(dtype)));
            // A mask, one magnitude in all its signs, or any.
            const float one = extreme_of(dtype, end, random_);
            for (int64_t i = 0; i < count; ++i) {
                const float other = round % 3 == 0 ? 0.0f : -one;
                const float any = extreme_of(dtype, end, random_);
                reference::set_element(input.data(), dtype, i,
                                       round % 3 == 2       ? any
                                       : random_() % 3 == 0 ? one
                                                            : other);
            }
            const bool feedback = round % 2 == 1 && end > std::numeric_limits<float>::max();
            std::vector<float> residual(static_cast<size_t>(count), one / 3);
            const Encoded encoded =
                encode(spec, dtype, input, count, feedback ? &residual : nullptr);
            Guarded output(input.size());
            decode(spec, dtype, encoded.bytes.data(), count, output);
            ASSERT_TRUE(all_finite(values_of(output, dtype, count))) << one << " round " << round;
            ASSERT_TRUE(all_finite(residual)) << one << " round " << round;
            std::memset(output.data(), 0, static_cast<size_t>(output.size()));
            decode(spec, dtype, encoded.bytes.data(), count, output, true);
            ASSERT_TRUE(all_finite(values_of(output, dtype, count))) << "added " << one;
        }
    });
}

// A sum that the type rounds to infinity is seen after it is encoded again; one that it does not,
// the largest number too, stays finite.
TEST_F(Contract, SumsLeaveTheTypeAsTheirDecodedTermsDo) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (!spec.accepts(dtype) || !spec.reduces() || spec.params.rotate != 0) {
            return;  // block_int_test.cpp has rotations
        }
        const double end = overflows_from(spec);
        const int64_t count = std::min<int64_t>(2 * spec.granule(dtype), 256) + 19;
        const int64_t stride = slot_for(spec.encoded_bytes(dtype, count));
        for (int round = 0; round < 4; ++round) {
            const float one = extreme_of(dtype, end, random_);
            Guarded sources(2 * stride);
            std::vector<float> sum(static_cast<size_t>(count));
            for (int64_t rank = 0; rank < 2; ++rank) {
                Guarded input(count * static_cast<int64_t>(dtype_bytes(dtype)));
                for (int64_t i = 0; i < count; ++i) {
                    const bool alone = rank == 1 && round % 2 == 0;
                    reference::set_element(input.data(), dtype, i,
                                           alone || random_() % 3 != 0 ? 0.0f : one);
                }
                put_source(spec, dtype, input, count, sources, rank);
                const std::vector<float> decoded =
                    reference::decode(spec, sources.data() + rank * stride, count, dtype);
                for (size_t i = 0; i < sum.size(); ++i) {
                    sum[i] = rank == 0 ? decoded[i] : sum[i] + decoded[i];
                }
            }
            std::vector<float> residual(sum.size(), one / 3);
            const bool feedback = round % 4 > 1 && end > std::numeric_limits<float>::max();
            const std::vector<float> p =
                expected_p(sum, 1.0f, feedback ? &residual : nullptr, dtype);
            Guarded output(stride);
            DecodeReduceEncodeArgs reduce = reduce_args(spec, dtype, count, sources, 2, output);
            reduce.residual = feedback ? residual.data() : nullptr;
            spec.codec->host.decode_reduce_encode(reduce);
            const auto bytes =
                reference::encode(spec, p, {.purpose = RandomPurpose::kReduce}, dtype);
            if (bytes) {
                ASSERT_EQ(output.copy(static_cast<int64_t>(bytes->size())), *bytes) << one;
            }
            Guarded result(count * static_cast<int64_t>(dtype_bytes(dtype)));
            decode(spec, dtype, output.data(), count, result);
            const std::vector<float> values = values_of(result, dtype, count);
            const int64_t block = unit_of(spec, dtype, count);
            for (int64_t i = 0; i < count; i += block) {
                const int64_t last = std::min(i + block, count);
                const bool finite = std::all_of(p.begin() + i, p.begin() + last,
                                                [&](float v) { return std::abs(double{v}) < end; });
                ASSERT_EQ(finite, all_finite({values.begin() + i, values.begin() + last}))
                    << one << " at " << i;
            }
            ASSERT_TRUE(all_finite(residual));
        }
    });
}

// Thirds of the largest number, each of which a codec may round up: what they add up to ends at the
// limit of sums, unless one of them is not finite.
TEST_F(Contract, LimitedSumsOfFiniteNumbersAreFinite) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (!spec.accepts(dtype) || spec.traits(dtype).lossless) {
            return;
        }
        const float one =  // the quarter of which has a half
            std::max(std::abs(extreme_of(dtype, overflows_from(spec), random_)), 0x1p-120f);
        const float input_scale = dtype == DType::kFloat16 ? 1.0f : 0.25f;
        const int64_t count = std::min<int64_t>(2 * spec.granule(dtype), 256) + 19;
        const int64_t stride = slot_for(spec.encoded_bytes(dtype, count));
        const bool finite = random_() % 3 != 0;
        Guarded input(count * static_cast<int64_t>(dtype_bytes(dtype)));
        for (int64_t i = 0; i < count; ++i) {
            reference::set_element(input.data(), dtype, i, random_() % 2 == 0 ? one : -one);
        }
        Guarded sources(3 * stride);
        Guarded output = input;
        for (int64_t rank = 0; rank < 3; ++rank) {
            if (rank == 2 && !finite) {
                reference::set_element(input.data(), dtype, 0, kInfinity);
            }
            const Encoded encoded = encode(spec, dtype, input, count, nullptr, 1.0f / 3);
            std::memcpy(sources.data() + rank * stride, encoded.bytes.data(),
                        static_cast<size_t>(encoded.size));
            DecodeArgs to_decode =
                decode_args(spec, dtype, count, sources.data() + rank * stride, output.data());
            to_decode.slot_bytes = stride;
            to_decode.accumulate = true;
            to_decode.sum_limit = {one};
            spec.codec->host.decode(to_decode);
        }
        ASSERT_EQ(all_finite(values_of(output, dtype, count)), finite) << "added, " << one;
        if (!spec.sums()) {
            return;
        }
        (void)decode_reduce(spec, dtype, sources.data(), 3, count, 1 / input_scale, output,
                            input_scale, {one * input_scale});
        ASSERT_EQ(all_finite(values_of(output, dtype, count)), finite) << one;
        std::vector<float> residual(static_cast<size_t>(count), one / 64);
        const double end = overflows_from(spec);
        const bool feedback = random_() % 2 == 0 && end > std::numeric_limits<float>::max();
        Guarded again(stride);
        DecodeReduceEncodeArgs reduce = reduce_args(spec, dtype, count, sources, 3, again);
        reduce.residual = feedback ? residual.data() : nullptr;
        reduce.scale = 1 / input_scale;
        reduce.input_scale = input_scale;
        reduce.sum_limit = {one * input_scale};
        spec.codec->host.decode_reduce_encode(reduce);
        decode(spec, dtype, again.data(), count, output);
        ASSERT_EQ(all_finite(values_of(output, dtype, count)), finite) << "again, " << one;
        ASSERT_TRUE(all_finite(residual));
    });
}

// The first instruction set against the reference, which is slow, the others against the first.
TEST_F(Contract, All65536PatternsOfSixteenBitElements) {
    constexpr int64_t kCount = 65536;
    std::vector<std::vector<uint8_t>> first;
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (dtype == DType::kFloat32 || !sampled(random_)) {
            return;
        }
        Guarded input(2 * kCount);
        for (int64_t i = 0; i < kCount; ++i) {
            const auto bits = static_cast<uint16_t>(i);
            std::memcpy(input.data() + 2 * i, &bits, 2);
        }
        const Encoded encoded = encode(spec, dtype, input, kCount);
        std::vector<std::vector<uint8_t>> results = {encoded.bytes.copy(encoded.size)};
        for (const bool accumulate : {false, true}) {
            Guarded output = input;
            decode(spec, dtype, encoded.bytes.data(), kCount, output, accumulate);
            results.push_back(output.copy(output.size()));
        }
        if (active_isa() != Isa::kScalar) {
            ASSERT_EQ(results, first);
            return;
        }
        first = results;
        const std::vector<float> p = values_of(input, dtype, kCount);
        const auto expected = reference::encode(spec, p, {}, dtype);
        if (expected) {
            ASSERT_EQ(results[0], *expected);
            expect_decodes_to(spec, dtype, encoded.bytes.data(), kCount, p, false);
            expect_decodes_to(spec, dtype, encoded.bytes.data(), kCount, p, true);
        }
    });
}

// Zeros of both signs, the ends of the subnormal range, the largest values, among ordinary ones.
TEST_F(Contract, SpecialValuesAtEveryPositionEqualTheReference) {
    const float specials[] = {-0.0f,     0x1p-149f, -0x1.fffffcp-127f, 0x1p-24f, 0x1.fffffep127f,
                              -65519.9f, kNan,      -kInfinity};
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t unit = unit_of(spec, dtype, 64);
        const int64_t count = std::min<int64_t>(unit, 64) + 19;
        if (unit > 64 || !reference::knows(spec)) {
            return;
        }
        const Guarded clean = random_input(dtype, count, 1.0, random_);
        for (int64_t at = 0; at < count; ++at) {
            if (!sampled(random_)) {
                continue;
            }
            Guarded input = clean;
            const float special = specials[static_cast<size_t>(at) % std::size(specials)];
            for (const float value : {special, specials[random_() % std::size(specials)]}) {
                reference::set_element(input.data(), dtype, at, value);
                const Encoded encoded = encode(spec, dtype, input, count);
                ASSERT_EQ(encoded.bytes.copy(encoded.size),
                          *reference::encode(spec, values_of(input, dtype, count), {}, dtype))
                    << value << " at " << at;
            }
        }
    });
}

// Under one scale: what random values decode to, the middles of neighbours and both sides of them.
TEST_F(Contract, RoundsAtEveryMiddleLikeTheReference) {
    const std::map<std::string_view, float> largest_of = {
        {"fp8e4m3", 448.0f}, {"fp8e5m2", 57344.0f}, {"mxfp4", 6.0f}, {"nvfp4", 6.0f},
        {"int8", 127.0f},    {"int4", 7.0f},        {"int2", 1.0f}};
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (dtype != DType::kFloat32 || spec.traits(dtype).poison_elems < 16 ||
            spec.params.rotate != 0) {
            return;
        }
        const auto found = largest_of.find(spec.codec->name);
        const float largest = found != largest_of.end() ? found->second : 1.0f;
        // With the largest in every block.
        const auto encode_all = [&](const std::vector<float>& values, std::vector<float>* p) {
            p->clear();
            for (size_t i = 0; i < values.size(); ++i) {
                if (i % 15 == 0) {
                    p->push_back(largest);
                }
                p->push_back(i % 2 == 0 ? values[i] : -values[i]);
            }
            const auto count = static_cast<int64_t>(p->size());
            Guarded input(4 * count);
            std::memcpy(input.data(), p->data(), 4 * p->size());
            return encode(spec, dtype, input, count);
        };
        std::vector<float> values(4000), p;
        for (size_t i = 0; i < values.size(); ++i) {
            const double part = std::uniform_real_distribution<>(0, 1)(random_);
            const double share = i % 3 == 0 ? part : std::exp2((i % 3 == 1 ? -36 : -130) * part);
            values[i] = static_cast<float>(share * static_cast<double>(largest));
        }
        Encoded encoded = encode_all(values, &p);
        std::vector<float> levels =
            reference::decode(spec, encoded.bytes.data(), static_cast<int64_t>(p.size()));
        std::for_each(levels.begin(), levels.end(), [](float& level) { level = std::abs(level); });
        std::sort(levels.begin(), levels.end());
        levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
        values.clear();
        for (size_t k = 0; k + 1 < levels.size(); ++k) {
            const float middle = (levels[k] + levels[k + 1]) / 2;
            for (const float x : {levels[k], middle, std::nextafter(middle, kInfinity),
                                  std::nextafter(middle, 0.0f)}) {
                values.insert(values.end(), {x, x});
            }
        }
        encoded = encode_all(values, &p);
        ASSERT_EQ(encoded.bytes.copy(encoded.size), *reference::encode(spec, p));
    });
}

// Blocks of one magnitude, up to the end of the range: no code exceeds its own.
TEST_F(Contract, BlocksOfAnyMagnitudeAreWithinTheBound) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t count = spec.traits(dtype).poison_elems;
        // natural's next number behind 2^127 is none.
        if (dtype != DType::kFloat32 || count < 16 || count > 64 || spec.params.rotate != 0 ||
            std::string_view(spec.codec->name) == "natural") {
            return;
        }
        const double bound = spec.codec->block_error_bound(spec.params, dtype);
        for (uint32_t round = 0; round < 300; ++round) {
            const uint32_t bits =
                round < 64 ? kInfinityBits - 1 - round : random_() % kInfinityBits;
            const float top = std::bit_cast<float>(bits);
            std::vector<float> p(static_cast<size_t>(count));
            Guarded input(4 * count);
            for (int64_t i = 0; i < count; ++i) {
                const float value = i % 3 == 2 ? top / 2 : i % 3 == 1 ? -top : top;
                p[static_cast<size_t>(i)] = value;
                reference::set_element(input.data(), dtype, i, value);
            }
            const Encoded encoded = encode(spec, dtype, input, count);
            ASSERT_EQ(encoded.bytes.copy(encoded.size), *reference::encode(spec, p)) << top;
            Guarded output(input.size());
            decode(spec, dtype, encoded.bytes.data(), count, output);
            for (size_t i = 0; i < p.size(); ++i) {
                ASSERT_NEAR(reference::element(output.data(), dtype, static_cast<int64_t>(i)), p[i],
                            bound * static_cast<double>(top) + spec.traits(dtype).smallest_error)
                    << top << " at " << i;
            }
        }
    });
}

}  // namespace
}  // namespace slimwire::testing
