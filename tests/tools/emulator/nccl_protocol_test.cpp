// NCCL's protocols as bytes: sizes, flags, and what a receiver sees of a message that is arriving.
#include "tools/emulator/nccl/bootstrap/protocol.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace slimwire::emu {
namespace {

std::vector<unsigned char> pattern(size_t bytes) {
    std::vector<unsigned char> data(bytes);
    for (size_t i = 0; i < bytes; ++i) {
        data[i] = static_cast<unsigned char>(i * 37 + 11);
    }
    return data;
}

constexpr Protocol kAll[] = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};

TEST(NcclProtocol, sizes_on_the_wire) {
    EXPECT_EQ(wire_bytes(Protocol::kLl, 0), 0u);
    EXPECT_EQ(wire_bytes(Protocol::kLl, 1), 16u);
    EXPECT_EQ(wire_bytes(Protocol::kLl, 16), 32u);
    EXPECT_EQ(wire_bytes(Protocol::kLl128, 120), 128u);
    EXPECT_EQ(wire_bytes(Protocol::kLl128, 121), 256u);
    EXPECT_EQ(wire_bytes(Protocol::kSimple, 121), 121u);
    EXPECT_EQ(payload_bytes(Protocol::kLl, 65536), 32768u);
    EXPECT_EQ(payload_bytes(Protocol::kLl128, 614400), 576000u);
}

TEST(NcclProtocol, buffers_are_as_large_as_in_nccl) {
    const WireBuffers buffers = wire_buffers();
    EXPECT_EQ(buffers.capacity(Protocol::kSimple, false), size_t{1} << 20);
    EXPECT_EQ(buffers.capacity(Protocol::kSimple, true), size_t{128} << 10);
    EXPECT_EQ(buffers.capacity(Protocol::kLl, false), size_t{32} << 10);
    EXPECT_EQ(buffers.capacity(Protocol::kLl128, false), 576'000u);
    EXPECT_EQ(buffers.p2p_ll_limit, 16384u);
}

TEST(NcclProtocol, what_is_written_is_read) {
    for (const Protocol protocol : kAll) {
        for (const size_t bytes : {0u, 1u, 3u, 4u, 8u, 9u, 119u, 120u, 121u, 1000u, 4801u}) {
            const std::vector<unsigned char> data = pattern(bytes);
            alignas(16) static unsigned char wire[16384];
            memset(wire, 0xee, sizeof wire);
            encode_message(protocol, 7, data.data(), bytes, wire);
            EXPECT_EQ(wire[wire_bytes(protocol, bytes)], 0xee);
            if (protocol != Protocol::kSimple) {
                EXPECT_EQ(lines_arrived(protocol, 7, wire, bytes, 0), lines_of(protocol, bytes));
                EXPECT_EQ(lines_arrived(protocol, 8, wire, bytes, 0), 0u);
            }
            std::vector<unsigned char> back(bytes + 1, 0x55);
            decode_message(protocol, wire, bytes, back.data());
            EXPECT_EQ(back.back(), 0x55);
            back.pop_back();
            EXPECT_EQ(back, data) << protocol_name(protocol) << " " << bytes;
        }
    }
}

// Bytes arrive in their order: the data of every line that counts as arrived is whole.
TEST(NcclProtocol, lines_count_when_their_data_is_whole) {
    for (const Protocol protocol : {Protocol::kLl, Protocol::kLl128}) {
        constexpr size_t kBytes = 500;
        const size_t line_bytes = wire_bytes(protocol, 1);
        const std::vector<unsigned char> data = pattern(kBytes);
        alignas(16) unsigned char wire[2048];
        alignas(16) unsigned char slot[2048] = {};
        // An older message lies in the slot.
        encode_message(protocol, 1, pattern(kBytes + 1).data() + 1, kBytes, slot);
        encode_message(protocol, 9, data.data(), kBytes, wire);
        size_t seen = 0;
        for (size_t arrived = 0; arrived < wire_bytes(protocol, kBytes); ++arrived) {
            // Of the line that is arriving at most the flags are missing.
            EXPECT_LE(seen * line_bytes, arrived + (protocol == Protocol::kLl ? 3 : 7));
            slot[arrived] = wire[arrived];
            seen += lines_arrived(protocol, 9, slot, kBytes, seen);
        }
        EXPECT_EQ(seen, lines_of(protocol, kBytes));
        std::vector<unsigned char> back(kBytes);
        decode_message(protocol, slot, kBytes, back.data());
        EXPECT_EQ(back, data);
    }
}

}  // namespace
}  // namespace slimwire::emu
