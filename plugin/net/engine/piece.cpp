#include "plugin/net/engine/piece.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "codecs/codec.h"
#include "plugin/net/engine/frame.h"

namespace slimwire::net {
namespace {

constexpr size_t kHeaderTotal = 8;  // where a palette encoding says how long it is

const CodecSpec& palette() {
    static const CodecSpec spec = [] {
        Result<CodecSpec> parsed = parse_codec("palette");
        return parsed.ok() ? std::move(parsed).value() : CodecSpec{};
    }();
    return spec;
}

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

Status corrupt(size_t size, size_t bytes) {
    return {Code::kRemoteError, "damaged data from the peer: " + std::to_string(size) +
                                    " bytes do not decode to a piece of " + std::to_string(bytes)};
}

}  // namespace

size_t piece_capacity(size_t piece_bytes) {
    // The most that any type needs, because a sender's guess may change from message to message.
    const auto count = static_cast<int64_t>(piece_bytes);
    const auto encoded = static_cast<size_t>(palette().encoded_bytes(DType::kUint8, count));
    return (encoded + sizeof(uint64_t) + 63) / 64 * 64;
}

size_t encode_piece(DType element, const uint8_t* source, size_t bytes, uint8_t* output) {
    const size_t width = dtype_bytes(element);
    const auto count = static_cast<int64_t>(bytes / width);
    const size_t tail = bytes % width;
    if (count == 0) {
        return bytes;
    }
    EncodeArgs args{};
    args.input = source;
    args.output = output;
    args.scale = 1;
    args.count = count;
    args.chunk_elems = count;
    args.params = palette().params;
    args.dtype = element;
    args.slot_bytes = (palette().encoded_bytes(element, count) + 15) / 16 * 16;
    palette().codec->host.encode(args);
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
    if (size == bytes) {
        std::memcpy(output, received, bytes);
        return {};
    }
    const size_t width = dtype_bytes(element);
    const auto count = static_cast<int64_t>(bytes / width);
    const size_t tail = bytes % width;
    uint64_t total = 0;
    if (size > bytes || count == 0 || size < kHeaderTotal + sizeof total + tail) {
        return corrupt(size, bytes);
    }
    std::memcpy(&total, received + kHeaderTotal, sizeof total);
    if (total != size - tail) {
        return corrupt(size, bytes);
    }
    uint8_t* decoded = output;
    if (write_once || reinterpret_cast<uintptr_t>(output) % width != 0) {
        decoded = scratch(bytes);
        if (decoded == nullptr) {
            return {Code::kOutOfMemory, "no memory to decode a piece"};
        }
    }
    uint32_t status = 0;
    DecodeArgs args{};
    args.input = received;
    args.output = decoded;
    args.count = count;
    args.chunk_elems = count;
    args.slot_bytes = (palette().encoded_bytes(element, count) + 15) / 16 * 16;
    args.params = palette().params;
    args.dtype = element;
    args.status = &status;
    palette().codec->host.decode(args);
    if (status != 0) {
        return corrupt(size, bytes);
    }
    if (decoded != output) {
        std::memcpy(output, decoded, bytes - tail);
    }
    std::memcpy(output + bytes - tail, received + total, tail);
    return {};
}

}  // namespace slimwire::net
