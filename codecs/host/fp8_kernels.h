// Block floats on the host: the operations on one chunk, tile by tile so that
// everything between two memory accesses stays in the first-level cache. Layout and rules:
// codecs/FORMAT.md. Included by fp8.cpp inside its anonymous namespace.

constexpr int64_t kTileElems = 2048;  // the largest block; a multiple of every block
constexpr int64_t kMaxTileBlocks = kTileElems / 16;

struct Tile {
    alignas(64) float values[kTileElems];
    alignas(64) uint32_t magnitude[kMaxTileBlocks];  // largest |bits| of each block
    alignas(64) uint32_t scale[kMaxTileBlocks];      // fp32 bits, as stored
    alignas(64) float inverse[kMaxTileBlocks];
    alignas(64) uint8_t random[kTileElems];
};

SLIMWIRE_LANES int64_t whole_blocks(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

// Writes p for `count` elements (zeros up to the end of the last block) and the block maxima.
template <class Source>
SLIMWIRE_LANES void fill_tile(Tile& tile, const Source& source, int64_t count, int64_t block) {
    const Words magnitude_mask = broadcast_bits(kMagnitudeMask);
    const int64_t blocks = whole_blocks(count, block);
    Words maxima[kLanes];
    int64_t i = 0;
    for (int64_t b = 0; b < blocks; ++b) {
        Words most = broadcast_bits(0);
        const int64_t end = (b + 1) * block;
        const int64_t full_end = end <= count ? end : i + (count - i) / kLanes * kLanes;
        for (; i < full_end; i += kLanes) {
            const Floats p = source.sixteen(i);
            store_float32(tile.values + i, p);
            most = maximum(most, bit_and(as_words(p), magnitude_mask));
        }
        if (i < end) {
            __builtin_memset(tile.values + i, 0, static_cast<size_t>(end - i) * sizeof(float));
            if (i < count) {
                store_some<Float32>(bytes_of(tile.values + i), source.some(i, count - i),
                                    count - i);
                most = maximum(most, bit_and(load_words(tile.values + i), magnitude_mask));
            }
            i = end;
        }
        maxima[b % kLanes] = most;
        if (b % kLanes == kLanes - 1 || b == blocks - 1) {
            store_words(tile.magnitude + b / kLanes * kLanes, largest_of_each(maxima));
        }
    }
}

// A scale as fp32 bits to and from the scales plane.
SLIMWIRE_LANES void put_scale(uint8_t* scales, int64_t b, uint32_t bits, bool scale_is_float32) {
    if (scale_is_float32) {
        __builtin_memcpy(scales + 4 * b, &bits, 4);
    } else {
        const uint16_t high = static_cast<uint16_t>(bits >> 16);
        __builtin_memcpy(scales + 2 * b, &high, 2);
    }
}
SLIMWIRE_LANES uint32_t get_scale(const uint8_t* scales, int64_t b, bool scale_is_float32) {
    if (scale_is_float32) {
        uint32_t bits;
        __builtin_memcpy(&bits, scales + 4 * b, 4);
        return bits;
    }
    uint16_t high;
    __builtin_memcpy(&high, scales + 2 * b, 2);
    return static_cast<uint32_t>(high) << 16;
}

// Fast paths for buffers of bf16, where there are such.
template <class Element>
constexpr bool kIsBfloat16 = false;
template <>
constexpr bool kIsBfloat16<Bfloat16> = true;

#if defined(SLIMWIRE_ISA_AVX512)
#include "codecs/host/fp8_fast_avx512.h"
#else
constexpr bool kHasBfloat16Pairs = false;
constexpr int64_t kPairLanes = 32;
#endif

template <class Format>
struct Fp8 {
    static constexpr int kFractionBits = Format::kFractionBits;
    // fp32 bits from this one on are the exponent and fraction of the code.
    static constexpr int kDropped = 23 - kFractionBits;

    // Scale and inverse of every block from its largest magnitude.
    SLIMWIRE_LANES void choose_scales(Tile& tile, int64_t blocks, bool scale_is_float32) {
        const Words zero = broadcast_bits(0);
        for (int64_t b = 0; b < blocks; b += kLanes) {
            const Words magnitude = load_words(tile.magnitude + b);
            Words scale = as_words(divide(as_floats(magnitude), broadcast(Format::kMax)));
            if (!scale_is_float32) {  // up to the next bf16
                scale = bit_and(add(scale, broadcast_bits(0xFFFF)), broadcast_bits(0xFFFF0000u));
            }
            scale = minimum(scale, broadcast_bits(Format::kMaxScaleBits));
            scale = maximum(scale, broadcast_bits(kMinScaleBits));
            Words inverse = as_words(divide(broadcast(1.0f), as_floats(scale)));
            scale = select_at_least(magnitude, 1, scale, zero);
            inverse = select_at_least(magnitude, 1, inverse, zero);
            scale = select_at_least(magnitude, kInfinityBits, broadcast_bits(kNanScaleBits), scale);
            store_words(tile.scale + b, scale);
            store_words(tile.inverse + b, inverse);
        }
    }

    // Magnitudes up to the largest value, and their exponent fields, at least the smallest
    // normal's.
    struct Parts {
        Words magnitude, exponent;
    };
    SLIMWIRE_LANES Parts parts_of(Words bits) {
        const Words magnitude = minimum(bit_and(bits, broadcast_bits(kMagnitudeMask)),
                                        broadcast_bits(Format::kMaxBits));
        return {magnitude, maximum(bit_and(magnitude, broadcast_bits(kInfinityBits)),
                                   broadcast_bits(Format::kMinNormalBits))};
    }
    // The code of `steps` (in its low bits) above 0 in the range of this exponent, with the sign.
    SLIMWIRE_LANES Words code_of(Words steps, Words exponent, Words bits) {
        const Words code = add(steps, shift_right<kDropped>(exponent));
        return bit_or(bit_and(code, broadcast_bits(0x7F)),
                      bit_and(shift_right<24>(bits), broadcast_bits(0x80)));
    }
    static constexpr uint32_t kCodeOffset = 0u - (Format::kMinNormalBits >> kDropped);

    // Nearest even: the sum with a power of two whose unit is the step has the steps as its low
    // bits. The offset stands there already; it is even, so that ties stay where they were.
    SLIMWIRE_LANES Words nearest(Floats y) {
        const Words bits = as_words(y);
        const Parts parts = parts_of(bits);
        const Words magic =
            add(parts.exponent, broadcast_bits((kDropped << 23) | (kCodeOffset & 0x7F)));
        const Floats sum = add(as_floats(parts.magnitude), as_floats(magic));
        return code_of(as_words(sum), parts.exponent, bits);
    }

    // Stochastic: 512 times the steps, without their fraction, plus `drawn`.
    SLIMWIRE_LANES Words stochastic(Floats y, Words drawn) {
        const Words bits = as_words(y);
        const Parts parts = parts_of(bits);
        // 2^(9 + kFractionBits - e) from the field of e.
        const Words power =
            subtract(broadcast_bits((254u + 9 + kFractionBits) << 23), parts.exponent);
        const Words fixed = truncate(multiply(as_floats(parts.magnitude), as_floats(power)));
        const Words steps = add(shift_right<9>(add(fixed, drawn)), broadcast_bits(kCodeOffset));
        return code_of(steps, parts.exponent, bits);
    }

    // Codes and the new residual of block b, whose p stand in the tile.
    template <bool kResidual, bool kStochastic>
    SLIMWIRE_LANES void encode_block(const Tile& tile,
                                     int64_t b,
                                     int64_t block,
                                     uint8_t* codes,
                                     float* residual,
                                     int64_t count) {
        const int64_t begin = b * block;
        if (tile.magnitude[b] >= kInfinityBits) {  // poison: the scale says it all
            __builtin_memset(codes + begin, 0, static_cast<size_t>(block));
            return;
        }
        const Floats inverse = broadcast(tile.inverse[b]);
        const Floats scale = broadcast(__builtin_bit_cast(float, tile.scale[b]));
        for (int64_t i = begin; i < begin + block; i += kLanes) {
            const Floats p = load_float32(tile.values + i);
            const Floats y = multiply(p, inverse);
            if constexpr (kStochastic) {
                const Words drawn =
                    add(shift_left<1>(load_bytes(tile.random + i)), broadcast_bits(1));
                pack<8>(stochastic(y, drawn), codes + i);
            } else {
                pack<8>(nearest(y), codes + i);
            }
            if constexpr (kResidual) {
                const Floats left = subtract(p, multiply(load_fp8(codes + i, Format{}), scale));
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
    template <bool kResidual, bool kStochastic, class Source>
    SLIMWIRE_LANES void encode_tile(Tile& tile,
                                    const Source& source,
                                    const ChunkRandom& random,
                                    int64_t first,
                                    int64_t count,
                                    const BlockFloatShape& shape,
                                    uint8_t* codes,
                                    uint8_t* scales,
                                    float* residual) {
        const int64_t block = shape.block;
        const int64_t blocks = whole_blocks(count, block);
        fill_tile(tile, source, count, block);
        choose_scales(tile, blocks, shape.scale_is_float32);
        if constexpr (kStochastic) {
            for (int64_t i = 0; i < blocks * block; i += kRandomTile) {
                random_bytes(random, first + i, tile.random + i);
            }
        }
        for (int64_t b = 0; b < blocks; ++b) {
            put_scale(scales, b, tile.scale[b], shape.scale_is_float32);
            encode_block<kResidual, kStochastic>(tile, b, block, codes, residual, count);
        }
    }

    // Encodes a whole tile of bf16 as it is. False, and nothing that stays, where a block is not
    // finite or its scale is at the cap, where codes need to be clamped.
    template <bool kStochastic>
    SLIMWIRE_LANES bool encode_bfloat16_tile([[maybe_unused]] Tile& tile,
                                             [[maybe_unused]] const uint8_t* input,
                                             [[maybe_unused]] const ChunkRandom& random,
                                             [[maybe_unused]] int64_t first,
                                             [[maybe_unused]] const BlockFloatShape& shape,
                                             [[maybe_unused]] uint8_t* codes,
                                             [[maybe_unused]] uint8_t* scales) {
#if defined(SLIMWIRE_ISA_AVX512)
        const int64_t blocks = kTileElems / shape.block;
        bfloat16_magnitudes(tile, input, shape.block);
        choose_scales(tile, blocks, shape.scale_is_float32);
        Words most = broadcast_bits(0);
        for (int64_t b = 0; b < blocks; b += kLanes) {
            most = maximum(most, load_words(tile.scale + b));
        }
        if (largest(most) >= Format::kMaxScaleBits) {
            return false;
        }
        for (int64_t b = 0; b < blocks; ++b) {
            put_scale(scales, b, tile.scale[b], shape.scale_is_float32);
        }
        if constexpr (kStochastic) {
            for (int64_t i = 0; i < kTileElems; i += kRandomTile) {
                random_bytes(random, first + i, tile.random + i);
            }
        }
        encode_bfloat16_codes<Format, kStochastic>(tile, shape.block, input, codes);
        return true;
#else
        return false;
#endif
    }

    // Decodes `count` elements into `sink`, whose indices start at 0.
    template <bool kFast, class Sink>
    SLIMWIRE_LANES void decode_blocks(const uint8_t* codes,
                                      const uint8_t* scales,
                                      int64_t count,
                                      const BlockFloatShape& shape,
                                      const Sink& sink) {
        const int64_t block = shape.block;
        for (int64_t begin = 0, b = 0; begin < count; begin += block, ++b) {
            const uint32_t bits = get_scale(scales, b, shape.scale_is_float32);
            const int64_t end = begin + block < count ? begin + block : count;
            if constexpr (kFast) {
                if (end == begin + block && block >= kPairLanes &&
                    decode_bfloat16_block<Format>(codes + begin, bits, block,
                                                  sink.output + 2 * begin)) {
                    continue;
                }
            }
            const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
            // The product of anything and NaN is NaN.
            const Floats scale = broadcast(__builtin_bit_cast(float, poison ? kNanFloat32 : bits));
            int64_t i = begin;
            for (; i + kLanes <= end; i += kLanes) {
                sink.sixteen(i, multiply(load_fp8(codes + i, Format{}), scale));
            }
            if (i < end) {
                sink.some(i, multiply(load_fp8(codes + i, Format{}), scale), end - i);
            }
        }
    }

    static int64_t code_bytes(int64_t count, const BlockFloatShape& shape) {
        return whole_blocks(count, shape.block) * shape.block;
    }
    // Bytes from the scales of one tile to those of the next.
    static int64_t tile_scale_bytes(const BlockFloatShape& shape) {
        return kTileElems / shape.block * (shape.scale_is_float32 ? 4 : 2);
    }

    template <class Element, bool kResidual, bool kStochastic>
    static void encode_as(const EncodeChunk& chunk, const BlockFloatShape& shape) {
        Tile tile;
        uint8_t* scales = chunk.output + code_bytes(chunk.count, shape);
        Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            bool encoded = false;
            if constexpr (kHasBfloat16Pairs && kIsBfloat16<Element> && !kResidual) {
                encoded = left >= kTileElems && chunk.factor == 1.0f && shape.block >= kPairLanes &&
                          encode_bfloat16_tile<kStochastic>(tile, source.input, chunk.random, done,
                                                            shape, chunk.output + done, scales);
            }
            if (!encoded) {
                encode_tile<kResidual, kStochastic>(
                    tile, source, chunk.random, done, left < kTileElems ? left : kTileElems, shape,
                    chunk.output + done, scales, kResidual ? chunk.residual + done : nullptr);
            }
            scales += tile_scale_bytes(shape);
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
        constexpr bool kFast = kHasBfloat16Pairs && kIsBfloat16<Element> && !kAccumulate;
        decode_blocks<kFast>(chunk.input, chunk.input + code_bytes(chunk.count, shape), chunk.count,
                             shape, Sink<Element, kAccumulate>{chunk.output});
    }

    static void decode(const DecodeChunk& chunk, const BlockFloatShape& shape) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            chunk.accumulate ? decode_as<Element, true>(chunk, shape)
                             : decode_as<Element, false>(chunk, shape);
        });
    }

    // The sum over the sources of `count` elements from element `done` on, whose scales stand at
    // `scales_offset`.
    static void sum_tile(const ReduceChunk& chunk,
                         const BlockFloatShape& shape,
                         int64_t done,
                         int64_t scales_offset,
                         int64_t count,
                         float* sum) {
        const uint8_t* from = chunk.input;
        decode_blocks<false>(from + done, from + scales_offset, count, shape,
                             Sink<Float32, false>{bytes_of(sum)});
        for (int32_t i = 1; i < chunk.inputs; ++i) {
            from += chunk.input_stride;
            decode_blocks<false>(from + done, from + scales_offset, count, shape,
                                 Sink<Float32, true>{bytes_of(sum)});
        }
    }

    template <bool kResidual, bool kStochastic>
    static void reduce_as(const ReduceChunk& chunk, const BlockFloatShape& shape) {
        alignas(64) float sum[kTileElems];
        Tile tile;
        const int64_t scales_at = code_bytes(chunk.count, shape);
        for (int64_t done = 0, t = 0; done < chunk.count; done += kTileElems, ++t) {
            const int64_t left = chunk.count - done;
            const int64_t count = left < kTileElems ? left : kTileElems;
            const int64_t scales_offset = scales_at + t * tile_scale_bytes(shape);
            sum_tile(chunk, shape, done, scales_offset, count, sum);
            float* residual = kResidual ? chunk.residual + done : nullptr;
            encode_tile<kResidual, kStochastic>(
                tile, Source<Float32, kResidual>{bytes_of(sum), residual, broadcast(chunk.factor)},
                chunk.random, done, count, shape, chunk.output + done, chunk.output + scales_offset,
                residual);
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
        const int64_t scales_at = code_bytes(chunk.count, shape);
        for (int64_t done = 0, t = 0; done < chunk.count; done += kTileElems, ++t) {
            const int64_t left = chunk.count - done;
            const int64_t count = left < kTileElems ? left : kTileElems;
            sum_tile(chunk, shape, done, scales_at + t * tile_scale_bytes(shape), count, sum);
            put_scaled<Element>(sum, broadcast(chunk.factor), chunk.output + done * Element::kBytes,
                                count);
        }
    }
    static void sum(const ReduceChunk& chunk, const BlockFloatShape& shape) {
        visit(chunk.dtype, [&](auto element) { sum_as<decltype(element)>(chunk, shape); });
    }

    static constexpr Fp8Kernels kKernels = {encode, decode, reduce, sum};
};
