// The functions of an unmodified NCCL below us. A table that is passed in, so tests can pass
// another. Members of functions that the found version does not have are null. nccl_libraries.h
// finds them.
#pragma once

#include <nccl_later.h>

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
};

// Text of a failed NCCL call: "what: nccl error 5 (invalid usage)".
Status nccl_status(const RealNccl& nccl, ncclResult_t result, const char* what);

}  // namespace slimwire
