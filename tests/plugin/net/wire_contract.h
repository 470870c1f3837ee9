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
    // A wire that can talk to others of the same maker. An error says why there is none here; the
    // tests are skipped with its text.
    std::function<Result<std::unique_ptr<Wire>>()> make;
    // Whether it can tell a message that is too long from a peer that is gone.
    bool names_truncation = true;
};

const std::vector<WireMaker>& wire_makers();

inline void PrintTo(const WireMaker& maker, std::ostream* out) {
    *out << maker.name;
}

}  // namespace slimwire::net
