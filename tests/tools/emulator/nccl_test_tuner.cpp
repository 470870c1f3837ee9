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

ncclResult_t open_tuner(void** context,
                        uint64_t,
                        size_t ranks,
                        size_t nodes,
                        DebugLogger,
                        NvlinkDomainsV5* domains,
                        TunerConstantsV7* constants) {
    if (ranks < nodes || nodes < 1 || domains->domains != static_cast<int>(nodes) ||
        constants == nullptr) {
        return ncclInternalError;
    }
    ++counts().tuners_open;
    *context = &counts();
    return ncclSuccess;
}
ncclResult_t close_tuner(void* context) {
    --counts().tuners_open;
    return context == &counts() ? ncclSuccess : ncclInternalError;
}

}  // namespace
}  // namespace slimwire::test

extern "C" __attribute__((visibility("default"))) const slimwire::net::TunerV7 ncclTunerPlugin_v7;
const slimwire::net::TunerV7 ncclTunerPlugin_v7 = {"TestTcp", slimwire::test::open_tuner,
                                                   slimwire::test::tune,
                                                   slimwire::test::close_tuner, nullptr};
