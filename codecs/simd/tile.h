// One tile of a chunk on the host: what stays in the first-level cache between two memory accesses,
// and how it is filled. Included by <family>/host/<family>.cpp inside its anonymous namespace,
// after the lanes.

constexpr int64_t kTileElems = 2048;  // the largest block; a multiple of every block
constexpr int64_t kMaxTileBlocks = kTileElems / 16;

struct Tile {
    alignas(64) float values[kTileElems];
    alignas(64) uint32_t magnitude[kMaxTileBlocks];  // largest |bits| of each block
    alignas(64) uint32_t scale[kMaxTileBlocks];      // fp32 bits, as stored
    alignas(64) float inverse[kMaxTileBlocks];
    alignas(64) uint8_t random[kTileElems];
    uint32_t most = kMaxFloat32Bits;  // of the user's type
};

SLIMWIRE_LANES int64_t whole_blocks(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

SLIMWIRE_LANES Words magnitude_of(Floats x) {
    return bit_and(as_words(x), broadcast_bits(kMagnitudeMask));
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
        if (i < end) {  // what is not there is a positive zero
            const int64_t there = i < count ? count - i : 0;
            const Floats p = there > 0 ? source.some(i, there) : broadcast(0.0f);
            __builtin_memset(tile.values + i, 0, static_cast<size_t>(end - i) * sizeof(float));
            store_some<Float32>(bytes_of(tile.values + i), p, there);
            block_most = maximum(block_most, magnitude_of(p));
            i = end;
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

// Draws the bytes of elements first, ..., first + count - 1 of a chunk.
SLIMWIRE_LANES void draw_tile(Tile& tile, const ChunkRandom& random, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i += kRandomTile) {
        random_bytes(random, first + i, tile.random + i);
    }
}

// --- Scales of two or four bytes

// Scale and inverse of every block from its largest magnitude, which becomes at most
// `largest_value`; scales of two bytes are bf16, none is above kMaxScaleBits.
template <uint32_t kMaxScaleBits>
SLIMWIRE_LANES void choose_scales(Tile& tile,
                                  int64_t blocks,
                                  float largest_value,
                                  int scale_bytes) {
    const Words zero = broadcast_bits(0);
    for (int64_t b = 0; b < blocks; b += kLanes) {
        const Words magnitude = load_words(tile.magnitude + b);
        Words scale = as_words(divide(as_floats(magnitude), broadcast(largest_value)));
        if (scale_bytes == 2) {  // up to the next bf16
            scale = bit_and(add(scale, broadcast_bits(0xFFFF)), broadcast_bits(0xFFFF0000u));
        }
        scale = minimum(scale, broadcast_bits(kMaxScaleBits));
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

SLIMWIRE_LANES Words nan_unless_finite(Words scale) {
    return select_at_least(magnitude_of(as_floats(scale)), kInfinityBits,
                           broadcast_bits(kNanFloat32), scale);
}

SLIMWIRE_LANES void load_scales(const uint8_t* scales, int64_t blocks, int scale_bytes, float* to) {
    int64_t b = 0;
    for (; b + kLanes <= blocks; b += kLanes) {
        const Floats raw =
            scale_bytes == 4 ? load_float32(scales + 4 * b) : load_bfloat16(scales + 2 * b);
        store_words(to + b, nan_unless_finite(as_words(raw)));
    }
    for (; b < blocks; ++b) {
        const uint32_t bits = get_scale(scales, b, scale_bytes);
        const bool finite = (bits & kMagnitudeMask) < kInfinityBits;
        to[b] = __builtin_bit_cast(float, finite ? bits : kNanFloat32);
    }
}
