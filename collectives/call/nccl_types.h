// Conversions between NCCL's types and slimwire's. Checked here once, so that casts elsewhere hold.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "codecs/base/dtype.h"
#include "codecs/base/status.h"
#include "collectives/call/call.h"

namespace slimwire {

static_assert(static_cast<int>(DType::kInt8) == ncclInt8 &&
              static_cast<int>(DType::kUint8) == ncclUint8 &&
              static_cast<int>(DType::kInt32) == ncclInt32 &&
              static_cast<int>(DType::kUint32) == ncclUint32 &&
              static_cast<int>(DType::kInt64) == ncclInt64 &&
              static_cast<int>(DType::kUint64) == ncclUint64 &&
              static_cast<int>(DType::kFloat16) == ncclFloat16 &&
              static_cast<int>(DType::kFloat32) == ncclFloat32 &&
              static_cast<int>(DType::kFloat64) == ncclFloat64 &&
              static_cast<int>(DType::kBfloat16) == ncclBfloat16 &&
              static_cast<int>(DType::kFloat8e4m3) == ncclFloat8e4m3 &&
              static_cast<int>(DType::kFloat8e5m2) == ncclFloat8e5m2);

// A datatype of a later NCCL is not ours to touch.
[[nodiscard]] constexpr bool known_dtype(ncclDataType_t type) noexcept {
    return static_cast<int>(type) >= 0 && static_cast<int>(type) < kDTypeCount;
}

// Built-in operators only; every other handle is a user-made pre-multiplied sum.
[[nodiscard]] constexpr RedOp redop_of(ncclRedOp_t op) noexcept {
    switch (static_cast<int>(op)) {
        case ncclSum:
            return RedOp::kSum;
        case ncclProd:
            return RedOp::kProd;
        case ncclMax:
            return RedOp::kMax;
        case ncclMin:
            return RedOp::kMin;
        case ncclAvg:
            return RedOp::kAvg;
        default:
            return RedOp::kPreMulSum;
    }
}

// The commName of a configuration (NCCL 2.27 and later): empty where there is none, or none that a
// policy could say (1 to 255 printable ASCII characters).
[[nodiscard]] inline std::string comm_name_of(const ncclConfig_t* config) {
    constexpr size_t kWithName = offsetof(ncclConfig_t, commName) + sizeof(config->commName);
    constexpr unsigned int kMagic = 0xcafebeef;
    if (config == nullptr || config->magic != kMagic || config->size < kWithName ||
        config->version < 22700 || config->commName == nullptr) {
        return {};
    }
    const size_t length = strnlen(config->commName, 256);
    const std::string_view name(config->commName, length);
    const auto printable = [](char c) { return c >= ' ' && c < 127; };
    return length < 256 && std::all_of(name.begin(), name.end(), printable) ? std::string(name)
                                                                            : std::string();
}

// What the configuration of a communicator says to whoever makes another one of it.
struct Configured {
    std::string name;  // comm_name_of(); empty: none
    bool blocking = true;
    // What is split off has the communicator's memory and abort flag (splitShare): an abort of the
    // one ends the other.
    bool shares = false;
    // All of it, as far as it is known here, but for its words, of which a network's name counts.
    ncclConfig_t all = NCCL_CONFIG_INITIALIZER;
    std::string network;

    // For the private communicator beside it: on the same network with as many CTAs, sharing with
    // nobody. Valid as long as this.
    [[nodiscard]] ncclConfig_t of_private() const noexcept {
        ncclConfig_t config = all;
        config.blocking = blocking ? 1 : 0;
        config.splitShare = config.shrinkShare = 0;
        config.netName = network.empty() ? NCCL_CONFIG_UNDEF_PTR : network.c_str();
        config.commName = "slimwire";
        return config;
    }
};
// What a configuration leaves open is as `parent` has it.
[[nodiscard]] inline Configured configured_by(const ncclConfig_t* config, Configured parent) {
    constexpr size_t kWithShare = offsetof(ncclConfig_t, splitShare) + sizeof(config->splitShare);
    Configured made = std::move(parent);
    if (config != nullptr) {
        made.name = comm_name_of(config);
        const ncclConfig_t open = NCCL_CONFIG_INITIALIZER;
        made.all = open;
        std::memcpy(&made.all, config, std::min(config->size, sizeof(made.all)));
        made.network = made.all.netName != nullptr ? made.all.netName : "";
        made.all.size = open.size;
        made.all.version = open.version;
        made.all.netName = made.all.commName = NCCL_CONFIG_UNDEF_PTR;
    }
    if (config != nullptr && config->blocking != NCCL_CONFIG_UNDEF_INT) {
        made.blocking = config->blocking != 0;
    }
    if (config != nullptr && config->size >= kWithShare && config->version >= 21800 &&
        config->splitShare != NCCL_CONFIG_UNDEF_INT) {
        made.shares = config->splitShare != 0;
    }
    // NCCL asks it last.
    if (const char* asked = getenv("NCCL_COMM_SPLIT_SHARE_RESOURCES"); asked != nullptr) {
        made.shares = atoi(asked) != 0;
    }
    return made;
}

// The one conversion at the boundary.
[[nodiscard]] constexpr ncclResult_t nccl_result_of(Code code) noexcept {
    switch (code) {
        case Code::kOk:
            return ncclSuccess;
        case Code::kInvalidArgument:
        case Code::kNotFound:
            return ncclInvalidArgument;
        case Code::kInvalidUsage:
        case Code::kUnsupported:
            return ncclInvalidUsage;
        case Code::kOutOfMemory:
        case Code::kCudaError:
            return ncclUnhandledCudaError;
        case Code::kSystemError:
            return ncclSystemError;
        case Code::kRemoteError:
            return ncclRemoteError;
        case Code::kNcclError:
        case Code::kInternalError:
            return ncclInternalError;
    }
    return ncclInternalError;
}

}  // namespace slimwire
