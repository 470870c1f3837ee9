// The functions of the unmodified NCCL below us, found at run time. A table that is passed in, so
// tests can pass another. Members of functions that the found version does not have are null.
#pragma once

#include <nccl_later.h>

#include <cstdint>
#include <string>

#include "codecs/base/status.h"

namespace slimwire {

struct RealNccl {
#define SLIMWIRE_NCCL(name, handling) decltype(&::nccl##name) name = nullptr;
#include "collectives/call/nccl_api.def"
    decltype(&::ncclCommCount) CommCount = nullptr;
    decltype(&::ncclCommUserRank) CommUserRank = nullptr;
    decltype(&::ncclCommCuDevice) CommCuDevice = nullptr;
    decltype(&::ncclGetErrorString) GetErrorString = nullptr;
    decltype(&::ncclGetVersion) GetVersion = nullptr;

    std::string path;  // file of the library
    int version = 0;   // ncclGetVersion's code
    // Mapped range of the library's code: a caller inside it is NCCL itself.
    uintptr_t text_begin = 0, text_end = 0;

    [[nodiscard]] bool called_from_nccl(const void* return_address) const noexcept {
        const auto address = reinterpret_cast<uintptr_t>(return_address);
        return address - text_begin < text_end - text_begin;
    }
};

// Finds the real library: `path` (SLIMWIRE_NCCL_LIBRARY) when not empty; else libnccl-real.so or
// libnccl.so.2 if already mapped; else the next definition in the search order; else by opening
// libnccl.so.2. `own_symbol` is the address of our own ncclAllReduce, so that we never find
// ourselves. The error says what was tried and which variable helps.
Result<RealNccl> find_real_nccl(const std::string& path, const void* own_symbol);

// Text of a failed NCCL call: "what: nccl error 5 (invalid usage)".
Status nccl_status(const RealNccl& nccl, ncclResult_t result, const char* what);

}  // namespace slimwire
