// Block floats on the host: the operations on one chunk, tile by tile so that
// everything between two memory accesses stays in the first-level cache. Layout and rules:
// codecs/FORMAT.md. Included by block_float.cpp inside its anonymous namespace.

template <class Kind>
struct BlockFloat {
    using Format = typename Kind::Format;
    using Code = SmallFloat<Format>;
    using ScalesOf = Scales<Kind>;
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
                const Floats left = subtract(p, multiply(load_codes(to, Format{}), scale));
                if (i + kLanes <= count) {
                    store_float32(residual + i, left);
                } else if (i < count) {
                    store_some<Float32>(bytes_of(residual + i), left, count - i);
                }
            }
        }
    }

    SLIMWIRE_LANES void draw_tile(Tile& tile,
                                  const ChunkRandom& random,
                                  int64_t first,
                                  int64_t count) {
        for (int64_t i = 0; i < count; i += kRandomTile) {
            random_bytes(random, first + i, tile.random + i);
        }
    }

    // Encodes elements `first`, ... of a chunk, up to kTileElems of them; indices of `source` and
    // `residual` start at 0.
    template <bool kResidual, bool kStochastic, class Source>
    SLIMWIRE_LANES void encode_tile(Tile& tile,
                                    const Source& source,
                                    const ChunkRandom& random,
                                    int64_t first,
                                    int64_t count,
                                    const BlockFloatShape& shape,
                                    const Planes<uint8_t>& planes,
                                    float* residual) {
        const int64_t block = shape.block;
        const int64_t blocks = whole_blocks(count, block);
        fill_tile(tile, source, count, block);
        ScalesOf::choose(tile, blocks, shape);
        if constexpr (kStochastic) {
            draw_tile(tile, random, first, blocks * block);
        }
        ScalesOf::put(tile, first >> shape.log2_block, blocks, planes.scales);
        uint8_t* codes = planes.codes_at(first);
        for (int64_t b = 0; b < blocks; ++b) {
            encode_block<kResidual, kStochastic>(tile, b, block, codes, residual, count);
        }
    }

    // Decodes `count` elements of a tile into `sink`, whose indices start at 0.
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
            int64_t i = begin;
            for (; i + kLanes <= end; i += kLanes) {
                sink.sixteen(i, multiply(load_codes(from + i / 8 * kBits, Format{}), scale));
            }
            if (i < end) {
                sink.some(i, multiply(load_codes(from + i / 8 * kBits, Format{}), scale), end - i);
            }
        }
    }

    template <class Element, bool kResidual, bool kStochastic>
    static void encode_as(const EncodeChunk& chunk, const BlockFloatShape& shape) {
        Tile tile;
        const auto planes = Planes<uint8_t>::of(chunk.output, shape, chunk.count);
        Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            encode_tile<kResidual, kStochastic>(
                tile, source, chunk.random, done, left < kTileElems ? left : kTileElems, shape,
                planes, kResidual ? chunk.residual + done : nullptr);
            source.input += kTileElems * Element::kBytes;
            if constexpr (kResidual) {
                source.residual += kTileElems;
            }
        }
    }

    static void encode(const EncodeChunk& chunk, const BlockFloatShape& shape) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            if (chunk.residual != nullptr) {
                shape.stochastic ? encode_as<Element, true, true>(chunk, shape)
                                 : encode_as<Element, true, false>(chunk, shape);
            } else {
                shape.stochastic ? encode_as<Element, false, true>(chunk, shape)
                                 : encode_as<Element, false, false>(chunk, shape);
            }
        });
    }

    template <class Element, bool kAccumulate>
    static void decode_as(const DecodeChunk& chunk, const BlockFloatShape& shape) {
        const auto planes = Planes<const uint8_t>::of(chunk.input, shape, chunk.count);
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            decode_tile(planes, done, left < kTileElems ? left : kTileElems,
                        Sink<Element, kAccumulate>{chunk.output + done * Element::kBytes});
        }
    }

    static void decode(const DecodeChunk& chunk, const BlockFloatShape& shape) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            chunk.accumulate ? decode_as<Element, true>(chunk, shape)
                             : decode_as<Element, false>(chunk, shape);
        });
    }

    // The sum over the sources of `count` elements from element `done` on.
    static void sum_tile(const ReduceChunk& chunk,
                         const BlockFloatShape& shape,
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

    template <bool kResidual, bool kStochastic>
    static void reduce_as(const ReduceChunk& chunk, const BlockFloatShape& shape) {
        alignas(64) float sum[kTileElems];
        Tile tile;
        const auto planes = Planes<uint8_t>::of(chunk.output, shape, chunk.count);
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            const int64_t count = left < kTileElems ? left : kTileElems;
            sum_tile(chunk, shape, done, count, sum);
            float* residual = kResidual ? chunk.residual + done : nullptr;
            encode_tile<kResidual, kStochastic>(
                tile, Source<Float32, kResidual>{bytes_of(sum), residual, broadcast(chunk.factor)},
                chunk.random, done, count, shape, planes, residual);
        }
    }

    static void reduce(const ReduceChunk& chunk, const BlockFloatShape& shape) {
        if (chunk.residual != nullptr) {
            shape.stochastic ? reduce_as<true, true>(chunk, shape)
                             : reduce_as<true, false>(chunk, shape);
        } else {
            shape.stochastic ? reduce_as<false, true>(chunk, shape)
                             : reduce_as<false, false>(chunk, shape);
        }
    }

    template <class Element>
    static void sum_as(const ReduceChunk& chunk, const BlockFloatShape& shape) {
        alignas(64) float sum[kTileElems];
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            const int64_t count = left < kTileElems ? left : kTileElems;
            sum_tile(chunk, shape, done, count, sum);
            put_scaled<Element>(sum, broadcast(chunk.factor), chunk.output + done * Element::kBytes,
                                count);
        }
    }
    static void sum(const ReduceChunk& chunk, const BlockFloatShape& shape) {
        visit(chunk.dtype, [&](auto element) { sum_as<decltype(element)>(chunk, shape); });
    }

    static constexpr BlockFloatKernels kKernels = {encode, decode, reduce, sum};
};
