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

// Draws the bytes of elements first, ..., first + count - 1 of a chunk.
SLIMWIRE_LANES void draw_tile(Tile& tile, const ChunkRandom& random, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i += kRandomTile) {
        random_bytes(random, first + i, tile.random + i);
    }
}
