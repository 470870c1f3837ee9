// The ratios that the palette codec exists for, against the entropy of the exponents of each block,
// and how little it adds where there is nothing to gain.
#include "tests/codecs/palette/palette_fixture.h"

namespace slimwire::testing {
namespace {

using PaletteRatio = Palette;

// 8 + the entropy of the exponents of each block of 4096, in bits per bf16.
double block_entropy_ratio(const Guarded& input) {
    double bits = 0;
    const int64_t count = input.size() / 2;
    for (int64_t begin = 0; begin < count; begin += 4096) {
        std::vector<int> seen(256);
        const int64_t len = std::min<int64_t>(4096, count - begin);
        for (int64_t i = begin; i < begin + len; ++i) {
            ++seen[static_cast<size_t>(input.data()[2 * i + 1] << 1 & 255) |
                   input.data()[2 * i] >> 7];
        }
        bits += 8.0 * static_cast<double>(len);
        for (const int times : seen) {
            bits -= times > 0 ? times * std::log2(times / static_cast<double>(len)) : 0;
        }
    }
    return 8.0 * static_cast<double>(input.size()) / bits;
}

TEST_F(PaletteRatio, RatiosOnGaussianAndZeroHeavyData) {
    const int64_t count = 64 * 4096;
    const Guarded bell = filled(DType::kBfloat16, count, Data::kBell);
    EXPECT_GE(ratio_of(DType::kBfloat16, bell, count), 0.975 * block_entropy_ratio(bell));
    const Guarded zeros = filled(DType::kBfloat16, 8 * count, Data::kManyZeros);
    EXPECT_GE(ratio_of(DType::kBfloat16, zeros, 8 * count), 9.0);  // 10 at the mean share of 90 %
    const Guarded none = filled(DType::kBfloat16, count, Data::kAllZero);
    EXPECT_GE(ratio_of(DType::kBfloat16, none, count), 1500);
    EXPECT_GE(ratio_of(DType::kFloat32, filled(DType::kFloat32, count, Data::kBell), count), 1.19);
    EXPECT_GE(ratio_of(DType::kFloat16, filled(DType::kFloat16, count, Data::kBell), count), 1.15);
    EXPECT_GE(ratio_of(DType::kFloat8e5m2, filled(DType::kFloat8e5m2, count, Data::kBell), count),
              1.35);
}

// Layers whose scales spread over four decades, rows of a layer over one.
TEST_F(PaletteRatio, RatioOnLayersOfDifferentScale) {
    const int64_t count = 256 * 4096;
    Guarded input(2 * count);
    std::normal_distribution<double> bell(0, 1);
    std::uniform_real_distribution<double> decade(-6, -2);
    double scale = 0;
    double row = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (i % (128 * 512) == 0) {
            scale = std::pow(10, decade(random_));
        }
        if (i % 512 == 0) {
            row = std::exp(0.5 * bell(random_));
        }
        const uint16_t half = float_to_bfloat16(static_cast<float>(scale * row * bell(random_)));
        std::memcpy(input.data() + 2 * i, &half, 2);
    }
    const double ratio = ratio_of(DType::kBfloat16, input, count);
    EXPECT_GE(ratio, 1.44);
    EXPECT_GE(ratio, 0.97 * block_entropy_ratio(input));
}

TEST_F(PaletteRatio, RandomBitsGrowByATwentiethOfAPercentAtMost) {
    const int64_t count = 64 * 4096;
    for (const DType dtype : kAllTypes) {
        const Guarded input = filled(dtype, count, Data::kRandom);
        EXPECT_GE(ratio_of(dtype, input, count), 1 / 1.002) << dtype_name(dtype);
        EXPECT_LE(static_cast<double>(spec_.encoded_bytes(dtype, count)),
                  static_cast<double>(input.size()) * 1.002);
    }
}

}  // namespace
}  // namespace slimwire::testing
