// Step-ahead error feedback: the host bodies against plain arithmetic, their kernels on the
// execution model of tests/support/cuda_on_host.h against the host bodies, bit for bit.
#include "tests/support/cuda_on_host.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/residual/load_store.h"
#include "codecs/residual/step_ahead.h"
#include "tests/codecs/fixture.h"

#include "codecs/residual/step_ahead.cu"

namespace slimwire::testing {
namespace {

constexpr ResidualType kTypes[] = {ResidualType::kFloat32, ResidualType::kBfloat16,
                                   ResidualType::kInt8};

class StepAhead : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    static std::vector<uint8_t> stored_as(DType dtype, const std::vector<float>& values) {
        std::vector<uint8_t> bytes(values.size() * dtype_bytes(dtype));
        for (size_t i = 0; i < values.size(); ++i) {
            reference::set_element(bytes.data(), dtype, static_cast<int64_t>(i), values[i]);
        }
        return bytes;
    }
    static float read(DType dtype, const std::vector<uint8_t>& bytes, size_t i) {
        return reference::element(bytes.data(), dtype, static_cast<int64_t>(i));
    }
    // As `dtype` has it.
    static float rounded(DType dtype, float value) {
        return read(dtype, stored_as(dtype, {value}), 0);
    }
    std::vector<float> draw(int64_t count, float size, bool hostile = false) {
        std::normal_distribution<float> gaussian;
        std::vector<float> values(static_cast<size_t>(count));
        const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f};
        for (float& value : values) {
            value = hostile && random_() % 9 == 0 ? specials[random_() % std::size(specials)]
                                                  : size * gaussian(random_);
        }
        return values;
    }

    const uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
};

TEST_F(StepAhead, ParametersMoveByTheStepTimesWhatIsOwed) {
    for (const DType dtype : kFloatTypes) {
        for (const ResidualType type : kTypes) {
            for (const int64_t count : {1, 7, 64, 65, 1000}) {
                for (const bool misaligned : {false, true}) {
                    SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " "
                                                      << static_cast<int>(type) << " " << count);
                    const int64_t first = type == ResidualType::kFloat32 ? 3 : 64;
                    const int64_t elems = 128 + (count + 63) / 64 * 64;
                    std::vector<uint8_t> store(
                        stored_residual_bytes(type, static_cast<uint64_t>(elems)));
                    const StoredResiduals run{store.data(), elems, first, type};
                    const std::vector<float> owed = draw(count, 0.5f);
                    store_residual_on_host({.stored = run,
                                            .input = owed.data(),
                                            .count = count,
                                            .keep = 0.0f,
                                            .take = 1.0f});
                    std::vector<float> e(owed.size());
                    load_residual_on_host({.stored = run, .output = e.data(), .count = count});
                    const size_t skip = misaligned ? 1 : 0;
                    std::vector<float> x = draw(count + 1, 1.0f, true);
                    x[skip] = dtype == DType::kFloat16 ? 65504.0f : 0x1.fep127f;
                    const std::vector<uint8_t> before = stored_as(dtype, x);
                    for (const float scale : {0.25f, -3.0f, 0.0f, 1e38f}) {
                        StepSize step{0.5, 0.5f, 3};
                        for (StepSize* size : {static_cast<StepSize*>(nullptr), &step}) {
                            std::vector<uint8_t> host = before, kernel = before;
                            ShiftArgs args{};
                            args.stored = run;
                            args.parameters = host.data() + skip * dtype_bytes(dtype);
                            args.step = size;
                            args.count = count;
                            args.scale = scale;
                            args.dtype = dtype;
                            shift_on_host(args);
                            volatile float s = size == nullptr ? scale : scale * 0.5f;
                            for (size_t i = 0; i < e.size(); ++i) {
                                const float old = read(dtype, before, i + skip);
                                volatile float by = s * e[i];
                                volatile float moved = old - by;
                                const float most = dtype == DType::kFloat16   ? 65504.0f
                                                   : dtype == DType::kFloat32 ? 0x1.fffffep127f
                                                                              : 0x1.fep127f;
                                const bool stays = s == 0 || !(std::abs(moved) <= most);
                                if (!std::isnan(old)) {
                                    ASSERT_EQ(read(dtype, host, i + skip),
                                              stays ? old : rounded(dtype, moved))
                                        << "element " << i << " " << old << " " << e[i];
                                } else {
                                    ASSERT_TRUE(std::isnan(read(dtype, host, i + skip)));
                                }
                            }
                            if (skip == 1) {
                                ASSERT_EQ(
                                    std::memcmp(host.data(), before.data(), dtype_bytes(dtype)), 0);
                            }
                            args.parameters = kernel.data() + skip * dtype_bytes(dtype);
                            ASSERT_EQ(shift_on_cuda(args, nullptr), cudaSuccess);
                            ASSERT_EQ(kernel, host);
                        }
                    }
                }
            }
        }
    }
}

TEST_F(StepAhead, AStepIsTheProjectionOfTheMoveOnTheGradient) {
    for (const DType dtype : kFloatTypes) {
        for (const DType reduced_dtype : kFloatTypes) {
            for (const int64_t count : {1, 255, dtype == reduced_dtype ? 12000 : 2049}) {
                SCOPED_TRACE(::testing::Message()
                             << dtype_name(dtype) << dtype_name(reduced_dtype) << count);
                const auto size = static_cast<size_t>(count);
                StepSize host{}, kernel{};
                StepSizeWork work{};
                std::vector<uint8_t> before = stored_as(dtype, draw(count, 1.0f, count > 1));
                std::vector<uint8_t> kernel_before = before;
                double mean = 0;
                // More than the mean is long.
                const bool both = dtype == DType::kFloat32 && reduced_dtype == dtype;
                const int steps = both && count == 255 ? 25 : 2;
                for (int step = 1; step <= steps; ++step) {
                    const std::vector<uint8_t> now = stored_as(dtype, draw(count, 1.0f, count > 1));
                    const std::vector<uint8_t> g =
                        stored_as(reduced_dtype, draw(count, 0.1f, count > 1));
                    double dot = 0, square = 0;
                    for (size_t i = 0; i < size; ++i) {
                        const double x = read(dtype, before, i), y = read(dtype, now, i);
                        const double r = read(reduced_dtype, g, i);
                        if (std::isfinite(x) && std::isfinite(y) && std::isfinite(r)) {
                            dot += (x - y) * r;
                            square += r * r;
                        }
                    }
                    mean += std::max(0.05, 1.0 / step) * (dot / square - mean);
                    StepSizeArgs args{now.data(), before.data(), g.data(), &work,
                                      &host,      count,         dtype,    reduced_dtype};
                    find_step_size_on_host(args);
                    ASSERT_NEAR(host.mean, mean, 1e-9 * (1 + std::abs(mean)));
                    ASSERT_EQ(host.size, host.mean > 0 ? static_cast<float>(host.mean) : 0.0f);
                    ASSERT_EQ(host.counted, static_cast<uint32_t>(step));
                    ASSERT_EQ(before, now);
                    args.before = kernel_before.data();
                    args.step = &kernel;
                    ASSERT_EQ(find_step_size_on_cuda(args, nullptr), cudaSuccess);
                    ASSERT_EQ(std::memcmp(&kernel, &host, sizeof host), 0);
                    ASSERT_EQ(kernel_before, now);
                }
            }
        }
    }
}

TEST_F(StepAhead, StepsWithoutAMoveOrAGradientDoNotCount) {
    const std::vector<float> x = draw(500, 1.0f), g = draw(500, 1.0f);
    std::vector<float> before = x, moved = x;
    for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] -= 0.25f * g[i];
    }
    const std::vector<float> none(500), endless(500, INFINITY);
    StepSizeWork work{};
    StepSize step{};
    const auto count = [&](const std::vector<float>& now, const float* reduced) {
        find_step_size_on_host({now.data(), before.data(), reduced, &work, &step, 500,
                                DType::kFloat32, DType::kFloat32});
    };
    count(moved, nullptr);  // the first: there is no step yet
    EXPECT_EQ(before, moved);
    count(moved, g.data());
    count(x, none.data());
    count(moved, endless.data());
    EXPECT_EQ(step.counted, 0u);
    EXPECT_EQ(step.size, 0.0f);
    before = x;
    count(moved, g.data());
    EXPECT_EQ(step.counted, 1u);
    EXPECT_NEAR(step.size, 0.25f, 1e-6f);
    // Upwards: never below 0.
    for (int back = 0; back < 3; ++back) {
        before = moved;
        count(x, g.data());
    }
    EXPECT_LT(step.mean, 0);
    EXPECT_EQ(step.size, 0.0f);
}

}  // namespace
}  // namespace slimwire::testing
