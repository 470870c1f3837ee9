// The operations: sizes, alignments, chunks, residual, factor, keys, the fused reduction.
#include "tests/codecs/contract.h"

namespace slimwire::testing {
namespace {

TEST_F(Contract, SizesAroundEveryEdgeEqualTheReference) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        for (const int64_t count : edge_sizes(spec, dtype)) {
            if (!sampled(random_)) {
                continue;
            }
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

TEST_F(Contract, EveryAlignmentOfInputOutputAndResidualGivesTheSameBytes) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        const int64_t count = 2 * spec.granule(dtype) + 3;
        const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
        const Guarded straight = random_input(dtype, count, 1.0, random_);
        const Guarded kept = random_input(DType::kFloat32, count, 0.1, random_);
        std::vector<float> residual = values_of(kept, DType::kFloat32, count);
        const Encoded expected = encode(spec, dtype, straight, count, &residual);
        Guarded decoded(straight.size());
        decode(spec, dtype, expected.bytes.data(), count, decoded);
        const int64_t slot = slot_for(spec.encoded_bytes(dtype, count));
        for (int64_t shift = 2; shift < 64; shift += 2) {
            if (!sampled(random_)) {
                continue;
            }
            // The residual moves on when the input, whose elements may be smaller, comes round.
            const int64_t input_shift = shift / element_bytes * element_bytes;
            Guarded input(straight.size(), input_shift);
            std::memcpy(input.data(), straight.data(), static_cast<size_t>(straight.size()));
            Guarded left(kept.size(), shift * 2 % 64);
            std::memcpy(left.data(), kept.data(), static_cast<size_t>(kept.size()));
            Guarded bytes(slot, shift % 4 * 16);
            EncodeArgs to_encode = encode_args(spec, dtype, count, input.data(), bytes.data());
            to_encode.residual = reinterpret_cast<float*>(left.data());
            spec.codec->host.encode(to_encode);
            ASSERT_TRUE(bytes.margins_intact() && left.margins_intact());
            ASSERT_EQ(bytes.copy(expected.size), expected.bytes.copy(expected.size)) << shift;
            ASSERT_EQ(std::memcmp(left.data(), residual.data(), residual.size() * sizeof(float)),
                      0);
            Guarded output(straight.size(), input_shift);
            decode(spec, dtype, bytes.data(), count, output);
            ASSERT_EQ(output.copy(output.size()), decoded.copy(decoded.size())) << shift;
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
        EncodeArgs to_encode = encode_args(spec, dtype, count, input.data(), output.data());
        to_encode.residual = residual.data();
        to_encode.scale = 0.5f;
        to_encode.chunk_elems = chunk;
        to_encode.slot_bytes = slot;
        spec.codec->host.encode(to_encode);
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
            if (expected) {  // the number of the chunk may be part of it
                ASSERT_EQ(bytes, *expected) << "chunk " << c;
            }
            const bool alike = bytes == alone.bytes.copy(alone.size);
            ASSERT_TRUE(alike || (expected && c > 0)) << "chunk " << c;
            ASSERT_TRUE(std::all_of(begin + alone.size, begin + slot,
                                    [](uint8_t byte) { return byte == 0xA5; }));
            if (alike) {
                ASSERT_TRUE(std::equal(old.begin(), old.end(), residual.begin() + c * chunk));
            }
        }
        EXPECT_TRUE(output.untouched_from(3 * slot));

        Guarded decoded(count * element_bytes);
        DecodeArgs to_decode = decode_args(spec, dtype, count, output.data(), decoded.data());
        to_decode.chunk_elems = chunk;
        to_decode.slot_bytes = slot;
        spec.codec->host.decode(to_decode);
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

TEST_F(Contract, DecodeReduceEncodeEqualsTheUnfusedSequence) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        // Sums before and after a rotation round differently: block_int_test.cpp has those.
        if (dtype != DType::kFloat32 || !spec.reduces() || spec.params.rotate != 0) {
            return;
        }
        for (const int32_t inputs : {1, 2, 5}) {
            for (const int64_t count :
                 {int64_t{1}, spec.granule(dtype) + 5, int64_t{2048}, int64_t{5000}}) {
                if (!sampled(random_)) {
                    continue;
                }
                const int64_t size = spec.encoded_bytes(dtype, count);
                const int64_t stride = slot_for(size);
                const float input_scale = inputs == 5 ? 0.125f : 1.0f;
                Guarded sources(stride * inputs);
                Guarded sum(4 * count);
                for (int32_t i = 0; i < inputs; ++i) {
                    put_source(spec, dtype, random_input(dtype, count, 1.0 + i, random_), count,
                               sources, i);
                    decode(spec, dtype, sources.data() + i * stride, count, sum, i > 0);
                }
                for (int64_t k = 0; k < count; ++k) {
                    const float unscaled = reference::element(sum.data(), dtype, k);
                    reference::set_element(sum.data(), dtype, k, input_scale * unscaled);
                }
                for (const bool feedback : {false, true}) {
                    std::vector<float> residual(static_cast<size_t>(count), 0.0625f);
                    std::vector<float> expected_residual = residual;
                    Guarded output(stride);
                    DecodeReduceEncodeArgs reduce =
                        reduce_args(spec, dtype, count, sources, inputs, output);
                    reduce.residual = feedback ? residual.data() : nullptr;
                    reduce.scale = 0.25f;
                    reduce.input_scale = input_scale;
                    spec.codec->host.decode_reduce_encode(reduce);
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

// A power of two before and after the sum changes no bit of numbers above 2^-100.
TEST_F(Contract, AnAverageHasTheBitsOfTheSumDividedByTheRanks) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        if (!spec.reduces() || !sampled(random_)) {
            return;
        }
        const int32_t inputs = 3 + static_cast<int32_t>(random_() % 3);
        const float divisor = inputs == 3 ? 4.0f : inputs == 4 ? 4.0f : 8.0f;
        const int64_t count = spec.granule(dtype) + 2053;
        const int64_t stride = slot_for(spec.encoded_bytes(dtype, count));
        const double magnitude = dtype == DType::kFloat16 ? 1.0 : std::exp2(random_() % 180 - 80.0);
        Guarded sources(stride * inputs);
        for (int32_t i = 0; i < inputs; ++i) {
            put_source(spec, dtype, random_input(dtype, count, magnitude, random_), count, sources,
                       i);
        }
        const float mean = 1.0f / static_cast<float>(inputs);
        std::vector<float> residuals[2];
        std::vector<uint8_t> outputs[2];
        for (const bool scaled : {false, true}) {
            std::vector<float> residual(static_cast<size_t>(count),
                                        static_cast<float>(magnitude) / 64);
            Guarded output(stride);
            DecodeReduceEncodeArgs reduce =
                reduce_args(spec, dtype, count, sources, inputs, output);
            reduce.residual = residual.data();
            reduce.scale = scaled ? divisor * mean : mean;
            reduce.input_scale = scaled ? 1 / divisor : 1.0f;
            spec.codec->host.decode_reduce_encode(reduce);
            residuals[scaled ? 1 : 0] = std::move(residual);
            outputs[scaled ? 1 : 0] = output.copy(output.size());
        }
        ASSERT_EQ(outputs[1], outputs[0]) << inputs << " times " << magnitude;
        ASSERT_EQ(residuals[1], residuals[0]);
    });
}

TEST_F(Contract, DecodeReduceIsTheSumOfTheDecodedSourcesRoundedOnce) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        EXPECT_EQ(spec.sums(), spec.reduces());
        // A rotation is undone after the sum: block_int_test.cpp has those.
        if (!spec.sums() || spec.params.rotate != 0) {
            return;
        }
        const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
        for (const int32_t inputs : {1, 2, 5}) {
            for (const int64_t count :
                 {int64_t{0}, int64_t{1}, spec.granule(dtype) + 5, int64_t{5000}}) {
                if (!sampled(random_)) {
                    continue;
                }
                const int64_t stride = slot_for(spec.encoded_bytes(dtype, count));
                const float scale = inputs == 2 ? -0.3f : 0.75f;
                const float input_scale = inputs == 5 ? 0.3f : 1.0f;
                Guarded sources(stride * inputs);
                std::vector<float> sum(static_cast<size_t>(count));
                for (int32_t i = 0; i < inputs; ++i) {
                    Guarded input = random_input(dtype, count, 1.0 + i, random_);
                    if (i == 3 && count != 0) {
                        reference::set_element(input.data(), dtype, count / 2, kInfinity);
                    }
                    put_source(spec, dtype, input, count, sources, i);
                    const std::vector<float> decoded =
                        reference::decode(spec, sources.data() + i * stride, count, dtype);
                    for (size_t k = 0; k < sum.size(); ++k) {
                        sum[k] = i == 0 ? input_scale * decoded[k]
                                        : std::fma(input_scale, decoded[k], sum[k]);
                    }
                }
                Guarded expected(count * element_bytes);
                for (int64_t k = 0; k < count; ++k) {
                    reference::set_element(expected.data(), dtype, k,
                                           scale * sum[static_cast<size_t>(k)]);
                }
                const std::vector<uint8_t> before = sources.copy(sources.size());
                Guarded output(count * element_bytes, element_bytes * (random_() % 9));
                ASSERT_EQ(decode_reduce(spec, dtype, sources.data(), inputs, count, scale, output,
                                        input_scale),
                          0u);
                ASSERT_EQ(output.copy(output.size()), expected.copy(expected.size()))
                    << inputs << " inputs of " << count;
                ASSERT_EQ(sources.copy(sources.size()), before) << "a source was written";
            }
        }
    });
}

}  // namespace
}  // namespace slimwire::testing
