// Splits that NCCL does in the background: it stores the new handle at the end, whoever waits for
// it. Under the sanitizer, which sees where.
#include "collectives/communicator/agreement/private_split.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "collectives/communicator/communicator.h"
#include "tests/support/plain_device.h"

namespace slimwire {
namespace {

ncclComm_t* g_place = nullptr;  // of the handle

RealNccl busy_nccl() {
    RealNccl nccl;
    nccl.GroupStart = [] { return ncclSuccess; };
    nccl.GroupEnd = [] { return ncclInProgress; };
    nccl.CommSplit = [](ncclComm_t, int, int, ncclComm_t* out, ncclConfig_t*) {
        g_place = out;
        return ncclInProgress;
    };
    nccl.CommGetAsyncError = [](ncclComm_t, ncclResult_t* state) {
        *state = ncclInProgress;
        return ncclSuccess;
    };
    nccl.GetErrorString = [](ncclResult_t) { return ""; };
    return nccl;
}

class PrivateSplit : public testing::TestWithParam<bool> {};

TEST_P(PrivateSplit, that_is_given_up_leaves_nccl_the_place_of_the_handle) {
    const bool cancelled = GetParam();
    const RealNccl nccl = busy_nccl();
    static Runtime& runtime = *new Runtime;
    runtime.use_device(test::plain_device());
    Communicator state;
    state.nccl = &nccl;
    const auto creation = std::make_shared<PendingCreation>();
    AbortWatch watch(nccl);
    watch.add(creation, &state.exchange_comm);
    auto split = std::make_shared<Split>(runtime, state);
    split->parts.push_back({nullptr, 0, 0});
    creation->cancelled = cancelled;
    const uint64_t patience_us = cancelled ? 10'000'000 : 20'000;
    EXPECT_FALSE(run_split(split, steady_us() + patience_us, &watch).ok());
    const std::weak_ptr<Split> held = split;
    split.reset();
    for (int look = 0; look < 100 && !held.expired(); ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // by its thread
    }
    *g_place = reinterpret_cast<ncclComm_t>(g_place);
}

INSTANTIATE_TEST_SUITE_P(Cancelled, PrivateSplit, testing::Bool());

}  // namespace
}  // namespace slimwire
