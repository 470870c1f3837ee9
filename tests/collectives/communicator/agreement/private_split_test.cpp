// Splits that NCCL does in the background: it stores the new handle at the end, whoever waits for
// it. Under the sanitizer, which sees where.
#include "collectives/communicator/agreement/private_split.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
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

Runtime& plain_runtime() {
    static Runtime& runtime = *new Runtime;
    runtime.use_device(test::plain_device());
    return runtime;
}

class PrivateSplit : public testing::TestWithParam<bool> {};

TEST_P(PrivateSplit, that_is_given_up_leaves_nccl_the_place_of_the_handle) {
    const bool cancelled = GetParam();
    const RealNccl nccl = busy_nccl();
    Communicator state;
    state.nccl = &nccl;
    const auto creation = std::make_shared<PendingCreation>();
    AbortWatch watch(nccl);
    watch.add(creation, &state.exchange_comm);
    auto split = std::make_shared<Split>(plain_runtime(), state);
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

ncclConfig_t g_config;  // that the private communicator is made with, as is its network
std::string g_network;

TEST(PrivateConfiguration, is_the_programs_but_for_its_name_and_what_it_shares) {
    RealNccl nccl = busy_nccl();
    nccl.CommSplit = [](ncclComm_t, int, int, ncclComm_t*, ncclConfig_t* config) {
        g_config = *config;
        g_network = config->netName != nullptr ? config->netName : "";
        return ncclSuccess;
    };
    nccl.GroupEnd = [] { return ncclSuccess; };
    Communicator state;
    state.nccl = &nccl;
    const auto make = [&](const Configured& configured) {
        const auto split = std::make_shared<Split>(plain_runtime(), state);
        split->parts.push_back({nullptr, 0, 0, configured});
        AbortWatch watch(nccl);
        EXPECT_TRUE(run_split(split, steady_us() + 10'000'000, &watch).ok());
        EXPECT_EQ(g_config.splitShare, 0);
        EXPECT_EQ(g_config.shrinkShare, 0);
        EXPECT_STREQ(g_config.commName, "slimwire");
        EXPECT_EQ(g_config.size, sizeof(ncclConfig_t));
    };
    ncclConfig_t given = NCCL_CONFIG_INITIALIZER;
    given.blocking = 0;
    given.maxCTAs = 8;
    given.trafficClass = 3;
    std::string network = "Socket";
    given.netName = network.c_str();
    given.commName = "tensor";
    given.splitShare = 1;
    const Configured parent = configured_by(&given, {});
    network = "gone..";
    make(configured_by(nullptr, parent));  // a child that has it from its parent
    EXPECT_EQ(g_config.blocking, 0);
    EXPECT_EQ(g_config.maxCTAs, 8);
    EXPECT_EQ(g_config.minCTAs, NCCL_CONFIG_UNDEF_INT);
    EXPECT_EQ(g_config.trafficClass, 3);
    EXPECT_EQ(g_network, "Socket");
    // One of NCCL 2.17 ends after the network's name.
    given.version = 21700;
    given.size = offsetof(ncclConfig_t, splitShare);
    make(configured_by(&given, parent));
    EXPECT_EQ(g_config.maxCTAs, 8);
    EXPECT_EQ(g_config.trafficClass, NCCL_CONFIG_UNDEF_INT);
    make(configured_by(nullptr, {}));
    EXPECT_EQ(g_config.blocking, 1);
    EXPECT_EQ(g_config.maxCTAs, NCCL_CONFIG_UNDEF_INT);
    EXPECT_EQ(g_network, "");
}

INSTANTIATE_TEST_SUITE_P(Cancelled, PrivateSplit, testing::Bool());

}  // namespace
}  // namespace slimwire
