// Mode shadow under rules that go by names of communicators: the plan is the one that mode on would
// make, with this rank's word for the name; and under a rule for parameters, which must not make it
// wait for another rank. One process, two emulated devices.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/plugin/several_devices.h"
#include "tests/support/async_comm.h"

namespace {

constexpr size_t kNamedShadowCount = 4096;

class NamedShadow : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"replicas\"\n"
            "match = { op = \"allreduce\", role = \"dp\" }\ncodec = \"int8\"\n"
            "[[rule]]\nname = \"norms\"\nmatch = { op = \"allreduce\", dtype = \"bf16\", param = "
            "\"1d\" }\ncodec = \"native\"\n");
        ask_for_report();
        ::setenv("SLIMWIRE_MODE", "shadow", 1);
        trace_ = testing::TempDir() + "shadow_" + std::to_string(getpid()) + ".trace";
        ::setenv("SLIMWIRE_TRACE", trace_.c_str(), 1);
    }
    NamedShadow() : TwoDevices(kNamedShadowCount) {}

    static inline std::string trace_;
};

TEST_F(NamedShadow, GoesByTheNameThatThisRankGave) {
    ncclConfig_t named = NCCL_CONFIG_INITIALIZER;
    named.commName = "mesh_dp";
    ncclComm_t parts[kRanks] = {};
    group([&](int rank) { return ncclCommSplit(comms_[rank], 0, rank, &parts[rank], &named); });
    const Values ones(kNamedShadowCount, 1.0f);
    EXPECT_TRUE(is_native(ones, sum(ones)));
    std::swap(comms_, parts);
    EXPECT_TRUE(is_native(ones, sum(ones)));
    std::swap(comms_, parts);
    for (ncclComm_t comm : parts) {
        end(comm);
    }
    TearDown();
    std::map<std::string, std::string> names, codecs;  // by communicator
    for (const nlohmann::json& json : report()) {
        if (json.at("record") == "comm") {
            names[json.at("comm")] = json.at("name");
        } else if (json.at("record") == "key") {
            codecs[json.at("comm")] = json.value("shadow_codec", "");
        }
    }
    int with_name = 0, without = 0;
    for (const auto& [comm, name] : names) {
        (name.empty() ? without : with_name) += 1;
        EXPECT_EQ(codecs[comm], name == "mesh_dp" ? "int8" : "") << comm << " " << name;
    }
    EXPECT_GE(with_name, 1);
    EXPECT_GE(without, 1);
    SetUp();
    std::remove(trace_.c_str());
}

// A rank goes on after the broadcast that tells shapes, as DistributedDataParallel does not; the
// other rank, which is this thread, too, comes to it only then.
TEST_F(NamedShadow, WaitsNotForEverForWhatCallsCarry) {
    const slimwire::test::CallsMayWait values("of a broadcast whose other rank calls later");
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(ncclAllGather(send_[rank], recv_[rank], 1, ncclInt64, comms_[rank], nullptr),
                  ncclSuccess);
        ASSERT_EQ(ncclBroadcast(send_[rank], recv_[rank], 4, ncclInt64, 0, comms_[rank], nullptr),
                  ncclSuccess);
        ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], kNamedShadowCount, ncclBfloat16, ncclSum,
                                comms_[rank], nullptr),
                  ncclSuccess);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
}

}  // namespace
