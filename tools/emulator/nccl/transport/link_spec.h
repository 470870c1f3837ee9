// SLIMWIRE_EMU_LINK: rate and latency of each emulated node's network card.
#pragma once

#include <cstdint>
#include <string_view>

#include "codecs/base/status.h"

namespace slimwire::emu {

struct LinkSpec {
    double bits_per_second = 0;  // 0: unshaped
    uint64_t latency_ns = 0;

    [[nodiscard]] bool shaped() const noexcept { return bits_per_second > 0; }
    // Time `bytes` occupy the wire.
    [[nodiscard]] uint64_t wire_ns(uint64_t bytes) const noexcept {
        return static_cast<uint64_t>(static_cast<double>(bytes) * 8e9 / bits_per_second);
    }
    // Bytes of one message into which large transfers are cut: about a millisecond of wire.
    [[nodiscard]] uint64_t chunk_bytes() const noexcept;
};

// "1gbit", "100mbit,50us": rate in kbit/mbit/gbit (decimal, payload), latency in ns/us/ms/s. Empty
// text is an unshaped link; anything else that does not parse is an error that says what would do.
Result<LinkSpec> parse_link_spec(std::string_view text);

}  // namespace slimwire::emu
