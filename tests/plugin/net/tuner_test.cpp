// How the tuner leaves only Simple, in each version of its table.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "plugin/net/abi/tuner.h"

namespace slimwire::net {

extern "C" {
extern const TunerV4 ncclTunerPlugin_v4;
extern const TunerV5 ncclTunerPlugin_v5;
extern const TunerV6 ncclTunerPlugin_v6;
extern const TunerV7 ncclTunerPlugin_v7;
}

namespace {

struct Costs {
    float table[kTunerAlgorithms][kTunerProtocols];
    Costs() {
        for (auto& row : table) {
            row[kProtocolLl] = 1;
            row[kProtocolLl128] = 2;
            row[kProtocolSimple] = 3;
        }
    }
    [[nodiscard]] bool only_simple() const {
        for (const auto& row : table) {
            if (row[kProtocolLl] >= 0 || row[kProtocolLl128] >= 0 || row[kProtocolSimple] != 3) {
                return false;
            }
        }
        return true;
    }
    [[nodiscard]] bool untouched() const {
        return std::memcmp(table, Costs().table, sizeof table) == 0;
    }
};

// What a table makes of the costs of one call in a communicator of 8 ranks.
template <class Table>
Costs tuned(const Table& table, size_t bytes, size_t nodes = 2, Costs costs = {}) {
    void* context = nullptr;
    int channels = 4;
    if constexpr (requires { table.destroy; }) {
        EXPECT_EQ(table.init(8, nodes, nullptr, &context), ncclSuccess);
    } else {
        EXPECT_EQ(table.init(&context, 7, 8, nodes, nullptr, nullptr, nullptr), ncclSuccess);
    }
    EXPECT_EQ(table.get_coll_info(context, TunedCollective::kAllReduce, bytes, 1,
                                  reinterpret_cast<float**>(costs.table), kTunerAlgorithms,
                                  kTunerProtocols, 0, &channels),
              ncclSuccess);
    EXPECT_EQ(channels, 4);
    if constexpr (requires { table.destroy; }) {
        EXPECT_EQ(table.destroy(context), ncclSuccess);
    } else {
        EXPECT_EQ(table.finalize(context), ncclSuccess);
    }
    return costs;
}

TEST(NetTuner, leaves_only_simple_from_the_size_on_that_pays) {
    const auto check = [](const auto& table) {
        EXPECT_TRUE(tuned(table, (8 << 15) - 1).untouched());
        EXPECT_TRUE(tuned(table, 8 << 15).only_simple());
        EXPECT_TRUE(tuned(table, 1 << 30, 1).untouched())
            << "inside one node nothing is compressed";
        Costs simple_is_missing;
        for (auto& row : simple_is_missing.table) {
            row[kProtocolSimple] = kTunerIgnore;
        }
        const Costs after = tuned(table, 1 << 30, 2, simple_is_missing);
        EXPECT_EQ(std::memcmp(&after, &simple_is_missing, sizeof after), 0);
    };
    check(ncclTunerPlugin_v4);
    check(ncclTunerPlugin_v5);
    check(ncclTunerPlugin_v6);
    check(ncclTunerPlugin_v7);
}

TEST(NetTuner, its_size_can_be_set_and_without_a_codec_the_choice_is_nccls) {
    ::setenv("SLIMWIRE_NET_MIN_BYTES", "128KiB", 1);
    EXPECT_TRUE(tuned(ncclTunerPlugin_v5, (1 << 20) - 1).untouched());
    EXPECT_TRUE(tuned(ncclTunerPlugin_v5, 1 << 20).only_simple());
    ::unsetenv("SLIMWIRE_NET_MIN_BYTES");
    ::setenv("SLIMWIRE_NET_CODEC", "off", 1);
    EXPECT_TRUE(tuned(ncclTunerPlugin_v5, 1 << 30).untouched());
    ::unsetenv("SLIMWIRE_NET_CODEC");
}

// NCCL asks the tuner of a net plugin's library whether or not it uses that network.
TEST(NetTuner, the_choice_is_nccls_where_another_network_carries_the_job) {
    const auto touches = [](const char* variable, const char* value) {
        ::setenv(variable, value, 1);
        const Costs costs = tuned(ncclTunerPlugin_v5, 1 << 30);
        ::unsetenv(variable);
        return !costs.untouched();
    };
    EXPECT_FALSE(touches("SLIMWIRE_MODE", "off"));
    EXPECT_FALSE(touches("NCCL_NET", "Socket"));
    EXPECT_TRUE(touches("SLIMWIRE_MODE", "on"));
    EXPECT_TRUE(touches("NCCL_NET", "SLIMWIRE"));
    EXPECT_TRUE(touches("NCCL_NET", ""));
}

}  // namespace
}  // namespace slimwire::net
