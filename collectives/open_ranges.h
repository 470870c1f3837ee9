// Which NVTX ranges the calling thread has open, where libslimwire-nvtx.so hears of them
// (plugin/nvtx): local knowledge, which ranks must agree on before it decides anything
// (call_ranges.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/open_ranges_abi.h"

namespace slimwire {

// Where to ask; looked for again by each call until it is found. Null where this process has no
// such library: it is neither preloaded nor what NVTX_INJECTION64_PATH names. Thread-safe.
OpenRangesFunction* find_open_ranges() noexcept;
// Another one instead, for tests; null: none is found.
void use_open_ranges(OpenRangesFunction* function) noexcept;

// Bit i: some open range of the calling thread is of patterns[i] (name_matches()); at most 24
// patterns. Empty where it is not known. The patterns must be the same ones in every call of the
// process but for tests, which use_open_ranges() makes to forget; only what changed is looked at.
std::optional<uint32_t> open_range_bits(const std::vector<std::string>& patterns);

// The innermost open range of the calling thread; empty for none. Valid until the thread opens or
// closes one.
std::string_view innermost_range() noexcept;

// "a > b", outermost first, for messages.
std::string open_ranges_text();

}  // namespace slimwire
