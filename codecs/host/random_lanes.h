// Random bytes of stochastic rounding, 256 values at a time: sixteen counters in the lanes.
// Included by lanes.h. Which value draws which byte: FORMAT.md, "Random numbers".

struct LaneArithmetic {
    SLIMWIRE_LANES Words add(Words a, Words b) { return slimwire::add(a, b); }
    SLIMWIRE_LANES Words exclusive_or(Words a, Words b) { return bit_xor(a, b); }
    SLIMWIRE_LANES Words constant(uint32_t x) { return broadcast_bits(x); }
    template <int kBy>
    SLIMWIRE_LANES Words rotate(Words x) {
        return rotate_left<kBy>(x);
    }
};

constexpr int64_t kRandomTile = 16 * kRandomGroup;  // values of one call below

// Writes the random bytes of values [first, first + 256) of a chunk, in their order; `first` is a
// multiple of 256.
SLIMWIRE_LANES void random_bytes(const ChunkRandom& random, int64_t first, uint8_t* to) {
    const uint64_t group = static_cast<uint64_t>(first) / kRandomGroup;
    Words x[4] = {add(broadcast_bits(static_cast<uint32_t>(group)), lane_numbers()),
                  broadcast_bits(static_cast<uint32_t>(group >> 32)), broadcast_bits(random.chunk),
                  broadcast_bits(random.step)};
    threefry<LaneArithmetic>(x, random.key);
    store_interleaved(to, x[0], x[1], x[2], x[3]);
}
