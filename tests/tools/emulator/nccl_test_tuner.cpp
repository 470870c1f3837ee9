// The test plugin's tuner: it makes the protocol $TEST_TUNER_PROTOCOL (NCCL's number) free.
#include <cstdlib>

#include "plugin/net/abi/tuner.h"
#include "tests/support/tcp_net_plugin.h"

namespace slimwire::test {
namespace {

using namespace slimwire::net;

ncclResult_t tune(void* context,
                  TunedCollective,
                  size_t bytes,
                  int,
                  float** costs,
                  int algorithms,
                  int protocols,
                  int,
                  int*) {
    if (context != &counts() || bytes == 0 || algorithms != kTunerAlgorithms ||
        protocols != kTunerProtocols) {
        return ncclInternalError;
    }
    auto* table = reinterpret_cast<float(*)[kTunerProtocols]>(costs);
    const bool sound = table[kAlgorithmTree][kProtocolSimple] == kTunerIgnore &&
                       table[kAlgorithmRing][kProtocolSimple] > 0;
    counts().tuned += sound ? 1 : 0;
    if (const char* wanted = getenv("TEST_TUNER_PROTOCOL"); wanted != nullptr) {
        table[kAlgorithmRing][atoi(wanted)] = 0;
    }
    return ncclSuccess;
}

ncclResult_t open_tuner(int version, size_t ranks, size_t nodes, void** context) {
    if (ranks < nodes || nodes < 1) {
        return ncclInternalError;
    }
    ++counts().tuners_open;
    counts().tuner_version = version;
    *context = &counts();
    return ncclSuccess;
}
ncclResult_t init_tuner_v4(size_t ranks, size_t nodes, DebugLogger, void** context) {
    return open_tuner(4, ranks, nodes, context);
}
template <int kVersion, class Constants>
ncclResult_t init_tuner(void** context,
                        uint64_t,
                        size_t ranks,
                        size_t nodes,
                        DebugLogger,
                        NvlinkDomainsV5* domains,
                        Constants* constants) {
    const bool sound = domains->domains == static_cast<int>(nodes) && constants != nullptr;
    return sound ? open_tuner(kVersion, ranks, nodes, context) : ncclInternalError;
}
constexpr auto init_tuner_v5 = init_tuner<5, TunerConstantsV5>;
constexpr auto init_tuner_v6 = init_tuner<6, TunerConstantsV6>;
constexpr auto init_tuner_v7 = init_tuner<7, TunerConstantsV7>;
ncclResult_t close_tuner(void* context) {
    --counts().tuners_open;
    return context == &counts() ? ncclSuccess : ncclInternalError;
}

}  // namespace
}  // namespace slimwire::test

#define SLIMWIRE_TEST_TABLE(type, name, ...)                                          \
    extern "C" __attribute__((visibility("default"))) const slimwire::net::type name; \
    const slimwire::net::type name = {"TestTcp", __VA_ARGS__}

using namespace slimwire::test;

SLIMWIRE_TEST_TABLE(TunerV4, ncclTunerPlugin_v4, init_tuner_v4, tune, close_tuner);
#ifndef TEST_NET_ONLY
SLIMWIRE_TEST_TABLE(TunerV5, ncclTunerPlugin_v5, init_tuner_v5, tune, close_tuner);
SLIMWIRE_TEST_TABLE(TunerV6, ncclTunerPlugin_v6, init_tuner_v6, tune, close_tuner, nullptr);
SLIMWIRE_TEST_TABLE(TunerV7, ncclTunerPlugin_v7, init_tuner_v7, tune, close_tuner, nullptr);
#endif
