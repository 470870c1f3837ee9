// The sum over sources of block integers, block by block, with the sums of a block in registers.
// Same bits as decoding the sources one after the other. Used by the reductions of
// block_int_kernels.h. Included by block_int.cpp inside its anonymous namespace.

constexpr int kMaxSources = 16;

// What is read of one tile of every source.
struct TileSources {
    int count;
    Floats input_scale;
    const uint8_t* codes[kMaxSources];
    // Of each block; NaN where the source's scale is not finite.
    alignas(64) float scale[kMaxSources][kTileElems / 32];
};

SLIMWIRE_LANES bool sums_in_registers(const ReduceChunk& chunk, const BlockIntShape& shape) {
    return chunk.inputs <= kMaxSources && shape.block >= 32;
}

// Sums of 32 * kPairs elements of block b, the first being element i of the tile.
template <int kBits, int kPairs>
SLIMWIRE_LANES void sum_elements(const TileSources& sources, int64_t i, int64_t b, float* sum) {
    constexpr int64_t kPairBytes = 2 * kLanes * kBits / 8;
    const int64_t at = i * kBits / 8;
    Floats total[kPairs][2];
    __builtin_prefetch(sources.codes[0] + at + kTileElems * kBits / 8);
    const WideDequantiser<kBits> first(sources.scale[0][b]);
    for (int pair = 0; pair < kPairs; ++pair) {
        first(sources.codes[0] + at + pair * kPairBytes, total[pair]);
        total[pair][0] = multiply(sources.input_scale, total[pair][0]);
        total[pair][1] = multiply(sources.input_scale, total[pair][1]);
    }
    for (int k = 1; k < sources.count; ++k) {
        const uint8_t* from = sources.codes[k] + at;
        __builtin_prefetch(from + kTileElems * kBits / 8);
        const WideDequantiser<kBits> dequantise(sources.scale[k][b]);
        for (int pair = 0; pair < kPairs; ++pair) {
            Floats x[2];
            dequantise(from + pair * kPairBytes, x);
            total[pair][0] = multiply_add(sources.input_scale, x[0], total[pair][0]);
            total[pair][1] = multiply_add(sources.input_scale, x[1], total[pair][1]);
        }
    }
    for (int pair = 0; pair < kPairs; ++pair) {
        WideDequantiser<kBits>::in_order(total[pair]);
        store_float32(sum + i + 2 * kLanes * pair, total[pair][0]);
        store_float32(sum + i + 2 * kLanes * pair + kLanes, total[pair][1]);
    }
}

// Whether values of a source may leave the user's type.
template <int kBits>
SLIMWIRE_LANES bool any_leaves(const TileSources& sources, int64_t blocks, uint32_t most) {
    uint32_t largest_scale = 0;
    for (int k = 0; k < sources.count && most < kMaxFloat32Bits; ++k) {
        for (int64_t b = 0; b < blocks; ++b) {
            const uint32_t magnitude =
                __builtin_bit_cast(uint32_t, sources.scale[k][b]) & kMagnitudeMask;
            const uint32_t finite = magnitude < kInfinityBits ? magnitude : 0;
            largest_scale = finite > largest_scale ? finite : largest_scale;
        }
    }
    return Limit(__builtin_bit_cast(float, largest_scale), kReach<kBits>, most).needed;
}

// Sums of the tile that begins at element `done` and has `padded` elements; false, and nothing
// done, where a value may have to be kept within the user's type.
template <int kBits>
SLIMWIRE_LANES bool sum_blocks(const ReduceChunk& chunk,
                               const BlockIntShape& shape,
                               const BlockIntLayout& layout,
                               int64_t done,
                               int64_t padded,
                               float* sum) {
    TileSources sources;
    sources.count = chunk.inputs;
    sources.input_scale = broadcast(chunk.input_scale);
    for (int k = 0; k < chunk.inputs; ++k) {
        const auto planes =
            Planes<const uint8_t>::of(chunk.input + k * chunk.input_stride, shape, layout, done);
        sources.codes[k] = planes.codes;
        load_scales(planes.scales, padded >> shape.log2_block, shape.scale_bytes, sources.scale[k]);
    }
    if (shape.rotate == 0 &&
        any_leaves<kBits>(sources, padded >> shape.log2_block, max_bits(chunk.dtype))) {
        return false;
    }
    if (shape.block == 32) {
        for (int64_t i = 0; i < padded; i += 32) {
            sum_elements<kBits, 1>(sources, i, i / 32, sum);
        }
        return true;
    }
    for (int64_t i = 0; i < padded; i += 64) {
        sum_elements<kBits, 2>(sources, i, i >> shape.log2_block, sum);
    }
    return true;
}
