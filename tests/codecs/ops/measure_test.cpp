// The measuring of a buffer: its host body against plain arithmetic, its kernels on the execution
// model of tests/support/cuda_on_host.h against the host body, bit for bit.
#include "tests/support/cuda_on_host.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/ops/measure.h"
#include "tests/codecs/fixture.h"

#include "codecs/ops/measure.cu"

namespace slimwire::testing {
namespace {

class Measure : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    // Some zeros and non-finite elements among values around one.
    Guarded draw(DType dtype, int64_t count) {
        Guarded buffer = random_input(dtype, count, 1.0, random_);
        for (int64_t i = 0; i < count; ++i) {
            const auto kind = random_() % 16;
            if (kind > 2) {
                continue;
            }
            const uint32_t wide = kind == 0 ? 0u : kind == 1 ? 0x7F800000u : 0xFFC00000u;
            const auto narrow =
                static_cast<uint16_t>(dtype == DType::kFloat16 ? (kind == 0   ? 0x8000u
                                                                  : kind == 1 ? 0xFC00u
                                                                              : 0x7E01u)
                                                               : wide >> 16);
            std::memcpy(buffer.data() + i * static_cast<int64_t>(dtype_bytes(dtype)),
                        dtype == DType::kFloat32 ? static_cast<const void*>(&wide)
                                                 : static_cast<const void*>(&narrow),
                        dtype_bytes(dtype));
        }
        return buffer;
    }

    static MeasureArgs args_of(const Guarded& input, DType dtype, int64_t count) {
        return {input.data(), nullptr, nullptr, nullptr, nullptr, count, 1.0f, dtype, 7};
    }

    const uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
};

TEST_F(Measure, HostBodyFindsWhatPlainArithmeticFinds) {
    for (const DType dtype : kFloatTypes) {
        for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{40001}}) {
            const Guarded input = draw(dtype, count);
            const Guarded other = draw(dtype, count);
            Measured found{};
            MeasureArgs args = args_of(input, dtype, count);
            args.other = other.data();
            args.result = &found;
            args.scale = 0.5f;
            measure_on_host(args);
            const std::vector<float> x = values_of(input, dtype, count);
            const std::vector<float> y = values_of(other, dtype, count);
            double squares = 0, errors = 0;
            uint64_t zeros = 0, nonfinite = 0;
            float largest = 0;
            uint32_t exponents[256] = {};
            for (size_t i = 0; i < x.size(); ++i) {
                const float p = 0.5f * x[i];
                ++exponents[(std::bit_cast<uint32_t>(p) >> 23) & 255];
                if (!std::isfinite(p)) {
                    ++nonfinite;
                    continue;
                }
                zeros += p == 0.0f ? 1 : 0;
                largest = std::max(largest, std::fabs(p));
                squares += static_cast<double>(p) * static_cast<double>(p);
                if (std::isfinite(y[i])) {
                    const double error = static_cast<double>(p) - static_cast<double>(y[i]);
                    errors += error * error;
                }
            }
            EXPECT_NEAR(found.square_sum, squares, 1e-12 * squares);
            EXPECT_NEAR(found.error_square_sum, errors, 1e-12 * errors);
            EXPECT_EQ(found.zeros, zeros);
            EXPECT_EQ(found.nonfinite, nonfinite);
            EXPECT_EQ(found.largest, largest);
            EXPECT_EQ(found.done, 7u);
            EXPECT_EQ(std::memcmp(found.exponents, exponents, sizeof exponents), 0);
        }
    }
}

TEST_F(Measure, KernelsGiveTheHostsBitsAndLeaveTheirMemoryReady) {
    MeasureWork work{};
    for (const DType dtype : kFloatTypes) {
        for (const int64_t count :
             {int64_t{0}, int64_t{3}, int64_t{9999}, kMeasureLanes * 2 + 77}) {
            if (!sampled(random_)) {
                continue;
            }
            const Guarded input = draw(dtype, count);
            const Guarded other = draw(dtype, count);
            const Guarded scalar = random_input(dtype, 1, 1.0, random_);
            Measured host{}, device{};
            MeasureArgs args = args_of(input, dtype, count);
            args.other = count == 3 ? nullptr : other.data();
            args.scale_ptr = count == 9999 ? scalar.data() : nullptr;
            args.scale = 0.25f;
            args.work = &work;
            args.result = &host;
            measure_on_host(args);
            args.result = &device;
            ASSERT_EQ(measure_on_cuda(args, nullptr), cudaSuccess);
            EXPECT_EQ(std::memcmp(&host, &device, sizeof host), 0)
                << dtype_name(dtype) << " count " << count << " seed " << seed_ << ": "
                << host.square_sum << " and " << device.square_sum << ", " << host.error_square_sum
                << " and " << device.error_square_sum;
        }
    }
}

TEST_F(Measure, ExponentEntropyIsThatOfTheCounts) {
    uint32_t exponents[256] = {};
    EXPECT_EQ(exponent_entropy_bits(exponents), 0);
    exponents[127] = 8;
    EXPECT_EQ(exponent_entropy_bits(exponents), 0);
    exponents[126] = 4;
    exponents[125] = 4;
    EXPECT_DOUBLE_EQ(exponent_entropy_bits(exponents), 1.5);
}

}  // namespace
}  // namespace slimwire::testing
