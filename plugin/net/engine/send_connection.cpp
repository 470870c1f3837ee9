#include "plugin/net/engine/send_connection.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "codecs/base/steady_ns.h"
#include "plugin/net/engine/frame.h"

namespace slimwire::net {
static_assert(kNetMaxRequests <= kControlSlots, "each message has a control buffer");

Result<std::unique_ptr<SendConnection>> SendConnection::make(std::shared_ptr<Network> network,
                                                             std::unique_ptr<SendWire> wire,
                                                             const char* device) {
    std::unique_ptr<SendConnection> made(
        new SendConnection(std::move(network), std::move(wire), device));
    SLIMWIRE_TRY(made->open_control());
    return made;
}

void SendConnection::settle() noexcept {
    for (uint64_t number = parts_done_; number < parts_made_; ++number) {
        while (part(number).staging != nullptr && !part(number).done()) {
            std::this_thread::yield();
        }
    }
    for (Message& each : messages_) {
        while (each.in_use && has_end(each) && !each.checksum.done()) {
            std::this_thread::yield();
        }
    }
}

bool SendConnection::uses(const Memory& memory) const noexcept {
    return std::any_of(messages_.begin(), messages_.end(), [&](const Message& each) {
        const bool copied = each.frame.kind == FrameKind::kInline ||
                            (each.data_done && (!has_end(each) || each.checksum.done()));
        return each.in_use && !copied && memory.holds(each.data, each.memory);
    });
}

void SendConnection::Part::run() noexcept {
    const uint64_t begin = steady_ns();
    wire_bytes = encode_piece(element, source, bytes, staging->data);
    encode_ns = steady_ns() - begin;
}

Status SendConnection::send(
    const void* data, size_t bytes, int tag, Memory* memory, Request** request) {
    *request = nullptr;
    Message& made = message(next_message_);
    if (!failure_.ok() || (made.in_use && !advance().ok())) {
        *request = dead_request();
        return {};
    }
    if (made.in_use) {
        return {};
    }
    made.in_use = true;
    made.connection = this;
    made.frame_sent = made.frame_done = made.data_done = made.end_sent = false;
    made.pieces_do_not_shrink = made.paced = false;
    made.data = static_cast<const uint8_t*>(data);
    made.memory = memory;
    made.next_offset = made.parts_left = 0;
    made.frame = {.magic = kFrameMagic,
                  .version = kFrameVersion,
                  .kind = FrameKind::kRaw,
                  .flags = parts_.settings.checksum ? kFrameChecksum : uint8_t{0},
                  .element = DType::kUint8,
                  .sequence = next_message_,
                  .bytes = bytes,
                  .tag = tag,
                  .piece_bytes = 0,
                  .checksum = 0,
                  .check = 0};
    plan(&made);
    write_frame(made.frame, control_slot(next_message_));
    ++next_message_;
    Counters::add(counters_.messages, 1);
    Counters::add(counters_.bytes, bytes);
    *request = &made;
    (void)advance();  // its failure is the request's
    return {};
}

// Decides how the message goes, and fills the control buffer of a small one.
void SendConnection::plan(Message* made) {
    Frame& frame = made->frame;
    made->control_bytes = sizeof(Frame);
    if (frame.bytes <= kInlineBytes) {
        frame.kind = FrameKind::kInline;
        if ((frame.flags & kFrameChecksum) != 0) {
            frame.checksum = checksum_of(made->data, frame.bytes);
        }
        if (frame.bytes > 0) {
            std::memcpy(control_slot(frame.sequence) + sizeof(Frame), made->data, frame.bytes);
        }
        made->control_bytes += frame.bytes;
        made->data_done = true;
        return;
    }
    if ((frame.flags & kFrameChecksum) != 0) {
        made->checksum.submit(*parts_.pool, made->data, frame.bytes);
    }
    made->parts_left = 1;
    if (parts_.settings.codec && frame.bytes >= parts_.settings.min_bytes &&
        looks_compressible(*made)) {
        go_coded(made);
    }
}

// The message could be compressed; whether it is depends on what that brings.
void SendConnection::go_coded(Message* made) {
    Frame& frame = made->frame;
    made->paced = true;
    const Word word = wire_->word();
    benefit_.heard(static_cast<double>(word.raw_bytes_per_s),
                   static_cast<double>(word.coded_bytes_per_s));
    made->way = benefit_.choose();
    made->began_ns = steady_ns();
    if (made->way == Way::kCoded) {
        frame.kind = FrameKind::kCoded;
        frame.element = *element_;
        frame.piece_bytes = static_cast<uint32_t>(parts_.settings.piece_bytes);
        made->parts_left = pieces_of(frame.bytes, frame.piece_bytes);
        Counters::add(counters_.coded_messages, 1);
        Counters::add(counters_.coded_bytes, frame.bytes);
    }
}

// Settles element_ where it may be.
bool SendConnection::looks_compressible(const Message& message) {
    const uint64_t bytes = message.frame.bytes;
    if (carries_flags(message.data, bytes)) {
        Counters::add(counters_.flagged_messages, 1);
        Counters::add(counters_.flagged_bytes, bytes);
        return false;
    }
    if (skip_looking_ > 0) {
        --skip_looking_;
        return false;
    }
    if (!knows_element_for(message.data)) {
        learn(guess_element(message.data, bytes));
    }
    return knows_element_for(message.data);
}

bool SendConnection::knows_element_for(const void* data) const noexcept {
    return element_.has_value() && reinterpret_cast<uintptr_t>(data) % dtype_bytes(*element_) == 0;
}

void SendConnection::learn(const std::optional<ElementGuess>& guess) noexcept {
    if (!guess.has_value()) {
        skips_ = std::min<uint32_t>(2 * skips_ + 1, 63);
        skip_looking_ = skips_;
        return;
    }
    element_ = guess->element;
    skips_ = 0;
    coded_in_ = coded_out_ = 0;
}

Status SendConnection::test(Request* request, bool* done, size_t* sizes) {
    auto* const tested = static_cast<Message*>(request);
    *done = false;
    SLIMWIRE_TRY(advance());
    SLIMWIRE_TRY(finish_control(tested));
    *done = over(*tested);
    if (*done) {
        tested->in_use = false;
        if (sizes != nullptr) {
            sizes[0] = tested->frame.bytes;
        }
    }
    return {};
}

// Whether another frame, with the checksum, follows its data.
bool SendConnection::has_end(const Message& message) noexcept {
    return (message.frame.flags & kFrameChecksum) != 0 && message.frame.kind != FrameKind::kInline;
}

bool SendConnection::over(const Message& message) noexcept {
    return message.frame_done && message.data_done &&
           (!has_end(message) || (message.end_sent && message.control == nullptr));
}

Status SendConnection::advance() {
    if (failure_.ok()) {
        Status status = send_frames();
        status = status.ok() ? make_parts() : status;
        status = status.ok() ? send_parts() : status;
        status = status.ok() ? finish_parts() : status;
        if (!status.ok()) {
            return fail(std::move(status));
        }
    }
    return failure_;
}

Status SendConnection::send_frames() {
    for (; next_frame_ < next_message_; ++next_frame_) {
        Message& next = message(next_frame_);
        SLIMWIRE_TRY(wire_->send(Lane::kControl, control_slot(next_frame_), next.control_bytes,
                                 control_memory_, &next.control));
        if (next.control == nullptr) {
            return {};
        }
        next.frame_sent = true;
        Counters::add(counters_.wire_bytes, next.control_bytes);
    }
    return {};
}

// Sees whether the frame has gone, then sends the end of a message with a checksum.
Status SendConnection::finish_control(Message* message) {
    if (message->control != nullptr) {
        bool done = false;
        if (Status status = wire_->test(message->control, &done, nullptr); !status.ok()) {
            return fail(std::move(status));
        }
        if (!done) {
            return {};
        }
        message->control = nullptr;
        message->frame_done = true;
    }
    if (!has_end(*message) || !message->frame_done || message->end_sent ||
        !message->checksum.done()) {
        return {};
    }
    Frame end = message->frame;
    end.kind = FrameKind::kEnd;
    end.checksum = message->checksum.value();
    uint8_t* const control = control_slot(end.sequence);
    write_frame(end, control);
    if (Status status =
            wire_->send(Lane::kControl, control, sizeof end, control_memory_, &message->control);
        !status.ok()) {
        return fail(std::move(status));
    }
    message->end_sent = message->control != nullptr;
    if (message->end_sent) {
        Counters::add(counters_.wire_bytes, sizeof end);
    }
    return {};
}

Status SendConnection::make_parts() {
    while (next_data_ < next_frame_ && parts_made_ - parts_done_ < kParts) {
        Message& from = message(next_data_);
        if (from.frame.kind == FrameKind::kInline) {
            ++next_data_;
            continue;
        }
        bool made = false;
        SLIMWIRE_TRY(make_part(&from, &made));
        if (!made) {
            break;
        }
        if (from.next_offset == from.frame.bytes) {
            ++next_data_;
        }
    }
    return {};
}

Status SendConnection::make_part(Message* from, bool* made) {
    Part& next = part(parts_made_);
    const uint64_t left = from->frame.bytes - from->next_offset;
    const bool coded = from->frame.kind == FrameKind::kCoded;
    next.staging = nullptr;
    if (coded && !from->pieces_do_not_shrink) {
        bool ready = false;
        SLIMWIRE_TRY(staging_.prepare(*wire_, from->frame.piece_bytes, &ready));
        next.staging = ready ? staging_.take() : nullptr;
        if (next.staging == nullptr) {
            return {};
        }
    }
    next.message = from;
    next.source = from->data + from->next_offset;
    next.bytes = coded ? std::min<uint64_t>(left, from->frame.piece_bytes) : left;
    next.wire_bytes = next.bytes;
    next.encode_ns = 0;
    next.element = from->frame.element;
    next.request = nullptr;
    from->next_offset += next.bytes;
    ++parts_made_;
    if (next.staging != nullptr) {
        parts_.pool->submit(&next);
    }
    *made = true;
    return {};
}

Status SendConnection::send_parts() {
    for (; parts_sent_ < parts_made_; ++parts_sent_) {
        Part& next = part(parts_sent_);
        if (next.staging != nullptr && !next.done()) {
            return {};
        }
        const bool encoded = next.staging != nullptr && next.wire_bytes < next.bytes;
        const uint8_t* const from = encoded ? next.staging->data : next.source;
        WireMemory* const memory = encoded ? staging_.memory() : wire_memory(next.message->memory);
        SLIMWIRE_TRY(wire_->send(Lane::kData, from, next.wire_bytes, memory, &next.request));
        if (next.request == nullptr) {
            return {};
        }
        if (next.staging != nullptr && !encoded) {
            staging_.give(next.staging);
            next.staging = nullptr;
            next.message->pieces_do_not_shrink = true;
        }
        Counters::add(counters_.wire_bytes, next.wire_bytes);
        if (next.message->frame.kind == FrameKind::kCoded) {
            Counters::add(counters_.coded_wire_bytes, next.wire_bytes);
        }
    }
    return {};
}

// Messages of a lane end in order, so only the oldest is asked.
Status SendConnection::finish_parts() {
    while (parts_done_ < parts_sent_) {
        Part& oldest = part(parts_done_);
        bool done = false;
        SLIMWIRE_TRY(wire_->test(oldest.request, &done, nullptr));
        if (!done) {
            return {};
        }
        oldest.request = nullptr;
        if (oldest.staging != nullptr) {
            staging_.give(oldest.staging);
            oldest.staging = nullptr;
        }
        Message& from = *oldest.message;
        if (from.frame.kind == FrameKind::kCoded) {
            coded_in_ += oldest.bytes;
            coded_out_ += oldest.wire_bytes;
            if (oldest.encode_ns > 0) {
                benefit_.encoded(oldest.bytes, oldest.encode_ns, parts_.settings.threads);
            }
        }
        ++parts_done_;
        if (--from.parts_left > 0) {
            continue;
        }
        from.data_done = true;
        if (from.paced) {
            counters_.add_timed(
                from.way == Way::kCoded, from.frame.bytes,
                benefit_.finished(from.way, from.frame.bytes, from.began_ns, steady_ns()));
        }
        // The data changed its kind: look again.
        if (from.frame.kind == FrameKind::kCoded && coded_out_ > coded_in_ - coded_in_ / 32) {
            element_.reset();
        }
        if (coded_in_ > (uint64_t{16} << 20)) {
            coded_in_ /= 2;
            coded_out_ /= 2;
        }
    }
    return {};
}

}  // namespace slimwire::net
