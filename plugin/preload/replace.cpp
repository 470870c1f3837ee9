// Says which of the exported functions stands for a function of NCCL that a program found by
// itself; libslimwire-dlsym.so asks (plugin/dlsym). Exported, but none of NCCL's names.
#include <cstring>

#include "plugin/preload/funnel.h"

using namespace slimwire;

namespace {

struct Exported {
    const char* name;
    const void* (*ours)() noexcept;
    const void* (*real)(const RealNccl& nccl) noexcept;
};

constexpr Exported kExported[] = {
#define SLIMWIRE_NCCL(name, handling)                                                      \
    {"nccl" #name, []() noexcept { return reinterpret_cast<const void*>(&::nccl##name); }, \
     [](const RealNccl& nccl) noexcept { return reinterpret_cast<const void*>(nccl.name); }},
#include "collectives/nccl_api.def"
#undef SLIMWIRE_NCCL
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Our function `name` when the calls that it forwards go to `found`; else null: another library's
// function of that name, another copy of NCCL, or a name that is not intercepted.
const void* slimwireReplace_v1(const char* name, const void* found) noexcept {
    for (const Exported& exported : kExported) {
        if (std::strcmp(name, exported.name) != 0) {
            continue;
        }
        const Runtime* runtime = Runtime::peek();
        const void* real =
            runtime != nullptr
                ? exported.real(runtime->nccl)
                : mapped_nccl_function(process_getenv("SLIMWIRE_NCCL_LIBRARY"), name,
                                       reinterpret_cast<const void*>(&::ncclAllReduce));
        return real == found ? exported.ours() : nullptr;
    }
    return nullptr;
}

}  // extern "C"
#pragma GCC visibility pop
