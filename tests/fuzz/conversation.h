// One conversation of a receiving connection with a peer that sends what the input says.
#pragma once

#include "tests/fuzz/reader.h"

namespace slimwire::net {

// Operations until the bytes are used up: receives, looks, messages of a peer that keeps to the
// protocol, and, if `wild`, of one that does not. Whatever comes, nothing outside the receives is
// written, an error stays and says why, and memory is bounded. While everything that came was
// right, every message is delivered to the receive it belongs to, to the bit.
void converse(Reader& reader, bool wild);

// Bytes of the operations, for seeds.
enum Operation : uint8_t {
    kPost = 0,
    kRight = 2,
    kWildControl = 4,
    kWildData = 5,
    kLook = 6,
    kOther = 7
};

}  // namespace slimwire::net
