// The net plugin's settings: its SLIMWIRE_NET_* variables (collectives/policy/variables.def), read
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "codecs/base/status.h"

namespace slimwire::net {

struct EngineSettings {
    bool codec = true;               // SLIMWIRE_NET_CODEC: palette, or off
    bool checksum = false;           // and ",checksum": messages are verified at the receiver
    size_t min_bytes = 32 << 10;     // SLIMWIRE_NET_MIN_BYTES: smaller messages go raw
    size_t piece_bytes = 128 << 10;  // of a message that is compressed; other sizes in tests
    int threads = 2;                 // SLIMWIRE_NET_THREADS: of the codec, for the process
    std::string inner;               // SLIMWIRE_NET_INNER: another plugin's library, "" for UCX
    // SLIMWIRE_NET_LINK
    double rate_bytes_per_s = 0;  // of each device and direction, 0 unlimited
    uint64_t latency_ns = 0;      // added to each message
};

// As SLIMWIRE_MODE says: then NCCL goes on as if there were no plugin.
[[nodiscard]] bool switched_off() noexcept;

// kInvalidArgument names the variable, its value and what would be accepted.
Result<EngineSettings> read_engine_settings();

}  // namespace slimwire::net
