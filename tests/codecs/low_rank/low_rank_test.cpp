// PowerSGD's operations: host bodies of every instruction set against the slow words of FORMAT.md,
// and their kernels on the execution model of tests/support/cuda_on_host.h against the host bodies.
#include "tests/support/cuda_on_host.h"

#include <cmath>
#include <cstring>

#include "codecs/base/emulator_abi.h"
#include "codecs/low_rank/learn.h"
#include "tests/codecs/low_rank/low_rank_fixture.h"

#include "codecs/low_rank/low_rank.cu"

namespace slimwire::testing {
namespace {

void on_model(LowRankStep step, const LowRankArgs& args) {
    constexpr cudaError_t (*kLaunchers[])(const LowRankArgs&, cudaStream_t) = {
        begin_low_rank_on_cuda,   multiply_right_on_cuda,   orthogonalise_on_cuda,
        multiply_left_on_cuda,    restore_low_rank_on_cuda, keep_low_rank_on_cuda,
        balance_low_rank_on_cuda, overflow_low_rank_on_cuda};
    ASSERT_EQ(kLaunchers[static_cast<size_t>(step)](args, nullptr), cudaSuccess);
}

class LowRank : public ::testing::Test {
  protected:
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
            std::vector<LowRankStep> steps(std::begin(kAllSteps), std::end(kAllSteps));
            steps.insert(steps.begin() + call + 2, LowRankStep::kBalance);
            steps.insert(steps.end() - 2, LowRankStep::kOverflow);
            for (const LowRankStep step : steps) {
                SCOPED_TRACE("call " + std::to_string(call) + " step " +
                             std::to_string(static_cast<int>(step)));
                const Buffers before = expected;
                reference_low_rank(step, job, expected);
                on_all_isas([&] {
                    Buffers host = before;
                    on_host(step, job.args(host));
                    ASSERT_TRUE(host == expected);
                    ASSERT_TRUE(host.margins_intact());
                });
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
            float factor = 0;
            reference::set_element(&factor, dtype, 0, 0.75f);
            job.scale_ptr = which % 4 == 3 ? &factor : nullptr;
            job.product_scale = which % 2 == 0 ? 1.0f : 0.3f;
            job.mean = 0.25f;
            job.result = which % 2 == 0 ? 1.0f : 0.25f;
            job.sum_limit = which % 2 == 0 ? kNoSumLimit : 0.4f;
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

// --- Learning

// Adam in fp64, and to the bit what the kernel does; what is not finite teaches nothing.
TEST_F(LowRank, WeightsLearnByAdam) {
    constexpr size_t kCount = 700;
    std::vector<float> state = guarded(std::vector<float>(4 * kCount));
    std::normal_distribution<float> normal;
    std::vector<double> weights(kCount), first(kCount), second(kCount), sum(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        weights[i] = state[i] = normal(random_);
    }
    double t = 0;
    for (int call = 0; call < 9; ++call) {
        std::vector<float> gradient(kCount);
        for (float& one : gradient) {
            one = normal(random_);
        }
        const size_t broken = random_() % kCount;
        gradient[broken] = call % 2 == 0 ? INFINITY : 3e30f;
        LearnArgs args{};
        args.gradient = gradient.data();
        args.count = kCount;
        args.max_blocks = static_cast<int32_t>(random_() % 4);
        const bool step = call % 3 == 2;
        if (step) {
            ++t;
            args.rate = 0.125f;
            args.first_scale = static_cast<float>(1 / (1 - std::pow(0.9, t)));
            args.second_scale = static_cast<float>(1 / (1 - std::pow(0.999, t)));
        }
        for (size_t i = 0; i < kCount; ++i) {
            if (i == broken) {
                sum[i] = step ? 0 : sum[i];
                continue;
            }
            sum[i] += gradient[i];
            if (step) {
                first[i] = 0.9 * first[i] + 0.1 * sum[i];
                second[i] = 0.999 * second[i] + 0.001 * sum[i] * sum[i];
                weights[i] -= 0.125 * (first[i] / (1 - std::pow(0.9, t))) /
                              (std::sqrt(second[i] / (1 - std::pow(0.999, t))) + 1e-8);
                sum[i] = 0;
            }
        }
        std::vector<float> device = state, before = state;
        args.weights = device.data();
        ASSERT_EQ(learn_on_cuda(args, nullptr), cudaSuccess);
        on_all_isas([&] {
            state = before;
            args.weights = state.data();
            learn_on_host(args);
            ASSERT_TRUE(same_bits(state, device));
        });
        ASSERT_TRUE(margin_intact(state));
        for (size_t i = 0; i < kCount; ++i) {
            ASSERT_NEAR(state[i], weights[i], 1e-5) << i;
        }
    }
}

TEST_F(LowRank, WhatIsKeptIsTakenByItsNumber) {
    const Guarded first = random_input(DType::kFloat32, 64, 1.0, random_);
    const Guarded second = random_input(DType::kFloat32, 64, 1.0, random_);
    for (const uint32_t number : {7u, 9u, 8u}) {
        uint32_t misses[2] = {3, 3};
        Guarded out[2] = {Guarded(256, 0), Guarded(256, 0)};
        TakeKeptArgs args{};
        args.number = &number;
        args.bytes = 256;
        args.held = 2;
        args.numbers[0] = 7;
        args.numbers[1] = 9;
        args.kept[0] = first.data();
        args.kept[1] = second.data();
        args.output = out[0].data();
        args.misses = &misses[0];
        take_kept_on_host(args);
        args.output = out[1].data();
        args.misses = &misses[1];
        ASSERT_EQ(take_kept_on_cuda(args, nullptr), cudaSuccess);
        const std::vector<uint8_t> expected = number == 7   ? first.copy(256)
                                              : number == 9 ? second.copy(256)
                                                            : std::vector<uint8_t>(256);
        for (int way = 0; way < 2; ++way) {
            EXPECT_TRUE(out[way].copy(256) == expected);
            EXPECT_TRUE(out[way].margins_intact());
            EXPECT_EQ(misses[way], number == 8 ? 4u : 3u);
        }
    }
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
