// A program with a dynamic loss scaler that tells nothing: with loss_scale in its rules what error
// feedback owes follows the scaler all the same, to the bit as in a job that tells its scale at
// each step. Scaler and gradients as under PyTorch's GradScaler and DDP; one process, two emulated
// devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/two_devices.h"

namespace {

// The tensors of a step, in their order; by their counts the policy knows them.
struct Tensor {
    const char* what;
    size_t count;
    bool follows = true;
};
constexpr Tensor kTensors[] = {{"int4", 4096},
                               {"moving average in int8", 8192},
                               {"native, below min_bytes", 1024},
                               {"residual in bf16, not in all steps", 16384},
                               {"top-k, taken back after skipped steps", 32768},
                               {"without the key", 6144, false},
                               {"ef21", 12288},
                               {"powersgd", 65536}};
// The first of those that need a place in the step, and are native where nobody marks it.
constexpr size_t kByAddress = 6;
constexpr size_t kHalves = 16384;
constexpr size_t kStepElems = 4096 + 8192 + 1024 + 16384 + 32768 + 6144 + 12288 + 65536;
constexpr char kPolicy[] = R"(version = 1
[defaults]
codec = "int4"
error_feedback = "ef14"
[[rule]]
name = "int4"
match = { op = "allreduce", bytes = "16KiB..16KiB" }
loss_scale = { growth_interval = 20 }
[[rule]]
name = "average"
match = { op = "allreduce", bytes = "32KiB..32KiB" }
error_feedback = "ema"
residual = "int8"
loss_scale = { growth_interval = 20 }
[[rule]]
name = "small"
match = { op = "allreduce", bytes = "4KiB..4KiB" }
min_bytes = "8KiB"
loss_scale = { growth_interval = 20 }
[[rule]]
name = "halves"
match = { op = "allreduce", bytes = "64KiB..64KiB" }
residual = "bf16"
loss_scale = { growth_interval = 20 }
[[rule]]
name = "skipping"
match = { op = "allreduce", bytes = "128KiB..128KiB" }
codec = "topk:fraction=0.05"
rollback = "exact"
loss_scale = { growth_interval = 20 }
[[rule]]
name = "unfollowed"
match = { op = "allreduce", bytes = "24KiB..24KiB" }
[[rule]]
name = "estimates"
match = { op = "allreduce", bytes = "48KiB..48KiB" }
error_feedback = "ef21"
loss_scale = { growth_interval = 20 }
[[rule]]
name = "factors"
match = { op = "allreduce", bytes = "256KiB..256KiB" }
codec = "powersgd:rank=2,row=256"
loss_scale = { growth_interval = 20 }
)";
constexpr int kSteps = 130;
// Steps in which one rank has one value that is not finite, and in which tensor: at the very
// beginning, one right after the other, in calls that are native, and where the scale would grow.
const std::map<int, size_t> kBad = {{0, 3}, {30, 1}, {31, 0}, {40, 2}, {60, 4}, {125, 2}};

float gradient(int rank, int step, size_t i) {
    return std::sin(0.7f * static_cast<float>(i) + 2.0f * static_cast<float>(rank) +
                    0.3f * static_cast<float>(step)) *
           (i % 97 == 0 ? 3.0f : 0.02f);
}

struct Scaler {
    float scale = 1;
    int good = 0;

    void update(bool bad) {
        if (bad) {
            scale *= 0.5f;
            good = 0;
        } else if (++good == 20) {
            scale *= 2;
            good = 0;
        }
    }
};

enum class Says { kNothing, kSteps, kAll };  // what a program tells

class ScaleReplay : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() { write_policy(kPolicy); }
    // DDP's buckets lie elsewhere in the first step.
    ScaleReplay() : TwoDevices(2 * kStepElems) {}

    using Results = std::vector<std::vector<uint32_t>>;  // of each call

    std::vector<uint32_t> reduce(const Tensor& tensor, size_t at, const Values (&values)[kRanks]) {
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaMemcpy(send_[rank] + at, values[rank].data(),
                                 tensor.count * sizeof(float), cudaMemcpyHostToDevice),
                      cudaSuccess);
        }
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(ncclAllReduce(send_[rank] + at, recv_[rank] + at, tensor.count, ncclFloat32,
                                    ncclSum, comms_[rank], nullptr),
                      ncclSuccess);
        }
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        std::vector<uint32_t> bits[kRanks];
        for (int rank = 0; rank < kRanks; ++rank) {
            bits[rank].resize(tensor.count);
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            EXPECT_EQ(cudaMemcpy(bits[rank].data(), recv_[rank] + at, tensor.count * sizeof(float),
                                 cudaMemcpyDeviceToHost),
                      cudaSuccess);
        }
        EXPECT_EQ(bits[0], bits[1]) << "ranks differ in " << tensor.what;
        return bits[0];
    }
    // One number that no rule takes: a broadcast, or the flag by which all ranks skip a step.
    void one_number(bool broadcast, float value) {
        for (int rank = 0; rank < kRanks; ++rank) {
            fill(rank, {value});
        }
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(broadcast ? ncclBroadcast(send_[rank], recv_[rank], 1, ncclFloat32, 0,
                                                comms_[rank], nullptr)
                                : ncclAllReduce(send_[rank], recv_[rank], 1, ncclFloat32, ncclMax,
                                                comms_[rank], nullptr),
                      ncclSuccess);
        }
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    }

    // All results of a job of its own with the first `tensors`, by step and tensor. One that tells
    // its scale also reduces the flag of the step, without which nothing is taken back after it.
    Results job(Says says, size_t tensors) {
        TearDown();
        SetUp();
        Results results;
        Scaler scaler;
        for (int step = 0; step < kSteps; ++step) {
            if (says != Says::kNothing) {
                EXPECT_EQ(slimwire_mark_step(static_cast<uint64_t>(step)), SLIMWIRE_OK);
            }
            if (says == Says::kAll) {
                EXPECT_EQ(slimwire_set_loss_scale(static_cast<double>(scaler.scale)), SLIMWIRE_OK);
            }
            const auto bad = kBad.find(step);
            size_t at = step == 0 ? kStepElems : 0;
            for (size_t tensor = 0; tensor < tensors; ++tensor) {
                const size_t count = kTensors[tensor].count;
                if (count == kHalves && step > 25 && step < 95) {
                    at += count;  // it catches up with several changes of the scale
                    results.emplace_back();
                    continue;
                }
                Values values[kRanks];
                for (int rank = 0; rank < kRanks; ++rank) {
                    for (size_t i = 0; i < count; ++i) {
                        values[rank].push_back(scaler.scale * gradient(rank, step, i));
                    }
                }
                if (bad != kBad.end() && bad->second == tensor) {
                    values[step % kRanks][count / 3] = std::numeric_limits<float>::infinity();
                }
                results.push_back(reduce(kTensors[tensor], at, values));
                at += count;
            }
            if (step == 0) {
                one_number(true, 7);  // what the buckets are from now on
            }
            if (says == Says::kAll) {
                one_number(false, bad != kBad.end() ? 1.0f : 0.0f);
            }
            scaler.update(bad != kBad.end());
        }
        EXPECT_EQ(scaler.scale, 0.25f);  // it grew four times
        return results;
    }
    // In how many steps a tensor's results differ.
    static int differing(const Results& one, const Results& other, size_t tensor, size_t tensors) {
        int different = 0;
        for (size_t i = tensor; i < one.size(); i += tensors) {
            different += one[i] == other[i] ? 0 : 1;
        }
        return different;
    }
    static void expect_to_follow(const Results& replayed, const Results& told, size_t tensors) {
        for (size_t tensor = 0; tensor < tensors; ++tensor) {
            SCOPED_TRACE(kTensors[tensor].what);
            if (kTensors[tensor].follows) {
                EXPECT_EQ(differing(replayed, told, tensor, tensors), 0);
            } else {
                EXPECT_GT(differing(replayed, told, tensor, tensors), 20);
            }
        }
    }
};

// One test, because what was told once is told for good, and so are marks.
TEST_F(ScaleReplay, ResidualsFollowAScalerThatNobodyTells) {
    constexpr size_t kAll = std::size(kTensors);
    const Results nothing = job(Says::kNothing, kByAddress);
    const Results steps = job(Says::kSteps, kAll);
    expect_to_follow(nothing, job(Says::kAll, kByAddress), kByAddress);
    expect_to_follow(steps, job(Says::kAll, kAll), kAll);
    EXPECT_FALSE(nothing[0] == nothing[kByAddress]);
}

}  // namespace
