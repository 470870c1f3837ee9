// The fuzz target of what a net plugin's peer can send: handles, hellos, frames, pieces, and whole
// conversations with a receiving connection, whose control and data messages, sizes and order the
// input chooses. Nothing outside the receives may be written, nothing may hang, memory stays
// bounded, and an error says what was wrong. Built with AddressSanitizer by ./run and in the test
// command's build with sanitizers.
//
// An input: what to do (1 byte), then for conversations one operation after the other until the
// bytes are used up. -write_seeds=FOLDER writes some to begin with.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "plugin/net/engine/frame.h"
#include "plugin/net/engine/piece.h"
#include "plugin/net/engine/receive_connection.h"
#include "plugin/net/ucx/handshake.h"

// Of AddressSanitizer, whose header not every compiler brings along.
extern "C" size_t __sanitizer_get_current_allocated_bytes();

namespace slimwire::net {
namespace {

// Of one input, beyond what was there before: 256 messages that nobody has asked for and 64 that
// are coming, each of at most 1 MiB, and as many pieces of 4 MiB.
constexpr size_t kMostMemory = size_t{640} << 20;
constexpr uint8_t kPoison = 0xd7;
constexpr size_t kMargin = 64;

[[noreturn]] void finding(const std::string& what) {
    std::fprintf(stderr, "finding: %s\n", what.c_str());
    std::abort();
}

class Reader {
  public:
    Reader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
    [[nodiscard]] bool empty() const { return size_ == 0; }
    uint8_t byte() {
        if (size_ == 0) {
            return 0;
        }
        --size_;
        return *data_++;
    }
    uint64_t number() {
        uint64_t value = 0;
        for (int i = 0; i < 8; ++i) {
            value = value << 8 | byte();
        }
        return value;
    }
    // The next bytes again and again, up to `bytes`; they are not used up.
    void fill(uint8_t* output, size_t bytes) const {
        for (size_t at = 0; at < bytes;) {
            const size_t part = std::min(bytes - at, std::max<size_t>(size_, 1));
            if (size_ > 0) {
                std::memcpy(output + at, data_, part);
            } else {
                output[at] = 0;
            }
            at += part;
        }
    }

  private:
    const uint8_t* data_;
    size_t size_;
};

// The network: messages that the input makes, given to receives in their order.
struct Script {
    std::deque<std::vector<uint8_t>> messages[kLanes];
    bool closed = false;
    size_t open = 0;  // receives
    bool dropped = false;
};

struct Receive {
    Lane lane;
    uint8_t* data;
    size_t capacity;
    uint64_t number;
};

class ScriptWire final : public ReceiveWire {
  public:
    explicit ScriptWire(Script* script) : script_(script) {}
    ~ScriptWire() override { drop(); }
    void drop() noexcept override {
        for (auto& lane : waiting_) {
            lane.clear();
        }
        script_->open = 0;
        script_->dropped = true;
    }
    Status register_memory(void*, size_t, MemoryKind, WireMemory** memory) override {
        *memory = nullptr;
        return {};
    }
    Status deregister_memory(WireMemory*) override { return {}; }
    [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }

    Status receive(
        Lane lane, void* data, size_t capacity, WireMemory*, WireRequest** request) override {
        *request = nullptr;
        const auto at = static_cast<size_t>(lane);
        if (script_->closed && script_->messages[at].size() <= waiting_[at].size()) {
            return {Code::kRemoteError, "the peer has closed"};
        }
        waiting_[at].push_back(std::make_unique<Receive>(
            Receive{lane, static_cast<uint8_t*>(data), capacity, next_[at]++}));
        ++script_->open;
        *request = reinterpret_cast<WireRequest*>(waiting_[at].back().get());
        return {};
    }
    // The oldest receive of a lane gets the oldest message; the engine asks for no other.
    Status test(WireRequest* request, bool* done, size_t* bytes) override {
        auto* const asked = reinterpret_cast<Receive*>(request);
        const auto at = static_cast<size_t>(asked->lane);
        auto& messages = script_->messages[at];
        *done = false;
        if (waiting_[at].empty() || waiting_[at].front().get() != asked) {
            finding("a receive was asked for that is not the oldest of its lane");
        }
        if (messages.empty()) {
            return script_->closed ? Status(Code::kRemoteError, "the peer has closed") : Status();
        }
        const std::vector<uint8_t> message = std::move(messages.front());
        messages.pop_front();
        const size_t capacity = asked->capacity;
        if (message.size() <= capacity) {
            std::copy(message.begin(), message.end(), asked->data);
            *done = true;
            *bytes = message.size();
        }
        waiting_[at].pop_front();
        --script_->open;
        return *done ? Status()
                     : Status(Code::kInvalidArgument, "a message larger than its receive");
    }

  private:
    Script* const script_;
    std::deque<std::unique_ptr<Receive>> waiting_[kLanes];
    uint64_t next_[kLanes] = {};
    const std::string peer_ = "script";
};

// Sizes on both sides of what frames and pieces treat alike; the large ones now and then.
size_t size_from(Reader& reader) {
    constexpr size_t kSizes[] = {0, 1, 7, 100, 4048, 4049, 8192, 20000};
    constexpr size_t kLarge[] = {131072, size_t{1} << 20, size_t{1} << 40, size_t{1} << 41};
    const uint8_t which = reader.byte();
    return which < 240 ? kSizes[which % std::size(kSizes)] : kLarge[which % std::size(kLarge)];
}

std::vector<uint8_t> control_message(Reader& reader, uint64_t* sequence) {
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

struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
};
using PieceMemory = std::unique_ptr<uint8_t, Free>;

PieceMemory piece_memory(size_t bytes) {
    return PieceMemory(
        static_cast<uint8_t*>(std::aligned_alloc(64, (piece_capacity(bytes) + 63) / 64 * 64)));
}

std::vector<uint8_t> data_message(Reader& reader) {
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

// A receive and the memory around its buffers.
struct Given {
    Request* request = nullptr;
    std::vector<std::vector<uint8_t>> memory;
    std::vector<size_t> capacity;

    void check(const char* when) const {
        for (size_t i = 0; i < memory.size(); ++i) {
            const auto other = [](uint8_t byte) { return byte != kPoison; };
            const auto begin = memory[i].begin();
            if (std::any_of(begin, begin + kMargin, other) ||
                std::any_of(begin + static_cast<long>(kMargin + capacity[i]), memory[i].end(),
                            other)) {
                finding(std::string("bytes were written beside a receive, ") + when);
            }
        }
    }
};

Status post(Reader& reader, ReceiveConnection* connection, std::deque<Given>* given) {
    Given made;
    const int count = 1 + reader.byte() % kMaxGroupedReceives;
    void* data[kMaxGroupedReceives];
    int tags[kMaxGroupedReceives];
    Memory* memories[kMaxGroupedReceives] = {};
    const uint8_t how = reader.byte();
    for (int i = 0; i < count; ++i) {
        made.capacity.push_back(std::min<size_t>(size_from(reader), 1 << 20));
        made.memory.emplace_back(made.capacity.back() + 2 * kMargin, kPoison);
        data[i] = made.memory.back().data() + kMargin;
        tags[i] = (how + i) % 4;
    }
    SLIMWIRE_TRY(connection->receive(count, data, made.capacity.data(), tags, memories, how >= 128,
                                     &made.request));
    if (made.request != nullptr) {
        given->push_back(std::move(made));
    }
    return {};
}

Status look(ReceiveConnection* connection, std::deque<Given>* given) {
    for (size_t i = 0; i < given->size();) {
        Given& each = (*given)[i];
        bool done = false;
        size_t sizes[kMaxGroupedReceives] = {};
        SLIMWIRE_TRY(connection->test(each.request, &done, sizes));
        if (!done) {
            ++i;
            continue;
        }
        for (size_t k = 0; k < each.capacity.size(); ++k) {
            if (sizes[k] > each.capacity[k]) {
                finding("a message is larger than its receive");
            }
        }
        each.check("done");
        given->erase(given->begin() + static_cast<long>(i));
    }
    return {};
}

// An error has a sentence, stays, and leaves nothing under way.
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
    const Status again = connection->receive(1, &data, &capacity, &tag, &memory, false, &request);
    if (failure.message().size() < 10 || again.code() != failure.code() ||
        again.message() != failure.message()) {
        finding("an error did not stay: " + failure.message() + ", then " + again.message());
    }
    if (!script.dropped || script.open != 0) {
        finding("receives are left after an error");
    }
}

void converse(Reader& reader) {
    static CodecPool pool(0);  // in this thread: an input does the same at every run
    static Traffic traffic;
    static const EngineParts parts{EngineSettings{}, &pool, &traffic};
    Script script;
    std::deque<Given> given;
    const size_t before = __sanitizer_get_current_allocated_bytes();
    Result<std::unique_ptr<ReceiveConnection>> made =
        EngineReceive::make(parts, std::make_unique<ScriptWire>(&script), "script");
    if (!made.ok()) {
        finding("no connection: " + made.status().message());
    }
    std::unique_ptr<ReceiveConnection> connection = std::move(made).value();
    uint64_t sequence = 0;
    size_t ours = 0;
    Status failure;
    for (int step = 0; step < 400 && !reader.empty() && failure.ok(); ++step) {
        const uint8_t operation = reader.byte();
        switch (operation % 8) {
            case 0:
            case 1:
                failure = post(reader, connection.get(), &given);
                break;
            case 2:
            case 3:
                script.messages[0].push_back(control_message(reader, &sequence));
                break;
            case 4:
            case 5:
                script.messages[1].push_back(data_message(reader));
                break;
            case 6:
                failure = look(connection.get(), &given);
                break;
            case 7:
                if (operation == 7) {
                    script.closed = true;
                } else if (operation == 15) {
                    std::vector<uint8_t> raw(reader.byte() * size_t{16});
                    reader.fill(raw.data(), raw.size());
                    script.messages[0].push_back(std::move(raw));
                } else {
                    failure = look(connection.get(), &given);
                }
                break;
        }
        ours = 0;
        for (const auto& lane : script.messages) {
            for (const auto& message : lane) {
                ours += message.size();
            }
        }
        for (const Given& each : given) {
            for (const auto& memory : each.memory) {
                ours += memory.size();
            }
        }
        const size_t now = __sanitizer_get_current_allocated_bytes();
        if (now > before + ours + kMostMemory) {
            finding("the connection holds " + std::to_string(now - before - ours) + " bytes");
        }
    }
    if (failure.ok()) {
        failure = look(connection.get(), &given);
    }
    check_failure(failure, script, connection.get());
    connection.reset();
    for (const Given& each : given) {
        each.check("closed");
    }
    if (!script.dropped || script.open != 0) {
        finding("receives are left after the close");
    }
}

void decode(Reader& reader) {
    const auto element = static_cast<DType>(reader.byte() % kDTypeCount);
    constexpr size_t kSizes[] = {1, 2, 15, 100, 4095, 4096, 4097, 20000};
    const size_t bytes = kSizes[reader.byte() % std::size(kSizes)];
    const uint8_t how = reader.byte();
    std::vector<uint8_t> plain(bytes);
    reader.fill(plain.data(), bytes);
    const PieceMemory piece = piece_memory(bytes);
    size_t size = encode_piece(element, plain.data(), bytes, piece.get());
    const bool whole = how % 4 == 0;
    if (size == bytes) {
        std::copy(plain.begin(), plain.end(), piece.get());
    }
    if (!whole) {
        for (int i = how % 4; i > 0; --i) {
            piece.get()[reader.number() % size] = reader.byte();
        }
        size = how / 4 % 4 == 0 ? reader.number() % (bytes + 1) : size;
    }
    const size_t shift = how / 16 % 8;
    std::vector<uint8_t> output(bytes + shift + 2 * kMargin, kPoison);
    const Status status = decode_piece(element, piece.get(), size, output.data() + kMargin + shift,
                                       bytes, how >= 128);
    if (whole &&
        (!status.ok() || std::memcmp(output.data() + kMargin + shift, plain.data(), bytes) != 0)) {
        finding("a piece does not decode to what was encoded: " + status.message());
    }
    const auto other = [](uint8_t byte) { return byte != kPoison; };
    if (std::any_of(output.begin(), output.begin() + static_cast<long>(kMargin + shift), other) ||
        std::any_of(output.end() - kMargin, output.end(), other)) {
        finding("bytes were written beside a piece");
    }
}

// Handles and hellos: what is believed is what this side would say itself.
void shake_hands(Reader& reader) {
    const uint8_t how = reader.byte();
    WireHandle handle{};
    if (how % 2 == 0) {
        handle = make_handle(SocketAddress{}, Cookie{});
    }
    const size_t begin = how % 4 == 0 ? reader.byte() % sizeof handle : 0;
    if (how != 0) {
        reader.fill(reinterpret_cast<uint8_t*>(&handle) + begin, sizeof handle - begin);
    }
    const Result<SocketAddress> address = address_of(handle);
    if (address.ok() && (handle.magic != kWireMagic || handle.version != kWireVersion ||
                         (handle.family != 4 && handle.family != 6))) {
        finding("a handle of something else is believed");
    }
    const Cookie cookie = {1, 2, 3};
    Hello hello{kWireMagic, kWireVersion, 0, cookie};
    const size_t said = reader.byte() % (sizeof hello + 1);
    const size_t from = reader.byte() % sizeof hello;
    if (how % 8 != 1) {
        reader.fill(reinterpret_cast<uint8_t*>(&hello) + from, sizeof hello - from);
    }
    const bool right =
        hello.magic == kWireMagic && hello.version == kWireVersion && hello.cookie == cookie;
    const std::string why = refusal(hello, said, cookie);
    if (said == sizeof hello && why.empty() != right) {
        finding("a hello is judged wrongly: " + why);
    }
    if (right && !why.empty()) {
        finding("a part of a right hello is refused: " + why);
    }
}

// Conversations in which everything is right, each a few operations of converse().
std::vector<std::vector<uint8_t>> seeds() {
    std::vector<std::vector<uint8_t>> made;
    for (uint8_t kind = 0; kind < 4; ++kind) {
        for (uint8_t size = 1; size < 9; ++size) {
            std::vector<uint8_t> input = {3};
            const auto frame = [&](uint8_t tag) {
                const uint8_t control[] = {2, kind, 1, 0, size, tag, 0, 0};
                input.insert(input.end(), std::begin(control), std::end(control));
            };
            const uint8_t post[] = {0, 0, 0, 7}, data[] = {4, size}, look = 6;
            input.insert(input.end(), std::begin(post), std::end(post));
            frame(0);
            input.insert(input.end(), std::begin(data), std::end(data));
            input.insert(input.end(), 8, look);
            frame(1);
            input.insert(input.end(), std::begin(data), std::end(data));
            frame(2);
            input.insert(input.end(), std::begin(data), std::end(data));
            const uint8_t later[] = {0, 0, 2, 7, 6, 6, 6, 0, 0, 1, 7, 6, 6, 6, 7, 6};
            input.insert(input.end(), std::begin(later), std::end(later));
            made.push_back(std::move(input));
        }
    }
    return made;
}

}  // namespace
}  // namespace slimwire::net

// A size that no memory is there for is null, as without the sanitizer.
extern "C" const char* __asan_default_options() {
    return "allocator_may_return_null=1";
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
    const std::string option = "-write_seeds=";
    for (int i = 1; i < *argc; ++i) {
        const std::string argument = (*argv)[i];
        if (argument.compare(0, option.size(), option) != 0) {
            continue;
        }
        int number = 0;
        for (const std::vector<uint8_t>& seed : slimwire::net::seeds()) {
            std::ofstream file(argument.substr(option.size()) + "/seed-" + std::to_string(number++),
                               std::ios::binary);
            file.write(reinterpret_cast<const char*>(seed.data()),
                       static_cast<std::streamsize>(seed.size()));
        }
        std::exit(0);
    }
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace slimwire::net;
    Reader reader(data, size);
    switch (reader.byte() % 8) {
        case 0:
            static_cast<void>(read_frame(data, std::min(size, kControlBytes)));
            break;
        case 1:
            shake_hands(reader);
            break;
        case 2:
            decode(reader);
            break;
        default:
            converse(reader);
    }
    return 0;
}
