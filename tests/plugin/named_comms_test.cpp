// Rules that go by the name that a program gives its communicators, and by what the name says they
// are for: all ranks must have given it alike, and parts inherit it. One process, two emulated
// devices.
#include <gtest/gtest.h>

#include <cmath>

#include "collectives/call/nccl_types.h"
#include "tests/plugin/several_devices.h"
#include "tests/support/async_comm.h"

namespace {

constexpr size_t kNamedCommsCount = 2048;

class NamedComms : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"replicas\"\nmatch = { op = \"allreduce\", role = \"dp\" }\n"
            "codec = \"int4\"\n"
            "[[rule]]\nname = \"own\"\nmatch = { comm = [\"mine?\", \"x*y\"], op = \"allreduce\" "
            "}\n"
            "codec = \"int8\"\n");
    }
    NamedComms() : TwoDevices(kNamedCommsCount) {}

    static ncclConfig_t named(const char* name, bool blocking = true) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.commName = name;
        config.blocking = blocking ? 1 : 0;
        return config;
    }
    // Splits all ranks off; null: no configuration.
    void split(ncclConfig_t* first, ncclConfig_t* second, ncclComm_t (*out)[kRanks]) {
        ncclConfig_t* configs[kRanks] = {first, second};
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            const ncclResult_t made =
                ncclCommSplit(comms_[rank], 0, rank, &(*out)[rank], configs[rank]);
            ASSERT_TRUE(made == ncclSuccess || made == ncclInProgress);
        }
        const ncclResult_t ended = ncclGroupEnd();
        ASSERT_TRUE(ended == ncclSuccess || ended == ncclInProgress) << ncclGetLastError(nullptr);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(slimwire::test::settled((*out)[rank]), ncclSuccess)
                << ncclGetLastError(nullptr);
        }
    }
    bool compresses(ncclComm_t (&comms)[kRanks]) {
        Values values(kNamedCommsCount);
        for (size_t i = 0; i < kNamedCommsCount; ++i) {
            values[i] = std::sin(0.7f * static_cast<float>(i));
        }
        std::swap(comms_, comms);
        const bool native = is_native(values, sum(values));
        std::swap(comms_, comms);
        return !native;
    }
    static void destroy(ncclComm_t (&comms)[kRanks]) {
        for (ncclComm_t comm : comms) {
            EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
        }
    }
    bool compresses_as(ncclConfig_t first, ncclConfig_t second) {
        ncclComm_t parts[kRanks] = {};
        split(&first, &second, &parts);
        const bool compressed = compresses(parts);
        destroy(parts);
        return compressed;
    }
};

TEST_F(NamedComms, ByRoleAndByPattern) {
    EXPECT_FALSE(compresses(comms_)) << "without a name";
    EXPECT_TRUE(compresses_as(named("DATA_PARALLEL_GROUP"), named("DATA_PARALLEL_GROUP")));
    EXPECT_FALSE(compresses_as(named("mesh_tp"), named("mesh_tp")));
    EXPECT_TRUE(compresses_as(named("mine7"), named("mine7")));
    EXPECT_TRUE(compresses_as(named("x and y"), named("x and y")));
    EXPECT_FALSE(compresses_as(named("mine"), named("mine")));
}

TEST_F(NamedComms, RanksThatDisagreeStayNativeTogether) {
    EXPECT_FALSE(compresses_as(named("dp"), named("mine1")));
    EXPECT_FALSE(compresses_as(named("dp"), named(nullptr)));
    EXPECT_FALSE(compresses_as(named(nullptr), named("dp")));
}

TEST_F(NamedComms, OnNonBlockingCommunicators) {
    const slimwire::test::CallsMayWait launches("exchanges are launched later");
    // The call waits for no launch: the results are those of the stream.
    ncclConfig_t config = named("dp", false);
    ncclComm_t parts[kRanks] = {};
    split(&config, &config, &parts);
    EXPECT_TRUE(compresses(parts));
    for (ncclComm_t comm : parts) {
        (void)ncclCommFinalize(comm);
        ASSERT_EQ(slimwire::test::settled(comm), ncclSuccess);
    }
    destroy(parts);
}

TEST_F(NamedComms, APartInheritsUnlessItHasAConfigurationOfItsOwn) {
    ncclConfig_t config = named("dp");
    ncclComm_t parts[kRanks] = {}, same[kRanks] = {}, other[kRanks] = {};
    split(&config, &config, &parts);
    std::swap(comms_, parts);
    split(nullptr, nullptr, &same);
    ncclConfig_t unnamed = named(nullptr);
    split(&unnamed, &unnamed, &other);
    std::swap(comms_, parts);
    EXPECT_TRUE(compresses(same));
    EXPECT_FALSE(compresses(other));
    destroy(other);
    destroy(same);
    destroy(parts);
}

TEST(CommName, OfWhatAConfigurationMayBe) {
    using slimwire::comm_name_of;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    EXPECT_EQ(comm_name_of(nullptr), "");
    EXPECT_EQ(comm_name_of(&config), "");
    config.commName = "group 1";
    EXPECT_EQ(comm_name_of(&config), "group 1");
    config.size = offsetof(ncclConfig_t, commName);  // of an NCCL before there were names
    EXPECT_EQ(comm_name_of(&config), "");
    config = NCCL_CONFIG_INITIALIZER;
    config.commName = "group";
    config.version = 22600;
    EXPECT_EQ(comm_name_of(&config), "");
    config.version = 22700;
    EXPECT_EQ(comm_name_of(&config), "group");
    config.magic = 1;
    EXPECT_EQ(comm_name_of(&config), "");
    config.magic = 0xcafebeef;
    config.commName = "\x01";
    EXPECT_EQ(comm_name_of(&config), "");
    const std::string longest(255, 'a'), longer(256, 'a');
    config.commName = longest.c_str();
    EXPECT_EQ(comm_name_of(&config), longest);
    config.commName = longer.c_str();
    EXPECT_EQ(comm_name_of(&config), "");
}

}  // namespace
