// The encoder and the decoder that a rule gives to linear_ae: what was trained elsewhere, from .npy
// files. Read with the policy; equal on all ranks, because its hash is part of the policy's text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire {

struct CodeWeights {
    int64_t width = 0;  // numbers of a code
    int64_t row = 0;    // elements of a row
    // `width` rows of `row` elements: the encoder (code = encoder x row), then the decoder
    // transposed (row = decoder x code).
    std::vector<float> values;
    uint64_t hash = 0;  // of all of that

    [[nodiscard]] const float* encoder() const noexcept { return values.data(); }
    [[nodiscard]] const float* decoder() const noexcept { return values.data() + width * row; }
    [[nodiscard]] uint64_t bytes() const noexcept { return values.size() * sizeof(float); }
};

// `encoder`: the file of an array [width][row]; `decoder`: of one [row][width], or empty for the
// encoder transposed. An error says which file is wrong, how, and what is accepted.
Result<std::shared_ptr<const CodeWeights>> load_code_weights(const std::string& encoder,
                                                             const std::string& decoder);

}  // namespace slimwire
