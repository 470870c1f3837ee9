#include "plugin/net/engine/piece.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "codecs/codec.h"
#include "plugin/net/engine/copy_in_order.h"

namespace slimwire::net {
namespace {

constexpr size_t kHeaderTotal = 8;  // where a palette encoding says how long it is

// Memory of a thread in which pieces are decoded that cannot be decoded in place.
uint8_t* scratch(size_t bytes) {
    struct Free {
        void operator()(uint8_t* memory) const { std::free(memory); }
    };
    thread_local std::unique_ptr<uint8_t, Free> memory;
    thread_local size_t capacity = 0;
    if (capacity < bytes) {
        const size_t rounded = (bytes + 4095) / 4096 * 4096;
        memory.reset(static_cast<uint8_t*>(std::aligned_alloc(64, rounded)));
        capacity = memory != nullptr ? rounded : 0;
    }
    return memory.get();
}

const CodecSpec& piece_codec() {
    static const CodecSpec spec = [] {
        Result<CodecSpec> parsed = parse_codec("palette");
        return parsed.ok() ? std::move(parsed).value() : CodecSpec{};
    }();
    return spec;
}

Status corrupt_piece(size_t size, size_t bytes) {
    return {Code::kRemoteError, "damaged data from the peer: " + std::to_string(size) +
                                    " bytes do not decode to a piece of " + std::to_string(bytes)};
}

// Bytes that the codec may take for the whole elements of a piece.
int64_t slot_bytes(DType element, int64_t count) {
    return (piece_codec().encoded_bytes(element, count) + 15) / 16 * 16;
}

}  // namespace

size_t piece_capacity(size_t piece_bytes) {
    // The most that any type needs, because a sender's guess may change from message to message.
    const auto count = static_cast<int64_t>(piece_bytes);
    const auto encoded = static_cast<size_t>(piece_codec().encoded_bytes(DType::kUint8, count));
    return (encoded + sizeof(uint64_t) + 63) / 64 * 64;
}

size_t encode_piece(DType element, const uint8_t* source, size_t bytes, uint8_t* output) {
    const size_t width = dtype_bytes(element);
    if (bytes < width) {
        return bytes;
    }
    const auto count = static_cast<int64_t>(bytes / width);
    EncodeArgs args{};
    args.input = source;
    args.output = output;
    args.scale = 1;
    args.count = args.chunk_elems = count;
    args.params = piece_codec().params;
    args.dtype = element;
    args.slot_bytes = slot_bytes(element, count);
    piece_codec().codec->host.encode(args);
    const size_t tail = bytes % width;
    uint64_t total;
    std::memcpy(&total, output + kHeaderTotal, sizeof total);
    if (total + tail > bytes - bytes / 32) {
        return bytes;
    }
    std::memcpy(output + total, source + bytes - tail, tail);
    return total + tail;
}

Status decode_piece(DType element,
                    const uint8_t* received,
                    size_t size,
                    uint8_t* output,
                    size_t bytes,
                    bool write_once) {
    const auto copy = [&](uint8_t* to, const uint8_t* from, size_t count) {
        if (write_once) {
            copy_in_order(to, from, count);
        } else {
            std::memcpy(to, from, count);
        }
    };
    if (size == bytes) {
        copy(output, received, bytes);
        return {};
    }
    const size_t width = dtype_bytes(element);
    const size_t tail = bytes % width;
    uint64_t encoded = 0;
    if (size > bytes || bytes < width || size < kHeaderTotal + sizeof encoded + tail) {
        return corrupt_piece(size, bytes);
    }
    std::memcpy(&encoded, received + kHeaderTotal, sizeof encoded);
    if (encoded != size - tail) {
        return corrupt_piece(size, bytes);
    }
    uint8_t* decoded = output;
    if (write_once || reinterpret_cast<uintptr_t>(output) % width != 0) {
        decoded = scratch(bytes);
        if (decoded == nullptr) {
            return {Code::kOutOfMemory, "no memory to decode a piece"};
        }
    }
    uint32_t status = 0;
    const auto count = static_cast<int64_t>(bytes / width);
    DecodeArgs args{};
    args.input = received;
    args.output = decoded;
    args.count = args.chunk_elems = count;
    args.slot_bytes = slot_bytes(element, count);
    args.params = piece_codec().params;
    args.dtype = element;
    args.status = &status;
    piece_codec().codec->host.decode(args);
    if (status != 0) {
        return corrupt_piece(size, bytes);
    }
    if (decoded != output) {
        copy(output, decoded, bytes - tail);
    }
    copy(output + bytes - tail, received + encoded, tail);
    return {};
}

}  // namespace slimwire::net
