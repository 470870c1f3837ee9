// Quantizers on the host: the Codec of block_quantizer.h. Layout and rules: codecs/FORMAT.md.
// Included by quantizers.cpp inside its anonymous namespace.

template <class Kind>
struct Quantizer {
    using Codes = QuantizerCodes<Kind>;
    using Shape = QuantizerShape;
    using Scratch = Tile;
    static constexpr int kBits = Kind::kBits;
    static constexpr int64_t kSixteenBytes = 2 * kBits;  // of sixteen codes

    // Where the planes of a chunk's encoding begin.
    template <class Byte>
    struct Planes {
        Byte* codes;
        Byte* scales;
        int32_t log2_block;

        static Planes of(Byte* encoding, const QuantizerShape& shape, int64_t count) {
            return {encoding, encoding + quantizer_layout<Kind>(shape, count).scales,
                    shape.log2_block};
        }
        // Codes from element `done` on.
        [[gnu::always_inline]] Byte* codes_at(int64_t done) const {
            return codes + done / 8 * kBits;
        }
        [[gnu::always_inline]] Byte* scales_at(int64_t done) const {
            return scales + (done >> log2_block) * 4;
        }
    };

    // Codes and the new residual of block b, whose p stand in the tile.
    template <bool kResidual>
    [[gnu::noinline]] static void encode_block(const Tile& tile,
                                               int64_t b,
                                               const QuantizerShape& shape,
                                               uint8_t* codes,
                                               float* residual,
                                               int64_t count) {
        const int64_t block = shape.block;
        const int64_t begin = b * block;
        uint8_t* to = codes + begin / 8 * kBits;
        if (tile.magnitude[b] >= kInfinityBits) {  // poison: the scale says it all
            __builtin_memset(to, 0, static_cast<size_t>(block) / 8 * kBits);
            return;
        }
        const Floats inverse = broadcast(tile.inverse[b]);
        const Words largest = as_words(broadcast(
            Kind::kRule == QuantizerRule::kLevels ? static_cast<float>(shape.levels) : 1.0f));
        const typename Codes::Decoder decoded(float_of(tile.scale[b]));
        const Limit limit(float_of(tile.scale[b]), Kind::kReach, tile.most);
        Words drawn = broadcast_bits(kQuantizerHalf);
        for (int64_t i = begin; i < begin + block; i += kLanes, to += kSixteenBytes) {
            const Floats p = load_float32(tile.values + i);
            if (shape.stochastic) {
                drawn = load_drawn(tile.random + i);
            }
            Codes::put(p, inverse, largest, drawn, to);
            if constexpr (kResidual) {
                const Floats left = subtract(p, limit(decoded(to)));
                if (i + kLanes <= count) {
                    store_float32(residual + i, left);
                } else if (i < count) {
                    store_some<Float32>(bytes_of(residual + i), left, count - i);
                }
            }
        }
    }

    template <bool kResidual, class Source>
    SLIMWIRE_LANES void encode_tile(Tile& tile,
                                    const Source& source,
                                    const ChunkRandom& random,
                                    int64_t first,
                                    int64_t count,
                                    const QuantizerShape& shape,
                                    const Planes<uint8_t>& planes,
                                    float* residual) {
        const int64_t blocks = whole_blocks(count, shape.block);
        fill_tile(tile, source, count, blocks * shape.block, shape.block);
        choose_quantizer_scales<Kind>(tile, blocks, count, shape);
        if (shape.stochastic) {
            draw_tile(tile, random, first, blocks * shape.block);
        }
        __builtin_memcpy(planes.scales_at(first), tile.scale, static_cast<size_t>(blocks) * 4);
        uint8_t* codes = planes.codes_at(first);
        for (int64_t b = 0; b < blocks; ++b) {
            encode_block<kResidual>(tile, b, shape, codes, residual, count);
        }
    }

    template <class Sink>
    SLIMWIRE_LANES void decode_tile(const Planes<const uint8_t>& planes,
                                    int64_t first,
                                    int64_t count,
                                    const Sink& sink) {
        const int64_t block = int64_t{1} << planes.log2_block;
        const uint8_t* from = planes.codes_at(first);
        const uint8_t* scales = planes.scales_at(first);
        for (int64_t begin = 0; begin < count; begin += block, scales += 4) {
            const int64_t end = begin + block < count ? begin + block : count;
            uint32_t bits;
            __builtin_memcpy(&bits, scales, 4);
            // The product of anything and NaN is NaN.
            const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
            const typename Codes::Decoder decoded(float_of(poison ? kNanFloat32 : bits));
            const Limit limit(float_of(bits), Kind::kReach, sink.most);
            int64_t i = begin;
            for (; i + kLanes <= end; i += kLanes) {
                sink.sixteen(i, limit(decoded(from + i / 8 * kBits)));
            }
            if (i < end) {
                sink.some(i, limit(decoded(from + i / 8 * kBits)), end - i);
            }
        }
    }
};
