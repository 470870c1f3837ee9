// NCCL's tuner plugin interface, versions 4 (NCCL 2.24), 5 (2.28), 6 (2.30) and 7 (2.32):
// our own declarations of its binary layout. A plugin exports a data object `ncclTunerPlugin_v4` to
// `_v7`; NCCL looks for it in the net plugin's library too. One context for each communicator.
//
// get_coll_info gets the times in microseconds that NCCL expects of each algorithm and protocol:
// costs[algorithm * protocols + protocol] behind its float**, kTunerIgnore where a pair cannot be
// used. The plugin makes a pair likelier by a smaller time. An error means NCCL's own choice.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

inline constexpr char kTunerPluginSymbolV4[] = "ncclTunerPlugin_v4";
inline constexpr char kTunerPluginSymbolV5[] = "ncclTunerPlugin_v5";
inline constexpr char kTunerPluginSymbolV6[] = "ncclTunerPlugin_v6";
inline constexpr char kTunerPluginSymbolV7[] = "ncclTunerPlugin_v7";

enum class TunedCollective : int {
    kBroadcast = 0,
    kReduce = 1,
    kAllGather = 2,
    kReduceScatter = 3,
    kAllReduce = 4,
    kSendRecv = 5,
    kSend = 6,
    kRecv = 7,
    kAllToAll = 8,  // from NCCL 2.28 on
    kScatter = 9,
    kGather = 10,
};

enum TunerAlgorithm : int {
    kAlgorithmTree = 0,
    kAlgorithmRing = 1,
    kAlgorithmCollnetDirect = 2,
    kAlgorithmCollnetChain = 3,
    kAlgorithmNvls = 4,
    kAlgorithmNvlsTree = 5,
    kAlgorithmPat = 6,
};
inline constexpr int kTunerAlgorithms = 7;

enum TunerProtocol : int { kProtocolLl = 0, kProtocolLl128 = 1, kProtocolSimple = 2 };
inline constexpr int kTunerProtocols = 3;

inline constexpr float kTunerIgnore = -1.0F;

// Links: 0 NVLink, 1 PCI, 2 network. Capabilities: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell, and
// from version 7 on one more. Scales: 0 one node, 1 two nodes, 2 four nodes and more.
inline constexpr int kTunerLinks = 3;
inline constexpr int kTunerScales = 3;

template <int kCapabilities>
struct TunerConstants {
    double base_latencies_us[kTunerAlgorithms][kTunerProtocols];
    double link_latencies_us[kTunerLinks][kTunerAlgorithms][kTunerProtocols];
    double ll_max_gbytes_per_s[kCapabilities][kTunerScales];
    double channel_ring_ll128_gbytes_per_s[kCapabilities][kTunerScales];
    double channel_tree_ll128_gbytes_per_s[kCapabilities][kTunerScales];
    double channel_tree_gbytes_per_s[kCapabilities][kTunerScales];
    double channel_nvls_tree_gbytes_per_s[kCapabilities][kTunerScales];
};
using TunerConstantsV5 = TunerConstants<4>;
using TunerConstantsV6 = TunerConstantsV5;
using TunerConstantsV7 = TunerConstants<5>;

// The same in later versions.
struct NvlinkDomainsV5 {
    int domains;
    int min_ranks;  // of a domain
    int max_ranks;
};

// The same in all versions: what the communicator's context, collective, bytes, group and the table
// of times are; *channels may be set.
using TunerGetCollInfo = ncclResult_t (*)(void* context,
                                          TunedCollective collective,
                                          size_t bytes,
                                          int grouped_operations,
                                          float** costs,
                                          int algorithms,
                                          int protocols,
                                          int registered_buffers,
                                          int* channels);

struct TunerV4 {
    const char* name;
    ncclResult_t (*init)(size_t ranks, size_t nodes, DebugLogger log, void** context);
    TunerGetCollInfo get_coll_info;
    ncclResult_t (*destroy)(void* context);
};

template <class Constants>
struct TunerWithContexts {
    const char* name;
    ncclResult_t (*init)(void** context,
                         uint64_t comm_id,
                         size_t ranks,
                         size_t nodes,
                         DebugLogger log,
                         NvlinkDomainsV5* domains,
                         Constants* constants);
    TunerGetCollInfo get_coll_info;
    ncclResult_t (*finalize)(void* context);
};

template <class Constants>
struct TunerOfChunks : TunerWithContexts<Constants> {
    // May be null. *chunk_bytes is NCCL's choice, which may be changed.
    ncclResult_t (*get_chunk_size)(void* context,
                                   TunedCollective collective,
                                   size_t bytes,
                                   int algorithm,
                                   int protocol,
                                   int channels,
                                   size_t* chunk_bytes);
};

using TunerV5 = TunerWithContexts<TunerConstantsV5>;
using TunerV6 = TunerOfChunks<TunerConstantsV6>;
using TunerV7 = TunerOfChunks<TunerConstantsV7>;

static_assert(sizeof(TunerV4) == 32 && sizeof(TunerV5) == 32 && sizeof(TunerV6) == 40);
static_assert(sizeof(TunerConstantsV5) == 1152 && sizeof(NvlinkDomainsV5) == 12);
static_assert(sizeof(TunerConstantsV7) == 1272 &&
              offsetof(TunerConstantsV7, ll_max_gbytes_per_s) == 672 &&
              offsetof(TunerConstantsV7, channel_nvls_tree_gbytes_per_s) == 1152);
static_assert(offsetof(TunerConstantsV5, link_latencies_us) == 168 &&
              offsetof(TunerConstantsV5, ll_max_gbytes_per_s) == 672 &&
              offsetof(TunerConstantsV5, channel_nvls_tree_gbytes_per_s) == 1056);

}  // namespace slimwire::net
