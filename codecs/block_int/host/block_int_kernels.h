// Block integers on the host: encode, decode, decode-reduce-encode of one chunk, tile by tile so
// that everything between two memory accesses stays in the first-level cache. Layout and rules:
// codecs/FORMAT.md. Included by block_int.cpp inside its anonymous namespace.

// The residual after a rotation: p less what the tile's values decode to, unless that is not
// finite.
SLIMWIRE_LANES void put_rotated_residual(const Workshop& work, float* residual, int64_t count) {
    const auto left = [&](int64_t i, Floats old) {
        const Floats decoded = work.decoded(load_float32(work.tile.values + i));
        const Floats lost = subtract(load_float32(work.kept + i), decoded);
        return as_floats(
            select_at_least(magnitude_of(lost), kInfinityBits, as_words(old), as_words(lost)));
    };
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        store_float32(residual + i, left(i, load_float32(residual + i)));
    }
    if (i < count) {
        uint8_t* at = bytes_of(residual + i);
        store_some<Float32>(at, left(i, load_some<Float32>(at, count - i)), count - i);
    }
}

SLIMWIRE_LANES uint32_t largest_magnitude(const Tile& tile, int64_t blocks) {
    uint32_t most = 0;
    for (int64_t b = 0; b < blocks; ++b) {
        most = tile.magnitude[b] > most ? tile.magnitude[b] : most;
    }
    return most;
}
SLIMWIRE_LANES bool any_poison(const Tile& tile, int64_t blocks) {
    return largest_magnitude(tile, blocks) >= kInfinityBits;
}

SLIMWIRE_LANES void scale_values(const float* from, int64_t count, float factor, float* to) {
    for (int64_t i = 0; i < count; i += kLanes) {
        store_float32(to + i, multiply(load_float32(from + i), broadcast(factor)));
    }
}

// Values that are not finite become those of `from`.
SLIMWIRE_LANES void take_where_infinite(float* values, const float* from, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const Floats old = load_float32(values + i);
        const Words taken = select_at_least(magnitude_of(old), kInfinityBits,
                                            as_words(load_float32(from + i)), as_words(old));
        store_words(values + i, taken);
    }
}

// Each times a power of two, of a finite one at most the largest fp32.
SLIMWIRE_LANES void limit_wholes(float* parts, int64_t count, float wholes) {
    const float largest_part = __builtin_bit_cast(float, kMaxFloat32Bits) / wholes;
    const Words most = broadcast_bits(__builtin_bit_cast(uint32_t, largest_part));
    for (int64_t i = 0; i < count; i += kLanes) {
        store_float32(parts + i,
                      multiply(saturated(load_float32(parts + i), most), broadcast(wholes)));
    }
}

SLIMWIRE_LANES uint32_t largest_of_group(const float* values, int64_t count) {
    Words most = broadcast_bits(0);
    for (int64_t i = 0; i < count; i += kLanes) {
        most = maximum(most, magnitude_of(load_float32(values + i)));
    }
    return largest(most);
}

// Rotates p, which stands in the tile, and is kept for a residual.
[[gnu::noinline]] static void rotate_tile(Workshop& work,
                                          const BlockIntShape& shape,
                                          int64_t padded,
                                          bool keep) {
    Tile& tile = work.tile;
    const int64_t blocks = padded >> shape.log2_block;
    static_assert(kMaxRotate == 1 << 9);
    const bool overflows = largest_magnitude(tile, blocks) >= kInfinityBits - (9u << 23);
    if (keep || overflows) {
        __builtin_memcpy(work.kept, tile.values, static_cast<size_t>(padded) * sizeof(float));
    }
    rotate_groups<true>(tile.values, padded, shape.rotate, work.signs);
    if (overflows) {
        alignas(64) float parts[kTileElems];
        scale_values(work.kept, padded, shape.unrotate, parts);
        rotate_groups<true>(parts, padded, shape.rotate, work.signs);
        limit_wholes(parts, padded, static_cast<float>(shape.rotate));
        for (int64_t i = 0; i < padded; i += shape.rotate) {
            if (largest_of_group(tile.values + i, shape.rotate) >= kInfinityBits) {
                __builtin_memcpy(tile.values + i, parts + i,
                                 static_cast<size_t>(shape.rotate) * sizeof(float));
            }
        }
    }
    measure_tile(tile, padded, shape.block);
}

// Infinity of sums is looked for in smaller numbers, as a limit may be above the largest fp32.
constexpr float kSmaller = 0x1p-10f;

// From where sums times their factor are infinite in the user's type.
SLIMWIRE_LANES uint32_t overflow_of_sum(const ReduceChunk& chunk) {
    const float limit = chunk.sum_limit.most * chunk.sum_limit.overflow * chunk.factor;
    return chunk.sum_limit.most == kNoSumLimit ? overflow_bits(chunk.dtype)
                                               : __builtin_bit_cast(uint32_t, limit);
}
// The same times kSmaller.
SLIMWIRE_LANES uint32_t smaller_overflow(const ReduceChunk& chunk) {
    const float limit = kSmaller * chunk.sum_limit.most * chunk.sum_limit.overflow * chunk.factor;
    return chunk.sum_limit.most == kNoSumLimit ? overflow_bits(chunk.dtype) - (10u << 23)
                                               : __builtin_bit_cast(uint32_t, limit);
}

// After a sum whose rotation is not undone, factor * sum standing in the tile: the groups become
// infinite of which the user's type would round an element to infinity. parts(to) puts the sum over
// R.
template <class Parts>
SLIMWIRE_LANES void overflow_rotated(Workshop& work,
                                     const BlockIntShape& shape,
                                     int64_t padded,
                                     const ReduceChunk& chunk,
                                     const Parts& parts) {
    Tile& tile = work.tile;
    const uint32_t most = largest_magnitude(tile, padded >> shape.log2_block);
    const uint32_t overflow = overflow_of_sum(chunk);
    // No element is above the largest of its group, but for roundings.
    if (most < kInfinityBits && (overflow >= kInfinityBits || most < overflow - (1u << 23))) {
        return;
    }
    scale_values(tile.values, padded, shape.unrotate * kSmaller, work.kept);
    if (most >= kInfinityBits) {
        alignas(64) float other[kTileElems];
        parts(other);
        scale_values(other, padded, chunk.factor * kSmaller, other);
        take_where_infinite(work.kept, other, padded);
        limit_wholes(other, padded, static_cast<float>(shape.rotate) / kSmaller);
        take_where_infinite(tile.values, other, padded);
    }
    rotate_groups<false>(work.kept, padded, shape.rotate, work.signs);
    const uint32_t smaller = smaller_overflow(chunk);
    const uint32_t from = smaller < kInfinityBits ? smaller : kInfinityBits;
    for (int64_t begin = 0; begin < padded; begin += shape.rotate) {
        const uint32_t group = largest_of_group(work.kept + begin, shape.rotate);
        for (int64_t i = begin; group >= from && i < begin + shape.rotate; i += kLanes) {
            store_words(tile.values + i, broadcast_bits(kInfinityBits));
        }
    }
    measure_tile(tile, padded, shape.block);
}

// What stands in a tile that is to be encoded: p, or y of a rotation and, for a residual, p in
// `kept`.
enum class TileHolds { kElements, kRotated };

// The user's elements, with those of the next tile asked for. The next tile's residual is asked for
// where this one's is written, so that memory is busy in both passes over a tile.
template <class Element, bool kResidual>
struct AheadSource : Source<Element, kResidual> {
    [[gnu::always_inline]] void ahead(int64_t i) const {
        __builtin_prefetch(this->input + (i + kTileElems) * Element::kBytes);
    }
};

template <int kBits>
struct BlockInt {
    template <bool kStochastic>
    static void encode_after(Tile& tile,
                             int64_t blocks,
                             const BlockIntShape& shape,
                             uint8_t* codes,
                             float* residual,
                             int64_t count) {
        if (residual == nullptr) {
            encode_blocks<kBits, kStochastic, After::kNothing>(tile, blocks, shape, codes, residual,
                                                               count);
        } else if (shape.rotate == 0) {
            encode_blocks<kBits, kStochastic, After::kResidual>(tile, blocks, shape, codes,
                                                                residual, count);
        } else {
            encode_blocks<kBits, kStochastic, After::kDecoded>(tile, blocks, shape, codes, residual,
                                                               count);
        }
    }

    // Encodes a filled tile of `padded` elements, of which `count` exist, the first being element
    // `done` of the chunk.
    static void encode_tile(Workshop& work,
                            TileHolds holds,
                            const BlockIntShape& shape,
                            const Planes<uint8_t>& planes,
                            const ChunkRandom& random,
                            int64_t done,
                            int64_t count,
                            int64_t padded,
                            float* residual) {
        Tile& tile = work.tile;
        const int64_t blocks = padded >> shape.log2_block;
        if (shape.rotate != 0 && holds == TileHolds::kElements) {
            rotate_tile(work, shape, padded, residual != nullptr);
        }
        choose_scales<max_scale_bits(kBits)>(tile, blocks, largest_code(kBits), shape.scale_bytes);
        put_scales(tile, blocks, shape.scale_bytes, planes.scales);
        if (shape.stochastic) {
            draw_bytes(random, done, padded, tile.random);
        }
        if (residual != nullptr && holds == TileHolds::kRotated && !any_poison(tile, blocks)) {
            const bool done_so =
                shape.stochastic
                    ? encode_rotated<kBits, true>(work, shape, planes.codes, residual)
                    : encode_rotated<kBits, false>(work, shape, planes.codes, residual);
            if (done_so) {
                return;
            }
        }
        if (shape.stochastic) {
            encode_after<true>(tile, blocks, shape, planes.codes, residual, count);
        } else {
            encode_after<false>(tile, blocks, shape, planes.codes, residual, count);
        }
        if (residual != nullptr && shape.rotate != 0) {
            rotate_groups<false>(tile.values, padded, shape.rotate, work.signs);
            put_rotated_residual(work, residual, count);
        }
    }

    template <class Element, bool kResidual>
    static void encode_as(const EncodeChunk& chunk, const BlockIntShape& shape) {
        Workshop work(shape, Element::kMaxBits);
        const BlockIntLayout layout = block_int_layout(shape, chunk.count);
        const auto encode_at = [&](int64_t done) {
            const int64_t count = smaller(chunk.count - done, kTileElems);
            const int64_t padded = smaller(layout.padded - done, kTileElems);
            float* residual = kResidual ? chunk.residual + done : nullptr;
            const AheadSource<Element, kResidual> source{
                {chunk.input + done * Element::kBytes, residual, broadcast(chunk.factor)}};
            const auto fill = [&]<int kVectors>(RunOf<kVectors>) {
                fill_rotated<kVectors, kResidual>(work, source, shape.block);
            };
            TileHolds holds = TileHolds::kRotated;
            if (count != kTileElems || !with_run(shape.rotate, fill) ||
                any_poison(work.tile, padded >> shape.log2_block)) {
                fill_tile(work.tile, source, count, padded, shape.block);
                holds = TileHolds::kElements;
            }
            encode_tile(work, holds, shape, Planes<uint8_t>::of(chunk.output, shape, layout, done),
                        chunk.random, done, count, padded, residual);
        };
        int64_t done = 0;
        if constexpr (kIsBfloat16<Element> && !kResidual) {
            if (encodes_fast(chunk, shape)) {
                done = encode_fast(chunk, shape, layout, encode_at);
            }
        }
        for (; done < chunk.count; done += kTileElems) {
            encode_at(done);
        }
    }

    template <class General>
    static int64_t encode_fast(const EncodeChunk& chunk,
                               const BlockIntShape& shape,
                               const BlockIntLayout& layout,
                               const General& general) {
        Tile tiles[2];
        if (shape.block == 64) {
            return shape.stochastic ? encode_bfloat16_tiles<kBits, true, 64>(tiles, chunk, shape,
                                                                             layout, general)
                                    : encode_bfloat16_tiles<kBits, false, 64>(tiles, chunk, shape,
                                                                              layout, general);
        }
        return shape.stochastic
                   ? encode_bfloat16_tiles<kBits, true, 0>(tiles, chunk, shape, layout, general)
                   : encode_bfloat16_tiles<kBits, false, 0>(tiles, chunk, shape, layout, general);
    }

    static void encode(const EncodeChunk& chunk, const BlockIntShape& shape) {
        visit(chunk.dtype, chunk.residual != nullptr,
              [&]<bool kResidual>(auto element, Flag<kResidual>) {
                  encode_as<decltype(element), kResidual>(chunk, shape);
              });
    }

    template <class Element, bool kAccumulate>
    static void decode_as(const DecodeChunk& chunk, const BlockIntShape& shape) {
        using ToUser = Sink<Element, kAccumulate>;
        const BlockIntLayout layout = block_int_layout(shape, chunk.count);
        if (shape.rotate == 0) {
            const auto planes = Planes<const uint8_t>::of(chunk.input, shape, layout, 0);
            int64_t done = 0;
            if constexpr (kIsBfloat16<Element> && !kAccumulate) {
                done = shape.block == 64 ? decode_bfloat16_blocks<kBits, 64>(planes, chunk.count,
                                                                             shape, chunk.output)
                                         : decode_bfloat16_blocks<kBits, 0>(planes, chunk.count,
                                                                            shape, chunk.output);
            }
            decode_blocks<kBits>(
                Planes<const uint8_t>::of(chunk.input, shape, layout, done), chunk.count - done,
                shape, 1.0f,
                ToUser{chunk.output + done * Element::kBytes, Element::kMaxBits, chunk.sum_limit});
            return;
        }
        const ToUser sink{chunk.output, Element::kMaxBits, chunk.sum_limit};
        const Limit limit(Element::kMaxBits);
        Signs signs;
        draw_signs(signs, shape.rotate, shape.seed);
        alignas(64) float values[kTileElems];
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t count = smaller(chunk.count - done, kTileElems);
            const int64_t padded = smaller(layout.padded - done, kTileElems);
            decode_blocks<kBits>(Planes<const uint8_t>::of(chunk.input, shape, layout, done),
                                 padded, shape, shape.unrotate,
                                 Sink<Float32, false>{bytes_of(values), kMaxFloat32Bits});
            rotate_groups<false>(values, padded, shape.rotate, signs);
            int64_t i = 0;
            for (; i + kLanes <= count; i += kLanes) {
                sink.sixteen(done + i, limit(load_float32(values + i)));
            }
            if (i < count) {
                sink.some(done + i, limit(load_float32(values + i)), count - i);
            }
        }
    }

    static void decode(const DecodeChunk& chunk, const BlockIntShape& shape) {
        visit(chunk.dtype, chunk.accumulate,
              [&]<bool kAccumulate>(auto element, Flag<kAccumulate>) {
                  decode_as<decltype(element), kAccumulate>(chunk, shape);
              });
    }

    // The sum over the sources of one tile, of what was quantised.
    static void sum_tile(const ReduceChunk& chunk,
                         const BlockIntShape& shape,
                         const BlockIntLayout& layout,
                         int64_t done,
                         int64_t padded,
                         float* sum) {
        if (sums_in_registers(chunk, shape) &&
            sum_blocks<kBits>(chunk, shape, layout, done, padded, sum)) {
            return;
        }
        const uint32_t most = shape.rotate == 0 ? max_bits(chunk.dtype) : kMaxFloat32Bits;
        const uint8_t* from = chunk.input;
        const Floats scale = broadcast(chunk.input_scale);
        for (int32_t i = 0; i < chunk.inputs; ++i, from += chunk.input_stride) {
            const auto planes = Planes<const uint8_t>::of(from, shape, layout, done);
            if (i == 0) {
                decode_blocks<kBits>(planes, padded, shape, 1.0f,
                                     SumSink<true>{bytes_of(sum), most, scale});
            } else {
                decode_blocks<kBits>(planes, padded, shape, 1.0f,
                                     SumSink<false>{bytes_of(sum), most, scale});
            }
        }
    }

    // The same over R.
    static void sum_parts(ReduceChunk chunk,
                          const BlockIntShape& shape,
                          const BlockIntLayout& layout,
                          int64_t done,
                          int64_t padded,
                          float* sum) {
        chunk.input_scale *= shape.unrotate;
        sum_tile(chunk, shape, layout, done, padded, sum);
    }

    // The sum of one tile, its rotation undone.
    static void sum_elements_of(const ReduceChunk& chunk,
                                const BlockIntShape& shape,
                                const BlockIntLayout& layout,
                                int64_t done,
                                int64_t padded,
                                const Signs& signs,
                                float* sum) {
        sum_tile(chunk, shape, layout, done, padded, sum);
        scale_values(sum, padded, shape.unrotate, sum);
        if (largest_of_group(sum, padded) >= kInfinityBits) {
            alignas(64) float parts[kTileElems];
            sum_parts(chunk, shape, layout, done, padded, parts);
            take_where_infinite(sum, parts, padded);
        }
        rotate_groups<false>(sum, padded, shape.rotate, signs);
    }

    template <bool kResidual>
    static void reduce_as(const ReduceChunk& chunk, const BlockIntShape& shape) {
        Workshop work(shape, max_bits(chunk.dtype));
        const uint32_t overflow = overflow_of_sum(chunk);
        float* values = work.tile.values;
        const BlockIntLayout layout = block_int_layout(shape, chunk.count);
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t count = smaller(chunk.count - done, kTileElems);
            const int64_t padded = smaller(layout.padded - done, kTileElems);
            float* residual = kResidual ? chunk.residual + done : nullptr;
            if (kResidual && shape.rotate != 0) {
                sum_elements_of(chunk, shape, layout, done, padded, work.signs, values);
            } else {
                sum_tile(chunk, shape, layout, done, padded, values);
            }
            if (kResidual || shape.rotate == 0) {
                limit_sums(chunk.sum_limit, values, padded);
            }
            const Source<Float32, kResidual> source{
                bytes_of(values), residual, broadcast(chunk.factor),
                kResidual || shape.rotate == 0 ? overflow : kInfinityBits};
            const auto rotate = [&]<int kVectors>(RunOf<kVectors>) {
                fill_rotated<kVectors, true>(work, source, shape.block);
            };
            TileHolds holds = TileHolds::kElements;
            if (!kResidual && shape.rotate != 0) {
                // Elements of a rotated group are not past the end.
                fill_tile(work.tile, source, padded, padded, shape.block);
                overflow_rotated(work, shape, padded, chunk, [&](float* parts) {
                    sum_parts(chunk, shape, layout, done, padded, parts);
                });
                holds = TileHolds::kRotated;
            } else if (kResidual && count == kTileElems && with_run(shape.rotate, rotate)) {
                holds = TileHolds::kRotated;
                if (any_poison(work.tile, padded >> shape.log2_block)) {
                    __builtin_memcpy(values, work.kept, sizeof(work.kept));
                    measure_tile(work.tile, padded, shape.block);
                    holds = TileHolds::kElements;
                }
            } else {
                fill_tile(work.tile, source, count, padded, shape.block);
            }
            encode_tile(work, holds, shape, Planes<uint8_t>::of(chunk.output, shape, layout, done),
                        chunk.random, done, count, padded, residual);
        }
    }

    static void reduce(const ReduceChunk& chunk, const BlockIntShape& shape) {
        if (chunk.residual != nullptr) {
            reduce_as<true>(chunk, shape);
        } else {
            reduce_as<false>(chunk, shape);
        }
    }

    static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

    static constexpr ChunkKernels<BlockIntShape> kKernels = {encode, decode, reduce, nullptr};
};
