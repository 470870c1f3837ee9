// The fuzz target of what a net plugin's peer can send: handles, hellos, frames, pieces, and whole
// conversations with a receiving connection (conversation.h). Built with AddressSanitizer by ./run
// and in the test command's build with sanitizers.
//
// An input: what to do (1 byte), then for conversations one operation after the other until the
// bytes are used up. -write_seeds=FOLDER writes some to begin with.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "plugin/net/engine/frame.h"
#include "plugin/net/ucx/handshake.h"
#include "tests/fuzz/conversation.h"
#include "tests/fuzz/wild_messages.h"

namespace slimwire::net {
namespace {

constexpr uint8_t kPoison = 0xd7;
constexpr size_t kMargin = 64;

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

// Conversations in which everything is right: receives before and after their messages.
std::vector<std::vector<uint8_t>> seeds() {
    std::vector<std::vector<uint8_t>> made;
    for (int how = 0; how < 256; how += 7) {
        for (uint8_t size = 1; size < 9; ++size) {
            std::vector<uint8_t> input = {static_cast<uint8_t>(how % 2 == 0 ? 3 : 6)};
            const auto say = [&](std::initializer_list<int> bytes) {
                for (const int byte : bytes) {
                    input.push_back(static_cast<uint8_t>(byte));
                }
            };
            const int tag = how / 16 % 4;
            say({kPost, 1 + tag * 8, 0, 7});
            say({kRight, how, size, 0, kLook, kLook, kRight, how + 1, size, 0, kRight, how, 7, 0});
            say({kPost, 129 + tag * 8, 0, 7, kLook, kLook, kPost, 1 + tag * 8, 3, 7, 7, 7, 7});
            say({kRight, how + 16, 2, 0, kRight, how + 32, size, size * 32, 0, kRight, how + 48, 5,
                 0, kLook});
            made.push_back(std::move(input));
        }
    }
    return made;
}

}  // namespace
}  // namespace slimwire::net

// A size that no memory is there for is null, as without the sanitizer, whose library looks for
// this among the symbols that a program exports.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
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
    slimwire::Reader reader(data, size);
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
        case 3:
        case 4:
        case 5:
            converse(reader, false);
            break;
        default:
            converse(reader, true);
    }
    return 0;
}
