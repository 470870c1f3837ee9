// slimwire.h's marks: every call has its slot from the first step on, which gives each tensor its
// own residual whatever else comes between, and outside training what feeds back is native and
// leaves residuals as they are. One process, two emulated devices.
#include <cmath>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/oracles.h"
#include "tests/plugin/several_devices.h"
#include "tests/support/has.h"

namespace {

constexpr size_t kMarkedStepsCount = 2048;
// Three tensors of equal facts in one buffer: without marks no step could be told.
constexpr float kScales[] = {1.0f, 1e-4f, 30.0f};
using Tensors = std::vector<slimwire::test::FedTensor>;
using slimwire::test::expect_own_residuals;

class MarkedSteps : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[defaults]\ncodec = \"int4\"\n"
            "[[rule]]\nname = \"small\"\nmatch = { op = \"allreduce\", bytes = \"..4KiB\" }\n"
            "[[rule]]\nname = \"here\"\nmatch = { op = \"allreduce\", bytes = \"6KiB..6KiB\" }\n"
            "error_feedback = \"ef14\"\n"
            "[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "error_feedback = \"ef14\"\n"
            "[[rule]]\nname = \"messages\"\nmatch = { op = [\"send\", \"recv\"] }\n"
            "error_feedback = \"ef14\"\n");
    }
    MarkedSteps() : TwoDevices(kMarkedStepsCount) {}
    void TearDown() override {
        EXPECT_EQ(slimwire_mark_phase(SLIMWIRE_TRAINING), SLIMWIRE_OK);
        TwoDevices::TearDown();
    }

    static Values input(float scale, size_t count) {
        return slimwire::test::FedTensor(scale, count).values;
    }
    static Tensors tensors() {
        Tensors tensors;
        for (const float scale : kScales) {
            tensors.emplace_back(scale, kMarkedStepsCount);
        }
        return tensors;
    }
    void one(slimwire::test::FedTensor* tensor) {
        const Values summed = sum(tensor->values);
        EXPECT_FALSE(is_native(tensor->values, summed));
        tensor->came(summed);
    }
    // Rank 0 sends to rank 1; whether natively.
    bool message_is_native(const Values& values) {
        fill(0, values);
        group([&](int rank) {
            return rank == 0
                       ? ncclSend(send_[0], values.size(), ncclFloat32, 1, comms_[0], nullptr)
                       : ncclRecv(recv_[1], values.size(), ncclFloat32, 0, comms_[1], nullptr);
        });
        return result(1, values.size()) == values;
    }
};

// The first mark, which gives a tensor its slot, leaves the residual that it had by its address.
// First in the file: nothing marked yet.
TEST_F(MarkedSteps, TensorsByAddressKeepTheirResidualsWhenPlacesChange) {
    const Values values = input(3.0f, 1536);
    std::vector<Values> expected, found;
    for (int i = 0; i < 6; ++i) {
        if (i >= 3) {
            ASSERT_EQ(slimwire_mark_step(static_cast<uint64_t>(i)), SLIMWIRE_OK);
        }
        found.push_back(sum(values));
    }
    // The same without a change.
    TearDown();
    SetUp();
    for (int i = 0; i < 6; ++i) {
        ASSERT_EQ(slimwire_mark_step(static_cast<uint64_t>(10 + i)), SLIMWIRE_OK);
        expected.push_back(sum(values));
    }
    EXPECT_NE(expected[0], expected[3]);
    EXPECT_EQ(found, expected);
}

TEST_F(MarkedSteps, TensorsAreToldApartFromTheFirstStepOnWhateverComesBetween) {
    Tensors all = tensors();
    for (uint64_t step = 0; step < 40; ++step) {
        ASSERT_EQ(slimwire_mark_step(step), SLIMWIRE_OK);
        for (auto& tensor : all) {
            one(&tensor);
            if (step % 3 == 1) {
                (void)sum(input(2.0f, 100 + step));
            }
        }
    }
    expect_own_residuals(all);
}

TEST_F(MarkedSteps, OutsideTrainingWhatFeedsBackIsNativeAndResidualsStay) {
    Tensors all = tensors();
    const Values other = input(5.0f, kMarkedStepsCount), little = input(1.0f, 512);
    for (uint64_t step = 0; step < 40; ++step) {
        ASSERT_EQ(slimwire_mark_step(step), SLIMWIRE_OK);
        for (auto& tensor : all) {
            one(&tensor);
        }
        if (step % 5 == 2) {
            // Evaluation in the middle of a step, with calls of the tensors' own kind.
            for (const int phase : {SLIMWIRE_EVALUATION, SLIMWIRE_OTHER}) {
                ASSERT_EQ(slimwire_mark_phase(phase), SLIMWIRE_OK);
                EXPECT_TRUE(is_native(other, sum(other)));
                EXPECT_TRUE(message_is_native(other));
                EXPECT_FALSE(is_native(little, sum(little))) << "without error feedback";
            }
            ASSERT_EQ(slimwire_mark_phase(SLIMWIRE_TRAINING), SLIMWIRE_OK);
        }
        EXPECT_FALSE(message_is_native(other));
    }
    expect_own_residuals(all);
}

// Marks are the same on ranks that drop groups of different calls.
TEST_F(MarkedSteps, WhatOnlyOneRankTriesDoesNotCount) {
    Tensors all = tensors();
    for (uint64_t step = 0; step < 40; ++step) {
        ASSERT_EQ(slimwire_mark_step(step), SLIMWIRE_OK);
        for (auto& tensor : all) {
            one(&tensor);
            simulate([&] {
                const int rank = static_cast<int>(step % 2);
                ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
                ASSERT_EQ(sum_of(rank, kMarkedStepsCount), ncclSuccess);
            });
        }
    }
    expect_own_residuals(all);
}

TEST_F(MarkedSteps, WhatCannotBeIsRefused) {
    EXPECT_EQ(slimwire_mark_phase(-1), SLIMWIRE_INVALID);
    EXPECT_EQ(slimwire_mark_phase(3), SLIMWIRE_INVALID);
    EXPECT_HAS(std::string(slimwire_last_error()), "SLIMWIRE_EVALUATION (1)");
    EXPECT_EQ(slimwire_set_learning_rate(-1e-9), SLIMWIRE_INVALID);
    EXPECT_EQ(slimwire_set_learning_rate(NAN), SLIMWIRE_INVALID);
    EXPECT_EQ(slimwire_set_learning_rate(INFINITY), SLIMWIRE_INVALID);
    EXPECT_EQ(slimwire_set_learning_rate(0), SLIMWIRE_OK);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(slimwire_mark_step(1), SLIMWIRE_INVALID);
    EXPECT_EQ(slimwire_mark_phase(0), SLIMWIRE_INVALID);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(slimwire_mark_step(1), SLIMWIRE_OK);
}

}  // namespace
