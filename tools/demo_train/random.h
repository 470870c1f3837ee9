// Seeded random numbers with the same sequence on every standard library (the distributions of
// <random> are not portable). Used for initial parameters and for the order of the data.
#pragma once

#include <cstdint>

namespace demo {

// SplitMix64 (Steele, Lea, Flood, 2014).
class Random {
  public:
    Random(uint64_t seed, uint64_t stream) : state_(seed * 0x9e3779b97f4a7c15ull + stream) {
        next();
        next();
    }

    uint64_t next() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }

    // Uniform in [0, 1), 24 bits: exact in fp32.
    float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }

    // Uniform in 0 .. bound-1; the bias of the multiply-shift is below 2^-32 for our bounds.
    uint32_t below(uint32_t bound) {
        return static_cast<uint32_t>(((next() >> 32) * uint64_t{bound}) >> 32);
    }

  private:
    uint64_t state_;
};

}  // namespace demo
