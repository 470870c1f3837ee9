// What libslimwire-nvtx.so (plugin/nvtx) tells the other libraries of slimwire: the NVTX ranges
// that the calling thread has open. Plain data, because the two are found by dlsym.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slimwire {

inline constexpr uint32_t kMostOpenRanges = 64;
inline constexpr size_t kRangeTextBytes = 120;

struct OpenRange {
    const void* domain;          // as NVTX has it; null: the default one
    char text[kRangeTextBytes];  // "NAME", or "DOMAIN/NAME"; cut after 119 bytes, ends with 0
};

// Of one thread, and for that thread alone.
struct OpenRanges {
    uint64_t changes;  // raised with each range that begins or ends
    uint32_t open;     // of `range`, outermost first
    // Ranges were open beyond kMostOpenRanges, so that what is left may be another's: from then
    // until all are closed nothing is known.
    uint32_t lost;
    uint32_t beyond;  // open ones that have no place
    OpenRange range[kMostOpenRanges];
};

// Those of the calling thread; null where it never opened one. Valid until the thread ends.
using OpenRangesFunction = const OpenRanges*();
inline constexpr char kOpenRangesSymbol[] = "slimwireOpenRanges_v1";
inline constexpr char kOpenRangesLibrary[] = "libslimwire-nvtx.so";

}  // namespace slimwire
