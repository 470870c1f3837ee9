// Messages that an input makes up: nearly right frames and pieces.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/fuzz/reader.h"

namespace slimwire::net {

// Space for an encoded piece, of exactly the size it must have.
struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
};
using PieceMemory = std::unique_ptr<uint8_t, Free>;
PieceMemory piece_memory(size_t bytes);

// Sizes on both sides of what frames and pieces treat alike; the large ones now and then.
size_t size_from(Reader& reader);
// A control message; *sequence is that of the next one.
std::vector<uint8_t> wild_control(Reader& reader, uint64_t* sequence);
// A data message.
std::vector<uint8_t> wild_data(Reader& reader);

}  // namespace slimwire::net
