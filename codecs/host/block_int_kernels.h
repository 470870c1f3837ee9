// Block integers on the host: encode, decode, decode-reduce-encode of one chunk, tile by tile so
// that everything between two memory accesses stays in the first-level cache. Layout and rules:
// codecs/FORMAT.md. Included by kernels.cpp inside its anonymous namespace.

constexpr int64_t kTileElems = 2048;  // the largest block; a multiple of every block
constexpr int64_t kMaxTileBlocks = kTileElems / 16;

struct Tile {
    alignas(64) float values[kTileElems];
    alignas(64) uint32_t magnitude[kMaxTileBlocks];  // largest |bits| of each block
    alignas(64) uint32_t scale[kMaxTileBlocks];      // fp32 bits, as stored
    alignas(64) float inverse[kMaxTileBlocks];
};

SLIMWIRE_LANES int64_t whole_blocks(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

// Writes p for `count` elements (zeros up to the end of the last block) and the block maxima.
template <class Source>
SLIMWIRE_LANES void fill_tile(Tile& tile, const Source& source, int64_t count, int64_t block) {
    const Words magnitude_mask = broadcast_bits(kMagnitudeMask);
    int64_t i = 0;
    for (int64_t b = 0; i < count; ++b) {
        Words most = broadcast_bits(0);
        const int64_t end = (b + 1) * block;
        const int64_t full_end = end <= count ? end : i + (count - i) / kLanes * kLanes;
        for (; i < full_end; i += kLanes) {
            const Floats p = source.sixteen(i);
            store_float32(tile.values + i, p);
            most = maximum(most, bit_and(as_words(p), magnitude_mask));
        }
        for (; i < end; i += kLanes) {
            const Floats p = i < count ? source.some(i, count - i) : broadcast(0.0f);
            store_float32(tile.values + i, p);
            most = maximum(most, bit_and(as_words(p), magnitude_mask));
        }
        tile.magnitude[b] = largest(most);
    }
}

// Scale and inverse of every block from its largest magnitude.
template <int kBits>
SLIMWIRE_LANES void choose_scales(Tile& tile, int64_t blocks, bool scale_is_float32) {
    const Words zero = broadcast_bits(0);
    for (int64_t b = 0; b < blocks; b += kLanes) {
        const Words magnitude = load_words(tile.magnitude + b);
        Words scale = as_words(
            divide(as_floats(magnitude), broadcast(static_cast<float>(largest_code(kBits)))));
        if (!scale_is_float32) {  // up to the next bf16
            scale = bit_and(add(scale, broadcast_bits(0xFFFF)), broadcast_bits(0xFFFF0000u));
        }
        scale = minimum(scale, broadcast_bits(max_scale_bits(kBits)));
        scale = maximum(scale, broadcast_bits(kMinScaleBits));
        Words inverse = as_words(divide(broadcast(1.0f), as_floats(scale)));
        scale = select_at_least(magnitude, 1, scale, zero);
        inverse = select_at_least(magnitude, 1, inverse, zero);
        scale = select_at_least(magnitude, kInfinityBits, broadcast_bits(kNanScaleBits), scale);
        store_words(tile.scale + b, scale);
        store_words(tile.inverse + b, inverse);
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

// Codes, scales and the new residual of one block whose p stands at `values`.
template <int kBits, bool kResidual>
SLIMWIRE_LANES void encode_block(
    const Tile& tile, int64_t b, int64_t block, uint8_t* codes, float* residual, int64_t count) {
    constexpr int64_t kStep = kLanes * kBits / 8;
    const int64_t begin = b * block;
    if (tile.magnitude[b] >= kInfinityBits) {  // poison: the scale says it all
        __builtin_memset(codes, 0, static_cast<size_t>(block) * kBits / 8);
        return;
    }
    const Floats inverse = broadcast(tile.inverse[b]);
    const Floats scale = broadcast(__builtin_bit_cast(float, tile.scale[b]));
    for (int64_t i = begin; i < begin + block; i += kLanes, codes += kStep) {
        const Floats p = load_float32(tile.values + i);
        const Words quantised = quantise(p, inverse);
        pack<kBits>(quantised, codes);
        if constexpr (kResidual) {
            const Floats code = subtract(as_floats(quantised), broadcast(kRoundingMagic));
            const Floats left = subtract(p, multiply(code, scale));
            if (i + kLanes <= count) {
                store_float32(residual + i, left);
            } else if (i < count) {
                store_some<Float32>(bytes_of(residual + i), left, count - i);
            }
        }
    }
}

// Encodes up to kTileElems elements from `source`, whose indices start at 0.
template <int kBits, bool kResidual, class Source>
SLIMWIRE_LANES void encode_tile(Tile& tile,
                                const Source& source,
                                int64_t count,
                                const BlockIntShape& shape,
                                uint8_t* codes,
                                uint8_t* scales,
                                float* residual) {
    const int64_t block = shape.block;
    const int64_t blocks = whole_blocks(count, block);
    fill_tile(tile, source, count, block);
    choose_scales<kBits>(tile, blocks, shape.scale_is_float32);
    for (int64_t b = 0; b < blocks; ++b) {
        put_scale(scales, b, tile.scale[b], shape.scale_is_float32);
        encode_block<kBits, kResidual>(tile, b, block, codes + b * (block * kBits / 8), residual,
                                       count);
    }
}

// Decodes `count` elements into `sink`, whose indices start at 0.
template <int kBits, class Sink>
SLIMWIRE_LANES void decode_blocks(const uint8_t* codes,
                                  const uint8_t* scales,
                                  int64_t count,
                                  const BlockIntShape& shape,
                                  const Sink& sink) {
    constexpr int64_t kStep = kLanes * kBits / 8;
    const int64_t block = shape.block;
    for (int64_t begin = 0, b = 0; begin < count; begin += block, ++b) {
        const uint32_t bits = get_scale(scales, b, shape.scale_is_float32);
        const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
        const Dequantiser<kBits> dequantise(__builtin_bit_cast(float, bits));
        const Floats nan = broadcast(__builtin_bit_cast(float, kNanFloat32));
        const uint8_t* from = codes + b * (block * kBits / 8);
        const int64_t end = begin + block < count ? begin + block : count;
        int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes, from += kStep) {
            sink.sixteen(i, poison ? nan : dequantise(from));
        }
        if (i < end) {
            sink.some(i, poison ? nan : dequantise(from), end - i);
        }
    }
}

template <int kBits>
struct BlockInt {
    static int64_t code_bytes(int64_t count, const BlockIntShape& shape) {
        return whole_blocks(count, shape.block) * (shape.block * kBits / 8);
    }
    // Bytes from the scales of one tile to those of the next.
    static int64_t tile_scale_bytes(const BlockIntShape& shape) {
        return kTileElems / shape.block * (shape.scale_is_float32 ? 4 : 2);
    }

    template <class Element, bool kResidual>
    static void encode_as(const EncodeChunk& chunk, const BlockIntShape& shape) {
        Tile tile;
        uint8_t* codes = chunk.output;
        uint8_t* scales = chunk.output + code_bytes(chunk.count, shape);
        Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
        float* residual = chunk.residual;
        for (int64_t done = 0; done < chunk.count; done += kTileElems) {
            const int64_t left = chunk.count - done;
            encode_tile<kBits, kResidual>(tile, source, left < kTileElems ? left : kTileElems,
                                          shape, codes, scales, residual);
            codes += kTileElems * kBits / 8;
            scales += tile_scale_bytes(shape);
            source.input += kTileElems * Element::kBytes;
            if constexpr (kResidual) {
                source.residual += kTileElems;
                residual += kTileElems;
            }
        }
    }

    static void encode(const EncodeChunk& chunk, const BlockIntShape& shape) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            if (chunk.residual != nullptr) {
                encode_as<Element, true>(chunk, shape);
            } else {
                encode_as<Element, false>(chunk, shape);
            }
        });
    }

    template <class Element, bool kAccumulate>
    static void decode_as(const DecodeChunk& chunk, const BlockIntShape& shape) {
        decode_blocks<kBits>(chunk.input, chunk.input + code_bytes(chunk.count, shape), chunk.count,
                             shape, Sink<Element, kAccumulate>{chunk.output});
    }

    static void decode(const DecodeChunk& chunk, const BlockIntShape& shape) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            if (chunk.accumulate) {
                decode_as<Element, true>(chunk, shape);
            } else {
                decode_as<Element, false>(chunk, shape);
            }
        });
    }

    template <bool kResidual>
    static void reduce_as(const ReduceChunk& chunk, const BlockIntShape& shape) {
        alignas(64) float sum[kTileElems];
        Tile tile;
        const int64_t scales_at = code_bytes(chunk.count, shape);
        const int64_t tile_scales = tile_scale_bytes(shape);
        for (int64_t done = 0, t = 0; done < chunk.count; done += kTileElems, ++t) {
            const int64_t left = chunk.count - done;
            const int64_t count = left < kTileElems ? left : kTileElems;
            const int64_t codes_offset = t * (kTileElems * kBits / 8);
            const int64_t scales_offset = scales_at + t * tile_scales;
            const uint8_t* from = chunk.input;
            decode_blocks<kBits>(from + codes_offset, from + scales_offset, count, shape,
                                 Sink<Float32, false>{bytes_of(sum)});
            for (int32_t i = 1; i < chunk.inputs; ++i) {
                from += chunk.input_stride;
                decode_blocks<kBits>(from + codes_offset, from + scales_offset, count, shape,
                                     Sink<Float32, true>{bytes_of(sum)});
            }
            float* residual = kResidual ? chunk.residual + done : nullptr;
            encode_tile<kBits, kResidual>(
                tile, Source<Float32, kResidual>{bytes_of(sum), residual, broadcast(chunk.factor)},
                count, shape, chunk.output + codes_offset, chunk.output + scales_offset, residual);
        }
    }

    static void reduce(const ReduceChunk& chunk, const BlockIntShape& shape) {
        if (chunk.residual != nullptr) {
            reduce_as<true>(chunk, shape);
        } else {
            reduce_as<false>(chunk, shape);
        }
    }

    static constexpr BlockIntKernels kKernels = {encode, decode, reduce};
};
