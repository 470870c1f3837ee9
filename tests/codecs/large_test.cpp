// Buffers of more than 2^31 bytes, where 32 bits for an offset or a count are not enough: every
// codec of the registry encodes and decodes one chunk of them. Needs 7 GiB of memory.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "tests/codecs/fixture.h"

namespace slimwire::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr DType kType = DType::kBfloat16;
constexpr int64_t kLargeCount = (int64_t{1} << 30) + 17 * 2048 + 13;
constexpr int64_t kBytes = 2 * kLargeCount;
static_assert(kBytes > int64_t{1} << 31);

struct FreeDeleter {
    void operator()(uint8_t* p) const { std::free(p); }
};
using Memory = std::unique_ptr<uint8_t, FreeDeleter>;

constexpr int64_t kGuardBytes = 4096;
constexpr uint8_t kGuard = 0xA5;

// `bytes` in huge pages where there are such, followed by a guard.
Memory allocate(int64_t bytes) {
    constexpr int64_t kPage = int64_t{2} << 20;
    const auto padded = static_cast<size_t>((bytes + kGuardBytes + kPage - 1) / kPage * kPage);
    Memory memory(static_cast<uint8_t*>(std::aligned_alloc(kPage, padded)));
    if (memory != nullptr) {
        madvise(memory.get(), padded, MADV_HUGEPAGE);
        std::memset(memory.get() + bytes, kGuard, kGuardBytes);
    }
    return memory;
}
bool guard_intact(const Memory& memory, int64_t bytes) {
    const uint8_t* guard = memory.get() + bytes;
    return std::all_of(guard, guard + kGuardBytes, [](uint8_t byte) { return byte == kGuard; });
}

// A table of Gaussian values, of which threshold's default sends a little less than it may, again
// and again, each time rotated by another amount, so that reading at an offset modulo 2^31 or 2^32
// gives other values.
void fill(uint8_t* buffer) {
    constexpr int64_t kTable = 131072;
    std::mt19937 random(11);
    const Guarded table = random_input(kType, kTable / 2, 0.00038, random);
    for (int64_t at = 0, turn = 0; at < kBytes; at += kTable, ++turn) {
        const int64_t rotation = turn * 15838 % kTable;
        for (int64_t part = 0; part < 2; ++part) {
            const int64_t from = part == 0 ? rotation : 0;
            const int64_t to = part == 0 ? at : at + kTable - rotation;
            const int64_t size = part == 0 ? kTable - rotation : rotation;
            if (to < kBytes) {
                std::memcpy(buffer + to, table.data() + from,
                            static_cast<size_t>(std::min(size, kBytes - to)));
            }
        }
    }
}

// The elements [begin, begin + count) encoded and decoded on their own.
std::vector<uint8_t> alone(const CodecSpec& spec,
                           const uint8_t* input,
                           int64_t begin,
                           int64_t count) {
    Guarded part(2 * count);
    std::memcpy(part.data(), input + 2 * begin, static_cast<size_t>(part.size()));
    const Encoded encoded = encode(spec, kType, part, count);
    Guarded output(part.size());
    decode(spec, kType, encoded.bytes.data(), count, output);
    return output.copy(output.size());
}

TEST(Large, MoreThanTwoGibibytesInOneChunk) {
    if (kSanitized) {
        GTEST_SKIP() << "too slow under a sanitizer";
    }
    const int64_t free_bytes = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    const Memory input = allocate(kBytes);
    const Memory output = allocate(kBytes);
    const int64_t room = kBytes + kBytes / 50;
    const Memory encoding = allocate(room);
    if (free_bytes < int64_t{7} << 30 || input == nullptr || output == nullptr ||
        encoding == nullptr) {
        GTEST_SKIP() << "needs 7 GiB of free memory, has " << (free_bytes >> 20) << " MiB";
    }
    fill(input.get());
    size_t codecs = 0;
    const CodecDescriptor* const* table = codec_table(&codecs);
    for (size_t i = 0; i < codecs; ++i) {
        CodecSpec spec = spec_of(table[i]->name);
        if (spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic)) {
            // What an element draws follows from its place in the chunk, which alone() changes.
            spec = spec_of(table[i]->name + std::string(":rounding=nearest"));
        }
        SCOPED_TRACE(spec.to_string());
        const CodecTraits traits = spec.traits(kType);
        const int64_t bound = spec.encoded_bytes(kType, kLargeCount);
        ASSERT_LE(bound, room);
        uint32_t status = 0;
        spec.codec->host.encode({.input = input.get(),
                                 .output = encoding.get(),
                                 .count = kLargeCount,
                                 .chunk_elems = kLargeCount,
                                 .slot_bytes = (bound + 15) / 16 * 16,
                                 .params = spec.params,
                                 .dtype = kType,
                                 .random = reference::kKey,
                                 .status = &status});
        spec.codec->host.decode({.input = encoding.get(),
                                 .output = output.get(),
                                 .count = kLargeCount,
                                 .chunk_elems = kLargeCount,
                                 .slot_bytes = (bound + 15) / 16 * 16,
                                 .params = spec.params,
                                 .dtype = kType,
                                 .status = &status});
        EXPECT_EQ(status, 0u);
        ASSERT_TRUE(guard_intact(encoding, room) && guard_intact(output, kBytes));
        if (traits.lossless) {
            EXPECT_EQ(std::memcmp(output.get(), input.get(), static_cast<size_t>(kBytes)), 0);
            continue;
        }
        if (traits.poison_elems == 0) {
            // Which elements are sent depends on all of them; what was sent is what was there.
            const auto* sent = reinterpret_cast<const uint16_t*>(output.get());
            const auto* there = reinterpret_cast<const uint16_t*>(input.get());
            int64_t kept = 0;
            int64_t last = 0;
            for (int64_t k = 0; k < kLargeCount; ++k) {
                if (sent[k] != 0) {
                    ASSERT_EQ(sent[k], there[k]) << k;
                    ++kept;
                    last = k;
                }
            }
            EXPECT_GT(kept, kLargeCount / 1000);
            EXPECT_GT(last, kLargeCount - kLargeCount / 50);
            continue;
        }
        const int64_t unit = spec.granule(kType);
        const int64_t window = 8 * unit;
        const int64_t middle = (int64_t{1} << 30) / unit * unit;  // byte 2^31
        for (const int64_t begin : {int64_t{0}, middle / 2, middle - window / 2, middle}) {
            const std::vector<uint8_t> expected = alone(spec, input.get(), begin, window);
            ASSERT_EQ(std::memcmp(output.get() + 2 * begin, expected.data(), expected.size()), 0)
                << begin;
        }
        const int64_t tail = kLargeCount / unit * unit - 3 * unit;
        const std::vector<uint8_t> expected = alone(spec, input.get(), tail, kLargeCount - tail);
        ASSERT_EQ(std::memcmp(output.get() + 2 * tail, expected.data(), expected.size()), 0);
    }
}

}  // namespace
}  // namespace slimwire::testing
