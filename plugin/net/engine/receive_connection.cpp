#include "plugin/net/engine/receive_connection.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "codecs/base/steady_ns.h"
#include "plugin/net/engine/frame.h"

namespace slimwire::net {

Result<std::unique_ptr<ReceiveConnection>> ReceiveConnection::make(
    std::shared_ptr<Network> network, std::unique_ptr<ReceiveWire> wire, const char* device) {
    std::unique_ptr<ReceiveConnection> made(
        new ReceiveConnection(std::move(network), std::move(wire), device));
    SLIMWIRE_TRY(made->open_control());
    SLIMWIRE_TRY(made->advance());
    return made;
}

void ReceiveConnection::settle() noexcept {
    for (uint64_t number = parts_done_; number < parts_came_; ++number) {
        while (part(number).submitted && !part(number).done()) {
            std::this_thread::yield();
        }
    }
    for (const std::unique_ptr<Arrival>& arrival : arrivals_) {
        while (arrival->checking && !arrival->checksum.done()) {
            std::this_thread::yield();
        }
    }
}

bool ReceiveConnection::Group::uses(const Memory& memory) const noexcept {
    return in_use && !let_go &&
           std::any_of(posted.begin(), posted.begin() + count, [&](const Posted& each) {
               return each.capacity > 0 && memory.holds(each.data, each.memory);
           });
}

bool ReceiveConnection::uses(const Memory& memory) const noexcept {
    return std::any_of(groups_.begin(), groups_.end(),
                       [&](const Group& group) { return group.uses(memory); });
}

// Whether the network may be writing into its memory.
bool ReceiveConnection::in_place(const Group& group) const noexcept {
    for (uint64_t number = parts_came_; number < parts_made_; ++number) {
        const Part& each = parts_in_flight_[number % kParts];
        if (each.staging == nullptr && !each.arrival->holds &&
            each.arrival->target->group == &group) {
            return true;
        }
    }
    return false;
}

bool ReceiveConnection::let_go(const Memory& memory) {
    settle();
    for (Group& group : groups_) {
        if (!group.uses(memory)) {
            continue;
        }
        if (in_place(group)) {
            return false;
        }
        for (const std::unique_ptr<Arrival>& arrival : arrivals_) {
            if (arrival->target != nullptr && arrival->target->group == &group &&
                !divert(arrival.get()).ok()) {
                return false;
            }
        }
        group.let_go = true;
    }
    return true;
}

// What has still to come of the message goes to memory of its own. After settle().
Status ReceiveConnection::divert(Arrival* arrival) {
    if (arrival->holds || arrival->data_done) {
        return {};
    }
    const uint8_t* const target = arrival->target->data;
    SLIMWIRE_TRY(hold(arrival));
    for (uint64_t number = parts_done_; number < parts_made_; ++number) {
        Part& each = part(number);
        if (each.arrival == arrival) {
            each.output = arrival->held.get() + (each.output - target);
            each.write_once = false;
        }
    }
    return {};
}

void ReceiveConnection::Part::run() noexcept {
    status =
        decode_piece(arrival->frame.element, staging->data, received, output, bytes, write_once);
}

Status ReceiveConnection::receive(int count,
                                  void* const* data,
                                  const size_t* capacities,
                                  const int* tags,
                                  Memory* const* memories,
                                  bool in_place_visible,
                                  Request** request) {
    *request = nullptr;
    Group& group = groups_[next_group_ % kNetMaxRequests];
    if (!failure_.ok() || (group.in_use && !advance().ok())) {
        *request = dead_request();
        return {};
    }
    if (group.in_use) {
        return {};
    }
    group.in_use = true;
    group.let_go = group.told = false;
    group.connection = this;
    group.count = group.left = count;
    group.write_once = in_place_visible;
    ++next_group_;
    for (int i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        group.posted[at] = {.group = &group,
                            .data = static_cast<uint8_t*>(data[i]),
                            .capacity = capacities[i],
                            .tag = tags[i],
                            .memory = memories[i]};
    }
    *request = &group;
    // Failures are the request's.
    for (int i = 0; i < count && unmatched_ > 0; ++i) {
        Posted& posted = group.posted[static_cast<size_t>(i)];
        const auto waiting = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const auto& a) {
            return a->target == nullptr && a->frame.tag == posted.tag;
        });
        if (waiting != arrivals_.end()) {
            --unmatched_;
            if (Status status = match(waiting->get(), &posted); !status.ok()) {
                (void)fail(std::move(status));
                return {};
            }
        }
    }
    if (advance().ok() && !control_end_.ok() && waits_in_vain(group)) {
        (void)fail(control_end_);
    }
    return {};
}

Status ReceiveConnection::test(Request* request, bool* done, size_t* sizes) {
    auto* const group = static_cast<Group*>(request);
    *done = false;
    SLIMWIRE_TRY(advance());
    if (group->let_go) {
        group->told = true;
        group->in_use = group->left > 0;
        return {Code::kRemoteError, "the memory of the receive was deregistered"};
    }
    *done = group->left == 0;
    if (!*done && !control_end_.ok() && waits_in_vain(*group)) {
        return fail(control_end_);
    }
    if (*done) {
        group->in_use = false;
        for (int i = 0; sizes != nullptr && i < group->count; ++i) {
            sizes[i] = group->posted[static_cast<size_t>(i)].bytes;
        }
    }
    return {};
}

Status ReceiveConnection::advance() {
    if (failure_.ok()) {
        Status status = read_control();
        status = status.ok() ? post_parts() : status;
        status = status.ok() ? take_parts() : status;
        status = status.ok() ? finish_parts() : status;
        status = status.ok() ? finish_arrivals() : status;
        if (!status.ok()) {
            return fail(std::move(status));
        }
    }
    return failure_;
}

// --- Frames

// A peer may close when its last message is under way, and no frame comes any more then: what has
// come is still worked on, and only those who wait for more get the error.
//
// One frame a call: asking for another that is not there would cost a look at the network, and
// whoever waits calls again.
Status ReceiveConnection::read_control() {
    if (!control_end_.ok()) {
        return {};
    }
    while (control_posted_ - control_read_ < kControlSlots) {
        WireRequest*& request = control_requests_[control_posted_ % kControlSlots];
        const Status status = wire_->receive(Lane::kControl, control_slot(control_posted_),
                                             kControlBytes, control_memory_, &request);
        if (status.code() == Code::kRemoteError) {
            // Those that are posted may have their messages.
            if (control_read_ == control_posted_) {
                control_end_ = status;
            }
            break;
        }
        SLIMWIRE_TRY(status);
        if (request == nullptr) {
            break;
        }
        ++control_posted_;
    }
    if (control_read_ == control_posted_ || unmatched_ >= kMostUnmatched) {
        return {};
    }
    WireRequest*& oldest = control_requests_[control_read_ % kControlSlots];
    bool done = false;
    size_t size = 0;
    Status status = wire_->test(oldest, &done, &size);
    if (status.code() == Code::kRemoteError) {
        control_end_ = std::move(status);
        return {};
    }
    SLIMWIRE_TRY(status);
    if (!done) {
        return {};
    }
    oldest = nullptr;
    const uint8_t* const message = control_slot(control_read_);
    ++control_read_;
    return handle_frame(message, size);
}

// Whether a frame is missing that does not come any more.
bool ReceiveConnection::waits_in_vain(const Group& group) const noexcept {
    for (int i = 0; i < group.count; ++i) {
        if (!group.posted[static_cast<size_t>(i)].matched) {
            return true;
        }
    }
    return std::any_of(arrivals_.begin(), arrivals_.end(), [&](const auto& arrival) {
        return arrival->target != nullptr && arrival->target->group == &group && !arrival->end_came;
    });
}

Status ReceiveConnection::handle_frame(const uint8_t* message, size_t size) {
    SLIMWIRE_TRY_ASSIGN(const Frame frame, read_frame(message, size));
    Counters::add(counters_.wire_bytes, size);
    if (frame.kind == FrameKind::kEnd) {
        return handle_end(frame);
    }
    if (frame.sequence != next_sequence_) {
        return {Code::kRemoteError, "damaged frame from the peer: message " +
                                        std::to_string(frame.sequence) + " instead of " +
                                        std::to_string(next_sequence_)};
    }
    ++next_sequence_;
    Counters::add(counters_.messages, 1);
    Counters::add(counters_.bytes, frame.bytes);
    arrivals_.push_back(std::make_unique<Arrival>());
    Arrival* const arrival = arrivals_.back().get();
    arrival->frame = frame;
    Posted* const posted = find_posted(frame.tag);
    if (frame.kind == FrameKind::kInline) {
        const uint8_t* const bytes = message + sizeof(Frame);
        if ((frame.flags & kFrameChecksum) != 0 &&
            checksum_of(bytes, frame.bytes) != frame.checksum) {
            return {Code::kRemoteError, "damaged data from the peer: the checksum of message " +
                                            std::to_string(frame.sequence) + " is wrong"};
        }
        arrival->data_done = true;
        arrival->end_came = true;
        if (posted == nullptr || posted->group->let_go || posted->capacity < frame.bytes) {
            SLIMWIRE_TRY(hold(arrival));
            std::memcpy(arrival->held.get(), bytes, frame.bytes);
        } else if (frame.bytes > 0) {
            copy_in_order(posted->data, bytes, frame.bytes);
        }
    } else {
        arrival->parts_left = pieces_of(frame.bytes, frame.piece_bytes);
        arrival->end_came = (frame.flags & kFrameChecksum) == 0;
        data_queue_.push_back(arrival);
        if (frame.kind == FrameKind::kCoded) {
            Counters::add(counters_.coded_messages, 1);
            Counters::add(counters_.coded_bytes, frame.bytes);
        }
    }
    if (posted == nullptr) {
        ++unmatched_;
        return {};
    }
    return match(arrival, posted);
}

Status ReceiveConnection::handle_end(const Frame& frame) {
    const auto ended = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const auto& arrival) {
        return arrival->frame.sequence == frame.sequence;
    });
    if (ended == arrivals_.end() || (*ended)->end_came) {
        return {Code::kRemoteError, "damaged frame from the peer: the end of message " +
                                        std::to_string(frame.sequence) + ", which is not expected"};
    }
    (*ended)->end_came = true;
    (*ended)->frame.checksum = frame.checksum;
    return {};
}

ReceiveConnection::Posted* ReceiveConnection::find_posted(int tag) noexcept {
    // A group that is over may have left its place to a later one.
    oldest_group_ =
        std::max(oldest_group_, next_group_ - std::min<uint64_t>(next_group_, kNetMaxRequests));
    for (uint64_t number = oldest_group_; number < next_group_; ++number) {
        Group& group = groups_[number % kNetMaxRequests];
        bool all_matched = true;
        for (int i = 0; i < group.count; ++i) {
            Posted& posted = group.posted[static_cast<size_t>(i)];
            if (!posted.matched && posted.tag == tag) {
                return &posted;
            }
            all_matched = all_matched && posted.matched;
        }
        if (all_matched && number == oldest_group_) {
            ++oldest_group_;
        }
    }
    return nullptr;
}

Status ReceiveConnection::match(Arrival* arrival, Posted* posted) {
    if (posted->group->let_go) {
        if (!arrival->holds) {
            SLIMWIRE_TRY(hold(arrival));
        }
    } else if (arrival->frame.bytes > posted->capacity) {
        return {Code::kInvalidArgument, "a message of " + std::to_string(arrival->frame.bytes) +
                                            " bytes with tag " + std::to_string(posted->tag) +
                                            " is larger than its receive of " +
                                            std::to_string(posted->capacity)};
    }
    posted->matched = true;
    arrival->began_ns = steady_ns();
    posted->bytes = arrival->frame.bytes;
    arrival->target = posted;
    return {};
}

// --- Data

bool ReceiveConnection::someone_waits_behind(size_t index) const noexcept {
    return std::any_of(data_queue_.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                       data_queue_.end(),
                       [](const Arrival* arrival) { return arrival->target != nullptr; });
}

Status ReceiveConnection::hold(Arrival* arrival) {
    // At least a byte, so that an empty message has a place, too.
    arrival->held.reset(new (std::nothrow) uint8_t[arrival->frame.bytes + 1]);
    if (arrival->held == nullptr) {
        return {Code::kOutOfMemory, "no " + std::to_string(arrival->frame.bytes) +
                                        " bytes to hold a message that is asked for later"};
    }
    arrival->holds = true;
    return {};
}

Status ReceiveConnection::post_parts() {
    while (!data_queue_.empty() && parts_made_ - parts_done_ < kParts) {
        Arrival* const next = data_queue_.front();
        if (next->target == nullptr && !next->holds) {
            if (!someone_waits_behind(0)) {
                return {};
            }
            SLIMWIRE_TRY(hold(next));
            next->early = true;
        }
        bool made = false;
        SLIMWIRE_TRY(post_part(next, &made));
        if (!made) {
            return {};
        }
        if (next->next_offset == next->frame.bytes) {
            data_queue_.pop_front();
        }
    }
    return {};
}

Status ReceiveConnection::post_part(Arrival* from, bool* made) {
    Part& next = part(parts_made_);
    const uint64_t left = from->frame.bytes - from->next_offset;
    const bool coded = from->frame.kind == FrameKind::kCoded;
    next.staging = nullptr;
    if (coded) {
        bool ready = false;
        SLIMWIRE_TRY(staging_.prepare(*wire_, from->frame.piece_bytes, &ready));
        next.staging = ready ? staging_.take() : nullptr;
        if (next.staging == nullptr) {
            return {};
        }
    }
    next.arrival = from;
    next.output = from->destination() + from->next_offset;
    next.bytes = coded ? std::min<uint64_t>(left, from->frame.piece_bytes) : left;
    next.received = 0;
    next.write_once = !from->holds && from->target->group->write_once;
    next.submitted = false;
    WireMemory* const memory =
        coded ? staging_.memory() : (from->holds ? nullptr : wire_memory(from->target->memory));
    SLIMWIRE_TRY(wire_->receive(Lane::kData, coded ? next.staging->data : next.output, next.bytes,
                                memory, &next.request));
    if (next.request == nullptr) {
        if (next.staging != nullptr) {
            staging_.give(next.staging);
        }
        return {};
    }
    from->next_offset += next.bytes;
    ++parts_made_;
    *made = true;
    return {};
}

// Messages of a lane come in order, so only the oldest is asked.
Status ReceiveConnection::take_parts() {
    for (; parts_came_ < parts_made_; ++parts_came_) {
        Part& oldest = part(parts_came_);
        bool done = false;
        SLIMWIRE_TRY(wire_->test(oldest.request, &done, &oldest.received));
        if (!done) {
            return {};
        }
        oldest.request = nullptr;
        Counters::add(counters_.wire_bytes, oldest.received);
        if (oldest.arrival->frame.kind == FrameKind::kCoded) {
            Counters::add(counters_.coded_wire_bytes, oldest.received);
        }
        if (oldest.staging != nullptr) {
            oldest.submitted = true;
            parts_.pool->submit(&oldest);
        } else if (oldest.received != oldest.bytes) {
            return {Code::kRemoteError,
                    "damaged data from the peer: " + std::to_string(oldest.received) +
                        " bytes instead of " + std::to_string(oldest.bytes)};
        }
    }
    return {};
}

Status ReceiveConnection::finish_parts() {
    for (; parts_done_ < parts_came_; ++parts_done_) {
        Part& oldest = part(parts_done_);
        if (oldest.staging != nullptr) {
            if (!oldest.done()) {
                return {};
            }
            staging_.give(oldest.staging);
            oldest.staging = nullptr;
            SLIMWIRE_TRY(oldest.status);
        }
        if (--oldest.arrival->parts_left == 0) {
            oldest.arrival->data_done = true;
        }
    }
    return {};
}

// --- Messages that are complete

Status ReceiveConnection::finish_arrivals() {
    bool delivered = false;
    for (const std::unique_ptr<Arrival>& arrival : arrivals_) {
        if (!arrival->data_done || !arrival->end_came || arrival->target == nullptr) {
            continue;
        }
        const bool checks = (arrival->frame.flags & kFrameChecksum) != 0 &&
                            arrival->frame.kind != FrameKind::kInline &&
                            !arrival->target->group->let_go;
        if (checks && !arrival->checking) {
            arrival->checking = true;
            arrival->checksum.submit(*parts_.pool, arrival->destination(), arrival->frame.bytes);
        }
        if (checks && !arrival->checksum.done()) {
            continue;
        }
        if (checks && arrival->checksum.value() != arrival->frame.checksum) {
            return {Code::kRemoteError, "damaged data from the peer: the checksum of message " +
                                            std::to_string(arrival->frame.sequence) + " is wrong"};
        }
        deliver(arrival.get());
        delivered = true;
    }
    if (delivered) {
        std::erase_if(arrivals_, [](const auto& arrival) { return arrival->frame.magic == 0; });
    }
    return {};
}

// Large messages tell how fast the connection is; the sender chooses by it.
void ReceiveConnection::measure(const Arrival& arrival) noexcept {
    const Frame& frame = arrival.frame;
    if (arrival.early || frame.kind == FrameKind::kInline ||
        frame.bytes < parts_.settings.min_bytes) {
        return;
    }
    const bool coded = frame.kind == FrameKind::kCoded;
    counters_.add_timed(coded, frame.bytes,
                        meter_.finished(coded ? Way::kCoded : Way::kRaw, frame.bytes,
                                        arrival.began_ns, steady_ns()));
    wire_->tell({static_cast<uint64_t>(meter_.goodput(Way::kRaw)),
                 static_cast<uint64_t>(meter_.goodput(Way::kCoded))});
}

// Afterwards the arrival is marked as gone by a frame without magic number.
void ReceiveConnection::deliver(Arrival* arrival) {
    Group& group = *arrival->target->group;
    if (arrival->holds && arrival->frame.bytes > 0 && !group.let_go) {
        copy_in_order(arrival->target->data, arrival->held.get(), arrival->frame.bytes);
    }
    measure(*arrival);
    --group.left;
    group.in_use = group.left > 0 || !group.told;
    arrival->frame.magic = 0;
}

}  // namespace slimwire::net
