// Quantizers on the host: the operations on one chunk, tile by tile so that everything
// between two memory accesses stays in the first-level cache. Layout and rules: codecs/FORMAT.md.
// Included by quantizers.cpp inside its anonymous namespace.

template <class Kind>
struct Quantizer {
    using Codes = QuantizerCodes<Kind>;
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
        Words drawn = broadcast_bits(kQuantizerHalf);
        for (int64_t i = begin; i < begin + block; i += kLanes, to += kSixteenBytes) {
            const Floats p = load_float32(tile.values + i);
            if (shape.stochastic) {
                drawn = load_drawn(tile.random + i);
            }
            Codes::put(p, inverse, largest, drawn, to);
            if constexpr (kResidual) {
                const Floats left = subtract(p, decoded(to));
                if (i + kLanes <= count) {
                    store_float32(residual + i, left);
                } else if (i < count) {
                    store_some<Float32>(bytes_of(residual + i), left, count - i);
                }
            }
        }
    }

    // Encodes elements `first`, ... of a chunk, up to kTileElems of them; indices of `source` and
    // `residual` start at 0.
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
        fill_tile(tile, source, count, shape.block);
        choose_quantizer_scales<Kind>(tile, blocks, count, shape);
        if (shape.stochastic) {
            for (int64_t i = 0; i < blocks * shape.block; i += kRandomTile) {
                random_bytes(random, first + i, tile.random + i);
            }
        }
        __builtin_memcpy(planes.scales_at(first), tile.scale, static_cast<size_t>(blocks) * 4);
        uint8_t* codes = planes.codes_at(first);
        for (int64_t b = 0; b < blocks; ++b) {
            encode_block<kResidual>(tile, b, shape, codes, residual, count);
        }
    }

    // Decodes `count` elements of a tile into `sink`, whose indices start at 0.
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
            int64_t i = begin;
            for (; i + kLanes <= end; i += kLanes) {
                sink.sixteen(i, decoded(from + i / 8 * kBits));
            }
            if (i < end) {
                sink.some(i, decoded(from + i / 8 * kBits), end - i);
            }
        }
    }

    template <class Element, bool kResidual>
    static void encode_as(const EncodeChunk& chunk, const QuantizerShape& shape) {
        Tile tile;
        const auto planes = Planes<uint8_t>::of(chunk.output, shape, chunk.count);
        Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            encode_tile<kResidual>(tile, source, chunk.random, done,
                                   left < kTileElems ? left : kTileElems, shape, planes,
                                   kResidual ? chunk.residual + done : nullptr);
            source.input += kTileElems * Element::kBytes;
            if constexpr (kResidual) {
                source.residual += kTileElems;
            }
        }
    }

    static void encode(const EncodeChunk& chunk, const QuantizerShape& shape) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            chunk.residual != nullptr ? encode_as<Element, true>(chunk, shape)
                                      : encode_as<Element, false>(chunk, shape);
        });
    }

    template <class Element, bool kAccumulate>
    static void decode_as(const DecodeChunk& chunk, const QuantizerShape& shape) {
        const auto planes = Planes<const uint8_t>::of(chunk.input, shape, chunk.count);
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            decode_tile(planes, done, left < kTileElems ? left : kTileElems,
                        Sink<Element, kAccumulate>{chunk.output + done * Element::kBytes});
        }
    }

    static void decode(const DecodeChunk& chunk, const QuantizerShape& shape) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            chunk.accumulate ? decode_as<Element, true>(chunk, shape)
                             : decode_as<Element, false>(chunk, shape);
        });
    }

    // The sum over the sources of `count` elements from element `done` on.
    static void sum_tile(const ReduceChunk& chunk,
                         const QuantizerShape& shape,
                         int64_t done,
                         int64_t count,
                         float* sum) {
        auto planes = Planes<const uint8_t>::of(chunk.input, shape, chunk.count);
        decode_tile(planes, done, count, Sink<Float32, false>{bytes_of(sum)});
        for (int32_t i = 1; i < chunk.inputs; ++i) {
            planes =
                Planes<const uint8_t>::of(chunk.input + i * chunk.input_stride, shape, chunk.count);
            decode_tile(planes, done, count, Sink<Float32, true>{bytes_of(sum)});
        }
    }

    template <bool kResidual>
    static void reduce_as(const ReduceChunk& chunk, const QuantizerShape& shape) {
        alignas(64) float sum[kTileElems];
        Tile tile;
        const auto planes = Planes<uint8_t>::of(chunk.output, shape, chunk.count);
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            const int64_t count = left < kTileElems ? left : kTileElems;
            sum_tile(chunk, shape, done, count, sum);
            float* residual = kResidual ? chunk.residual + done : nullptr;
            encode_tile<kResidual>(
                tile, Source<Float32, kResidual>{bytes_of(sum), residual, broadcast(chunk.factor)},
                chunk.random, done, count, shape, planes, residual);
        }
    }

    static void reduce(const ReduceChunk& chunk, const QuantizerShape& shape) {
        chunk.residual != nullptr ? reduce_as<true>(chunk, shape) : reduce_as<false>(chunk, shape);
    }

    template <class Element>
    static void sum_as(const ReduceChunk& chunk, const QuantizerShape& shape) {
        alignas(64) float sum[kTileElems];
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            const int64_t count = left < kTileElems ? left : kTileElems;
            sum_tile(chunk, shape, done, count, sum);
            put_scaled<Element>(sum, broadcast(chunk.factor), chunk.output + done * Element::kBytes,
                                count);
        }
    }
    static void sum(const ReduceChunk& chunk, const QuantizerShape& shape) {
        visit(chunk.dtype, [&](auto element) { sum_as<decltype(element)>(chunk, shape); });
    }

    static constexpr QuantizerKernels kKernels = {encode, decode, reduce, sum};
};
