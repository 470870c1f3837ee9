// What the sending side does for messages in GPU memory. The host reads none of it: small messages
// and samples are copied into pinned memory, pieces are encoded or copied into the lane's slots.
//
//   up to kInlineBytes   one copy, then a frame with the bytes
//   not compressed       pieces as they are: one copy for up to kBatch of them
//   compressed           pieces: one launch for up to kBatch of them
//
// The element type comes from the profiler's hint or a sample of a few KiB, which also shows the
// flags of protocol LL128; both are remembered, the type by connection, the flags by registration.
// The checksum is of the bytes in GPU memory, which are read back for it (gpu_bounce.h): the same
// as of a message in host memory, so either kind of receiver can verify it.
#include <algorithm>
#include <cstring>

#include "plugin/net/engine/clock.h"
#include "plugin/net/engine/piece.h"
#include "plugin/net/engine/send_connection.h"
#include "plugin/net/hints/hint.h"

namespace slimwire::net {
namespace {

// A sample: parts of the message one behind the other, at multiples of LL128's lines, and as far
// from an aligned address as the message, so that it can be looked at as if it were the message.
constexpr size_t kSampleParts = 4;
constexpr size_t kSamplePart = 896;
constexpr size_t kLine = 128;
constexpr size_t kWidest = 8;  // bytes of an element
static_assert(kSamplePart % kLine == 0);
static_assert(kSampleParts * kSamplePart + kWidest <= GpuLane::kSmallBytes);
static_assert(kSampleParts * kSamplePart < kInlineBytes, "larger messages are sampled");
static_assert(kInlineBytes <= GpuLane::kSmallBytes && kNetMaxRequests <= GpuLane::kSmalls);

size_t sample_offset(const void* data) {
    return reinterpret_cast<uintptr_t>(data) % kWidest;
}

}  // namespace

Status EngineSend::plan_on_gpu(Message* made, void* phandle) {
    Frame& frame = made->frame;
    made->control_bytes = sizeof(Frame);
    made->memory = nullptr;
    if (frame.bytes <= kInlineBytes) {
        frame.kind = FrameKind::kInline;
        made->control_bytes += frame.bytes;
        made->data_done = made->waits = true;
        SLIMWIRE_TRY(lane_->copy_to_host(lane_->small(frame.sequence), made->data, frame.bytes));
        SLIMWIRE_TRY_ASSIGN(made->ticket, lane_->mark());
        return {};
    }
    go_raw_on_gpu(made);
    if (!parts_.settings.codec || frame.bytes < parts_.settings.min_bytes) {
        return {};
    }
    const Hint hint = ask_hint(profiler_, phandle);
    if (hint.protocol == Protocol::kLl || hint.protocol == Protocol::kLl128 ||
        made->registered->flagged) {
        count_flagged(*made);
        return {};
    }
    follow_hint(hint.element);
    made->hint = hint.element;
    if (skip_looking_ > 0) {
        --skip_looking_;
    } else if (made->registered->looked && knows_element_for(made->data)) {
        go_coded(made);
    } else {
        return take_sample(made);
    }
    return {};
}

void EngineSend::go_raw_on_gpu(Message* message) noexcept {
    Frame& frame = message->frame;
    const size_t piece = lane_->piece_bytes();
    frame.kind = FrameKind::kRaw;
    frame.piece_bytes = frame.bytes > piece ? static_cast<uint32_t>(piece) : 0;
    message->parts_left = pieces_of(frame.bytes, piece);
}

Status EngineSend::take_sample(Message* message) {
    const uint64_t bytes = message->frame.bytes;
    uint8_t* const sample = lane_->small(message->frame.sequence) + sample_offset(message->data);
    const size_t lines = (bytes - kSamplePart) / kLine;
    for (size_t i = 0; i < kSampleParts; ++i) {
        SLIMWIRE_TRY(lane_->copy_to_host(sample + i * kSamplePart,
                                         message->data + i * lines / (kSampleParts - 1) * kLine,
                                         kSamplePart));
    }
    SLIMWIRE_TRY_ASSIGN(message->ticket, lane_->mark());
    message->waits = true;
    return {};
}

// The bytes that a frame waited for are in pinned memory.
void EngineSend::decide_on_gpu(Message* message) {
    Frame& frame = message->frame;
    const uint8_t* const seen = lane_->small(frame.sequence);
    uint8_t* const control = control_slot(frame.sequence);
    message->waits = false;
    if (frame.kind == FrameKind::kInline) {
        std::memcpy(control + sizeof(Frame), seen, frame.bytes);
        if ((frame.flags & kFrameChecksum) != 0) {
            frame.checksum = checksum_of(seen, frame.bytes);
        }
    } else {
        constexpr size_t bytes = kSampleParts * kSamplePart;
        const uint8_t* const sample = seen + sample_offset(message->data);
        Memory& memory = *message->registered;
        memory.looked = true;
        memory.flagged = carries_flags(sample, bytes);
        if (memory.flagged) {
            count_flagged(*message);
        } else {
            const bool floats = message->hint.has_value() && is_float(*message->hint);
            const std::optional<ElementGuess> guess =
                guess_element(sample, bytes, floats ? message->hint : std::nullopt);
            learn(guess);
            if (guess.has_value()) {
                go_coded(message);
            }
        }
    }
    write_frame(frame, control);
}

// Before frames and parts: what the GPU has finished, and the checksums.
Status EngineSend::advance_gpu() {
    SLIMWIRE_TRY(lane_->poll());
    for (uint64_t number = next_frame_; number < next_message_; ++number) {
        Message& waiting = message(number);
        if (waiting.waits && lane_->over(waiting.ticket)) {
            decide_on_gpu(&waiting);
        }
    }
    SLIMWIRE_TRY(bounce_->advance());
    if (bounce_->done()) {
        Message& hashed = message(next_hash_);
        hashed.gpu_checksum = bounce_->checksum();
        hashed.hashed = true;
        ++next_hash_;
    }
    for (; bounce_->free() && next_hash_ < next_message_; ++next_hash_) {
        const Message& next = message(next_hash_);
        // One that is over has left its place to a later one, which is not this number's.
        if (next.in_use && next.frame.sequence == next_hash_ && next.on_gpu && has_end(next)) {
            bounce_->hash(next.data, next.frame.bytes);
            return bounce_->advance();
        }
    }
    return {};
}

Status EngineSend::make_gpu_parts(Message* from, bool* made) {
    if (!lane_->room()) {
        return {};
    }
    const size_t piece = lane_->piece_bytes();
    const uint8_t* const source = from->data + from->next_offset;
    const uint64_t left = from->frame.bytes - from->next_offset;
    const size_t width = dtype_bytes(from->frame.element);
    bool codes = from->frame.kind == FrameKind::kCoded && !from->pieces_do_not_shrink;
    const auto slot = static_cast<int>(slots_taken_ % GpuLane::kSlots);
    uint64_t pieces = std::min<uint64_t>(
        {pieces_of(left, piece), GpuLane::kBatch, static_cast<uint64_t>(GpuLane::kSlots - slot)});
    if (codes && !pieces_align(from->frame.element, piece)) {
        pieces = 1;
    }
    size_t bytes = std::min<uint64_t>(left, pieces * piece);
    if (codes && bytes - (pieces - 1) * piece < width) {
        // The last piece has no whole element.
        codes = pieces > 1;
        pieces -= codes ? 1 : 0;
        bytes = codes ? pieces * piece : bytes;
    }
    // Whole batches, or a launch for every slot that becomes free would follow.
    if (GpuLane::kSlots - (slots_taken_ - slots_given_) < pieces ||
        kParts - (parts_made_ - parts_done_) < pieces) {
        return {};
    }
    if (codes) {
        SLIMWIRE_TRY(lane_->encode(from->frame.element, source, bytes, piece, slot));
    } else {
        SLIMWIRE_TRY(lane_->copy_to_slots(slot, source, bytes));
    }
    SLIMWIRE_TRY_ASSIGN(const GpuLane::Ticket ticket, lane_->mark());
    for (uint64_t i = 0; i < pieces; ++i) {
        Part& next = part(parts_made_++);
        next.message = from;
        next.source = source + i * piece;
        next.bytes = next.wire_bytes = std::min(piece, bytes - i * piece);
        next.encode_ns = 0;
        next.element = from->frame.element;
        next.staging = nullptr;
        next.request = nullptr;
        next.slot = slot + static_cast<int>(i);
        next.staged = lane_->slot(next.slot);
        next.ticket = ticket;
        next.encoding = codes;
        next.began_ns = now_ns();
        next.batch = static_cast<int>(pieces);
    }
    slots_taken_ += pieces;
    from->next_offset += bytes;
    *made = true;
    return {};
}

// Whether the part's bytes are there; a piece that did not shrink is copied as it is first.
Status EngineSend::look_at_encoding(Part* part, bool* ready) {
    *ready = false;
    if (!lane_->over(part->ticket)) {
        return {};
    }
    if (part->encoding) {
        if (part->encode_ns == 0) {
            part->wire_bytes = lane_->finished(part->element, part->slot, part->bytes);
            // As long as nobody looks, time passes: it is the most that encoding took.
            part->encode_ns = std::max<uint64_t>(
                1, (now_ns() - part->began_ns) / static_cast<uint64_t>(part->batch));
        }
        if (part->wire_bytes == part->bytes) {
            part->message->pieces_do_not_shrink = true;
            if (!lane_->room()) {
                return {};
            }
            SLIMWIRE_TRY(lane_->copy_to_host(lane_->slot(part->slot), part->source, part->bytes));
            SLIMWIRE_TRY_ASSIGN(part->ticket, lane_->mark());
            part->encoding = false;
            return {};
        }
        part->encoding = false;
    }
    *ready = true;
    return {};
}

}  // namespace slimwire::net
