// One tile of block integers on the host: what stays in the first-level cache between two memory
// accesses, and the steps on it: maxima, scales, codes, and back to values. Layout and rules:
// codecs/FORMAT.md. Included by block_int.cpp inside its anonymous namespace, after the lanes.

constexpr int64_t kTileElems = 2048;  // the largest block; a multiple of every block and rotation
constexpr int64_t kMaxTileBlocks = kTileElems / 16;

struct Tile {
    alignas(64) float values[kTileElems];            // what is quantised
    alignas(64) uint32_t magnitude[kMaxTileBlocks];  // largest |bits| of each block
    alignas(64) uint32_t scale[kMaxTileBlocks];      // fp32 bits, as stored
    alignas(64) float inverse[kMaxTileBlocks];
    alignas(64) uint8_t random[kTileElems];  // byte of each value, for stochastic rounding
    uint32_t most = kMaxFloat32Bits;         // of the user's type
};

// Where the planes of a tile begin.
template <class Byte>
struct Planes {
    Byte* codes;
    Byte* scales;

    // Of the tile that begins at element `done` of an encoding.
    static Planes of(Byte* encoding,
                     const BlockIntShape& shape,
                     const BlockIntLayout& layout,
                     int64_t done) {
        const int64_t block = done >> shape.log2_block;
        return {encoding + done / 8 * shape.bits,
                encoding + layout.scales + block * shape.scale_bytes};
    }
};

SLIMWIRE_LANES Words magnitude_of(Floats x) {
    return bit_and(as_words(x), broadcast_bits(kMagnitudeMask));
}

// Block maxima of a tile that is filled.
SLIMWIRE_LANES void measure_tile(Tile& tile, int64_t padded, int64_t block) {
    const int64_t blocks = padded / block;
    const float* values = tile.values;
    Words most[kLanes];
    for (int64_t b = 0; b < blocks; ++b, values += block) {
        Words block_most = magnitude_of(load_float32(values));
        for (int64_t i = kLanes; i < block; i += kLanes) {
            block_most = maximum(block_most, magnitude_of(load_float32(values + i)));
        }
        most[b % kLanes] = block_most;
        if (b % kLanes == kLanes - 1) {
            store_words(tile.magnitude + b + 1 - kLanes, largest_of_each(most));
        }
    }
    for (int64_t b = blocks / kLanes * kLanes; b < blocks; ++b) {
        tile.magnitude[b] = largest(most[b % kLanes]);
    }
}

// Writes p for `count` elements and zeros up to `padded`, a multiple of the block, and the block
// maxima. The source may read from `tile.values`.
template <class Source>
SLIMWIRE_LANES void fill_tile(
    Tile& tile, const Source& source, int64_t count, int64_t padded, int64_t block) {
    Words most[kLanes];
    int64_t i = 0;
    for (int64_t b = 0; i < padded; ++b) {
        Words block_most = broadcast_bits(0);
        const int64_t end = i + block;
        const int64_t full_end = end <= count ? end : count / kLanes * kLanes;
        for (; i < full_end; i += kLanes) {
            if constexpr (requires { source.ahead(i); }) {
                source.ahead(i);
            }
            const Floats p = source.sixteen(i);
            store_float32(tile.values + i, p);
            block_most = maximum(block_most, magnitude_of(p));
        }
        for (; i < end; i += kLanes) {
            const Floats p = i < count ? source.some(i, count - i) : broadcast(0.0f);
            store_float32(tile.values + i, p);
            block_most = maximum(block_most, magnitude_of(p));
        }
        most[b % kLanes] = block_most;
        if (b % kLanes == kLanes - 1) {
            store_words(tile.magnitude + b + 1 - kLanes, largest_of_each(most));
        } else if (i >= padded) {
            for (int64_t k = b / kLanes * kLanes; k <= b; ++k) {
                tile.magnitude[k] = largest(most[k % kLanes]);
            }
        }
    }
}

// Scale and inverse of every block from its largest magnitude.
template <int kBits>
SLIMWIRE_LANES void choose_scales(Tile& tile, int64_t blocks, const BlockIntShape& shape) {
    const Words zero = broadcast_bits(0);
    for (int64_t b = 0; b < blocks; b += kLanes) {
        const Words magnitude = load_words(tile.magnitude + b);
        Words scale = as_words(
            divide(as_floats(magnitude), broadcast(static_cast<float>(largest_code(kBits)))));
        if (shape.scale_bytes == 2) {  // up to the next bf16
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
SLIMWIRE_LANES void put_scales(const Tile& tile, int64_t blocks, int scale_bytes, uint8_t* scales) {
    if (scale_bytes == 4) {
        __builtin_memcpy(scales, tile.scale, static_cast<size_t>(blocks) * 4);
        return;
    }
    const int64_t whole = blocks / kLanes * kLanes;
    for (int64_t b = 0; b < whole; b += kLanes) {  // exact: the low halves are zero
        store_bfloat16(scales + 2 * b, as_floats(load_words(tile.scale + b)));
    }
    for (int64_t b = whole; b < blocks; ++b) {
        const uint16_t high = static_cast<uint16_t>(tile.scale[b] >> 16);
        __builtin_memcpy(scales + 2 * b, &high, 2);
    }
}
SLIMWIRE_LANES uint32_t get_scale(const uint8_t* scales, int64_t b, int scale_bytes) {
    if (scale_bytes == 4) {
        uint32_t bits;
        __builtin_memcpy(&bits, scales + 4 * b, 4);
        return bits;
    }
    uint16_t high;
    __builtin_memcpy(&high, scales + 2 * b, 2);
    return static_cast<uint32_t>(high) << 16;
}

// The largest magnitude of a code.
template <int kBits>
constexpr float kReach = static_cast<float>(1 << (kBits - 1));

// What follows the codes of a block.
enum class After {
    kNothing,
    kResidual,  // p - decoded goes to the residual
    kDecoded,   // the decoded values take the place of the tile's, times `unrotate`
};

// Codes of 16 * kRegisters elements of a finite block, and what follows; `count` elements of the
// tile have a residual.
template <int kBits, bool kStochastic, After kAfter, int kRegisters>
SLIMWIRE_LANES void encode_elements(Tile& tile,
                                    int64_t first,
                                    Floats inverse,
                                    const CodeValues<kBits>& value_of,
                                    const Limit& limit,
                                    uint8_t* codes,
                                    float* residual,
                                    int64_t count) {
    Words quantised[kRegisters];
#pragma GCC unroll 4
    for (int k = 0; k < kRegisters; ++k) {
        const int64_t i = first + kLanes * k;
        const Floats p = load_float32(tile.values + i);
        if constexpr (kStochastic) {
            quantised[k] = quantise_stochastic<kBits>(p, inverse, load_bytes(tile.random + i));
        } else {
            quantised[k] = quantise(p, inverse);
        }
        if constexpr (kAfter == After::kDecoded) {
            store_float32(tile.values + i, value_of(quantised[k]));
        } else if constexpr (kAfter == After::kResidual) {
            const Floats lost = subtract(p, limit(value_of(quantised[k])));
            __builtin_prefetch(residual + i + kTileElems, 1);
            if (i + kLanes <= count) {
                store_float32(residual + i, lost);
            } else if (i < count) {
                store_some<Float32>(bytes_of(residual + i), lost, count - i);
            }
        }
    }
    if constexpr (kRegisters == 4) {
        pack_64<kBits>(quantised, codes);
    } else {
        pack<kBits>(quantised[0], codes);
    }
}

// Codes of block b of the tile, and what follows.
template <int kBits, bool kStochastic, After kAfter>
SLIMWIRE_LANES void encode_block(Tile& tile,
                                 int64_t b,
                                 const BlockIntShape& shape,
                                 uint8_t* codes,
                                 float* residual,
                                 int64_t count) {
    const int64_t begin = b << shape.log2_block;
    const int64_t end = begin + shape.block;
    if (tile.magnitude[b] >= kInfinityBits) {  // poison: the scale says it all
        __builtin_memset(codes, 0, static_cast<size_t>(shape.block) * kBits / 8);
        if constexpr (kAfter == After::kDecoded) {
            for (int64_t i = begin; i < end; i += kLanes) {
                store_float32(tile.values + i, as_floats(broadcast_bits(kNanFloat32)));
            }
        }
        return;
    }
    const Floats inverse = broadcast(tile.inverse[b]);
    const float scale = __builtin_bit_cast(float, tile.scale[b]);
    const CodeValues<kBits> value_of(kAfter == After::kDecoded ? scale * shape.unrotate : scale);
    const Limit limit(scale, kReach<kBits>, tile.most);
    if (shape.block < 4 * kLanes) {
        for (int64_t i = begin; i < end; i += kLanes, codes += 2 * kBits) {
            encode_elements<kBits, kStochastic, kAfter, 1>(tile, i, inverse, value_of, limit, codes,
                                                           residual, count);
        }
        return;
    }
    for (int64_t i = begin; i < end; i += 4 * kLanes, codes += 8 * kBits) {
        encode_elements<kBits, kStochastic, kAfter, 4>(tile, i, inverse, value_of, limit, codes,
                                                       residual, count);
    }
}

template <int kBits, bool kStochastic, After kAfter>
[[gnu::noinline]] static void encode_blocks(Tile& tile,
                                            int64_t blocks,
                                            const BlockIntShape& shape,
                                            uint8_t* codes,
                                            float* residual,
                                            int64_t count) {
    const int64_t step = int64_t{shape.block} * kBits / 8;
    for (int64_t b = 0; b < blocks; ++b) {
        encode_block<kBits, kStochastic, kAfter>(tile, b, shape, codes + b * step, residual, count);
    }
}

// Decodes `count` elements into `sink`, whose indices start at 0; scales are multiplied by
// `factor`, a power of two, first.
template <int kBits, class Sink>
SLIMWIRE_LANES void decode_blocks(const Planes<const uint8_t>& planes,
                                  int64_t count,
                                  const BlockIntShape& shape,
                                  float factor,
                                  const Sink& sink) {
    constexpr int64_t kStep = kLanes * kBits / 8;
    const int64_t block = shape.block;
    for (int64_t begin = 0, b = 0; begin < count; begin += block, ++b) {
        const uint32_t bits = get_scale(planes.scales, b, shape.scale_bytes);
        const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
        const Dequantiser<kBits> dequantise(__builtin_bit_cast(float, bits) * factor);
        const Limit limit(__builtin_bit_cast(float, bits), kReach<kBits>, sink.most);
        const Floats nan = broadcast(__builtin_bit_cast(float, kNanFloat32));
        const uint8_t* from = planes.codes + b * (block * kBits / 8);
        const int64_t end = begin + block < count ? begin + block : count;
        int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes, from += kStep) {
            sink.sixteen(i, poison ? nan : limit(dequantise(from)));
        }
        if (i < end) {
            sink.some(i, poison ? nan : limit(dequantise(from)), end - i);
        }
    }
}
