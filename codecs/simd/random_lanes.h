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

// Several counters of every lane side by side, where one alone leaves the processor waiting for
// itself.
#if defined(SLIMWIRE_ISA_AVX512)
constexpr int kRandomBatches = 4;
#else
constexpr int kRandomBatches = 1;
#endif

struct Batches {
    Words v[kRandomBatches];
};
struct BatchArithmetic {
    SLIMWIRE_LANES Batches add(Batches a, const Batches& b) {
        for (int i = 0; i < kRandomBatches; ++i) {
            a.v[i] = slimwire::add(a.v[i], b.v[i]);
        }
        return a;
    }
    SLIMWIRE_LANES Batches exclusive_or(Batches a, const Batches& b) {
        for (int i = 0; i < kRandomBatches; ++i) {
            a.v[i] = bit_xor(a.v[i], b.v[i]);
        }
        return a;
    }
    SLIMWIRE_LANES Batches constant(uint32_t x) {
        Batches r;
        for (Words& v : r.v) {
            v = broadcast_bits(x);
        }
        return r;
    }
    template <int kBy>
    SLIMWIRE_LANES Batches rotate(Batches x) {
        for (Words& v : x.v) {
            v = rotate_left<kBy>(v);
        }
        return x;
    }
};

constexpr int64_t kRandomRun = kRandomBatches * kRandomTile;

// Writes the random bytes of values [first, first + count), rounded up to kRandomRun; `first` is a
// multiple of that.
SLIMWIRE_LANES void draw_bytes(const ChunkRandom& random,
                               int64_t first,
                               int64_t count,
                               uint8_t* to) {
    const ChunkRandom key = random;  // which the stores below cannot touch
    for (int64_t i = 0; i < count; i += kRandomRun) {
        const uint64_t group = static_cast<uint64_t>(first + i) / kRandomGroup;
        Batches x[4];
        x[1] = BatchArithmetic::constant(static_cast<uint32_t>(group >> 32));
        x[2] = BatchArithmetic::constant(key.chunk);
        x[3] = BatchArithmetic::constant(key.step);
        for (uint32_t b = 0; b < kRandomBatches; ++b) {
            x[0].v[b] = add(broadcast_bits(static_cast<uint32_t>(group) + b * 16), lane_numbers());
        }
        threefry<BatchArithmetic>(x, key.key);
        for (int b = 0; b < kRandomBatches; ++b) {
            store_interleaved(to + i + b * kRandomTile, x[0].v[b], x[1].v[b], x[2].v[b], x[3].v[b]);
        }
    }
}
