// The palette codec and bytes that no encoder writes: corrupted and random encodings
// give a clean error, zeros where a block is malformed, and touch nothing outside the output.
#include <algorithm>

#include "codecs/palette/palette_format.h"
#include "tests/codecs/palette/palette_fixture.h"

namespace slimwire::testing {
namespace {

TEST_F(Palette, CorruptedBytesStayWithinTheOutputAndCheckAgreesWithDecode) {
    for_all([&](DType dtype) {
        int refused = 0;
        for (int round = 0; round < 150; ++round) {
            const int64_t count = 1 + static_cast<int64_t>(random_() % 9000);
            const Data data = kAllData[random_() % 6];
            const Guarded input = filled(dtype, count, data);
            Encoded encoded = encode(spec_, dtype, input, count);
            const int64_t total = length_of(encoded.bytes.data());
            const int64_t blocks = (total >= 48 ? 48 : total);
            for (int hit = 0; hit <= round % 4; ++hit) {
                // Half of the hits go to the headers.
                const int64_t at = random_() % 2 == 0 ? static_cast<int64_t>(random_()) % blocks
                                                      : static_cast<int64_t>(random_()) % total;
                encoded.bytes.data()[at] ^= static_cast<uint8_t>(1u << random_() % 8);
            }
            std::vector<std::vector<uint8_t>> decoded;
            uint32_t status = 0;
            for (const Isa isa : {Isa::kScalar, active_isa()}) {
                const Isa before = active_isa();
                ASSERT_TRUE(force_isa(isa).ok());
                Guarded output(input.size());
                DecodeArgs to_decode =
                    decode_args(spec_, dtype, count, encoded.bytes.data(), output.data());
                to_decode.slot_bytes = slot_for(encoded.size);
                to_decode.status = &status;
                spec_.codec->host.decode(to_decode);
                ASSERT_TRUE(output.margins_intact());
                decoded.push_back(output.copy(output.size()));
                ASSERT_TRUE(force_isa(before).ok());
            }
            ASSERT_EQ(decoded[0], decoded[1]) << "round " << round;
            const auto checked =
                check_encoding(spec_, dtype, count, encoded.bytes.data(), encoded.size);
            ASSERT_EQ(checked.ok(), (status & kStatusCorrupt) == 0)
                << "round " << round << ": " << checked.status().message();
            refused += !checked.ok();
        }
        EXPECT_GT(refused, 20);
    });
}

TEST_F(Palette, OnlyAFixedSlotSaysThatItOverflowed) {
    const CodecSpec slotted = spec_of("palette:slot=0.5");
    const uint32_t header[4] = {kPaletteMagic, kPaletteOverflow, kPaletteChunkHeader, 0};
    for_all([&](DType dtype) {
        const int64_t count = 1535;
        for (const CodecSpec* spec : {static_cast<const CodecSpec*>(&spec_), &slotted}) {
            const int64_t size = spec->encoded_bytes(dtype, count);
            Guarded bytes(slot_for(size));
            std::memset(bytes.data(), 0, static_cast<size_t>(bytes.size()));
            std::memcpy(bytes.data(), header, sizeof header);
            Guarded output(count * bytes_of(dtype));
            const bool may = spec == &slotted;
            EXPECT_EQ(decode(*spec, dtype, bytes.data(), count, output),
                      may ? kStatusOverflow : kStatusCorrupt);
            EXPECT_EQ(check_encoding(*spec, dtype, count, bytes.data(), size).ok(), may);
        }
    });
}

TEST_F(Palette, RandomBytesDecodeToZeros) {
    for_all([&](DType dtype) {
        const int64_t count = 5000;
        const int64_t size = spec_.encoded_bytes(dtype, count);
        Guarded bytes(slot_for(size));
        for (int64_t i = 0; i < bytes.size(); ++i) {
            bytes.data()[i] = static_cast<uint8_t>(random_());
        }
        Guarded output(count * bytes_of(dtype));
        decode(spec_, dtype, bytes.data(), count, output);
        const std::vector<uint8_t> copy = output.copy(output.size());
        EXPECT_TRUE(std::all_of(copy.begin(), copy.end(), [](uint8_t byte) { return byte == 0; }));
        EXPECT_FALSE(check_encoding(spec_, dtype, count, bytes.data(), size).ok());
    });
}

}  // namespace
}  // namespace slimwire::testing
