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

ncclResult_t ask(TunerGetCollInfo get, void* context, size_t bytes, Costs* costs) {
    int channels = 4;
    const ncclResult_t result =
        get(context, TunedCollective::kAllReduce, bytes, 1, reinterpret_cast<float**>(costs->table),
            kTunerAlgorithms, kTunerProtocols, 0, &channels);
    EXPECT_EQ(channels, 4);
    return result;
}

template <class Init, class End>
void tune(Init init, TunerGetCollInfo get, End end) {
    void* context = nullptr;
    ASSERT_EQ(init(&context, 8, 2), ncclSuccess);
    Costs small, large, simple_is_missing;
    EXPECT_EQ(ask(get, context, (8 << 15) - 1, &small), ncclSuccess);
    EXPECT_TRUE(small.untouched());
    EXPECT_EQ(ask(get, context, 8 << 15, &large), ncclSuccess);
    EXPECT_TRUE(large.only_simple());
    for (auto& row : simple_is_missing.table) {
        row[kProtocolSimple] = kTunerIgnore;
    }
    const Costs before = simple_is_missing;
    EXPECT_EQ(ask(get, context, 1 << 30, &simple_is_missing), ncclSuccess);
    EXPECT_EQ(std::memcmp(&before, &simple_is_missing, sizeof before), 0);
    EXPECT_EQ(end(context), ncclSuccess);
    // Inside one node nothing is compressed.
    ASSERT_EQ(init(&context, 8, 1), ncclSuccess);
    Costs inside;
    EXPECT_EQ(ask(get, context, 1 << 30, &inside), ncclSuccess);
    EXPECT_TRUE(inside.untouched());
    EXPECT_EQ(end(context), ncclSuccess);
}

template <class Table>
void tune_by(const Table& table) {
    tune(
        [&](void** context, size_t ranks, size_t nodes) {
            return table.init(context, 7, ranks, nodes, nullptr, nullptr, nullptr);
        },
        table.get_coll_info, table.finalize);
}

TEST(NetTuner, leaves_only_simple_from_the_size_on_that_pays) {
    tune([](void** context, size_t ranks,
            size_t nodes) { return ncclTunerPlugin_v4.init(ranks, nodes, nullptr, context); },
         ncclTunerPlugin_v4.get_coll_info, ncclTunerPlugin_v4.destroy);
    tune_by(ncclTunerPlugin_v5);
    tune_by(ncclTunerPlugin_v6);
    tune_by(ncclTunerPlugin_v7);
}

TEST(NetTuner, its_size_can_be_set_and_without_a_codec_the_choice_is_nccls) {
    void* context = nullptr;
    ::setenv("SLIMWIRE_NET_MIN_BYTES", "128KiB", 1);
    ASSERT_EQ(ncclTunerPlugin_v5.init(&context, 7, 8, 2, nullptr, nullptr, nullptr), ncclSuccess);
    Costs below, at;
    EXPECT_EQ(ask(ncclTunerPlugin_v5.get_coll_info, context, (1 << 20) - 1, &below), ncclSuccess);
    EXPECT_EQ(ask(ncclTunerPlugin_v5.get_coll_info, context, 1 << 20, &at), ncclSuccess);
    EXPECT_TRUE(below.untouched());
    EXPECT_TRUE(at.only_simple());
    EXPECT_EQ(ncclTunerPlugin_v5.finalize(context), ncclSuccess);
    ::unsetenv("SLIMWIRE_NET_MIN_BYTES");
    ::setenv("SLIMWIRE_NET_CODEC", "off", 1);
    ASSERT_EQ(ncclTunerPlugin_v5.init(&context, 7, 8, 2, nullptr, nullptr, nullptr), ncclSuccess);
    Costs off;
    EXPECT_EQ(ask(ncclTunerPlugin_v5.get_coll_info, context, 1 << 30, &off), ncclSuccess);
    EXPECT_TRUE(off.untouched());
    EXPECT_EQ(ncclTunerPlugin_v5.finalize(context), ncclSuccess);
    ::unsetenv("SLIMWIRE_NET_CODEC");
}

// NCCL asks the tuner of a net plugin's library whether or not it uses that network.
TEST(NetTuner, the_choice_is_nccls_where_another_network_carries_the_job) {
    const auto touches = [](const char* variable, const char* value) {
        ::setenv(variable, value, 1);
        void* context = nullptr;
        Costs costs;
        EXPECT_EQ(ncclTunerPlugin_v5.init(&context, 7, 8, 2, nullptr, nullptr, nullptr),
                  ncclSuccess);
        EXPECT_EQ(ask(ncclTunerPlugin_v5.get_coll_info, context, 1 << 30, &costs), ncclSuccess);
        EXPECT_EQ(ncclTunerPlugin_v5.finalize(context), ncclSuccess);
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
