// What the files of the test plugin share. It is built for the emulator's NCCL, with all
// versions of the table and a tuner (tests/tools/emulator/nccl_test_tuner.cpp), and as
// the plugin of somebody else below slimwire, with the one version TEST_NET_ONLY.
#pragma once

#include <atomic>

#include "plugin/net/abi/net.h"

namespace slimwire::test {

// The one version that is exported; 0: all. Then also stricter, as far as slimwire promises more of
// a plugin's user than NCCL does.
#ifdef TEST_NET_ONLY
inline constexpr int kOnlyVersion = TEST_NET_ONLY;
#else
inline constexpr int kOnlyVersion = 0;
#endif

using Count = std::atomic<long>;

// Of this process, since the library was opened.
struct Counts {
    // Of the network. `ll` and `ll128` are sent messages that look like these protocols, `told_ll`
    // those before which set_net_attr said so.
    Count bytes{0}, messages{0}, registered{0}, open{0}, requests{0}, inits{0}, finalizes{0},
        version{0}, ll{0}, ll128{0}, told_ll{0}, largest{0}, optional{0}, attributes{0},
        larger_receives{0};
    // Of the tuner.
    Count tuned{0}, tuners_open{0};
};
Counts& counts();

bool asked_for(const char* variable);

// The network as version 11, and the init that all versions share.
const net::NetV11& table_v11();
ncclResult_t init_shared(net::DebugLogger log, int version);

}  // namespace slimwire::test
