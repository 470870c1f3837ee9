// Block floats on the host: the Codec of block_quantizer.h. Layout and rules: codecs/FORMAT.md.
// Included by block_float.cpp inside its anonymous namespace.

template <class Kind>
struct BlockFloat {
    using Format = typename Kind::Format;
    using Code = SmallFloat<Format>;
    using ScalesOf = Scales<Kind>;
    using Shape = BlockFloatShape;
    using Scratch = ScaledTile;
    static constexpr int kBits = Kind::kBits;
    static constexpr int64_t kSixteenBytes = 2 * kBits;  // of sixteen codes

    // Where the planes of a chunk's encoding begin.
    template <class Byte>
    struct Planes {
        Byte* codes;
        ScalePlanes<Byte> scales;
        int32_t log2_block;

        static Planes of(Byte* encoding, const BlockFloatShape& shape, int64_t count) {
            const BlockFloatLayout layout = block_float_layout<Kind>(shape, count);
            return {encoding,
                    {encoding + layout.groups, encoding + layout.scales, shape.scale_bytes},
                    shape.log2_block};
        }
        // Codes from element `done` on.
        [[gnu::always_inline]] Byte* codes_at(int64_t done) const {
            return codes + done / 8 * kBits;
        }
    };

    // Codes and the new residual of block b, whose p stand in the tile.
    template <bool kResidual, bool kStochastic>
    SLIMWIRE_LANES void encode_block(const Tile& tile,
                                     int64_t b,
                                     int64_t block,
                                     uint8_t* codes,
                                     float* residual,
                                     int64_t count) {
        const int64_t begin = b * block;
        uint8_t* to = codes + begin / 8 * kBits;
        if (tile.magnitude[b] >= kInfinityBits) {  // poison: the scale says it all
            __builtin_memset(to, 0, static_cast<size_t>(block) / 8 * kBits);
            return;
        }
        const Floats inverse = broadcast(tile.inverse[b]);
        const Floats scale = broadcast(__builtin_bit_cast(float, tile.scale[b]));
        const Limit limit(__builtin_bit_cast(float, tile.scale[b]), Format::kMax, tile.most);
        for (int64_t i = begin; i < begin + block; i += kLanes, to += kSixteenBytes) {
            const Floats p = load_float32(tile.values + i);
            const Floats y = multiply(p, inverse);
            if constexpr (kStochastic) {
                const Words drawn =
                    add(shift_left<1>(load_bytes(tile.random + i)), broadcast_bits(1));
                pack<kBits>(Code::stochastic(y, drawn), to);
            } else {
                pack<kBits>(Code::nearest(y), to);
            }
            if constexpr (kResidual) {
                const Floats left = subtract(p, limit(multiply(load_codes(to, Format{}), scale)));
                if (i + kLanes <= count) {
                    store_float32(residual + i, left);
                } else if (i < count) {
                    store_some<Float32>(bytes_of(residual + i), left, count - i);
                }
            }
        }
    }

    template <bool kResidual, bool kStochastic>
    SLIMWIRE_LANES void encode_blocks(const Tile& tile,
                                      int64_t blocks,
                                      int64_t block,
                                      uint8_t* codes,
                                      float* residual,
                                      int64_t count) {
        for (int64_t b = 0; b < blocks; ++b) {
            encode_block<kResidual, kStochastic>(tile, b, block, codes, residual, count);
        }
    }

    template <bool kResidual, class Source>
    SLIMWIRE_LANES void encode_tile(Scratch& tile,
                                    const Source& source,
                                    const ChunkRandom& random,
                                    int64_t first,
                                    int64_t count,
                                    const Shape& shape,
                                    const Planes<uint8_t>& planes,
                                    float* residual) {
        const int64_t block = shape.block;
        const int64_t blocks = whole_blocks(count, block);
        fill_tile(tile, source, count, blocks * block, block);
        ScalesOf::choose(tile, blocks, shape);
        ScalesOf::put(tile, first >> shape.log2_block, blocks, planes.scales);
        uint8_t* codes = planes.codes_at(first);
        if (shape.stochastic) {
            draw_tile(tile, random, first, blocks * block);
            encode_blocks<kResidual, true>(tile, blocks, block, codes, residual, count);
        } else {
            encode_blocks<kResidual, false>(tile, blocks, block, codes, residual, count);
        }
    }

    template <class Sink>
    SLIMWIRE_LANES void decode_tile(const Planes<const uint8_t>& planes,
                                    int64_t first,
                                    int64_t count,
                                    const Sink& sink) {
        alignas(64) float scales[kMaxTileBlocks];
        const int64_t block = int64_t{1} << planes.log2_block;
        ScalesOf::load(planes.scales, first >> planes.log2_block, whole_blocks(count, block),
                       scales);
        const uint8_t* from = planes.codes_at(first);
        for (int64_t begin = 0, b = 0; begin < count; begin += block, ++b) {
            const int64_t end = begin + block < count ? begin + block : count;
            const Floats scale = broadcast(scales[b]);
            const Limit limit(scales[b], Format::kMax, sink.most);
            int64_t i = begin;
            for (; i + kLanes <= end; i += kLanes) {
                sink.sixteen(i, limit(multiply(load_codes(from + i / 8 * kBits, Format{}), scale)));
            }
            if (i < end) {
                sink.some(i, limit(multiply(load_codes(from + i / 8 * kBits, Format{}), scale)),
                          end - i);
            }
        }
    }
};
