#include "tests/plugin/net/soak_parts/lines.h"

#include <algorithm>
#include <cstring>

namespace slimwire::net::soak {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr size_t kMostShift = 64;
constexpr size_t kMostExtra = 4096;

}  // namespace

Line::Line(const ConnectionPlan& plan, const Bytes& bytes, Totals* totals, size_t slots)
    : plan_(plan),
      bytes_(bytes),
      totals_(totals),
      slots_(slots),
      stride_((plan.most_bytes + kMostShift + kMostExtra + 2 * kMargin + 63) / 64 * 64),
      arena_(new uint8_t[slots_ * stride_]),
      random_(plan.seed),
      life_(life_of(plan, 0)) {
    for (size_t i = 0; i < slots_; ++i) {
        poison(i);
    }
}

bool Line::step() {
    const bool moved = !over() && move();
    const auto now = std::chrono::steady_clock::now();
    if (moved) {
        moved_at_ = now;
    } else if (now - moved_at_ > kPatience) {
        wrong("nothing has moved for a minute");
    }
    return moved;
}

void Line::check_untouched() const {
    check_all_poison("after the connection before was closed");
}

void Line::next_life() {
    ++life_number_;
    if (!over()) {
        life_ = life_of(plan_, life_number_);
    }
}

void Line::poison(size_t number) noexcept {
    std::memset(slot(number), kPoison, stride_);
}

void Line::check_poison(size_t number, size_t from, size_t to, const std::string& what) const {
    const uint8_t* const data = arena_.get() + number * stride_;
    if (from < to &&
        (data[from] != kPoison || std::memcmp(data + from, data + from + 1, to - from - 1) != 0)) {
        wrong(what + ": bytes were written beside it");
    }
}

void Line::check_all_poison(const std::string& what) const {
    for (size_t i = 0; i < slots_; ++i) {
        check_poison(i, 0, stride_, what);
    }
}

void Line::wrong(const std::string& what) const {
    give_up(name() + ", connection seed " + std::to_string(plan_.seed) + ", life " +
            std::to_string(life_number_) + " of " + std::to_string(plan_.lives) + " (" +
            std::to_string(life_.messages) + " messages, " +
            (life_.end == End::kInOrder        ? "in order"
             : life_.end == End::kSenderLeaves ? "the sender leaves after "
                                               : "the receiver leaves after ") +
            (life_.end == End::kInOrder ? "" : std::to_string(life_.leave_after)) + "): " + what);
}

void Line::require(const Status& status, const char* call) const {
    if (!status.ok()) {
        wrong(std::string(call) + ": " + status.message());
    }
}

// --- Both ends

template <class Connection, class Slot>
LineOver<Connection, Slot>::LineOver(const ConnectionPlan& plan,
                                     const Bytes& bytes,
                                     Totals* totals,
                                     size_t slots,
                                     int window,
                                     const Side& side)
    : Line(plan, bytes, totals, slots), in_flight_(static_cast<size_t>(window)), side_(side) {}

template <class Connection, class Slot>
void LineOver<Connection, Slot>::begin_life() {
    check_untouched();
    require(connection_->register_memory(arena_.get(), slots_ * stride_, &memory_),
            "register_memory");
}

template <class Connection, class Slot>
bool LineOver<Connection, Slot>::move() {
    if (connection_ == nullptr) {
        return connect();
    }
    const int last = life_.end == side_.leaves ? life_.leave_after : life_.messages;
    if (messages_ >= last) {
        end_life();
        return true;
    }
    const bool posted = post();
    return connection_ == nullptr || look() || posted;
}

template <class Connection, class Slot>
bool LineOver<Connection, Slot>::gone(const Status& status) {
    if (status.ok()) {
        return false;
    }
    if (life_.end != side_.left || status.code() != Code::kRemoteError) {
        require(status, side_.doing);
    }
    end_life();
    return true;
}

template <class Connection, class Slot>
bool LineOver<Connection, Slot>::post() {
    if (posted_ == planned()) {
        return false;
    }
    const auto free = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [](const Slot& each) { return each.request == nullptr; });
    if (free == in_flight_.end()) {
        return false;
    }
    if (gone(give(&*free, static_cast<size_t>(free - in_flight_.begin())))) {
        return true;
    }
    if (free->request == nullptr) {
        return false;
    }
    ++posted_;
    return true;
}

template <class Connection, class Slot>
bool LineOver<Connection, Slot>::look() {
    bool moved = false;
    const size_t begin = random_() % in_flight_.size();
    for (size_t i = 0; i < in_flight_.size(); ++i) {
        const size_t at = (begin + i) % in_flight_.size();
        Slot& each = in_flight_[at];
        if (each.request == nullptr) {
            continue;
        }
        bool done = false;
        std::array<size_t, kMaxGroupedReceives> sizes{};
        if (gone(connection_->test(each.request, &done, sizes.data()))) {
            return true;
        }
        if (done) {
            messages_ += finish(each, at, sizes.data());
            each = {};
            ++done_;
            moved = true;
        }
    }
    return moved;
}

template <class Connection, class Slot>
void LineOver<Connection, Slot>::end_life() {
    require(connection_->deregister_memory(memory_), "deregister_memory");
    connection_.reset();
    ended();
    for (size_t i = 0; i < slots_; ++i) {
        poison(i);
    }
    std::fill(in_flight_.begin(), in_flight_.end(), Slot{});
    posted_ = done_ = 0;
    messages_ = 0;
    next_life();
}

// --- Sender

SendLine::SendLine(const ConnectionPlan& plan,
                   const Bytes& bytes,
                   Totals* totals,
                   Context* context,
                   const char* handle)
    : LineOver(plan,
               bytes,
               totals,
               static_cast<size_t>(plan.send_window),
               plan.send_window,
               {End::kSenderLeaves, End::kReceiverLeaves, "sending"}),
      context_(context) {
    std::memcpy(handle_, handle, sizeof handle_);
}

std::string SendLine::name() const {
    return "sender with " + std::to_string(posted_) + " messages given, " + std::to_string(done_) +
           " over" + (connection_ == nullptr ? ", not connected" : "");
}

bool SendLine::connect() {
    const Status status = context_->connect(0, handle_, &connection_);
    if (!status.ok()) {
        // A peer that leaves at once may be gone before this side has seen its answer.
        const bool leaves_at_once =
            life_.messages == 0 || (life_.end == End::kReceiverLeaves && life_.leave_after == 0);
        if (!leaves_at_once || status.code() != Code::kRemoteError) {
            require(status, "connect");
        }
        next_life();
        return true;
    }
    if (connection_ == nullptr) {
        return false;
    }
    begin_life();
    return true;
}

// A message that was not taken lies in the first free place still, or is written again.
Status SendLine::give(SendSlot* free, size_t at) {
    uint8_t* const data = slot(at);
    const int number = static_cast<int>(posted_);
    const MessagePlan message = message_of(plan_, life_, number);
    if (free->number != number) {
        *free = {.number = number, .bytes = message.bytes};
        free->shift = random_() % 4 == 0 ? random_() % kMostShift : 0;
        bytes_.write(message, data + free->shift);
    }
    SLIMWIRE_TRY(
        connection_->send(data + free->shift, message.bytes, message.tag, memory_, &free->request));
    totals_->sent_bytes += free->request != nullptr ? message.bytes : 0;
    return {};
}

int SendLine::finish(const SendSlot& sent, size_t at, const size_t* sizes) {
    if (sizes[0] != sent.bytes) {
        wrong("message " + std::to_string(sent.number) + " has " + std::to_string(sent.bytes) +
              " bytes, test said " + std::to_string(sizes[0]));
    }
    poison(at);  // ours again: what is read of it from now on is found by the receiver
    return 1;
}

// --- Receiver

ReceiveLine::ReceiveLine(const ConnectionPlan& plan,
                         const Bytes& bytes,
                         Totals* totals,
                         std::unique_ptr<Listener> listener)
    : LineOver(plan,
               bytes,
               totals,
               static_cast<size_t>(plan.receive_window) * (plan.grouped ? kMaxGroupedReceives : 1),
               plan.receive_window,
               {End::kReceiverLeaves, End::kSenderLeaves, "receiving"}),
      listener_(std::move(listener)),
      wanted_(plan.most_bytes) {}

std::string ReceiveLine::name() const {
    return "receiver with " + std::to_string(posted_) + " receives given, " +
           std::to_string(done_) + " over, " + std::to_string(messages_) + " messages" +
           (connection_ == nullptr ? ", not connected" : "");
}

bool ReceiveLine::connect() {
    require(listener_->accept(&connection_), "accept");
    if (connection_ == nullptr) {
        return false;
    }
    groups_ = groups_of(plan_, life_);
    begin_life();
    return true;
}

Status ReceiveLine::give(ReceiveSlot* free, size_t at) {
    const GroupPlan& group = groups_[posted_];
    std::array<void*, kMaxGroupedReceives> data{};
    std::array<int, kMaxGroupedReceives> tags{};
    std::array<Memory*, kMaxGroupedReceives> memories{};
    *free = {};
    free->group = &group;
    bool flags = random_() % 8 == 0;
    for (size_t i = 0; i < static_cast<size_t>(group.count); ++i) {
        const MessagePlan message = message_of(plan_, life_, group.message[i]);
        free->shift[i] = random_() % 4 == 0 ? random_() % kMostShift : 0;
        free->capacity[i] = message.bytes + (random_() % 2 == 0 ? 0 : random_() % kMostExtra);
        data[i] = slot(at * wide() + i) + kMargin + free->shift[i];
        tags[i] = message.tag;
        memories[i] = memory_;
        flags = flags || message.kind == Kind::kLl || message.kind == Kind::kLl128;
    }
    return connection_->receive(group.count, data.data(), free->capacity.data(), tags.data(),
                                memories.data(), flags, &free->request);
}

int ReceiveLine::finish(const ReceiveSlot& received, size_t at, const size_t* sizes) {
    const size_t first_slot = at * wide();
    for (size_t i = 0; i < static_cast<size_t>(received.group->count); ++i) {
        const MessagePlan message = message_of(plan_, life_, received.group->message[i]);
        const std::string what = "message " + std::to_string(message.number) + " (" +
                                 std::to_string(message.bytes) + " bytes of kind " +
                                 std::to_string(static_cast<int>(message.kind)) + ", tag " +
                                 std::to_string(message.tag) + ")";
        if (sizes[i] != message.bytes) {
            wrong(what + " is said to have " + std::to_string(sizes[i]) + " bytes");
        }
        bytes_.write(message, wanted_.data());
        const size_t begin = kMargin + received.shift[i];
        const uint8_t* const data = slot(first_slot + i) + begin;
        if (message.bytes > 0 && std::memcmp(data, wanted_.data(), message.bytes) != 0) {
            const auto other =
                std::mismatch(data, data + message.bytes, wanted_.begin()).first - data;
            wrong(what + " came with other bytes from byte " + std::to_string(other) + " on");
        }
        check_poison(first_slot + i, 0, begin, what);
        check_poison(first_slot + i, begin + message.bytes, stride_, what);
        poison(first_slot + i);
        ++totals_->messages;
        totals_->bytes += message.bytes;
    }
    return received.group->count;
}

void ReceiveLine::ended() {
    ++totals_->lives;
    totals_->cut_short += messages_ < life_.messages ? 1 : 0;
    groups_.clear();
}

}  // namespace slimwire::net::soak
