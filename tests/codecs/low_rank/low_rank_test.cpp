// PowerSGD's operations: host bodies of every instruction set against the slow words of FORMAT.md,
// and their kernels on the execution model of tests/support/cuda_on_host.h against the host bodies.
#include "tests/support/cuda_on_host.h"

#include <cstring>

#include "codecs/base/emulator_abi.h"
#include "codecs/float16.h"
#include "tests/codecs/low_rank/low_rank_fixture.h"

#include "codecs/low_rank/low_rank.cu"

namespace slimwire::testing {
namespace {

void on_model(LowRankStep step, const LowRankArgs& args) {
    constexpr cudaError_t (*kLaunchers[])(const LowRankArgs&, cudaStream_t) = {
        begin_low_rank_on_cuda, multiply_right_on_cuda,   orthogonalise_on_cuda,
        multiply_left_on_cuda,  restore_low_rank_on_cuda, keep_low_rank_on_cuda};
    ASSERT_EQ(kLaunchers[static_cast<size_t>(step)](args, nullptr), cudaSuccess);
}

class LowRank : public ::testing::Test {
  protected:
    void TearDown() override { ASSERT_TRUE(force_isa(all_isas().back()).ok()); }
    std::mt19937 random_{test_seed()};

    // Three steps of training, so that the state is drawn, kept and scaled; each operation by
    // reference, host bodies and kernels, from the same bytes.
    void compare(const Job& job, int64_t count, int64_t shift, bool hostile) {
        Buffers expected(job.layout, job.dtype, count, job.state_rank, shift);
        for (int call = 0; call < 3; ++call) {
            const auto bytes = static_cast<int64_t>(dtype_bytes(job.dtype));
            const Guarded fresh = random_input(job.dtype, count, 0.5, random_, shift);
            std::memcpy(expected.input.data(), fresh.data(), static_cast<size_t>(fresh.size()));
            if (hostile && call == 1) {
                const int64_t at = static_cast<int64_t>(random_()) % count;
                std::memset(expected.input.data() + at * bytes, 0xFF, static_cast<size_t>(bytes));
            }
            for (const LowRankStep step : kAllSteps) {
                SCOPED_TRACE("call " + std::to_string(call) + " step " +
                             std::to_string(static_cast<int>(step)));
                const Buffers before = expected;
                reference_low_rank(step, job, expected);
                for (const Isa isa : all_isas()) {
                    SCOPED_TRACE(isa_name(isa));
                    ASSERT_TRUE(force_isa(isa).ok());
                    Buffers host = before;
                    on_host(step, job.args(host));
                    ASSERT_TRUE(host == expected);
                    ASSERT_TRUE(host.margins_intact());
                }
                if (sampled(random_)) {
                    Buffers device = before;
                    LowRankArgs args = job.args(device);
                    args.max_blocks = static_cast<int32_t>(random_() % 4);
                    on_model(step, args);
                    ASSERT_TRUE(device == expected) << "the kernel";
                    ASSERT_TRUE(device.margins_intact());
                }
            }
        }
    }
};

TEST_F(LowRank, EveryTypeRankAndShapeGivesTheBitsOfTheFormat) {
    const std::vector<std::vector<std::pair<int32_t, int32_t>>> all_extents = {
        {{40, 33}}, {{3, 1025}, {300, 20}}, {{64, 64}, {5, 7}, {129, 31}}, {{260, 16}, {9, 2100}}};
    const int ranks[] = {1, 3, 4, 5};
    int which = 0;
    for (const DType dtype : kFloatTypes) {
        for (const auto& extents : all_extents) {
            int64_t count = 0;
            Job job;
            job.rank = std::min(ranks[which % 4], extents.size() == 3 || which % 2 == 0 ? 3 : 5);
            job.state_rank = job.rank + which % 2;
            const std::vector<MatrixShape> shapes = place(extents, which % 3, &count);
            job.layout = low_rank_layout(shapes, job.rank);
            job.dtype = dtype;
            job.fed = which % 3 != 1;
            job.scale = which % 2 == 0 ? 1.0f : 0.3f;
            const float one = 0.75f;
            const uint16_t half =
                dtype == DType::kFloat16 ? float_to_float16(one) : float_to_bfloat16(one);
            job.scale_ptr = which % 4 != 3             ? nullptr
                            : dtype == DType::kFloat32 ? static_cast<const void*>(&one)
                                                       : static_cast<const void*>(&half);
            job.product_scale = which % 2 == 0 ? 1.0f : 0.3f;
            job.mean = 0.25f;
            job.result = which % 2 == 0 ? 1.0f : 0.25f;
            SCOPED_TRACE(std::string(dtype_name(dtype)) + " situation " + std::to_string(which));
            ASSERT_NO_FATAL_FAILURE(compare(
                job, count, which % 2 * static_cast<int64_t>(dtype_bytes(dtype)), which % 3 == 2));
            ++which;
        }
    }
}

TEST_F(LowRank, HighRanksGiveTheBitsOfTheFormat) {
    for (const int rank : {8, 13, 32}) {
        int64_t count = 0;
        Job job;
        job.rank = rank;
        job.state_rank = rank;
        job.layout = low_rank_layout(place({{70, 90}, {300, 40}}, 0, &count), rank);
        SCOPED_TRACE(rank);
        ASSERT_NO_FATAL_FAILURE(compare(job, count, 0, false));
    }
}

// --- Enqueuing

int launches;
cudaError_t run_launch(
    cudaStream_t, void (*body)(const void*), const void* args, size_t, const char*) {
    ++launches;
    body(args);
    return cudaSuccess;
}

TEST_F(LowRank, AsManyLaunchesAsTheNumberOfMatricesTakes) {
    std::vector<std::pair<int32_t, int32_t>> extents(kMostMatrices + 5, {12, 10});
    int64_t count = 0;
    Job job;
    job.rank = 2;
    job.state_rank = 2;
    job.layout = low_rank_layout(place(extents, 0, &count), 2);
    Buffers expected(job.layout, job.dtype, count, 2, 0);
    const Guarded fresh = random_input(job.dtype, count, 1.0, random_);
    std::memcpy(expected.input.data(), fresh.data(), static_cast<size_t>(fresh.size()));
    Buffers buffers = expected;
    EmulatorApi emulator{.size = sizeof(EmulatorApi),
                         .launch = run_launch,
                         .device_view = nullptr,
                         .node_of_device = nullptr,
                         .load_kernels = nullptr};
    DeviceApi api;
    api.emulator = &emulator;
    for (const LowRankStep step : kAllSteps) {
        reference_low_rank(step, job, expected);
        launches = 0;
        LowRankLayout none = job.layout;
        Job without = job;
        without.layout.matrices.clear();
        ASSERT_TRUE(enqueue(api, step, job.layout, without.args(buffers), nullptr).ok());
        EXPECT_EQ(launches, 2);
    }
    EXPECT_TRUE(buffers == expected);
}

TEST(LowRankShape, WorthItWhereFactorsTakeLessThanHalf) {
    EXPECT_TRUE(worth_low_rank(100, 100, 24));
    EXPECT_FALSE(worth_low_rank(100, 100, 25));
    EXPECT_FALSE(worth_low_rank(1, 10000, 1));
    EXPECT_FALSE(worth_low_rank(10000, 2, 1));
    EXPECT_TRUE(worth_low_rank(10000, 10, 2));
    EXPECT_FALSE(worth_low_rank(0, 0, 1));
}

}  // namespace
}  // namespace slimwire::testing
