#include "tests/fuzz/conversation.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "plugin/net/engine/codec_pool.h"
#include "plugin/net/engine/frame.h"
#include "plugin/net/engine/receive_connection.h"
#include "tests/fuzz/script_wire.h"
#include "tests/fuzz/wild_messages.h"

// Of AddressSanitizer, whose header not every compiler brings along.
extern "C" size_t __sanitizer_get_current_allocated_bytes();

namespace slimwire::net {
namespace {

// Of one input, beyond what was there before: 256 messages that nobody has asked for and 64 that
// are coming, each of at most 1 MiB, and as many pieces of 4 MiB.
constexpr size_t kMostMemory = size_t{640} << 20;
constexpr uint8_t kPoison = 0xd7;
constexpr size_t kMargin = 64;
constexpr int kTags = 4;

// A slot of a receive: the n-th that asked for its tag, so the n-th message with the tag is its
// own.
struct Slot {
    std::vector<uint8_t> memory;  // with a margin on either side
    size_t capacity = 0;
    int tag = 0;
    size_t number = 0;
};

struct Given {
    Request* request = nullptr;
    std::vector<Slot> slots;

    void check(const char* when) const {
        const auto other = [](uint8_t byte) { return byte != kPoison; };
        for (const Slot& slot : slots) {
            const auto begin = slot.memory.begin();
            if (std::any_of(begin, begin + kMargin, other) ||
                std::any_of(begin + static_cast<long>(kMargin + slot.capacity), slot.memory.end(),
                            other)) {
                finding(std::string("bytes were written beside a receive, ") + when);
            }
        }
    }
};

// An error has a sentence, is that of every later request, and leaves nothing under way.
void check_failure(const Status& failure, const Script& script, ReceiveConnection* connection) {
    switch (failure.code()) {
        case Code::kOk:
            return;
        case Code::kRemoteError:
        case Code::kInvalidArgument:  // larger than its receive
        case Code::kOutOfMemory:      // a size that is none
            break;
        default:
            finding("an error of another kind: " + failure.message());
    }
    uint8_t byte = 0;
    void* data = &byte;
    const size_t capacity = 1;
    const int tag = 0;
    Memory* memory = nullptr;
    Request* request = nullptr;
    Status again = connection->receive(1, &data, &capacity, &tag, &memory, false, &request);
    if (!again.ok() || request == nullptr) {
        finding("a receive after an error gets no request: " + again.message());
    }
    bool done = false;
    size_t size = 0;
    again = connection->test(request, &done, &size);
    if (done || failure.message().size() < 10 || again.code() != failure.code() ||
        again.message() != failure.message()) {
        finding("an error did not stay: " + failure.message() + ", then " + again.message());
    }
    if (!script.dropped || script.open != 0) {
        finding("receives are left after an error");
    }
}

class Conversation {
  public:
    Conversation(Reader& reader, bool wild) : reader_(reader), wild_(wild) {
        static CodecPool pool(0);  // in this thread: an input does the same at every run
        static Traffic traffic;
        static const EngineParts parts{EngineSettings{}, &pool, &traffic};
        Result<std::unique_ptr<ReceiveConnection>> made =
            ReceiveConnection::make(std::make_shared<Network>(parts, nullptr),
                                    std::make_unique<ScriptWire>(&script_), "script");
        if (!made.ok()) {
            finding("no connection: " + made.status().message());
        }
        connection_ = std::move(made).value();
    }

    void run() {
        const size_t before = __sanitizer_get_current_allocated_bytes();
        Status failure;
        for (int step = 0; step < 400 && !reader_.empty() && failure.ok(); ++step) {
            failure = operate(reader_.byte());
            const size_t most = before + ours() + kMostMemory;
            if (const size_t now = __sanitizer_get_current_allocated_bytes(); now > most) {
                finding("the connection holds " + std::to_string(now - before) + " bytes");
            }
        }
        // All that is there arrives: each look moves on at least one message.
        for (int i = 0; i < 500 && failure.ok(); ++i) {
            failure = look();
        }
        if (failure.ok() && trusted_ && !damaged_ && !script_.closed) {
            check_all_delivered();
        }
        if (!failure.ok() && trusted_ && !damaged_ && !script_.closed && !too_large()) {
            finding("a peer that keeps to the protocol is refused: " + failure.message());
        }
        check_failure(failure, script_, connection_.get());
        connection_.reset();
        for (const Given& each : given_) {
            each.check("closed");
        }
        if (!script_.dropped || script_.open != 0) {
            finding("receives are left after the close");
        }
    }

  private:
    Status operate(uint8_t operation) {
        if (!wild_ && (operation % 8 == kWildControl || operation % 8 == kWildData ||
                       operation == kOther + 8)) {
            operation = kRight;
        }
        switch (operation % 8) {
            case kPost:
            case kPost + 1:
                return post();
            case kRight:
            case kRight + 1:
                right();
                return {};
            case kWildControl:
                trusted_ = false;
                script_.messages[0].push_back(wild_control(reader_, &sequence_));
                return {};
            case kWildData:
                trusted_ = false;
                script_.messages[1].push_back(wild_data(reader_));
                return {};
            case kOther:
                if (operation == kOther) {
                    script_.closed = true;
                    return {};
                }
                if (operation == kOther + 8) {
                    trusted_ = false;
                    std::vector<uint8_t> raw(reader_.byte() * size_t{16});
                    reader_.fill(raw.data(), raw.size());
                    script_.messages[0].push_back(std::move(raw));
                    return {};
                }
                return look();
            default:
                return look();
        }
    }

    // Usually large enough, and with tags that differ, as NCCL's do.
    Status post() {
        Given made;
        const uint8_t how = reader_.byte();
        const int count = 1 + reader_.byte() % (how < 248 ? kTags : kMaxGroupedReceives);
        void* data[kMaxGroupedReceives];
        size_t capacities[kMaxGroupedReceives];
        int tags[kMaxGroupedReceives];
        Memory* memories[kMaxGroupedReceives] = {};
        trusted_ = trusted_ && count <= kTags;
        for (int i = 0; i < count; ++i) {
            Slot slot;
            slot.capacity = std::min<size_t>(size_from(reader_), 1 << 20);
            slot.capacity = how % 8 == 0 ? slot.capacity : std::max<size_t>(slot.capacity, 20'000);
            slot.memory.assign(slot.capacity + 2 * kMargin, kPoison);
            slot.tag = (how / 8 + i) % kTags;
            made.slots.push_back(std::move(slot));
            data[i] = made.slots.back().memory.data() + kMargin;
            capacities[i] = made.slots.back().capacity;
            tags[i] = made.slots.back().tag;
        }
        Status status = connection_->receive(count, data, capacities, tags, memories, how >= 128,
                                             &made.request);
        if (made.request != nullptr || !status.ok()) {  // it may fail for what it asks for
            for (Slot& slot : made.slots) {
                slot.number = asked_[slot.tag].size();
                asked_[slot.tag].push_back(slot.capacity);
            }
        }
        if (made.request != nullptr) {
            given_.push_back(std::move(made));
        }
        return status;
    }

    // A message as a sender would send it; now and then the network damages a bit. With a checksum
    // the damage is an error or does not matter, but is never delivered.
    void right() {
        const uint8_t how = reader_.byte();
        const size_t bytes = std::min<size_t>(size_from(reader_), 1 << 18);
        std::vector<uint8_t> plain(bytes);
        reader_.fill(plain.data(), bytes);
        if (how % 4 == 0) {  // shrinks
            for (size_t i = 1; i < bytes; i += 2) {
                plain[i] = static_cast<uint8_t>(0x3f ^ plain[i] % 4);
            }
        }
        Frame frame{};
        frame.magic = kFrameMagic;
        frame.version = kFrameVersion;
        frame.flags = how / 4 % 2 == 0 ? kFrameChecksum : uint8_t{0};
        frame.element = how / 8 % 2 == 0 ? DType::kBfloat16 : DType::kFloat32;
        frame.sequence = sequence_++;
        frame.bytes = bytes;
        frame.tag = how / 16 % kTags;
        frame.checksum = (frame.flags & kFrameChecksum) != 0 ? checksum_of(plain.data(), bytes) : 0;
        frame.kind = bytes <= kInlineBytes ? FrameKind::kInline
                     : how >= 64           ? FrameKind::kCoded
                                           : FrameKind::kRaw;
        const uint32_t piece_bytes = how % 2 == 0 ? kLeastPieceBytes : 131072;
        frame.piece_bytes = frame.kind == FrameKind::kCoded ? piece_bytes : 0;
        std::vector<uint8_t> control(sizeof frame);
        if (frame.kind == FrameKind::kInline) {
            control.insert(control.end(), plain.begin(), plain.end());
        }
        const uint64_t checksum = frame.checksum;
        frame.checksum = frame.kind == FrameKind::kInline ? checksum : 0;
        write_frame(frame, control.data());
        script_.messages[0].push_back(std::move(control));
        if (frame.kind == FrameKind::kRaw) {
            script_.messages[1].push_back(plain);
        }
        for (size_t at = 0; frame.kind == FrameKind::kCoded && at < bytes; at += piece_bytes) {
            send_piece(frame.element, plain, at, std::min<size_t>(bytes - at, piece_bytes));
        }
        if (frame.kind != FrameKind::kInline && (frame.flags & kFrameChecksum) != 0) {
            frame.kind = FrameKind::kEnd;
            frame.checksum = checksum;
            control.assign(sizeof frame, 0);
            write_frame(frame, control.data());
            script_.messages[0].push_back(std::move(control));
        }
        sent_[frame.tag].push_back(std::move(plain));
        if (const uint8_t damage = reader_.byte(); damage >= 240 && bytes > 0) {
            const bool is_inline = bytes <= kInlineBytes;
            std::vector<uint8_t>& last = script_.messages[is_inline ? 0 : 1].back();
            const size_t first = is_inline ? sizeof frame : 0;
            last[first + reader_.byte() * size_t{257} % (last.size() - first)] ^=
                static_cast<uint8_t>(1 << damage % 8);
            damaged_ = true;
            trusted_ = trusted_ && (frame.flags & kFrameChecksum) != 0;
        }
    }

    void send_piece(DType element, const std::vector<uint8_t>& plain, size_t at, size_t bytes) {
        alignas(8) static uint8_t aligned[131072];
        std::copy_n(plain.begin() + static_cast<long>(at), bytes, aligned);
        const PieceMemory piece = piece_memory(bytes);
        const size_t size = encode_piece(element, aligned, bytes, piece.get());
        const uint8_t* const from = size < bytes ? piece.get() : aligned;
        script_.messages[1].emplace_back(from, from + size);
    }

    Status look() {
        for (size_t i = 0; i < given_.size();) {
            Given& each = given_[i];
            bool done = false;
            size_t sizes[kMaxGroupedReceives] = {};
            SLIMWIRE_TRY(connection_->test(each.request, &done, sizes));
            if (!done) {
                ++i;
                continue;
            }
            for (size_t k = 0; k < each.slots.size(); ++k) {
                check_slot(each.slots[k], sizes[k]);
            }
            each.check("done");
            given_.erase(given_.begin() + static_cast<long>(i));
        }
        return {};
    }
    void check_slot(const Slot& slot, size_t size) const {
        if (size > slot.capacity) {
            finding("a message is larger than its receive");
        }
        if (!trusted_) {
            return;
        }
        const auto& sent = sent_[slot.tag];
        if (slot.number >= sent.size()) {
            finding("a receive is done for which nothing was sent");
        }
        const std::vector<uint8_t>& wanted = sent[slot.number];
        if (size != wanted.size() ||
            !std::equal(wanted.begin(), wanted.end(), slot.memory.begin() + kMargin)) {
            finding("a message of " + std::to_string(wanted.size()) + " bytes came as " +
                    std::to_string(size) + (size == wanted.size() ? " others" : ""));
        }
    }

    // Whether an error is due: a message does not fit the receive that asked for it.
    [[nodiscard]] bool too_large() const {
        for (int tag = 0; tag < kTags; ++tag) {
            for (size_t i = 0; i < std::min(sent_[tag].size(), asked_[tag].size()); ++i) {
                if (sent_[tag][i].size() > asked_[tag][i]) {
                    return true;
                }
            }
        }
        return false;
    }
    void check_all_delivered() const {
        size_t unasked = 0;
        for (int tag = 0; tag < kTags; ++tag) {
            unasked += sent_[tag].size() - std::min(sent_[tag].size(), asked_[tag].size());
        }
        if (unasked > 100) {
            return;  // these may be in the way of others
        }
        for (const Given& each : given_) {
            if (std::all_of(each.slots.begin(), each.slots.end(), [&](const Slot& slot) {
                    return slot.number < sent_[slot.tag].size();
                })) {
                finding("a receive is not done though its messages came");
            }
        }
    }
    // What this side holds itself.
    [[nodiscard]] size_t ours() const {
        size_t bytes = 0;
        for (const auto& lane : script_.messages) {
            for (const auto& message : lane) {
                bytes += message.size();
            }
        }
        for (const Given& each : given_) {
            for (const Slot& slot : each.slots) {
                bytes += slot.memory.size();
            }
        }
        for (const auto& sent : sent_) {
            for (const auto& message : sent) {
                bytes += message.size();
            }
        }
        return bytes;
    }

    Reader& reader_;
    const bool wild_;
    Script script_;
    std::unique_ptr<ReceiveConnection> connection_;
    std::deque<Given> given_;
    uint64_t sequence_ = 0;
    bool trusted_ = true;  // everything that came keeps to the protocol, or has a checksum
    bool damaged_ = false;
    std::vector<std::vector<uint8_t>> sent_[kTags];
    std::vector<size_t> asked_[kTags];  // the capacities of the receives
};

}  // namespace

void converse(Reader& reader, bool wild) {
    Conversation(reader, wild).run();
}

}  // namespace slimwire::net
