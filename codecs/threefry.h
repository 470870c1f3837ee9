// THE generator of slimwire: Threefry4x32 (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC 2011), with 12 rounds. A pure function of a key and a counter, so host bodies, kernels,
// runs and graph replays draw the same. Who draws what: FORMAT.md, "Random numbers".
// Read by objects of any instruction set and by kernels: nothing here may become a shared symbol.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SLIMWIRE_EVERYWHERE __host__ __device__ __forceinline__ static
#else
#define SLIMWIRE_EVERYWHERE [[gnu::always_inline]] static inline
#endif

namespace slimwire {

// The fourth key word: what is drawn.
enum class RandomPurpose : uint32_t {
    kEncode = 0,    // rounding by encode
    kReduce = 1,    // rounding by decode_reduce_encode
    kSigns = 2,     // signs of a Hadamard rotation
    kChoice = 3,    // elements that random-k keeps
    kData = 4,      // data sets of tests and benchmarks
    kResidual = 5,  // rounding of a stored residual
    kFactor = 6,    // columns of a low-rank factor
};

inline constexpr int kRandomRounds = 12;
inline constexpr int kRandomGroup = 16;  // values that share one counter, a byte each

struct RandomWords {
    uint32_t v[4];
};

// Arithmetic of one word; the lanes of codecs/host bring their own for sixteen.
struct WordArithmetic {
    SLIMWIRE_EVERYWHERE uint32_t add(uint32_t a, uint32_t b) { return a + b; }
    SLIMWIRE_EVERYWHERE uint32_t exclusive_or(uint32_t a, uint32_t b) { return a ^ b; }
    SLIMWIRE_EVERYWHERE uint32_t constant(uint32_t x) { return x; }
    template <int kBy>
    SLIMWIRE_EVERYWHERE uint32_t rotate(uint32_t x) {
        return x << kBy | x >> (32 - kBy);
    }
};

inline constexpr int kThreefryRotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5},
                                                 {6, 20},  {17, 11}, {25, 10}, {18, 20}};

// One mixing step: a += b; b = (b rotated) ^ a.
template <class Arithmetic, int kBy, class Word>
SLIMWIRE_EVERYWHERE void threefry_mix(Word& a, Word& b) {
    a = Arithmetic::add(a, b);
    b = Arithmetic::exclusive_or(Arithmetic::template rotate<kBy>(b), a);
}

// Adds key set `number`: the key words from this number on, of the four and their parity.
template <class Arithmetic, class Word>
SLIMWIRE_EVERYWHERE void threefry_inject(Word (&x)[4], const RandomWords& key, uint32_t number) {
    const uint32_t schedule[5] = {key.v[0], key.v[1], key.v[2], key.v[3],
                                  0x1BD11BDAu ^ key.v[0] ^ key.v[1] ^ key.v[2] ^ key.v[3]};
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t word = schedule[(number + i) % 5] + (i == 3 ? number : 0);
        x[i] = Arithmetic::add(x[i], Arithmetic::constant(word));
    }
}

template <class Arithmetic, int kRound, int kRounds, class Word>
SLIMWIRE_EVERYWHERE void threefry_round(Word (&x)[4], const RandomWords& key) {
    if constexpr (kRound < kRounds) {
        constexpr int kFirst = kThreefryRotations[kRound % 8][0];
        constexpr int kSecond = kThreefryRotations[kRound % 8][1];
        constexpr int kPartner = kRound % 2 == 0 ? 1 : 3;  // of word 0; word 2 takes the other
        threefry_mix<Arithmetic, kFirst>(x[0], x[kPartner]);
        threefry_mix<Arithmetic, kSecond>(x[2], x[4 - kPartner]);
        if constexpr (kRound % 4 == 3) {
            threefry_inject<Arithmetic>(x, key, static_cast<uint32_t>(kRound / 4 + 1));
        }
        threefry_round<Arithmetic, kRound + 1, kRounds>(x, key);
    }
}

// Replaces the counter in x by its random words. Other numbers of rounds than kRandomRounds are for
// the published test vectors.
template <class Arithmetic = WordArithmetic, int kRounds = kRandomRounds, class Word>
SLIMWIRE_EVERYWHERE void threefry(Word (&x)[4], const RandomWords& key) {
    threefry_inject<Arithmetic>(x, key, 0);
    threefry_round<Arithmetic, 0, kRounds>(x, key);
}

}  // namespace slimwire
