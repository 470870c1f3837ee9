// What only the block integers promise: literal bytes, errors on Gaussian data, the ends of the
// range.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/numeric.h"
#include "tests/codecs/worked_example.h"

namespace slimwire::testing {
namespace {

TEST(BlockInt, GoldenBytesOfTheWorkedExample) {
    EXPECT_EQ(encoding_of(spec_of("int4:block=16"), kExample),
              (Bytes{0x10, 0x2F, 0x3E, 0x6D, 0x7A, 0x97, 0x00, 0x00,  //
                     0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                     0x00, 0x3F, 0x93, 0x3E}));
    EXPECT_EQ(encoding_of(spec_of("int2:block=16,scale=fp32"), kExample),
              (Bytes{0x00, 0x40, 0xD7, 0x00, 0x03, 0x00, 0x00, 0x00,  //
                     0x00, 0x00, 0x60, 0x40, 0x00, 0x00, 0x00, 0x40}));
    EXPECT_EQ(encoding_of(spec_of("int8:block=16"), kExample),
              (Bytes{0x00, 0x12, 0xEE, 0x24, 0xDC, 0x36, 0xCA, 0x6D,
                     0x93, 0x7B, 0x7F, 0x81, 0x09, 0x07, 0xFC, 0x09,  //
                     0x82, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                     0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                     0xE2, 0x3C, 0x82, 0x3C}));
}

TEST(BlockInt, GoldenBytesOfTheExtensions) {
    EXPECT_EQ(encoding_of(spec_of("int4:block=16,rounding=stochastic"), kExample),
              (Bytes{0x10, 0x2F, 0x3E, 0x6D, 0x7A, 0x97, 0x10, 0x00,  //
                     0x0A, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                     0x00, 0x3F, 0x93, 0x3E}));
    EXPECT_EQ(encoding_of(spec_of("int4:block=32,rotate=32,seed=1"), kExample),
              (Bytes{0xFA, 0xF2, 0xEB, 0x0D, 0xF4, 0xF2, 0xE6, 0x0C,  //
                     0x1C, 0x13, 0x0D, 0x2E, 0x05, 0x03, 0x07, 0x2E, 0x2C, 0x40}));
}

// Over the sum that stands in the rotated domain, which no sequence of other operations gives.
TEST(BlockInt, ReductionsEqualTheReference) {
    const uint32_t seed = test_seed();
    std::mt19937 random(seed);
    for (const CodecSpec& spec : all_specs()) {
        if (std::strncmp(spec.codec->name, "int", 3) != 0) {
            continue;
        }
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            for (const DType dtype : kFloatTypes) {
                for (const int64_t count : {int64_t{5}, int64_t{3001}}) {
                    // Up to 16 sources are added in registers.
                    const int32_t inputs =
                        static_cast<int32_t>(random() % 3) + (count == 5 ? 15 : 1);
                    // Every other time up to the end of the type.
                    const double magnitude = random() % 2 == 0          ? 1.0
                                             : dtype == DType::kFloat16 ? 9000.0
                                                                        : 4e37;
                    const int64_t size = spec.encoded_bytes(dtype, count);
                    const int64_t stride = slot_for(size);
                    Guarded bytes(stride * inputs);
                    std::vector<const uint8_t*> sources;
                    for (int32_t i = 0; i < inputs; ++i) {
                        const Guarded input =
                            random_input(dtype, count, (1.0 + i) * magnitude, random);
                        uint8_t* to = bytes.data() + i * stride;
                        put_source(spec, dtype, input, count, bytes, i);
                        for (int64_t k = 0; i == 2 && k < size; ++k) {
                            to[k] = static_cast<uint8_t>(random());
                        }
                        sources.push_back(to);
                    }
                    for (const bool feedback : {false, true}) {
                        std::vector<float> residual(static_cast<size_t>(count), 0.0625f);
                        std::vector<float> expected_residual = residual;
                        Guarded output(stride);
                        DecodeReduceEncodeArgs reduce =
                            reduce_args(spec, dtype, count, bytes, inputs, output);
                        reduce.residual = feedback ? residual.data() : nullptr;
                        reduce.scale = 0.75f;
                        spec.codec->host.decode_reduce_encode(reduce);
                        const std::vector<uint8_t> expected = reference::reduce_block_int(
                            spec, sources, count, 0.75f, feedback ? &expected_residual : nullptr,
                            {.purpose = RandomPurpose::kReduce}, dtype);
                        ASSERT_EQ(output.copy(size), expected)
                            << spec.to_string() << " " << isa_name(isa) << " " << dtype_name(dtype)
                            << " x " << inputs << " of " << count << " feedback " << feedback
                            << " seed " << seed;
                        ASSERT_EQ(residual, expected_residual) << spec.to_string();
                        ASSERT_TRUE(output.margins_intact() && output.untouched_from(size));
                    }
                    Guarded summed(count * static_cast<int64_t>(dtype_bytes(dtype)));
                    Guarded expected(summed.size());
                    const std::vector<float> sum =
                        reference::sum_block_int(spec, sources, count, dtype);
                    for (int64_t k = 0; k < count; ++k) {
                        reference::set_element(expected.data(), dtype, k,
                                               0.75f * sum[static_cast<size_t>(k)]);
                    }
                    (void)decode_reduce(spec, dtype, bytes.data(), inputs, count, 0.75f, summed);
                    ASSERT_EQ(summed.copy(summed.size()), expected.copy(expected.size()))
                        << spec.to_string() << " " << isa_name(isa) << " " << dtype_name(dtype)
                        << " x " << inputs << " of " << count << " seed " << seed;
                }
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::testing
