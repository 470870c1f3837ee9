// Writes one-dimensional fp32 arrays as NumPy .npy files, version 1.0 (the format's specification
// is part of NumPy's documentation, numpy.lib.format). Used for gradients and parameters that
// become data of benchmarks and checks.
#pragma once

#include <cstddef>
#include <string>

namespace demo {

// The header that precedes `elems` little-endian fp32 values; its size is a multiple of 64.
std::string npy_header(size_t elems);

// Throws TrainError with the path and the cause.
void write_npy(const std::string& path, const float* values, size_t elems);

}  // namespace demo
