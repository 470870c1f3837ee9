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

// --- Sender

SendLine::SendLine(const ConnectionPlan& plan,
                   const Bytes& bytes,
                   Totals* totals,
                   Context* context,
                   const char* handle)
    : Line(plan, bytes, totals, static_cast<size_t>(plan.send_window)),
      context_(context),
      in_flight_(static_cast<size_t>(plan.send_window)) {
    std::memcpy(handle_, handle, sizeof handle_);
}

std::string SendLine::name() const {
    return "sender with " + std::to_string(posted_) + " messages given, " + std::to_string(done_) +
           " over" + (connection_ == nullptr ? ", not connected" : "");
}

bool SendLine::move() {
    if (connection_ == nullptr) {
        const Status status = context_->connect(0, handle_, &connection_);
        if (!status.ok()) {
            // A peer that leaves at once may be gone before this side has seen its answer.
            const bool leaves_at_once = life_.messages == 0 || (life_.end == End::kReceiverLeaves &&
                                                                life_.leave_after == 0);
            if (!leaves_at_once || status.code() != Code::kRemoteError) {
                require(status, "connect");
            }
            next_life();
            return true;
        }
        if (connection_ == nullptr) {
            return false;
        }
        check_untouched();
        require(connection_->register_memory(arena_.get(), slots_ * stride_, MemoryKind::kHost,
                                             &memory_),
                "register_memory");
        return true;
    }
    const int last = life_.end == End::kSenderLeaves ? life_.leave_after : life_.messages;
    if (done_ >= last) {
        end_life();
        return true;
    }
    const bool posted = post();
    return connection_ == nullptr || look() || posted;
}

bool SendLine::gone(const Status& status) {
    if (status.ok()) {
        return false;
    }
    if (life_.end != End::kReceiverLeaves || status.code() != Code::kRemoteError) {
        require(status, "sending");
    }
    end_life();
    return true;
}

bool SendLine::post() {
    if (posted_ == life_.messages) {
        return false;
    }
    const auto free = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [](const Slot& each) { return each.request == nullptr; });
    if (free == in_flight_.end()) {
        return false;
    }
    // A message that was not taken lies in the first free place still, or is written again.
    uint8_t* const data = slot(static_cast<size_t>(free - in_flight_.begin()));
    const MessagePlan message = message_of(plan_, life_, posted_);
    if (free->number != posted_) {
        *free = {.number = posted_, .bytes = message.bytes};
        free->shift = random_() % 4 == 0 ? random_() % kMostShift : 0;
        bytes_.write(message, data + free->shift);
    }
    if (gone(connection_->send(data + free->shift, message.bytes, message.tag, memory_, nullptr,
                               &free->request))) {
        return true;
    }
    if (free->request == nullptr) {
        return false;
    }
    ++posted_;
    totals_->sent_bytes += message.bytes;
    return true;
}

bool SendLine::look() {
    bool moved = false;
    const size_t begin = random_() % in_flight_.size();
    for (size_t i = 0; i < in_flight_.size(); ++i) {
        const size_t at = (begin + i) % in_flight_.size();
        Slot& each = in_flight_[at];
        if (each.request == nullptr) {
            continue;
        }
        bool done = false;
        size_t bytes = 0;
        if (gone(connection_->test(each.request, &done, &bytes))) {
            return true;
        }
        if (done) {
            if (bytes != each.bytes) {
                wrong("message " + std::to_string(each.number) + " has " +
                      std::to_string(each.bytes) + " bytes, test said " + std::to_string(bytes));
            }
            poison(at);  // ours again: what is read of it from now on is found by the receiver
            each = {};
            ++done_;
            moved = true;
        }
    }
    return moved;
}

void SendLine::end_life() {
    require(connection_->deregister_memory(memory_), "deregister_memory");
    connection_.reset();
    for (size_t i = 0; i < slots_; ++i) {
        poison(i);
        in_flight_[i] = {};
    }
    posted_ = done_ = 0;
    next_life();
}

// --- Receiver

ReceiveLine::ReceiveLine(const ConnectionPlan& plan,
                         const Bytes& bytes,
                         Totals* totals,
                         std::unique_ptr<Listener> listener)
    : Line(plan,
           bytes,
           totals,
           static_cast<size_t>(plan.receive_window) * (plan.grouped ? kMaxGroupedReceives : 1)),
      listener_(std::move(listener)),
      in_flight_(static_cast<size_t>(plan.receive_window)),
      wanted_(plan.most_bytes) {}

std::string ReceiveLine::name() const {
    return "receiver with " + std::to_string(posted_) + " receives given, " +
           std::to_string(done_) + " over, " + std::to_string(messages_) + " messages" +
           (connection_ == nullptr ? ", not connected" : "");
}

bool ReceiveLine::move() {
    if (connection_ == nullptr) {
        require(listener_->accept(&connection_), "accept");
        if (connection_ == nullptr) {
            return false;
        }
        check_untouched();
        groups_ = groups_of(plan_, life_);
        require(connection_->register_memory(arena_.get(), slots_ * stride_, MemoryKind::kHost,
                                             &memory_),
                "register_memory");
        return true;
    }
    const int last = life_.end == End::kReceiverLeaves ? life_.leave_after : life_.messages;
    if (messages_ >= last) {
        end_life();
        return true;
    }
    const bool posted = post();
    return connection_ == nullptr || look() || posted;
}

bool ReceiveLine::gone(const Status& status) {
    if (status.ok()) {
        return false;
    }
    if (life_.end != End::kSenderLeaves || status.code() != Code::kRemoteError) {
        require(status, "receiving");
    }
    end_life();
    return true;
}

bool ReceiveLine::post() {
    if (posted_ == groups_.size()) {
        return false;
    }
    const auto free = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [](const Slot& each) { return each.request == nullptr; });
    if (free == in_flight_.end()) {
        return false;
    }
    const GroupPlan& group = groups_[posted_];
    const size_t first_slot = static_cast<size_t>(free - in_flight_.begin()) * wide();
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
        data[i] = slot(first_slot + i) + kMargin + free->shift[i];
        tags[i] = message.tag;
        memories[i] = memory_;
        flags = flags || message.kind == Kind::kLl || message.kind == Kind::kLl128;
    }
    if (gone(connection_->receive(group.count, data.data(), free->capacity.data(), tags.data(),
                                  memories.data(), flags, &free->request))) {
        return true;
    }
    if (free->request == nullptr) {
        return false;
    }
    ++posted_;
    return true;
}

bool ReceiveLine::look() {
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
            check(each, at * wide(), sizes.data());
            messages_ += each.group->count;
            each = {};
            ++done_;
            moved = true;
        }
    }
    return moved;
}

void ReceiveLine::check(const Slot& received, size_t first_slot, const size_t* sizes) {
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
        const size_t at = kMargin + received.shift[i];
        const uint8_t* const data = slot(first_slot + i) + at;
        if (message.bytes > 0 && std::memcmp(data, wanted_.data(), message.bytes) != 0) {
            const auto other =
                std::mismatch(data, data + message.bytes, wanted_.begin()).first - data;
            wrong(what + " came with other bytes from byte " + std::to_string(other) + " on");
        }
        check_poison(first_slot + i, 0, at, what);
        check_poison(first_slot + i, at + message.bytes, stride_, what);
        poison(first_slot + i);
        ++totals_->messages;
        totals_->bytes += message.bytes;
    }
}

void ReceiveLine::end_life() {
    require(connection_->deregister_memory(memory_), "deregister_memory");
    connection_.reset();
    ++totals_->lives;
    totals_->cut_short += messages_ < life_.messages ? 1 : 0;
    for (size_t i = 0; i < slots_; ++i) {
        poison(i);
    }
    std::fill(in_flight_.begin(), in_flight_.end(), Slot{});
    groups_.clear();
    posted_ = done_ = 0;
    messages_ = 0;
    next_life();
}

}  // namespace slimwire::net::soak
