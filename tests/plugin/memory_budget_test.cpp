// SLIMWIRE_MAX_MEMORY counts the residual of every tensor. What ranks know alike (kinds of calls,
// places in the step) is refused on all of them; a tensor for which only one process has no room is
// compressed there without its residual, and nobody waits for a rank that decided otherwise. One
// process, three emulated devices, a policy and a limit of the test's own.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"
#include "tests/support/has.h"

namespace {

// The limit (48000 bytes a device, meson.build) has room for the scratch and one residual of each
// kind: those of 4096 and of 5120 elements take 24576 and 30720 bytes on two ranks.
constexpr size_t kByAddress = 4096;
constexpr size_t kByStep = 5120;
constexpr size_t kEstimated[] = {832, 768};  // their estimates: more than those leave
constexpr size_t kMessage = 8192;
constexpr int kMemoryBudgetSteps = 48;

using Values = std::vector<float>;

Values input(size_t count, float phase) {
    Values values(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = std::sin(0.7f * static_cast<float>(i) + phase);
    }
    return values;
}

double largest_error(const std::vector<double>& sums, const Values& values, int calls) {
    double error = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        error = std::max(error, std::abs(sums[i] - 2.0 * calls * static_cast<double>(values[i])));
    }
    return error;
}

class MemoryBudget : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[defaults]\ncodec = \"int4\"\nerror_feedback = \"ef14\"\n"
            "[[rule]]\nname = \"address\"\nmatch = { op = \"allreduce\", bytes = \"16KiB..16KiB\" "
            "}\n"
            "[[rule]]\nname = \"step\"\nmatch = { op = \"allreduce\", bytes = \"20KiB..20KiB\" }\n"
            "[[rule]]\nname = \"estimates\"\nmatch = { op = \"allreduce\", bytes = "
            "\"3072..3328\" }\nerror_feedback = \"ef21\"\n"
            "[[rule]]\nname = \"messages\"\nmatch = { op = \"send\" }\n");
    }
    MemoryBudget() : TwoDevices(2 * kMessage) {}

    // A sum of the same values into each rank's own place of its buffers.
    std::vector<Values> sum_into(const Values& values, const size_t (&offsets)[kRanks]) {
        for (int rank = 0; rank < kRanks; ++rank) {
            fill(rank, values);
        }
        group([&](int rank) {
            return ncclAllReduce(send_[rank], recv_[rank] + offsets[rank], values.size(),
                                 ncclFloat32, ncclSum, comms_[rank], nullptr);
        });
        return {download(0, recv_[0] + offsets[0], values.size()),
                download(1, recv_[1] + offsets[1], values.size())};
    }
};

TEST_F(MemoryBudget, ATensorBeyondItIsCompressedWithoutItsResidual) {
    const Values values = input(kByAddress, 0);
    std::vector<double> first(kByAddress), second(kByAddress);
    for (int step = 0; step < kMemoryBudgetSteps; ++step) {
        // Rank 0 has two tensors where rank 1 has one: only rank 0 runs out of memory.
        for (const bool again : {false, true}) {
            const std::vector<Values> sums = sum_into(values, {again ? kByAddress : 0, 0});
            EXPECT_EQ(sums[0], sums[1]);
            EXPECT_FALSE(is_native(values, sums[0]));
            for (size_t i = 0; i < kByAddress; ++i) {
                (again ? second : first)[i] += static_cast<double>(sums[0][i]);
            }
        }
    }
    // Both ranks send alike, so of the first tensor nothing is lost beyond a residual on each side,
    // and of the second rank 0 loses its part each time.
    const double owed = largest_error(first, values, kMemoryBudgetSteps) +
                        largest_error(second, values, kMemoryBudgetSteps);
    EXPECT_GT(owed, 1.0) << "every tensor had its residual";
    EXPECT_LT(largest_error(first, values, kMemoryBudgetSteps),
              largest_error(second, values, kMemoryBudgetSteps));
}

TEST_F(MemoryBudget, ItIsFreeAgainWithTheCommunicator) {
    // The communicator of the test before kept one residual; this one keeps its own.
    const Values values = input(kByAddress, 1);
    std::vector<double> sums(kByAddress);
    for (int step = 0; step < kMemoryBudgetSteps; ++step) {
        const std::vector<Values> summed = sum_into(values, {0, 0});
        for (size_t i = 0; i < kByAddress; ++i) {
            sums[i] += static_cast<double>(summed[0][i]);
        }
    }
    EXPECT_LT(largest_error(sums, values, kMemoryBudgetSteps), 1.0);
}

TEST_F(MemoryBudget, PlacesBeyondItAreNativeOnAllRanks) {
    const Values values = input(kByStep, 2), other = input(64, 0);
    int compressed[2] = {};
    for (int step = 0; step < 300; ++step) {
        if (step == 230) {  // the slots are known by now
            compressed[0] = compressed[1] = 0;
        }
        for (int place = 0; place < 2; ++place) {
            const std::vector<Values> sums = sum_into(values, {0, 0});
            EXPECT_EQ(sums[0], sums[1]);
            compressed[place] += is_native(values, sums[0]) ? 0 : 1;
        }
        EXPECT_TRUE(is_native(other, sum(other)));
    }
    // Whichever of them was known first was granted its residual.
    EXPECT_GT(std::max(compressed[0], compressed[1]), 50);
    EXPECT_EQ(std::min(compressed[0], compressed[1]), 0);
}

// Which communicators a rank is in only it knows: what all ranks hold, and have agreed on for one
// of them, is kept beyond the limit.
TEST_F(MemoryBudget, EstimatesBesideAnotherCommunicatorGoBeyondIt) {
    (void)sum_into(input(kByAddress, 5), {0, 0});
    ncclComm_t others[kRanks];
    ASSERT_EQ(ncclCommInitAll(others, kRanks, nullptr), ncclSuccess) << ncclGetLastError(nullptr);
    std::swap(comms_, others);
    testing::internal::CaptureStderr();
    int compressed = 0;
    for (uint64_t step = 1; step <= 12; ++step) {
        ASSERT_EQ(slimwire_mark_step(step), SLIMWIRE_OK);
        for (const size_t count : kEstimated) {
            const Values values = input(count, static_cast<float>(step));
            compressed += is_native(values, sum(values)) ? 0 : 1;
        }
    }
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_GT(compressed, 12) << said;
    EXPECT_HAS(said, "estimates of ef21 go beyond SLIMWIRE_MAX_MEMORY=48000: ");
    for (ncclComm_t comm : others) {
        EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    }
}

// The residual of a message is no business of a rank that neither sends nor receives it: if it
// counted for later collectives, ranks would decide otherwise and wait for ever.
class MemoryOfMessages : public slimwire::test::SeveralDevices<3, testing::Test> {
  protected:
    MemoryOfMessages() : SeveralDevices(kMessage) {}
};

TEST_F(MemoryOfMessages, DoesNotPartTheRanks) {
    for (int rank = 0; rank < kRanks; ++rank) {
        fill(rank, input(kMessage, 4));
    }
    for (int call = 0; call < 3; ++call) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        ASSERT_EQ(ncclSend(send_[0], kMessage, ncclFloat32, 1, comms_[0], nullptr), ncclSuccess);
        ASSERT_EQ(ncclRecv(recv_[1], kMessage, ncclFloat32, 0, comms_[1], nullptr), ncclSuccess);
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }
    (void)reduce(kByAddress);
}

}  // namespace
