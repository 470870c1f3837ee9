// What the receiving side does for messages into GPU memory. The host writes none of it:
//
//   pieces            the wire delivers them into the lane's slots; those that have come are
//   decoded
//                     by one launch, or copied by one copy where they came as they are
//   small messages    came in their frame: one copy from pinned memory
//   held messages     came before somebody asked for them, or do not fit the slots (a sender
//   without
//                     GPU memory does not cut what it does not compress): copied through
//                     gpu_bounce.h
//
// What carries flags between its data is not compressed by its sender, and is written in whole
// lines (codecs/copy_lines.h). A message that arrives compressed although the receiver may look at
// it on the way is held, decoded on the host, then written in lines.
//
// The checksum is of the bytes as they stand in GPU memory at the end, which are read back for it;
// of held ones before they go there.
#include <algorithm>
#include <cstring>
#include <string>

#include "plugin/net/engine/element_probe.h"
#include "plugin/net/engine/piece.h"
#include "plugin/net/engine/receive_connection.h"

namespace slimwire::net {

static_assert(kInlineBytes <= GpuLane::kSmallBytes);

// Whether the pieces of a message fit the slots, and the GPU may decode them to where they belong.
bool EngineReceive::fits_lane(const Arrival& arrival) const noexcept {
    const Frame& frame = arrival.frame;
    if (frame.kind == FrameKind::kCoded) {
        return frame.piece_bytes <= lane_->piece_bytes() && !arrival.target->group->write_once &&
               reinterpret_cast<uintptr_t>(arrival.target->data) % dtype_bytes(frame.element) == 0;
    }
    return (frame.piece_bytes > 0 ? frame.piece_bytes : frame.bytes) <= lane_->piece_bytes();
}

Status EngineReceive::post_gpu_part(Arrival* from, bool* made) {
    if (slots_taken_ - slots_given_ == GpuLane::kSlots) {
        return {};
    }
    const Frame& frame = from->frame;
    const uint64_t left = frame.bytes - from->next_offset;
    Part& next = part(parts_made_);
    next.slot = static_cast<int>(slots_taken_ % GpuLane::kSlots);
    next.arrival = from;
    next.output = from->target->data + from->next_offset;
    next.bytes = frame.piece_bytes > 0 ? std::min<uint64_t>(left, frame.piece_bytes) : left;
    next.received = 0;
    next.staging = nullptr;
    next.submitted = false;
    next.write_once = from->target->group->write_once;
    next.ticket = 0;
    next.decoded_from = -1;
    next.staged = lane_->slot(next.slot);
    SLIMWIRE_TRY(wire_->receive(Lane::kData, next.staged, next.bytes, lane_memory_, &next.request));
    if (next.request == nullptr) {
        return {};
    }
    ++slots_taken_;
    ++parts_made_;
    from->next_offset += next.bytes;
    *made = true;
    return {};
}

Status EngineReceive::advance_gpu() {
    SLIMWIRE_TRY(lane_->poll());
    return bounce_->advance();
}

// One launch, or one copy, for parts next to each other that have come. While the GPU works for
// this connection further ones gather, up to a batch.
Status EngineReceive::launch_parts() {
    while (parts_launched_ < parts_came_) {
        const Part& first = part(parts_launched_);
        if (first.slot < 0) {
            ++parts_launched_;
            continue;
        }
        const Frame& frame = first.arrival->frame;
        const bool decodes = frame.kind == FrameKind::kCoded && first.received != first.bytes;
        uint64_t most = GpuLane::kBatch;
        if (decodes ? !pieces_align(frame.element, frame.piece_bytes)
                    : frame.piece_bytes != lane_->piece_bytes()) {
            most = 1;
        }
        uint64_t count = 1;
        for (; count < most && parts_launched_ + count < parts_came_; ++count) {
            const Part& next = part(parts_launched_ + count);
            const bool fits =
                next.arrival == first.arrival && next.slot == first.slot + static_cast<int>(count);
            if (!fits ||
                (frame.kind == FrameKind::kCoded && (!decodes || next.received == next.bytes))) {
                break;
            }
        }
        const bool more_may_come = count < most && parts_launched_ + count == parts_came_ &&
                                   parts_came_ < parts_made_ &&
                                   part(parts_came_).arrival == first.arrival;
        if (!lane_->room() || (more_may_come && !lane_->idle())) {
            return {};
        }
        SLIMWIRE_TRY(decodes ? launch_decode(parts_launched_, count)
                             : launch_copy(parts_launched_, count));
        SLIMWIRE_TRY_ASSIGN(const GpuLane::Ticket ticket, lane_->mark());
        for (uint64_t i = 0; i < count; ++i) {
            part(parts_launched_ + i).ticket = ticket;
        }
        parts_launched_ += count;
    }
    return {};
}

Status EngineReceive::launch_copy(uint64_t first, uint64_t count) {
    const Part& from = part(first);
    size_t bytes = 0;
    for (uint64_t i = 0; i < count; ++i) {
        const Part& each = part(first + i);
        if (each.received != each.bytes) {
            return corrupt_piece(each.received, each.bytes);
        }
        bytes += each.bytes;
    }
    Arrival& arrival = *from.arrival;
    if (from.output == arrival.target->data) {
        arrival.lines = from.write_once || carries_flags(from.staged, from.bytes);
    }
    if (arrival.frame.piece_bytes != lane_->piece_bytes()) {
        return lane_->copy_to_gpu(from.output, from.staged, bytes, arrival.lines);
    }
    return lane_->copy_from_slots(from.output, from.slot, bytes, arrival.lines);
}

Status EngineReceive::launch_decode(uint64_t first, uint64_t count) {
    const Part& from = part(first);
    const Frame& frame = from.arrival->frame;
    size_t bytes = 0;
    size_t encoded = 0;
    for (uint64_t i = 0; i < count; ++i) {
        Part& each = part(first + i);
        SLIMWIRE_TRY(check_piece(frame.element, each.staged, each.received, each.bytes, &encoded));
        each.decoded_from = from.slot;
        bytes += each.bytes;
    }
    return lane_->decode(frame.element, from.slot, encoded, from.output, bytes, frame.piece_bytes);
}

Status EngineReceive::finish_gpu_part(Part* part, bool* done) {
    if (part->ticket == 0 || !lane_->over(part->ticket)) {
        return {};
    }
    if (part->decoded_from >= 0 && lane_->corrupt(part->decoded_from)) {
        return corrupt_piece(part->received, part->bytes);
    }
    ++slots_given_;
    *done = true;
    return {};
}

// Host memory to GPU memory, for a message that is held.
Status EngineReceive::move_held(Arrival* arrival, bool* done) {
    const size_t bytes = arrival->frame.bytes;
    const bool lines =
        arrival->target->group->write_once || carries_flags(arrival->held.get(), bytes);
    if (bytes > GpuLane::kSmallBytes) {
        if (!arrival->moving && bounce_->free()) {
            bounce_->copy(arrival->held.get(), arrival->target->data, bytes, lines);
            SLIMWIRE_TRY(bounce_->advance());
            arrival->moving = true;
            bouncing_ = arrival;
        }
        *done = bouncing_ == arrival && bounce_->done();
        bouncing_ = *done ? nullptr : bouncing_;
        return {};
    }
    GpuLane::Ticket& used = smalls_[smalls_used_ % GpuLane::kSmalls];
    if (!arrival->moving && lane_->over(used) && lane_->room()) {
        uint8_t* const small = lane_->small(smalls_used_);
        std::memcpy(small, arrival->held.get(), bytes);
        SLIMWIRE_TRY(lane_->copy_to_gpu(arrival->target->data, small, bytes, lines));
        SLIMWIRE_TRY_ASSIGN(used, lane_->mark());
        arrival->ticket = used;
        arrival->moving = true;
        ++smalls_used_;
    }
    *done = arrival->moving && lane_->over(arrival->ticket);
    return {};
}

// The checksum of a message that stands in GPU memory.
Status EngineReceive::read_back(Arrival* arrival, bool* done) {
    if (!arrival->checking && bounce_->free()) {
        bounce_->hash(arrival->target->data, arrival->frame.bytes);
        SLIMWIRE_TRY(bounce_->advance());
        arrival->checking = true;
        bouncing_ = arrival;
    }
    if (bouncing_ == arrival && bounce_->done()) {
        arrival->gpu_checksum = bounce_->checksum();
        arrival->hashed = true;
        bouncing_ = nullptr;
    }
    *done = arrival->hashed;
    return {};
}

}  // namespace slimwire::net
