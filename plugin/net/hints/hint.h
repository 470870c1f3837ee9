// What the plugin learns of a message beside its bytes. ncclNet says nothing of element types; but
// NCCL's profiler interface, which the same library exports, tells of each collective and
// point-to-point call, and of the proxy step that a send belongs to, as descendants of it. So the
// profiler's handles carry what is known from event to event, and a send asks for that of its step.
//
// The handles are no pointers: the hint itself is in them, so nothing is allocated, they hold in
// another process too (PXN), and events that never end leave nothing behind.
#pragma once

#include <cstdint>
#include <optional>

#include "codecs/base/dtype.h"
#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

enum class Protocol : uint8_t { kUnknown = 0, kLl = 1, kLl128 = 2, kSimple = 3 };

struct Hint {
    std::optional<DType> element;
    Protocol protocol = Protocol::kUnknown;
    bool operator==(const Hint&) const = default;
};

// Never null, never the address of anything.
[[nodiscard]] void* handle_of(const Hint& hint) noexcept;
// Nothing known for what handle_of() did not make.
[[nodiscard]] Hint hint_of(const void* handle) noexcept;

// From NCCL's names: "ncclBfloat16", "SIMPLE"; either may be null or unknown.
[[nodiscard]] Hint hint_from_names(const char* datatype, const char* protocol) noexcept;

// Of the send that NCCL gave `phandle` with: asks through the callback that NCCL gave at init,
// which leads to the profiler in charge; when that is ours (profiler.cpp) it answers. Either may be
// null.
[[nodiscard]] Hint ask_hint(ProfilerCallback callback, void* phandle) noexcept;

// What ask_hint() gives the callback to have filled.
struct HintQuestion {
    uint64_t magic;
    Hint answer;
};
inline constexpr uint64_t kQuestionMagic = 0x3F746E69484C53ull;  // "SLHint?" in memory
// The plugin's number in the profiler interface: kind of plugin in the upper half, version below.
inline constexpr int64_t kHintPluginId = (int64_t{0x534C} << 16) | 1;

}  // namespace slimwire::net
