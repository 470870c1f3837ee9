// The steps on one tile (simd/tile.h) of block integers on the host: codes, and back to values.
// Layout and rules: codecs/FORMAT.md. Included by block_int.cpp inside its anonymous namespace.

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
