// Tensors that share their facts and their buffer are told apart by their slot in the training
// step: their residuals do not mix. With state that ranks keep alike (here averaging, which never
// comes to it) calls whose slot is not known are native and leave the residuals alone, and ranks
// decide alike whatever one of them simulates or groups. A residual alone goes by address until
// then. One process, two emulated devices, a policy of the test's own.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/plugin/two_devices.h"

namespace {

constexpr size_t kTensorStepCount = 2048;
constexpr size_t kLast = 1024;  // elements of the step's last tensor
constexpr float kTensorStepScales[] = {1.0f, 1e-4f, 30.0f};
constexpr int kLearningSteps = 400;  // four calls each; the detector needs 512 and a look

using Values = std::vector<float>;

Values input(float scale, size_t count) {
    Values values(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = scale * std::sin(0.7f * static_cast<float>(i) + scale);
    }
    return values;
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

    struct Tensor {
        Values values;
        std::vector<double> error = {};  // of all sums so far
        int compressed = 0;
    };
    std::vector<Tensor> tensors() {
        std::vector<Tensor> tensors;
        for (const float scale : kTensorStepScales) {
            tensors.push_back({input(scale, kTensorStepCount)});
        }
        tensors.push_back({input(5.0f, kLast)});
        for (Tensor& tensor : tensors) {
            tensor.error.resize(tensor.values.size());
        }
        return tensors;
    }
    void step(std::vector<Tensor>* tensors) {
        for (Tensor& tensor : *tensors) {
            const Values summed = sum(tensor.values);
            tensor.compressed += is_native(tensor.values, summed) ? 0 : 1;
            for (size_t i = 0; i < summed.size(); ++i) {
                tensor.error[i] += static_cast<double>(summed[i]) - 2.0 * tensor.values[i];
            }
        }
    }
    // With its own residual the error of a tensor's sums is what is left in it: less than the
    // largest value, where another tensor's would be thousands of times that.
    static void expect_own_residuals(const std::vector<Tensor>& tensors) {
        for (const Tensor& tensor : tensors) {
            double error = 0, largest = 0;
            for (size_t i = 0; i < tensor.values.size(); ++i) {
                error = std::max(error, std::abs(tensor.error[i]));
                largest = std::max(largest, std::abs(static_cast<double>(tensor.values[i])));
            }
            EXPECT_LT(error, largest);
            EXPECT_GT(error, 0.0) << "nothing was compressed";
        }
    }
};

TEST_F(TensorStep, ResidualsOfTensorsInOneBufferDoNotMix) {
    std::vector<Tensor> all = tensors();
    (void)sum(input(2.0f, 300));  // a communicator of one kind of sums knows its slot at the third
    step(&all);
    for (const Tensor& tensor : all) {
        EXPECT_EQ(tensor.compressed, 0) << "the step is not known yet";
    }
    for (int i = 1; i < kLearningSteps; ++i) {
        step(&all);
    }
    expect_own_residuals(all);
    const std::vector<Tensor> before = all;
    for (int i = 0; i < 40; ++i) {
        step(&all);
    }
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].compressed - before[i].compressed, 40);
    }
    expect_own_residuals(all);
}

TEST_F(TensorStep, OtherCallsAreNativeAndTheResidualsAreKept) {
    std::vector<Tensor> all = tensors();
    for (int i = 0; i < kLearningSteps; ++i) {
        step(&all);
    }
    // Evaluation: a sum that no step has, though a rule takes it.
    const Values other = input(2.0f, 500);
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(is_native(other, sum(other)));
    }
    const std::vector<Tensor> before = all;
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
    std::vector<Tensor> all = tensors();
    for (int i = 0; i < kLearningSteps + 40; ++i) {
        step(&all);
        if (i % 20 == 7) {
            ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            for (int call = 0; call < 1 + i / 20; ++call) {
                queue_sum(i / 20 % kRanks, kTensorStepCount / 2 + static_cast<size_t>(i) % 3);
            }
            ASSERT_EQ(ncclGroupSimulateEnd(&info), ncclSuccess);
        }
        if (i % 20 == 3) {
            // Of nothing, with a buffer on one rank only.
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            for (int rank = 0; rank < kRanks; ++rank) {
                ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
                ASSERT_EQ(ncclAllReduce(rank == 0 ? nullptr : send_[rank], recv_[rank], 0,
                                        ncclFloat32, ncclSum, comms_[rank], nullptr),
                          ncclSuccess);
            }
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
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
        std::vector<Tensor> all;
        for (int tensor = 0; tensor < 3; ++tensor) {
            all.push_back({input(scale, kTensorStepCount)});
        }
        all.push_back({input(scale, kLast - 64 * i)});
        for (Tensor& tensor : all) {
            tensor.error.resize(tensor.values.size());
        }
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
    const Values large = input(1.0f, kTensorStepCount), small = input(1e-4f, kTensorStepCount);
    const Values last = input(1.0f, kLast);
    std::vector<double> error(kTensorStepCount);
    int compressed = 0;
    for (int i = 0; i < 400; ++i) {
        if (i == 250) {
            compressed = 0;
            error.assign(kTensorStepCount, 0);
        }
        for (const Values* values : {&large, &small, &last}) {
            fill(0, *values);
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
            ASSERT_EQ(ncclSend(send_[0], values->size(), ncclFloat32, 1, comms_[0], nullptr),
                      ncclSuccess);
            ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
            ASSERT_EQ(ncclRecv(recv_[1], values->size(), ncclFloat32, 0, comms_[1], nullptr),
                      ncclSuccess);
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
            if (values == &small) {
                const Values received = result(1, kTensorStepCount);
                compressed += received == small ? 0 : 1;
                for (size_t at = 0; at < kTensorStepCount; ++at) {
                    error[at] += static_cast<double>(received[at]) - small[at];
                }
            }
        }
        if (i % 7 == 3) {
            (void)sum(input(3.0f, 100 + static_cast<size_t>(i)));
        }
    }
    EXPECT_EQ(compressed, 150) << "with its own residual since the slots are known";
    EXPECT_LT(
        std::abs(*std::max_element(error.begin(), error.end(),
                                   [](double a, double b) { return std::abs(a) < std::abs(b); })),
        1e-4);
}

}  // namespace
