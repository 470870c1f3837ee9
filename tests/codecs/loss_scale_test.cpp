// A loss scaler that is replayed: looking for values that are not finite finds each of them and
// nothing else, and the scale is that of slow words. Host bodies, and their kernels on the
// execution model of tests/support/cuda_on_host.h.
#include "codecs/loss_scale.h"
#include "tests/support/cuda_on_host.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "codecs/codec.h"
#include "tests/codecs/fixture.h"

#include "codecs/loss_scale.cu"

namespace slimwire::testing {
namespace {

constexpr uint32_t kUntouched = 0xA5A5A5A5u;

uint32_t look(const void* input, int64_t count, DType dtype, bool kernel) {
    uint32_t found = kUntouched;
    const LookForNonfiniteArgs args{
        .input = input, .found = &found, .count = count, .dtype = dtype, .max_blocks = 2};
    if (kernel) {
        EXPECT_EQ(look_for_nonfinite_on_cuda(args, nullptr), cudaSuccess);
    } else {
        look_for_nonfinite_on_host(args);
    }
    return found;
}

uint32_t exponent_of(DType dtype) {
    return dtype == DType::kFloat32 ? 0x7F800000u : dtype == DType::kFloat16 ? 0x7C00u : 0x7F80u;
}

// Of 16-bit types all values, of fp32 all upper halves with two lower ones.
TEST(LossScale, EveryValueIsTakenForWhatItIs) {
    for (const DType dtype : kFloatTypes) {
        const uint32_t exponent = exponent_of(dtype);
        for (uint32_t half = 0; half < 0x10000u; ++half) {
            for (const uint32_t low : {0u, 0xFFFFu}) {
                const bool wide = dtype == DType::kFloat32;
                const uint32_t bits = wide ? half << 16 | low : half;
                const uint32_t wanted = (bits & exponent) == exponent ? 1 : kUntouched;
                ASSERT_EQ(look(&bits, 1, dtype, false), wanted) << bits;
                if (half % 61 == 0 || wanted == 1) {
                    ASSERT_EQ(look(&bits, 1, dtype, true), wanted) << bits;
                }
            }
        }
    }
}

// Wherever it is and whatever the address is, with non-finite values on both sides that are not
// looked at.
TEST(LossScale, OneValueIsFoundAnywhere) {
    std::mt19937 random(test_seed());
    for (const DType dtype : kFloatTypes) {
        const auto element = static_cast<int64_t>(dtype_bytes(dtype));
        const uint32_t exponent = exponent_of(dtype);
        // The largest finite value, both its signs: what carries furthest.
        const uint32_t finite = exponent - 1, sign = exponent == 0x7F800000u ? 1u << 31 : 1u << 15;
        for (const int64_t count : {1, 2, 3, 7, 8, 9, 17, 31, 255, 4095, 4096, 8209, 20011}) {
            for (const int64_t shift : {0, 1, 3, 7}) {
                SCOPED_TRACE(::testing::Message()
                             << dtype_name(dtype) << " " << count << " at " << shift);
                std::vector<uint8_t> bytes(static_cast<size_t>(element * (count + shift + 8)) + 16);
                auto* const aligned =
                    bytes.data() + (-reinterpret_cast<uintptr_t>(bytes.data()) & 15);
                const auto put = [&](int64_t i, uint32_t bits) {
                    std::memcpy(aligned + i * element, &bits, static_cast<size_t>(element));
                };
                for (int64_t i = 0; i < count + shift + 8; ++i) {
                    const bool outside = i < shift || i >= shift + count;
                    put(i, outside ? exponent : finite | (random() % 2 == 0 ? sign : 0));
                }
                const void* const input = aligned + shift * element;
                for (const bool kernel : {false, true}) {
                    ASSERT_EQ(look(input, count, dtype, kernel), kUntouched);
                    ASSERT_EQ(look(input, 0, dtype, kernel), kUntouched);
                }
                for (int draw = 0; draw < 12; ++draw) {
                    const int64_t at = draw == 0   ? 0
                                       : draw == 1 ? count - 1
                                                   : static_cast<int64_t>(random()) % count;
                    const uint32_t nan = random() % (finite & ~exponent);
                    put(shift + at, exponent | nan | (random() % 2 == 0 ? sign : 0));
                    ASSERT_EQ(look(input, count, dtype, false), 1u) << at;
                    ASSERT_EQ(look(input, count, dtype, true), 1u) << at;
                    put(shift + at, finite);
                }
            }
        }
    }
}

AdvanceScaleArgs scaler(float growth, float backoff, uint32_t interval, uint32_t hysteresis) {
    AdvanceScaleArgs args{};
    args.growth = growth;
    args.backoff = backoff;
    args.interval = interval;
    args.hysteresis = hysteresis;
    return args;
}

// PyTorch's GradScaler and, with a hysteresis, Megatron's DynamicGradScaler, in fp64.
struct SlowScaler {
    double scale = 1;
    uint32_t good = 0, left = 1;

    void step(bool bad, const AdvanceScaleArgs& rule) {
        if (bad) {
            good = 0;
            left = left > 0 ? left - 1 : 0;
            scale *= left == 0 ? static_cast<double>(rule.backoff) : 1;
        } else if (++good == rule.interval) {
            good = 0;
            left = rule.hysteresis;
            scale *= static_cast<double>(rule.growth);
        }
    }
};

TEST(LossScale, TheScaleIsThatOfTheProgramsScaler) {
    std::mt19937 random(test_seed());
    const AdvanceScaleArgs kRules[] = {scaler(2, 0.5f, 5, 1), scaler(2, 0.5f, 1, 1),
                                       scaler(4, 0.25f, 7, 2), scaler(2, 0.5f, 3, 4)};
    for (AdvanceScaleArgs args : kRules) {
        SCOPED_TRACE(::testing::Message() << args.interval << " " << args.hysteresis);
        // Nothing is set up but by step 0.
        std::vector<ReplayedScale> host(1), kernel(1);
        std::memset(host.data(), 0xA5, sizeof(ReplayedScale));
        std::memset(kernel.data(), 0xA5, sizeof(ReplayedScale));
        SlowScaler slow{.left = args.hysteresis};
        std::vector<double> scales;
        std::vector<uint32_t> bad;
        for (uint64_t step = 0; step < kScaledSteps + 500; ++step) {
            if (step > 0) {
                // Balanced, so that the scale stays in the range of fp32.
                bad.push_back(random() % 60 < (slow.scale > 1 ? 45 : 1) ? 1 : 0);
                host[0].bad |= bad.back();
                kernel[0].bad |= bad.back();
                slow.step(bad.back() != 0, args);
            }
            scales.push_back(slow.scale);
            args.step = step;
            args.state = host.data();
            advance_scale_on_host(args);
            args.state = kernel.data();
            ASSERT_EQ(advance_scale_on_cuda(args, nullptr), cudaSuccess);
            ASSERT_EQ(std::memcmp(host.data(), kernel.data(), sizeof(ReplayedScale)), 0) << step;
            ASSERT_EQ(host[0].bad, 0u);
        }
        for (size_t step = scales.size() - kScaledSteps; step < scales.size(); ++step) {
            ASSERT_EQ(static_cast<double>(host[0].scales[step % kScaledSteps]), scales[step]);
            if (step < bad.size()) {
                ASSERT_EQ(host[0].skipped[step % kScaledSteps], bad[step]) << step;
            }
        }
        EXPECT_NE(*std::max_element(scales.begin(), scales.end()), 1);
        EXPECT_NE(*std::min_element(scales.begin(), scales.end()), 1);
    }
}

// A model that diverges is bad for ever: the scale then stays a normal number.
TEST(LossScale, NeitherEndOfTheRangeIsLeft) {
    for (const bool bad : {false, true}) {
        ReplayedScale state{};
        AdvanceScaleArgs args = scaler(2, 0.5f, 1, 1);
        args.state = &state;
        for (args.step = 0; args.step < 400; ++args.step) {
            state.bad = bad ? 1 : 0;
            advance_scale_on_host(args);
        }
        EXPECT_EQ(state.scales[399], bad ? 0x1p-126f : 0x1p127f);
    }
}

}  // namespace
}  // namespace slimwire::testing
