#include "plugin/net/engine/frame.h"

#include <cstring>

#include "plugin/net/engine/checksum.h"

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

}  // namespace slimwire::net
