// The worked example of codecs/FORMAT.md, and encodings as literal bytes of fp32 values.
#pragma once

#include <cstring>
#include <vector>

#include "tests/codecs/fixture.h"

namespace slimwire::testing {

using Bytes = std::vector<uint8_t>;

// 17 elements, so that the second block of 16 is padded.
inline const std::vector<float> kExample = {0,    0.5f, -0.5f, 1,     -1,   1.5f,  -1.5f, 3, -3,
                                            3.4f, 3.5f, -3.5f, 0.24f, 0.2f, -0.1f, 0.25f, -2};

inline Guarded floats(const std::vector<float>& values) {
    Guarded buffer(4 * static_cast<int64_t>(values.size()));
    std::memcpy(buffer.data(), values.data(), 4 * values.size());
    return buffer;
}

inline Bytes encoding_of(const CodecSpec& spec, const std::vector<float>& values) {
    const Encoded encoded =
        encode(spec, DType::kFloat32, floats(values), static_cast<int64_t>(values.size()));
    return encoded.bytes.copy(encoded.size);
}

inline std::vector<float> decoding_of(const CodecSpec& spec, const Bytes& bytes, int64_t count) {
    Guarded output(4 * count);
    decode(spec, DType::kFloat32, bytes.data(), count, output);
    return values_of(output, DType::kFloat32, count);
}

}  // namespace slimwire::testing
