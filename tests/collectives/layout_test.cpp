// The layout of a message: every element in exactly one chunk, slots aligned and large enough.
#include "collectives/layout.h"

#include <gtest/gtest.h>

#include <random>

#include "collectives/two_shot.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

CodecSpec codec(const char* text) {
    Result<CodecSpec> spec = parse_codec(text);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    return spec.value();
}

void expect_sound(const Layout& layout,
                  const std::vector<Segment>& segments,
                  DType dtype,
                  int ranks) {
    uint64_t total = 0;
    for (const Segment& segment : segments) {
        total += segment.count;
    }
    std::vector<int> owners(total, 0);
    int64_t slots = 0;
    for (const Slice& slice : layout.slices) {
        int64_t end_of_piece = 0;
        for (const Piece& piece : slice.pieces) {
            EXPECT_EQ(piece.slot_offset % 16, 0);
            EXPECT_GE(piece.slot_offset, end_of_piece);
            EXPECT_EQ(piece.chunk_elems % piece.codec.granule(dtype), 0);
            end_of_piece = piece.slot_offset + piece.codec.encoded_bytes(dtype, piece.chunk_elems);
            for (int rank = 0; rank < ranks; ++rank) {
                for (int64_t i = 0; i < piece.chunk_count(rank); ++i) {
                    ++owners[piece.offset_elems +
                             static_cast<uint64_t>(piece.chunk_begin(rank) + i)];
                }
            }
            EXPECT_EQ(piece.chunk_begin(ranks), piece.count);
        }
        EXPECT_LE(end_of_piece, slice.slot_bytes);
        EXPECT_EQ(slice.slot_bytes % 16, 0);
        slots += slice.slot_bytes;
    }
    EXPECT_EQ(layout.total_slot_bytes, slots);
    for (const int owner : owners) {
        ASSERT_EQ(owner, 1);
    }
}

TEST(Layout, EveryElementHasOneChunkWhateverTheCounts) {
    const uint64_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const char* codecs[] = {"int8", "int4:block=128", "int2", "bf16", "int4:block=2048"};
    for (int round = 0; round < 300; ++round) {
        std::vector<Segment> segments;
        uint64_t offset = 0;
        for (uint64_t i = 0; i <= random() % 3; ++i) {
            const uint64_t count = 1 + random() % (1ull << (random() % 15));
            segments.push_back({offset, count, codec(codecs[random() % 5])});
            offset += count;
        }
        const int ranks = 1 + static_cast<int>(random() % 9);
        const uint64_t slice_bytes = random() % 2 == 0 ? 0 : 1 + random() % 40000;
        expect_sound(make_layout(segments, DType::kFloat32, ranks, slice_bytes), segments,
                     DType::kFloat32, ranks);
    }
}

TEST(Layout, NothingForNothing) {
    EXPECT_TRUE(make_layout({}, DType::kFloat32, 4, 0).slices.empty());
    EXPECT_TRUE(make_layout({{0, 0, codec("int8")}}, DType::kFloat32, 4, 0).slices.empty());
}

// The formula of collectives/FORMAT.md, literally: a change here is a new wire version.
TEST(Layout, GoldenNumbers) {
    const Layout layout =
        make_layout({{0, 1000000, codec("int4:block=64")}}, DType::kFloat32, 4, 0);
    ASSERT_EQ(layout.slices.size(), 1u);
    const Piece& piece = layout.slices[0].pieces[0];
    EXPECT_EQ(piece.chunk_elems, 250048);  // ceil(1e6 / 4) rounded up to 64
    EXPECT_EQ(piece.chunk_count(0), 250048);
    EXPECT_EQ(piece.chunk_count(3), 249856);
    EXPECT_EQ(layout.slices[0].slot_bytes, 132848);  // 125024 codes + 7814 scales, up to 16
    const Layout sliced =
        make_layout({{0, 1000000, codec("int4:block=64")}}, DType::kFloat32, 4, 1 << 20);
    EXPECT_EQ(sliced.slices.size(), 4u);
    EXPECT_EQ(sliced.slices[0].pieces[0].count, 250112);  // ceil(1e6 / 4) rounded up to 4 * 64
}

// The worked example of collectives/FORMAT.md, both columns.
TEST(Layout, WorkedExampleOfTheFormat) {
    const std::vector<Segment> segments = {{0, 1000, codec("int4:block=64")}};
    const Layout whole = make_layout(segments, DType::kFloat32, 4, 0);
    ASSERT_EQ(whole.slices.size(), 1u);
    EXPECT_EQ(whole.slices[0].pieces[0].chunk_elems, 256);
    EXPECT_EQ(whole.slices[0].pieces[0].chunk_count(3), 232);
    EXPECT_EQ(whole.slices[0].slot_bytes, 144);
    EXPECT_EQ(two_shot_wire_bytes(whole, CallFacts{}, 4, 0), 864u);

    const Layout cut = make_layout(segments, DType::kFloat32, 4, 2000);
    ASSERT_EQ(cut.slices.size(), 2u);
    EXPECT_EQ(cut.slices[0].pieces[0].count, 512);
    EXPECT_EQ(cut.slices[1].pieces[0].offset_elems, 512u);
    EXPECT_EQ(cut.slices[1].pieces[0].count, 488);
    EXPECT_EQ(cut.slices[1].pieces[0].chunk_elems, 128);
    EXPECT_EQ(cut.slices[1].pieces[0].chunk_count(3), 104);
    EXPECT_EQ(cut.slices[0].slot_bytes, 80);
    EXPECT_EQ(two_shot_wire_bytes(cut, CallFacts{}, 4, 0), 960u);
}

}  // namespace
}  // namespace slimwire
