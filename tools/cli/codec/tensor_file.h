// Tensor files of `slimwire codec` and the benchmark: raw elements, or NumPy's .npy (versions 1 to
// 3; the format's specification is part of NumPy's documentation, numpy.lib.format).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codecs/base/dtype.h"
#include "codecs/base/status.h"

namespace slimwire::cli {

struct Tensor {
    DType dtype = DType::kFloat32;
    std::vector<int64_t> shape;  // one number for a raw file
    int64_t count = 0;
    std::vector<uint8_t> bytes;  // little-endian elements in the file's order
};

// A file that starts with .npy's magic, or is named so, says its own type; `dtype` must then agree,
// or give types of the same size a meaning that .npy has no word for (bf16, the fp8 types). A raw
// file needs `dtype`; one that by its first bytes or its name holds more than raw elements (.pt,
// .safetensors, .npz and others) is an error. Errors name the file and what is wrong with it.
[[nodiscard]] Result<Tensor> read_tensor(const std::string& path, std::optional<DType> dtype);

// Single elements of any type as numbers, for the commands that make and compare tensors. Not fast.

// Element i of a buffer.
[[nodiscard]] double element(DType dtype, const uint8_t* buffer, int64_t i);

// Stores x, rounded to the nearest value of a floating-point type; integers take x as it is,
// limited to their range.
void put_element(DType dtype, uint8_t* buffer, int64_t i, double x);

// Relative L2 distance of two buffers: |a - b| / |b|; 0 where both are all zeros. Not finite when
// an element is not.
[[nodiscard]] double relative_error(DType dtype, const uint8_t* a, const uint8_t* b, int64_t count);

}  // namespace slimwire::cli
