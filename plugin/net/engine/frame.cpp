#include "plugin/net/engine/frame.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "codecs/codec.h"
#include "plugin/net/engine/codec_pool.h"

namespace slimwire::net {
namespace {

Status damaged(const std::string& what) {
    return {Code::kRemoteError, "damaged frame from the peer: " + what};
}

Status check_pieces(const Frame& frame) {
    return frame.piece_bytes >= kLeastPieceBytes && frame.piece_bytes <= kMostPieceBytes &&
                   frame.piece_bytes % kLeastPieceBytes == 0
               ? Status()
               : damaged("pieces of " + std::to_string(frame.piece_bytes) + " bytes");
}

Status check_sizes(const Frame& frame, size_t size) {
    switch (frame.kind) {
        case FrameKind::kInline:
            return frame.bytes == size - sizeof(Frame)
                       ? Status()
                       : damaged("a message of " + std::to_string(frame.bytes) + " bytes in " +
                                 std::to_string(size - sizeof(Frame)));
        case FrameKind::kEnd:
            break;
        case FrameKind::kRaw:
            if (frame.piece_bytes != 0) {
                return damaged("pieces of " + std::to_string(frame.piece_bytes) + " bytes");
            }
            break;
        case FrameKind::kCoded:
            SLIMWIRE_TRY(check_pieces(frame));
            if (static_cast<int>(frame.element) >= kDTypeCount) {
                return damaged("element type " + std::to_string(static_cast<int>(frame.element)));
            }
            break;
    }
    if (size != sizeof(Frame)) {
        return damaged(std::to_string(size) + " bytes, a frame alone has " +
                       std::to_string(sizeof(Frame)));
    }
    return frame.bytes > 0 && frame.bytes <= kMostMessageBytes
               ? Status()
               : damaged("a message of " + std::to_string(frame.bytes) + " bytes");
}

}  // namespace

void write_frame(const Frame& frame, uint8_t* message) noexcept {
    Frame checked = frame;
    checked.check = checksum_of(&checked, offsetof(Frame, check));
    std::memcpy(message, &checked, sizeof checked);
}

Result<Frame> read_frame(const uint8_t* message, size_t size) {
    if (size < sizeof(Frame)) {
        return damaged(std::to_string(size) + " bytes, a frame has " +
                       std::to_string(sizeof(Frame)));
    }
    Frame frame;
    std::memcpy(&frame, message, sizeof frame);
    if (frame.magic != kFrameMagic) {
        return damaged("it does not begin with the magic number");
    }
    if (frame.version != kFrameVersion) {
        return damaged("version " + std::to_string(frame.version) + ", this side speaks " +
                       std::to_string(kFrameVersion));
    }
    if (frame.kind < FrameKind::kInline || frame.kind > FrameKind::kEnd) {
        return damaged("kind " + std::to_string(static_cast<int>(frame.kind)));
    }
    if (frame.check != checksum_of(&frame, offsetof(Frame, check))) {
        return damaged("its check is wrong");
    }
    if ((frame.flags & ~kFrameChecksum) != 0) {
        return damaged("bits set that mean nothing");
    }
    SLIMWIRE_TRY(check_sizes(frame, size));
    return frame;
}

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

void copy_in_order(void* output, const void* input, size_t bytes) noexcept {
    using Word [[gnu::may_alias]] = uint64_t;
    auto* to = static_cast<uint8_t*>(output);
    const auto* from = static_cast<const uint8_t*>(input);
    const auto put_bytes = [&](size_t count) {
        for (size_t i = 0; i < count; ++i) {
            __atomic_store_n(to++, *from++, __ATOMIC_RELEASE);
        }
        bytes -= count;
    };
    const size_t before = -reinterpret_cast<uintptr_t>(to) % sizeof(Word);
    put_bytes(before < bytes ? before : bytes);
    for (; bytes >= sizeof(Word); bytes -= sizeof(Word)) {
        uint64_t word = 0;
        std::memcpy(&word, from, sizeof word);
        __atomic_store_n(reinterpret_cast<Word*>(to), word, __ATOMIC_RELEASE);
        to += sizeof(Word);
        from += sizeof(Word);
    }
    put_bytes(bytes);
}

}  // namespace slimwire::net
