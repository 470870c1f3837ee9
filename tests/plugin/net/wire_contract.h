// The contract of plugin/net/wire.h as tests that walk all wires: a wire gets its maker into the
// list of wire_makers.cpp and is covered.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "plugin/net/wire.h"

namespace slimwire::net {

struct WireMaker {
    std::string name;  // letters and digits: becomes part of the tests' names
    // A wire that can talk to others of the same maker.
    std::function<Result<std::unique_ptr<Wire>>()> make;
    // Whether a message of a few pages leaves its sender before it is received.
    bool sends_ahead = true;
    // Whether it can tell a message that is too long from a peer that is gone.
    bool names_truncation = true;
};

const std::vector<WireMaker>& wire_makers();

inline void PrintTo(const WireMaker& maker, std::ostream* out) {
    *out << maker.name;
}

}  // namespace slimwire::net
