// Arrays of numbers as NumPy writes them (numpy.lib.format, versions 1 to 3): magic, two bytes of
// version, a length of 2 or 4 bytes, a dictionary as text, elements.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

struct NpyArray {
    std::vector<uint64_t> shape;
    std::vector<double> values;  // row after row
};

// Of a whole file's bytes: little-endian float16, float32 or float64, not in Fortran's order. An
// error says what is wrong and what is accepted, without the file's name.
Result<NpyArray> parse_npy(std::string_view bytes);

}  // namespace slimwire
