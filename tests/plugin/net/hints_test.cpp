// How a send learns its element type and protocol: through the profiler's events as NCCL makes
// them, for each table version; and how the tuner leaves only Simple.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "plugin/net/abi/profiler.h"
#include "plugin/net/abi/tuner.h"
#include "plugin/net/hints/hint.h"

namespace slimwire::net {

extern "C" {
extern const ProfilerV4 ncclProfiler_v4;
extern const ProfilerV5 ncclProfiler_v5;
extern const ProfilerV6 ncclProfiler_v6;
extern const TunerV4 ncclTunerPlugin_v4;
extern const TunerV5 ncclTunerPlugin_v5;
extern const TunerV6 ncclTunerPlugin_v6;
}

namespace {

TEST(NetHint, handles_carry_every_type_and_protocol_and_others_mean_nothing) {
    for (int type = -1; type < kDTypeCount; ++type) {
        for (int protocol = 0; protocol <= 3; ++protocol) {
            Hint hint;
            if (type >= 0) {
                hint.element = static_cast<DType>(type);
            }
            hint.protocol = static_cast<Protocol>(protocol);
            ASSERT_NE(handle_of(hint), nullptr);
            EXPECT_EQ(hint_of(handle_of(hint)), hint);
        }
    }
    int somewhere = 0;
    EXPECT_EQ(hint_of(&somewhere), Hint{});
    EXPECT_EQ(hint_of(nullptr), Hint{});
    EXPECT_EQ(hint_from_names("ncclBfloat16", "LL128"), (Hint{DType::kBfloat16, Protocol::kLl128}));
    EXPECT_EQ(hint_from_names("ncclFuture", nullptr), Hint{});
}

// NCCL's side: what it keeps of a send, and the callback it gives the net plugin.
struct ProxyStep {
    void* event;
};
template <class Profiler>
const Profiler* g_profiler = nullptr;

template <class Profiler, class Event>
ncclResult_t callback(void** event, int type, void* phandle, int64_t id, void* data) {
    if (type == kNetEventStart) {
        Event descriptor{};
        descriptor.type = static_cast<decltype(descriptor.type)>(kProfileNetPlugin);
        descriptor.parent = static_cast<ProxyStep*>(phandle)->event;
        descriptor.net_plugin = {id, data};
        return g_profiler<Profiler>->start_event(nullptr, event, &descriptor);
    }
    return g_profiler<Profiler>->stop_event(*event);
}

template <class Profiler, class Event>
void follow_a_collective(const Profiler& profiler) {
    g_profiler<Profiler> = &profiler;
    void* context = nullptr;
    int mask = -1;
    if constexpr (std::is_same_v<Profiler, ProfilerV4>) {
        ASSERT_EQ(profiler.init(&context, &mask, "comm", 7, 2, 4, 0, nullptr), ncclSuccess);
    } else {
        ASSERT_EQ(profiler.init(&context, 7, &mask, "comm", 2, 4, 0, nullptr), ncclSuccess);
    }
    for (const int bit : {kProfileCollective, kProfilePointToPoint, kProfileProxyOperation,
                          kProfileProxyStep, kProfileNetPlugin}) {
        EXPECT_NE(mask & bit, 0) << bit;
    }
    const auto child = [&](int type, void* parent) {
        Event descriptor{};
        descriptor.type = static_cast<decltype(descriptor.type)>(type);
        descriptor.parent = parent;
        void* event = nullptr;
        EXPECT_EQ(profiler.start_event(context, &event, &descriptor), ncclSuccess);
        return event;
    };
    Event collective{};
    collective.type = kProfileCollective;
    Event point{};
    point.type = kProfilePointToPoint;
    if constexpr (std::is_same_v<Profiler, ProfilerV4>) {
        collective.collective.datatype = "ncclFloat16";
        collective.collective.protocol = "SIMPLE";
        point.point_to_point.datatype = "ncclFloat32";
    } else {
        collective.collective.v4.datatype = "ncclFloat16";
        collective.collective.v4.protocol = "SIMPLE";
        point.point_to_point.v4.datatype = "ncclFloat32";
    }
    const ProfilerCallback ask = callback<Profiler, Event>;
    for (auto& [root, expected] : {std::pair{&collective, Hint{DType::kFloat16, Protocol::kSimple}},
                                   std::pair{&point, Hint{DType::kFloat32, Protocol::kUnknown}}}) {
        void* event = nullptr;
        ASSERT_EQ(profiler.start_event(context, &event, root), ncclSuccess);
        void* const operation = child(kProfileProxyOperation, event);
        ProxyStep step{child(kProfileProxyStep, operation)};
        EXPECT_EQ(ask_hint(ask, &step), expected);
        for (void* each : {step.event, operation, event}) {
            EXPECT_EQ(profiler.stop_event(each), ncclSuccess);
        }
    }
    // A step that NCCL did not have profiled, no step at all, no callback.
    ProxyStep stranger{nullptr};
    EXPECT_EQ(ask_hint(ask, &stranger), Hint{});
    EXPECT_EQ(ask_hint(ask, nullptr), Hint{});
    EXPECT_EQ(ask_hint(nullptr, &stranger), Hint{});
    EXPECT_EQ(profiler.finalize(context), ncclSuccess);
}

TEST(NetHint, a_send_learns_the_type_of_its_collective_v4) {
    follow_a_collective<ProfilerV4, ProfilerEventV4>(ncclProfiler_v4);
}
TEST(NetHint, a_send_learns_the_type_of_its_collective_v5) {
    follow_a_collective<ProfilerV5, ProfilerEventV5>(ncclProfiler_v5);
}
TEST(NetHint, a_send_learns_the_type_of_its_collective_v6) {
    follow_a_collective<ProfilerV6, ProfilerEventV6>(ncclProfiler_v6);
}

// --- Tuner

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

TEST(NetTuner, leaves_only_simple_from_the_size_on_that_pays_v4) {
    tune([](void** context, size_t ranks,
            size_t nodes) { return ncclTunerPlugin_v4.init(ranks, nodes, nullptr, context); },
         ncclTunerPlugin_v4.get_coll_info, ncclTunerPlugin_v4.destroy);
}
TEST(NetTuner, leaves_only_simple_from_the_size_on_that_pays_v5) {
    tune(
        [](void** context, size_t ranks, size_t nodes) {
            return ncclTunerPlugin_v5.init(context, 7, ranks, nodes, nullptr, nullptr, nullptr);
        },
        ncclTunerPlugin_v5.get_coll_info, ncclTunerPlugin_v5.finalize);
}
TEST(NetTuner, leaves_only_simple_from_the_size_on_that_pays_v6) {
    tune(
        [](void** context, size_t ranks, size_t nodes) {
            return ncclTunerPlugin_v6.init(context, 7, ranks, nodes, nullptr, nullptr, nullptr);
        },
        ncclTunerPlugin_v6.get_coll_info, ncclTunerPlugin_v6.finalize);
}

TEST(NetTuner, its_size_can_be_set_and_without_a_codec_the_choice_is_nccls) {
    void* context = nullptr;
    ::setenv("SLIMWIRE_NET_SIMPLE_FROM", "1MiB", 1);
    ASSERT_EQ(ncclTunerPlugin_v5.init(&context, 7, 8, 2, nullptr, nullptr, nullptr), ncclSuccess);
    Costs below, at;
    EXPECT_EQ(ask(ncclTunerPlugin_v5.get_coll_info, context, (1 << 20) - 1, &below), ncclSuccess);
    EXPECT_EQ(ask(ncclTunerPlugin_v5.get_coll_info, context, 1 << 20, &at), ncclSuccess);
    EXPECT_TRUE(below.untouched());
    EXPECT_TRUE(at.only_simple());
    EXPECT_EQ(ncclTunerPlugin_v5.finalize(context), ncclSuccess);
    ::unsetenv("SLIMWIRE_NET_SIMPLE_FROM");
    ::setenv("SLIMWIRE_NET_CODEC", "off", 1);
    ASSERT_EQ(ncclTunerPlugin_v5.init(&context, 7, 8, 2, nullptr, nullptr, nullptr), ncclSuccess);
    Costs off;
    EXPECT_EQ(ask(ncclTunerPlugin_v5.get_coll_info, context, 1 << 30, &off), ncclSuccess);
    EXPECT_TRUE(off.untouched());
    EXPECT_EQ(ncclTunerPlugin_v5.finalize(context), ncclSuccess);
    ::unsetenv("SLIMWIRE_NET_CODEC");
}

}  // namespace
}  // namespace slimwire::net
