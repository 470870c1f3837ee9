#include "tools/emulator/nccl/bootstrap/protocol.h"

#include <algorithm>
#include <cstring>

#include "tools/emulator/nccl/plugins/plugin_library.h"

namespace slimwire::emu {
namespace {

struct LlLine {
    uint32_t data1, flag1, data2, flag2;
};
constexpr size_t kLl128Data = 120;
constexpr size_t kLl128Line = 128;
constexpr int kSteps = 8;

struct Shape {
    size_t data, line;
};

Shape shape_of(Protocol protocol) noexcept {
    switch (protocol) {
        case Protocol::kLl:
            return {8, sizeof(LlLine)};
        case Protocol::kLl128:
            return {kLl128Data, kLl128Line};
        case Protocol::kSimple:
            break;
    }
    return {1, 1};
}

// A line's flags, read while another thread or the kernel may be writing the line: that is what
// they are for, so it is not a race to report.
[[gnu::no_sanitize("thread")]] bool flags_there(Protocol protocol,
                                                uint64_t number,
                                                const unsigned char* line) noexcept {
    if (protocol == Protocol::kLl128) {
        uint64_t flag = 0;
        __atomic_load(reinterpret_cast<const uint64_t*>(line + kLl128Data), &flag,
                      __ATOMIC_ACQUIRE);
        return flag == number;
    }
    const auto* words = reinterpret_cast<const uint32_t*>(line);
    return __atomic_load_n(words + 1, __ATOMIC_ACQUIRE) == static_cast<uint32_t>(number) &&
           __atomic_load_n(words + 3, __ATOMIC_ACQUIRE) == static_cast<uint32_t>(number);
}

size_t positive(const char* name, long otherwise, long unit) {
    const long value = nccl_env_number(name, otherwise);
    return static_cast<size_t>(value < unit ? otherwise : value);
}

}  // namespace

const char* protocol_name(Protocol protocol) noexcept {
    switch (protocol) {
        case Protocol::kLl:
            return "LL";
        case Protocol::kLl128:
            return "LL128";
        case Protocol::kSimple:
            break;
    }
    return "SIMPLE";
}

size_t lines_of(Protocol protocol, size_t bytes) noexcept {
    const Shape shape = shape_of(protocol);
    return (bytes + shape.data - 1) / shape.data;
}

size_t wire_bytes(Protocol protocol, size_t bytes) noexcept {
    return lines_of(protocol, bytes) * shape_of(protocol).line;
}

size_t payload_bytes(Protocol protocol, size_t bytes) noexcept {
    const Shape shape = shape_of(protocol);
    return bytes / shape.line * shape.data;
}

void encode_message(
    Protocol protocol, uint64_t number, const void* data, size_t bytes, void* wire) noexcept {
    const auto* from = static_cast<const unsigned char*>(data);
    auto* to = static_cast<unsigned char*>(wire);
    if (protocol == Protocol::kSimple) {
        if (bytes > 0) {
            memcpy(to, from, bytes);
        }
        return;
    }
    const Shape shape = shape_of(protocol);
    for (size_t done = 0; done < bytes; done += shape.data, to += shape.line) {
        const size_t count = std::min(shape.data, bytes - done);
        if (protocol == Protocol::kLl128) {
            memcpy(to, from + done, count);
            memset(to + count, 0, kLl128Data - count);
            memcpy(to + kLl128Data, &number, sizeof number);
        } else {
            uint32_t words[2] = {};
            memcpy(words, from + done, count);
            const auto flag = static_cast<uint32_t>(number);
            const LlLine line{words[0], flag, words[1], flag};
            memcpy(to, &line, sizeof line);
        }
    }
}

size_t lines_arrived(Protocol protocol,
                     uint64_t number,
                     const void* wire,
                     size_t bytes,
                     size_t first_line) noexcept {
    const auto* lines = static_cast<const unsigned char*>(wire);
    const size_t step = shape_of(protocol).line;
    const size_t total = lines_of(protocol, bytes);
    size_t line = first_line;
    while (line < total && flags_there(protocol, number, lines + line * step)) {
        ++line;
    }
    return line - first_line;
}

// Word by word, because the rest of the buffer may still be filling.
[[gnu::no_sanitize("thread")]] void decode_message(Protocol protocol,
                                                   const void* wire,
                                                   size_t bytes,
                                                   void* data) noexcept {
    const auto* from = static_cast<const unsigned char*>(wire);
    auto* to = static_cast<unsigned char*>(data);
    if (protocol == Protocol::kSimple) {
        if (bytes > 0) {
            memcpy(to, from, bytes);
        }
        return;
    }
    const Shape shape = shape_of(protocol);
    for (size_t done = 0; done < bytes; done += shape.data, from += shape.line) {
        const auto* words = reinterpret_cast<const uint64_t*>(from);
        const size_t count = std::min(shape.data, bytes - done);
        for (size_t at = 0; at < count; at += 8, ++words) {
            uint64_t word = __atomic_load_n(words, __ATOMIC_RELAXED);
            if (protocol == Protocol::kLl) {
                const uint64_t second = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
                word = (word & 0xffffffffu) | second << 32;
            }
            memcpy(to + done + at, &word, std::min<size_t>(8, count - at));
        }
    }
}

size_t WireBuffers::capacity(Protocol protocol, bool point_to_point) const noexcept {
    const bool p2p_simple = point_to_point && protocol == Protocol::kSimple;
    return payload_bytes(
        protocol, p2p_simple ? p2p_message_bytes : message_bytes[static_cast<size_t>(protocol)]);
}

WireBuffers wire_buffers() {
    constexpr long kDefaultSimple = 4 << 20;
    constexpr long kDefaultLl = 8 * 512 * kSteps * 16;
    constexpr long kDefaultLl128 = 120 * 640 * kSteps * 8;
    WireBuffers buffers{};
    buffers.message_bytes[0] = positive("NCCL_LL_BUFFSIZE", kDefaultLl, 128 * kSteps) / kSteps;
    buffers.message_bytes[1] =
        positive("NCCL_LL128_BUFFSIZE", kDefaultLl128, 128 * kSteps) / kSteps;
    buffers.message_bytes[2] = positive("NCCL_BUFFSIZE", kDefaultSimple, 4096) / kSteps * 2;
    buffers.messages[0] = buffers.messages[1] = kSteps;
    buffers.messages[2] = kSteps / 2;
    buffers.p2p_message_bytes = positive("NCCL_P2P_NET_CHUNKSIZE", 128 << 10, 256);
    buffers.p2p_messages = kSteps;
    buffers.p2p_ll_limit =
        std::min(static_cast<size_t>(std::max(0L, nccl_env_number("NCCL_P2P_LL_THRESHOLD", 16384))),
                 buffers.capacity(Protocol::kLl, true));
    return buffers;
}

}  // namespace slimwire::emu
