// What a message looks like: whether it carries NCCL's flags between its data (protocols LL and
// LL128), and as which element type the palette would make it smallest. Looks at some hundred
// bytes; pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "codecs/base/dtype.h"

namespace slimwire::net {

// Whether `data` is of protocol LL (4 bytes of data, 4 bytes of flag, in turn) or LL128 (120 bytes
// of data, 8 bytes of flag). Such a message has the same flag everywhere, so none is missed; its
// receiver may look at it while it arrives, so it is sent as it is.
[[nodiscard]] bool carries_flags(const uint8_t* data, size_t bytes) noexcept;

struct ElementGuess {
    DType element;
    double ratio;  // expected size of the encoding as a part of the message
};

// The type with the smallest expected encoding, among those whose alignment `data` has; none when
// that would not be below 15/16 of the message.
[[nodiscard]] std::optional<ElementGuess> guess_element(const uint8_t* data, size_t bytes) noexcept;

}  // namespace slimwire::net
