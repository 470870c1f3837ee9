// What oracles of error feedback know of a codec: that it encodes and decodes.
#pragma once

#include <cstdint>
#include <vector>

#include "codecs/codec.h"

namespace slimwire::test {

// Values as they come out of one chunk of int4.
inline std::vector<float> coded(const std::vector<float>& p) {
    const CodecSpec codec = parse_codec("int4").value();
    const auto count = static_cast<int64_t>(p.size());
    const int64_t slot = (codec.encoded_bytes(DType::kFloat32, count) + 15) / 16 * 16;
    std::vector<uint8_t> bytes(static_cast<size_t>(slot) + 16);
    uint8_t* const encoded = bytes.data() + (-reinterpret_cast<uintptr_t>(bytes.data()) & 15);
    EncodeArgs encode{};
    encode.input = p.data();
    encode.output = encoded;
    encode.scale = 1.0f;
    encode.count = encode.chunk_elems = count;
    encode.slot_bytes = slot;
    encode.params = codec.params;
    encode.dtype = DType::kFloat32;
    codec.codec->host.encode(encode);
    std::vector<float> decoded(p.size());
    DecodeArgs decode{};
    decode.input = encoded;
    decode.output = decoded.data();
    decode.count = decode.chunk_elems = count;
    decode.slot_bytes = slot;
    decode.params = codec.params;
    decode.dtype = DType::kFloat32;
    codec.codec->host.decode(decode);
    return decoded;
}

}  // namespace slimwire::test
