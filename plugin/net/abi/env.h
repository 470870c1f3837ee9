// NCCL's environment plugin interface, versions 1 (NCCL 2.28) and 2 (NCCL 2.30): our own
// declarations of its binary layout. A plugin exports a data object `ncclEnvPlugin_v1` or
// `ncclEnvPlugin_v2`. NCCL opens it before anything else and asks it for every variable.
//
// Contract: what get_env returns stays readable until it is asked for the same variable again, or
// finalize; null means not set. init comes first, finalize last; calls come from any thread.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

inline constexpr char kEnvPluginSymbolV1[] = "ncclEnvPlugin_v1";
inline constexpr char kEnvPluginSymbolV2[] = "ncclEnvPlugin_v2";

struct EnvV1 {
    const char* name;
    ncclResult_t (*init)(uint8_t nccl_major,
                         uint8_t nccl_minor,
                         uint8_t nccl_patch,
                         const char* nccl_suffix);
    ncclResult_t (*finalize)();
    const char* (*get_env)(const char* variable);
};

struct EnvV2 {
    const char* name;
    ncclResult_t (*init)(uint8_t nccl_major,
                         uint8_t nccl_minor,
                         uint8_t nccl_patch,
                         const char* nccl_suffix,
                         DebugLogger log);
    ncclResult_t (*finalize)();
    const char* (*get_env)(const char* variable);
};

static_assert(sizeof(EnvV1) == 32 && offsetof(EnvV1, get_env) == 24);
static_assert(sizeof(EnvV2) == 32 && offsetof(EnvV2, get_env) == 24);

}  // namespace slimwire::net
