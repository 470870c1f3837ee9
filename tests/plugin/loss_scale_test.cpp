// What error feedback owes follows the loss scale that the program tells (slimwire_set_loss_scale):
// a job whose scale grows every 20 steps gets, but for the scale, the bits of one whose scale never
// changes. One process, two emulated devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cmath>
#include <limits>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"
#include "tests/support/has.h"

namespace {

// By their counts the policy knows them.
struct Tensor {
    const char* what;
    size_t count;
    const char* action;
};
constexpr Tensor kTensors[] = {
    {"int4", 4096, ""},
    {"moving average in int8", 8192, "error_feedback = \"ema\"\nresidual = \"int8\""},
    {"residual in bf16", 16384, "residual = \"bf16\""},
    {"top-k", 32768, "codec = \"topk:fraction=0.05\""},
    {"ef21", 12288, "error_feedback = \"ef21\""},
    {"powersgd", 65536, "codec = \"powersgd:rank=2,row=256\""}};
constexpr size_t kMostElems = 65536;

float gradient(int rank, int step, size_t i) {
    return std::sin(0.7f * static_cast<float>(i) + 2.0f * static_cast<float>(rank) +
                    0.3f * static_cast<float>(step)) *
           (i % 97 == 0 ? 3.0f : 0.02f);
}

class LossScale : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        std::string policy =
            "version = 1\n[defaults]\ncodec = \"int4\"\nerror_feedback = \"ef14\"\n";
        for (const Tensor& tensor : kTensors) {
            const std::string bytes = std::to_string(sizeof(float) * tensor.count);
            policy += "[[rule]]\nname = \"r" + bytes +
                      "\"\nmatch = { op = \"allreduce\", bytes = \"" + bytes + ".." + bytes +
                      "\" }\n" + tensor.action + "\n";
        }
        write_policy(policy);
    }
    LossScale() : TwoDevices(kMostElems) {}

    Values reduce_step(const Tensor& tensor, int step, float scale) {
        for (int rank = 0; rank < kRanks; ++rank) {
            Values values(tensor.count);
            for (size_t i = 0; i < values.size(); ++i) {
                values[i] = scale * gradient(rank, step, i);
            }
            fill(rank, values);
        }
        Values sum = reduce(tensor.count);
        for (float& value : sum) {
            value /= scale;
        }
        return sum;
    }
    // 90 steps of a scale that grows every 20; what they gave. `changes`: else the scale is 1.
    // `told`: whether the program says so.
    std::vector<Values> train(const Tensor& tensor, bool changes, bool told) {
        std::vector<Values> sums;
        float scale = 1;
        for (int step = 0; step < 90; ++step) {
            if (changes && step > 0 && step % 20 == 0) {
                scale *= step % 40 == 0 ? 2.0f : 1024.0f;
            }
            if (told) {
                EXPECT_EQ(slimwire_set_loss_scale(static_cast<double>(scale)), SLIMWIRE_OK);
            }
            EXPECT_EQ(slimwire_mark_step(static_cast<uint64_t>(step)), SLIMWIRE_OK);
            sums.push_back(reduce_step(tensor, step, scale));
        }
        return sums;
    }
    static int differing(const std::vector<Values>& one, const std::vector<Values>& other) {
        int different = 0;
        for (size_t i = 0; i < one.size(); ++i) {
            different += one[i] == other[i] ? 0 : 1;
        }
        return different;
    }
    // A job of its own, that begins with nothing owed.
    std::vector<Values> job(const Tensor& tensor, bool changes, bool told) {
        TearDown();
        SetUp();
        return train(tensor, changes, told);
    }
};

TEST_F(LossScale, AScaleThatGrowsLeavesTheBitsOfOneThatDoesNot) {
    for (const Tensor& tensor : kTensors) {
        SCOPED_TRACE(tensor.what);
        const std::vector<Values> steady = job(tensor, false, true);
        EXPECT_EQ(differing(job(tensor, true, true), steady), 0);
        EXPECT_FALSE(steady[0] == steady[1]);
    }
}

// What the test above shows would show where nothing followed.
TEST_F(LossScale, WhereItIsNotToldItMatters) {
    EXPECT_EQ(slimwire_set_loss_scale(1), SLIMWIRE_OK);
    for (const Tensor& tensor : kTensors) {
        SCOPED_TRACE(tensor.what);
        const std::vector<Values> steady = job(tensor, false, false);
        EXPECT_GT(differing(job(tensor, true, false), steady), 20);
    }
}

TEST_F(LossScale, WhatIsNoScaleIsRefused) {
    for (const double scale :
         {0.0, -2.0, static_cast<double>(NAN), std::numeric_limits<double>::infinity()}) {
        EXPECT_EQ(slimwire_set_loss_scale(scale), SLIMWIRE_INVALID);
        EXPECT_HAS(std::string(slimwire_last_error()), "positive and finite");
    }
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(slimwire_set_loss_scale(2), SLIMWIRE_INVALID);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
}

}  // namespace
