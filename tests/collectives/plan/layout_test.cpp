// The layout of a message: every element in exactly one chunk, slots aligned and large enough.
#include "collectives/plan/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "collectives/algorithms/algorithm.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

CodecSpec codec(const char* text) {
    Result<CodecSpec> spec = parse_codec(text);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    return spec.value();
}

// Every element that has a residual has one of its own, none of them too many.
void expect_residuals_apart(const Layout& layout) {
    std::vector<int> runs(layout.fed_pieces(), 0), residuals(layout.fed_elems(), 0);
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            if (piece.has_residual) {
                ++runs.at(static_cast<size_t>(piece.order));
                for (int64_t i = 0; i < piece.count; ++i) {
                    ++residuals.at(static_cast<size_t>(piece.residual_offset + i));
                }
            }
        }
    }
    EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), static_cast<int64_t>(runs.size()));
    EXPECT_EQ(std::count(residuals.begin(), residuals.end(), 1),
              static_cast<int64_t>(residuals.size()));
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
        const RawPart& raw = slice.raw;
        EXPECT_EQ(raw.count > 0, !raw.ranges.empty());
        EXPECT_EQ(raw.chunk_elems % kRawGranule, 0);
        EXPECT_EQ(raw.chunk_begin(ranks), raw.count);
        if (raw.count > 0) {
            EXPECT_EQ(raw.slot_offset % 16, 0);
            EXPECT_GE(raw.slot_offset, end_of_piece);
            EXPECT_EQ(raw.ranges[0].begin, 0);
            end_of_piece =
                raw.slot_offset + raw.chunk_elems * static_cast<int64_t>(dtype_bytes(dtype));
        }
        for (size_t i = 0; i < raw.ranges.size(); ++i) {
            const int64_t end = i + 1 < raw.ranges.size() ? raw.ranges[i + 1].begin : raw.count;
            ASSERT_LT(raw.ranges[i].begin, end);
            for (int64_t e = raw.ranges[i].begin; e < end; ++e) {
                ++owners[raw.ranges[i].offset_elems +
                         static_cast<uint64_t>(e - raw.ranges[i].begin)];
            }
        }
        EXPECT_LE(end_of_piece, slice.slot_bytes);
        EXPECT_EQ(slice.slot_bytes % 16, 0);
        slots += slice.slot_bytes;
    }
    EXPECT_EQ(layout.total_slot_bytes, slots);
    expect_residuals_apart(layout);
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
        for (uint64_t i = 0; i <= random() % 9; ++i) {
            const uint64_t count = 1 + random() % (1ull << (random() % 15));
            segments.push_back(
                random() % 3 == 0
                    ? Segment{offset, count, {}, false}
                    : Segment{offset, count, codec(codecs[random() % 5]), random() % 3 != 0});
            offset += count;
        }
        const int ranks = 1 + static_cast<int>(random() % 9);
        const uint64_t slice_bytes = random() % 2 == 0 ? 0 : 1 + random() % 40000;
        expect_sound(make_layout(segments, DType::kFloat32, ranks, slice_bytes), segments,
                     DType::kFloat32, ranks);
    }
}

// Norms between weights: all raw elements of a slice are one part behind the pieces.
TEST(Layout, RawSegmentsShareOnePart) {
    const std::vector<Segment> segments = {{0, 1000, codec("int4")},
                                           {1000, 10, {}, false},
                                           {1010, 1000, codec("int4")},
                                           {2010, 30, {}, false}};
    const Layout layout = make_layout(segments, DType::kFloat32, 4, 0);
    ASSERT_EQ(layout.slices.size(), 1u);
    const RawPart& raw = layout.slices[0].raw;
    EXPECT_EQ(raw.count, 40);
    EXPECT_EQ(raw.chunk_elems, 16);  // round_up(40 / 4, 8)
    EXPECT_EQ(raw.slot_offset, 2 * 144);
    ASSERT_EQ(raw.ranges.size(), 2u);
    EXPECT_EQ(raw.ranges[1].offset_elems, 2010u);
    EXPECT_EQ(raw.ranges[1].begin, 10);
    EXPECT_EQ(layout.slices[0].slot_bytes, 2 * 144 + 64);
    EXPECT_EQ(layout.fed_elems(), 2000u);
    EXPECT_EQ(layout.slices[0].pieces[1].residual_offset, 1000);
}

// Far more parts than a large model in one bucket has; quadratic work would take a minute.
TEST(Layout, VeryManySegmentsTakeNoTime) {
    constexpr uint64_t kSegments = 400'000, kElems = 25;
    std::vector<Segment> segments;
    for (uint64_t i = 0; i < kSegments; ++i) {
        segments.push_back(i % 2 == 0 ? Segment{i * kElems, kElems, codec("int4")}
                                      : Segment{i * kElems, kElems, {}, false});
    }
    const auto begin = std::chrono::steady_clock::now();
    const Layout layout =
        make_layout(segments, DType::kFloat32, 8, kSegments * kElems * sizeof(float) / 16);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    expect_sound(layout, segments, DType::kFloat32, 8);
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

uint64_t two_shot_wire_bytes(const Layout& layout) {
    PlanShape shape;
    shape.ranks = 4;
    return descriptor_of(Algorithm::kTwoShot).wire_bytes({layout, CallSignature{}, shape}, 0);
}

// The worked example of collectives/FORMAT.md, both columns.
TEST(Layout, WorkedExampleOfTheFormat) {
    const std::vector<Segment> segments = {{0, 1000, codec("int4:block=64")}};
    const Layout whole = make_layout(segments, DType::kFloat32, 4, 0);
    ASSERT_EQ(whole.slices.size(), 1u);
    EXPECT_EQ(whole.slices[0].pieces[0].chunk_elems, 256);
    EXPECT_EQ(whole.slices[0].pieces[0].chunk_count(3), 232);
    EXPECT_EQ(whole.slices[0].slot_bytes, 144);
    EXPECT_EQ(two_shot_wire_bytes(whole), 864u);

    const Layout cut = make_layout(segments, DType::kFloat32, 4, 2000);
    ASSERT_EQ(cut.slices.size(), 2u);
    EXPECT_EQ(cut.slices[0].pieces[0].count, 512);
    EXPECT_EQ(cut.slices[1].pieces[0].offset_elems, 512u);
    EXPECT_EQ(cut.slices[1].pieces[0].count, 488);
    EXPECT_EQ(cut.slices[1].pieces[0].chunk_elems, 128);
    EXPECT_EQ(cut.slices[1].pieces[0].chunk_count(3), 104);
    EXPECT_EQ(cut.slices[0].slot_bytes, 80);
    EXPECT_EQ(two_shot_wire_bytes(cut), 960u);
}

}  // namespace
}  // namespace slimwire
