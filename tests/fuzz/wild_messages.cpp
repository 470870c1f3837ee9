#include "tests/fuzz/wild_messages.h"

#include <algorithm>

#include "plugin/net/engine/frame.h"

namespace slimwire::net {

PieceMemory piece_memory(size_t bytes) {
    return PieceMemory(
        static_cast<uint8_t*>(std::aligned_alloc(64, (piece_capacity(bytes) + 63) / 64 * 64)));
}

size_t size_from(Reader& reader) {
    constexpr size_t kSizes[] = {0, 1, 7, 100, 4048, 4049, 8192, 20000};
    constexpr size_t kLarge[] = {131072, size_t{1} << 20, size_t{1} << 40, size_t{1} << 41};
    const uint8_t which = reader.byte();
    return which < 240 ? kSizes[which % std::size(kSizes)] : kLarge[which % std::size(kLarge)];
}

std::vector<uint8_t> wild_control(Reader& reader, uint64_t* sequence) {
    Frame frame{};
    const uint8_t how = reader.byte();
    frame.magic = kFrameMagic;
    frame.version = kFrameVersion;
    frame.kind = static_cast<FrameKind>(how % 16 == 15 ? reader.byte() : 1 + how % 4);
    frame.flags = static_cast<uint8_t>(reader.byte() % 16 == 0 ? reader.byte() : how / 64 % 2);
    frame.element = how / 16 % 2 == 0 ? DType::kBfloat16 : static_cast<DType>(reader.byte());
    const bool end = frame.kind == FrameKind::kEnd;
    frame.sequence =
        end && *sequence > 0 ? *sequence - 1 - reader.byte() % 4 % *sequence : *sequence;
    frame.sequence += reader.byte() == 1 ? 1 : 0;
    frame.bytes = size_from(reader);
    frame.tag = reader.byte() % 4;
    constexpr uint32_t kPieces[] = {4096, 8192, 131072, 5000, 0};
    const uint8_t piece = reader.byte();
    frame.piece_bytes = piece == 255 ? 4 << 20 : kPieces[piece % std::size(kPieces)];
    size_t size = sizeof(Frame);
    if (frame.kind == FrameKind::kInline) {
        frame.bytes = std::min<size_t>(frame.bytes, kInlineBytes);
        size += frame.bytes;
    }
    std::vector<uint8_t> message(size);
    reader.fill(message.data() + sizeof(Frame), size - sizeof(Frame));
    write_frame(frame, message.data());
    if (reader.byte() == 2) {
        message[reader.byte() % sizeof(Frame)] ^= static_cast<uint8_t>(1 + reader.byte());
    }
    *sequence += end ? 0 : 1;
    return message;
}

std::vector<uint8_t> wild_data(Reader& reader) {
    const size_t size = size_from(reader);
    const uint8_t how = reader.byte();
    std::vector<uint8_t> message(size > (1 << 20) ? 4096 : size);
    reader.fill(message.data(), message.size());
    if (how < 160 || message.empty()) {
        return message;
    }
    // A piece that is one, or was.
    const PieceMemory piece = piece_memory(message.size());
    const size_t bytes =
        encode_piece(DType::kBfloat16, message.data(), message.size(), piece.get());
    if (bytes == message.size()) {
        return message;
    }
    std::vector<uint8_t> encoded(piece.get(), piece.get() + bytes);
    if (how % 2 == 0) {
        encoded[(reader.byte() * size_t{257}) % encoded.size()] ^=
            static_cast<uint8_t>(reader.byte());
    }
    return encoded;
}

}  // namespace slimwire::net
