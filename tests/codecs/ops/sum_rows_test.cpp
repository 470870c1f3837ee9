// The operations beside the codecs, sum_rows and advance: host bodies on every instruction set
// against plain arithmetic, their kernels on the execution model of tests/support/cuda_on_host.h
// against the host bodies, and what reaches a device.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/ops/advance.h"
#include "codecs/ops/sum_rows.h"
#include "tests/codecs/fixture.h"
#include "tests/codecs/float_control.h"
#include "tests/codecs/recorded_launch.h"

#include "codecs/ops/advance.cu"
#include "codecs/ops/sum_rows.cu"

namespace slimwire::testing {
namespace {

// Rows in one buffer with poisoned margins, and what their sum must be.
struct Situation {
    DType input_dtype;
    DType output_dtype;
    int64_t count;
    int32_t rows;
    int64_t gap_elems;     // between rows
    int64_t misalignment;  // of both buffers, in elements of each
    float scale;
    float input_scale;
    SumLimit sum_limit;
    float by_pointer;  // 0: no scale_ptr
    bool hostile;

    [[nodiscard]] std::string to_string() const {
        return std::string(dtype_name(input_dtype)) + " to " + dtype_name(output_dtype) +
               " count " + std::to_string(count) + " rows " + std::to_string(rows) + " gap " +
               std::to_string(gap_elems) + " misaligned by " + std::to_string(misalignment) +
               " scale " + std::to_string(scale) + " times " + std::to_string(by_pointer) +
               " of inputs " + std::to_string(input_scale) + " within " +
               std::to_string(sum_limit.most) + (hostile ? " hostile" : "");
    }
};

class SumRows : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    Situation random_situation() {
        constexpr int64_t kCounts[] = {0,  1,  2,  3,  7,   13,  15,  16,  17,  31,
                                       61, 63, 64, 65, 127, 251, 257, 509, 1021};
        constexpr float kByPointer[] = {0.0f, 0.0f, 1.5f, -0.1f};
        constexpr float kScales[] = {1.0f, 0.25f, 1.0f / 3, -3.0f, 0.0f, 1e-30f, 1e30f};
        return {.input_dtype = kFloatTypes[random_() % 3],
                .output_dtype = kFloatTypes[random_() % 3],
                .count = kCounts[random_() % std::size(kCounts)],
                .rows = static_cast<int32_t>(1 + random_() % 9),
                .gap_elems = static_cast<int64_t>(random_() % 3 * (random_() % 9)),
                .misalignment = static_cast<int64_t>(random_() % 2 * (random_() % 9)),
                .scale = kScales[random_() % std::size(kScales)],
                .input_scale = random_() % 2 == 0 ? 1.0f : kScales[random_() % 3],
                .sum_limit = {random_() % 3 == 0 ? 1.25f : kNoSumLimit,
                              random_() % 2 == 0 ? 1.5f : kNoSumLimit},
                .by_pointer = kByPointer[random_() % std::size(kByPointer)],
                .hostile = random_() % 2 == 0};
    }

    // Gaussian rows of different magnitudes, with `hostile` also random bits and non-finite values.
    Guarded rows_of(const Situation& s) {
        const auto bytes = static_cast<int64_t>(dtype_bytes(s.input_dtype));
        const int64_t elems = s.rows * (s.count + s.gap_elems);
        Guarded rows =
            random_input(s.input_dtype, elems, std::exp2(static_cast<int>(random_() % 9) - 4),
                         random_, s.misalignment * bytes);
        const float specials[] = {INFINITY, -INFINITY, NAN, -0.0f, 1e-40f, 3.4e38f, 65519.0f};
        for (int64_t i = 0; s.hostile && i < elems; ++i) {
            if (random_() % 16 == 0) {
                reference::set_element(rows.data(), s.input_dtype, i,
                                       specials[random_() % std::size(specials)]);
            } else if (random_() % 16 == 0) {
                for (int64_t b = 0; b < bytes; ++b) {
                    rows.data()[i * bytes + b] = static_cast<uint8_t>(random_());
                }
            }
        }
        return rows;
    }

    // What the device scalar holds after its own rounding.
    void place_scalar(const Situation& s) {
        reference::set_element(scalar_, s.input_dtype, 0, s.by_pointer);
    }

    std::vector<uint8_t> expected_sum(const Situation& s, const Guarded& rows) {
        place_scalar(s);
        volatile float factor = s.scale;
        if (s.by_pointer != 0) {
            factor = factor * reference::element(scalar_, s.input_dtype, 0);
        }
        std::vector<uint8_t> bytes(static_cast<size_t>(s.count) * dtype_bytes(s.output_dtype));
        for (int64_t i = 0; i < s.count; ++i) {
            volatile float sum = s.input_scale * reference::element(rows.data(), s.input_dtype, i);
            for (int32_t r = 1; r < s.rows; ++r) {
                sum = std::fma(
                    s.input_scale,
                    reference::element(rows.data(), s.input_dtype, r * (s.count + s.gap_elems) + i),
                    sum);
            }
            const float whole = sum;
            const auto [most, overflow] = s.sum_limit;
            if (std::abs(whole) > most) {
                sum = std::copysign(std::abs(whole) >= most * overflow ? kNoSumLimit : most, whole);
            }
            reference::set_element(bytes.data(), s.output_dtype, i, factor * sum);
        }
        return bytes;
    }

    static Guarded output_of(const Situation& s) {
        const auto bytes = static_cast<int64_t>(dtype_bytes(s.output_dtype));
        return Guarded(s.count * bytes, s.misalignment * bytes);
    }
    SumRowsArgs args_of(const Situation& s, const Guarded& rows, uint8_t* output) {
        const auto bytes = static_cast<int64_t>(dtype_bytes(s.input_dtype));
        return {.input = rows.data(),
                .output = output,
                .row_bytes = (s.count + s.gap_elems) * bytes,
                .count = s.count,
                .rows = s.rows,
                .scale = s.scale,
                .input_dtype = s.input_dtype,
                .output_dtype = s.output_dtype,
                .max_blocks = static_cast<int32_t>(random_() % 3),
                .input_scale = s.input_scale,
                .sum_limit = s.sum_limit,
                .scale_ptr = s.by_pointer == 0 ? nullptr : scalar_};
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
    alignas(4) uint8_t scalar_[4] = {};
};

TEST_F(SumRows, EveryInstructionSetAndTheKernelEqualPlainArithmetic) {
    for (int trial = 0; trial < 1500; ++trial) {
        const Situation s = random_situation();
        SCOPED_TRACE(s.to_string() + " seed " + std::to_string(seed_));
        const Guarded rows = rows_of(s);
        const std::vector<uint8_t> before = rows.copy(rows.size());
        const std::vector<uint8_t> expected = expected_sum(s, rows);
        on_all_isas([&] {
            Guarded output = output_of(s);
            sum_rows_on_host(args_of(s, rows, output.data()));
            ASSERT_EQ(output.copy(output.size()), expected);
            ASSERT_TRUE(output.margins_intact());
        });
        if (sampled(random_)) {
            Guarded output = output_of(s);
            ASSERT_EQ(sum_rows_on_cuda(args_of(s, rows, output.data()), nullptr), cudaSuccess);
            ASSERT_EQ(output.copy(output.size()), expected) << "kernel";
            ASSERT_TRUE(output.margins_intact()) << "kernel";
        }
        ASSERT_EQ(rows.copy(rows.size()), before) << "a row was written";
    }
}

TEST_F(SumRows, TheOutputMayBeARow) {
    for (int trial = 0; trial < 300; ++trial) {
        Situation s = random_situation();
        // Of two types of one size, also different ones.
        if (dtype_bytes(s.input_dtype) != dtype_bytes(s.output_dtype)) {
            s.output_dtype = s.input_dtype;
        }
        SCOPED_TRACE(s.to_string() + " seed " + std::to_string(seed_));
        const Guarded rows = rows_of(s);
        const std::vector<uint8_t> expected = expected_sum(s, rows);
        const auto row_bytes =
            (s.count + s.gap_elems) * static_cast<int64_t>(dtype_bytes(s.input_dtype));
        const int64_t begin =
            row_bytes * (trial % 2 == 0 ? 0 : random_() % static_cast<uint32_t>(s.rows));
        std::vector<uint8_t> after = rows.copy(rows.size());
        std::copy(expected.begin(), expected.end(), after.begin() + begin);
        on_all_isas([&] {
            Guarded in_place = rows;
            sum_rows_on_host(args_of(s, in_place, in_place.data() + begin));
            ASSERT_EQ(in_place.copy(in_place.size()), after);
            ASSERT_TRUE(in_place.margins_intact());
        });
        Guarded in_place = rows;
        ASSERT_EQ(sum_rows_on_cuda(args_of(s, in_place, in_place.data() + begin), nullptr),
                  cudaSuccess);
        ASSERT_EQ(in_place.copy(in_place.size()), after) << "kernel";
    }
}

#ifdef SLIMWIRE_HAVE_FLOAT_CONTROL
TEST_F(SumRows, FlushingOfTheCallerChangesNothing) {
    const float tiny[2] = {1e-40f, 2e-40f};
    float sum = 0;
    const uint64_t before = float_control();
    set_float_control(before | kFlushing);
    sum_rows_on_host({.input = tiny,
                      .output = &sum,
                      .row_bytes = 4,
                      .count = 1,
                      .rows = 2,
                      .input_dtype = DType::kFloat32,
                      .output_dtype = DType::kFloat32});
    const uint64_t after = float_control();
    set_float_control(before);
    EXPECT_EQ(after & ~kSticky, (before | kFlushing) & ~kSticky);
    EXPECT_TRUE(same_bits(sum, 1e-40f + 2e-40f));
}
#endif

TEST(Advance, HostBodyAndKernelAddModuloTwoToThe32) {
    for (const uint32_t by : {0u, 1u, 17u, 0xFFFFFFFFu}) {
        uint32_t words[3] = {5, 0xFFFFFFF8u, 5};
        advance_on_host({&words[1], by});
        EXPECT_EQ(words[1], 0xFFFFFFF8u + by);
        ASSERT_EQ(advance_on_cuda({&words[1], by}, nullptr), cudaSuccess);
        EXPECT_EQ(words[1], 0xFFFFFFF8u + 2 * by);
        EXPECT_EQ(words[0], 5u);
        EXPECT_EQ(words[2], 5u);
    }
}

// --- On a device

using LaunchBesideCodecs = RecordedLaunch;

TEST_F(LaunchBesideCodecs, ReplaysReadAndWriteThroughTheView) {
    float rows[6] = {1, 2, 3, 10, 20, 30};
    float sum[3] = {};
    float scalar = 0.25f;
    ASSERT_TRUE(enqueue(api_,
                        SumRowsArgs{.input = on_device(rows),
                                    .output = on_device(sum),
                                    .row_bytes = 12,
                                    .count = 3,
                                    .rows = 2,
                                    .scale = 2.0f,
                                    .input_dtype = DType::kFloat32,
                                    .output_dtype = DType::kFloat32,
                                    .scale_ptr = on_device(&scalar)},
                        nullptr)
                    .ok());
    EXPECT_EQ(launched.name, "sum_rows");
    replay();
    EXPECT_EQ(sum[0], 5.5f);
    EXPECT_EQ(sum[2], 16.5f);

    uint32_t counter = 7;
    ASSERT_TRUE(enqueue(api_, AdvanceArgs{on_device(&counter), 3}, nullptr).ok());
    EXPECT_EQ(launched.name, "advance");
    EXPECT_EQ(counter, 7u) << "ran before its turn";
    replay();
    replay();
    EXPECT_EQ(counter, 13u);
}

TEST_F(LaunchBesideCodecs, OnCudaTheKernelRuns) {
    api_.emulator = nullptr;
    uint32_t counter = 7;
    ASSERT_TRUE(enqueue(api_, AdvanceArgs{&counter, 3}, nullptr).ok());
    EXPECT_EQ(counter, 10u);
    const float rows[4] = {1, 2, 10, 20};
    float sum[2] = {};
    ASSERT_TRUE(enqueue(api_,
                        SumRowsArgs{.input = rows,
                                    .output = sum,
                                    .row_bytes = 8,
                                    .count = 2,
                                    .rows = 2,
                                    .input_dtype = DType::kFloat32,
                                    .output_dtype = DType::kFloat32},
                        nullptr)
                    .ok());
    EXPECT_EQ(sum[1], 22.0f);
}

}  // namespace
}  // namespace slimwire::testing
