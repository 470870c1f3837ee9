// Tensors that share their facts and their buffer are told apart by their slot in the training
// step: their residuals do not mix. With state that ranks keep alike (here averaging, which never
// comes to it) calls whose slot is not known are native and leave the residuals alone, and ranks
// decide alike whatever one of them simulates or groups. A residual alone goes by address until
// then. One process, two emulated devices, a policy of the test's own.
#include <cmath>
#include <vector>

#include "tests/plugin/oracles.h"
#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kTensorStepCount = 2048;
constexpr size_t kLast = 1024;  // elements of the step's last tensor
constexpr float kTensorStepScales[] = {1.0f, 1e-4f, 30.0f};
constexpr int kLearningSteps = 400;  // four calls each; the detector needs 512 and a look

using Tensors = std::vector<slimwire::test::FedTensor>;
using slimwire::test::expect_own_residuals;

std::vector<float> input(float scale, size_t count) {
    return slimwire::test::FedTensor(scale, count).values;
}

class TensorStep : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[defaults]\ncodec = \"int4\"\nerror_feedback = \"ef14\"\n"
            "[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "average_every = 1000000\n"
            "[[rule]]\nname = \"messages\"\nmatch = { op = \"send\" }\n");
    }
    TensorStep() : TwoDevices(kTensorStepCount) {}

    static Tensors tensors() {
        Tensors all;
        for (const float scale : kTensorStepScales) {
            all.emplace_back(scale, kTensorStepCount);
        }
        all.emplace_back(5.0f, kLast);
        return all;
    }
    void step(Tensors* tensors) {
        for (auto& tensor : *tensors) {
            const Values summed = sum(tensor.values);
            tensor.compressed += is_native(tensor.values, summed) ? 0 : 1;
            tensor.came(summed);
        }
    }
};

TEST_F(TensorStep, ResidualsOfTensorsInOneBufferDoNotMix) {
    Tensors all = tensors();
    (void)sum(input(2.0f, 300));  // a communicator of one kind of sums knows its slot at the third
    step(&all);
    for (const auto& tensor : all) {
        EXPECT_EQ(tensor.compressed, 0) << "the step is not known yet";
    }
    for (int i = 1; i < kLearningSteps; ++i) {
        step(&all);
    }
    expect_own_residuals(all);
    const Tensors before = all;
    for (int i = 0; i < 40; ++i) {
        step(&all);
    }
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].compressed - before[i].compressed, 40);
    }
    expect_own_residuals(all);
}

TEST_F(TensorStep, OtherCallsAreNativeAndTheResidualsAreKept) {
    Tensors all = tensors();
    for (int i = 0; i < kLearningSteps; ++i) {
        step(&all);
    }
    // Evaluation: a sum that no step has, though a rule takes it.
    const Values other = input(2.0f, 500);
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(is_native(other, sum(other)));
    }
    const Tensors before = all;
    for (int i = 0; i < 10; ++i) {
        step(&all);
    }
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].compressed, before[i].compressed) << "too soon to be sure";
        EXPECT_EQ(all[i].error, before[i].error);
    }
    for (int i = 0; i < 40; ++i) {
        step(&all);
    }
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_GT(all[i].compressed, before[i].compressed + 30);
    }
    expect_own_residuals(all);
}

// One rank simulates and drops groups that the other knows nothing of; calls that NCCL refuses are
// none either. If they counted, one rank would send what the other does not expect.
TEST_F(TensorStep, WhatOnlyOneRankTriesDoesNotCount) {
    Tensors all = tensors();
    for (int i = 0; i < kLearningSteps + 40; ++i) {
        step(&all);
        if (i % 20 == 7) {
            simulate([&] {
                const int rank = i / 20 % kRanks;
                ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
                for (int call = 0; call < 1 + i / 20; ++call) {
                    const size_t count = kTensorStepCount / 2 + static_cast<size_t>(i) % 3;
                    ASSERT_EQ(sum_of(rank, count), ncclSuccess);
                }
            });
        }
        if (i % 20 == 3) {
            // Of nothing, with a buffer on one rank only.
            group([&](int rank) {
                return ncclAllReduce(rank == 0 ? nullptr : send_[rank], recv_[rank], 0, ncclFloat32,
                                     ncclSum, comms_[rank], nullptr);
            });
        }
        if (i % 20 == 13) {
            ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
            EXPECT_NE(ncclBroadcast(send_[0], recv_[0], kTensorStepCount, ncclFloat32, kRanks,
                                    comms_[0], nullptr),
                      ncclSuccess);
            EXPECT_NE(ncclAllReduce(nullptr, recv_[0], kTensorStepCount, ncclFloat64, ncclSum,
                                    comms_[0], nullptr),
                      ncclSuccess);
        }
    }
    EXPECT_GT(all[0].compressed, 40);
    expect_own_residuals(all);
}

// The ninth step takes the place of the one longest unused, and must not find its residuals.
TEST_F(TensorStep, AForgottenStepLeavesItsResidualsToNoOther) {
    for (size_t i = 0; i < 9; ++i) {
        const float scale = i < 8 ? 30.0f : 1e-4f;
        Tensors all;
        for (int tensor = 0; tensor < 3; ++tensor) {
            all.emplace_back(scale, kTensorStepCount);
        }
        all.emplace_back(scale, kLast - 64 * i);
        // Else the first calls would be what the step before has next.
        (void)sum(input(2.0f, 500));
        for (int steps = 0; steps < kLearningSteps; ++steps) {
            step(&all);
        }
        expect_own_residuals(all);
    }
}

// Messages have places of their own, one sequence for each peer and direction: rank 0 sends two
// tensors in turn, and the sums between do not disturb their step.
TEST_F(TensorStep, MessagesAreCountedForEachPeerAndDirection) {
    const Tensors first = {{1.0f, kTensorStepCount}, {1e-4f, kTensorStepCount}, {1.0f, kLast}};
    Tensors all = first;
    for (int i = 0; i < 400; ++i) {
        all = i == 250 ? first : all;
        for (auto& tensor : all) {
            const size_t count = tensor.values.size();
            fill(0, tensor.values);
            group([&](int rank) {
                return rank == 0 ? ncclSend(send_[0], count, ncclFloat32, 1, comms_[0], nullptr)
                                 : ncclRecv(recv_[1], count, ncclFloat32, 0, comms_[1], nullptr);
            });
            const Values received = result(1, count);
            tensor.compressed += received == tensor.values ? 0 : 1;
            tensor.came(received, 1);
        }
        if (i % 7 == 3) {
            (void)sum(input(3.0f, 100 + static_cast<size_t>(i)));
        }
    }
    EXPECT_EQ(all[1].compressed, 150) << "with its own residual since the slots are known";
    expect_own_residuals(all);
}

}  // namespace
