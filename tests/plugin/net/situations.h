// The settings and networks under which tests of the engine repeat what must hold in all of them.
#pragma once

#include <functional>
#include <vector>

#include "plugin/net/engine/frame.h"
#include "plugin/net/settings.h"
#include "tests/plugin/net/memory_wire.h"

namespace slimwire::net {

struct Situation {
    const char* name;
    std::function<void(EngineSettings&, MemoryWireOptions&)> change;
};

// Those for messages in any memory, then `more`.
inline std::vector<Situation> situations_and(const std::vector<Situation>& more) {
    std::vector<Situation> all = {
        {"plain", [](EngineSettings&, MemoryWireOptions&) {}},
        {"codec_off", [](EngineSettings& s, MemoryWireOptions&) { s.codec = false; }},
        {"checksums", [](EngineSettings& s, MemoryWireOptions&) { s.checksum = true; }},
        {"no_codec_threads",
         [](EngineSettings& s, MemoryWireOptions&) {
             s.threads = 0;
             s.checksum = true;
         }},
        {"small_pieces",
         [](EngineSettings& s, MemoryWireOptions&) {
             s.piece_bytes = kLeastPieceBytes;
             s.min_bytes = 5000;
         }},
        {"slow_network", [](EngineSettings&, MemoryWireOptions& o) { o.delay_ns = 100'000; }},
        {"network_without_room",
         [](EngineSettings&, MemoryWireOptions& o) {
             o.refuse_send_every = 3;
             o.refuse_receive_every = 2;
         }},
        {"data_in_parts", [](EngineSettings&, MemoryWireOptions& o) { o.bytes_per_call = 10'000; }},
    };
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

}  // namespace slimwire::net
