// NCCL's tuner tables (abi/tuner.h): from the size on where compressing pays, the protocols whose
// data carries flags (LL, LL128), which cannot be compressed, are taken out of NCCL's choice, so
// that Simple is left. Below it, inside a node, and where NCCL offers no Simple, the choice stays
// NCCL's. NCCL takes the tables from the net plugin's library when no other tuner is asked for.
#include "plugin/net/abi/tuner.h"

#include <strings.h>

#include <cstdlib>
#include <new>

#include "plugin/net/settings.h"

namespace slimwire::net {
namespace {

struct Tuner {
    size_t from_bytes;  // SIZE_MAX: never
};

// Whether the net plugin shall carry messages, as far as the variables say; those are the same on
// all ranks, as the choice must be.
bool in_use() noexcept {
    const char* const net = std::getenv("NCCL_NET");
    return !switched_off() && (net == nullptr || *net == '\0' || strcasecmp(net, "slimwire") == 0);
}

// A ring cuts a collective into a part a rank; parts below the smallest message that is compressed
// gain nothing.
size_t from_bytes(const EngineSettings& settings, size_t ranks, size_t nodes) noexcept {
    if (!settings.codec || nodes < 2 || !in_use()) {
        return SIZE_MAX;
    }
    return settings.min_bytes * ranks;
}

ncclResult_t make(void** context, size_t ranks, size_t nodes) noexcept {
    *context = nullptr;
    try {
        Result<EngineSettings> settings = read_engine_settings();
        // Wrong settings are said by the net plugin's own init.
        *context = new Tuner{settings.ok() ? from_bytes(settings.value(), ranks, nodes) : SIZE_MAX};
    } catch (const std::bad_alloc&) {
        return ncclSystemError;
    }
    return ncclSuccess;
}

ncclResult_t init_v4(size_t ranks, size_t nodes, DebugLogger, void** context) noexcept {
    return make(context, ranks, nodes);
}

template <class Constants>
ncclResult_t init(void** context,
                  uint64_t,
                  size_t ranks,
                  size_t nodes,
                  DebugLogger,
                  NvlinkDomainsV5*,
                  Constants*) noexcept {
    return make(context, ranks, nodes);
}

ncclResult_t get_coll_info(void* context,
                           TunedCollective,
                           size_t bytes,
                           int,
                           float** costs,
                           int algorithms,
                           int protocols,
                           int,
                           int*) noexcept {
    if (context == nullptr || bytes < static_cast<const Tuner*>(context)->from_bytes ||
        protocols <= kProtocolSimple) {
        return ncclSuccess;
    }
    // NCCL's table lies behind the pointer as one array of rows.
    auto* const table = reinterpret_cast<float*>(costs);
    bool any_simple = false;
    for (int algorithm = 0; algorithm < algorithms; ++algorithm) {
        any_simple = any_simple || table[algorithm * protocols + kProtocolSimple] >= 0;
    }
    for (int algorithm = 0; any_simple && algorithm < algorithms; ++algorithm) {
        table[algorithm * protocols + kProtocolLl] = kTunerIgnore;
        table[algorithm * protocols + kProtocolLl128] = kTunerIgnore;
    }
    return ncclSuccess;
}

ncclResult_t finalize(void* context) noexcept {
    delete static_cast<Tuner*>(context);
    return ncclSuccess;
}

constexpr char kName[] = "slimwire";

}  // namespace

extern "C" {

#define SLIMWIRE_EXPORT __attribute__((visibility("default")))

SLIMWIRE_EXPORT extern const TunerV4 ncclTunerPlugin_v4;
SLIMWIRE_EXPORT extern const TunerV5 ncclTunerPlugin_v5;
SLIMWIRE_EXPORT extern const TunerV6 ncclTunerPlugin_v6;
SLIMWIRE_EXPORT extern const TunerV7 ncclTunerPlugin_v7;
const TunerV4 ncclTunerPlugin_v4 = {kName, init_v4, get_coll_info, finalize};
const TunerV5 ncclTunerPlugin_v5 = {kName, init<TunerConstantsV5>, get_coll_info, finalize};
const TunerV6 ncclTunerPlugin_v6 = {kName, init<TunerConstantsV6>, get_coll_info, finalize,
                                    nullptr};
const TunerV7 ncclTunerPlugin_v7 = {kName, init<TunerConstantsV7>, get_coll_info, finalize,
                                    nullptr};
}

}  // namespace slimwire::net
