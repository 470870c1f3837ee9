// The Hadamard rotation with random signs over the lanes: y = H D p forward, x = D H z back, both
// without a factor. Stages run in the order of strides 1, 2, 4, ..., one rounding each, so that all
// instruction sets and the kernels get the same bits. Rules: codecs/FORMAT.md, "Rotation".
// Included by block_int.cpp inside its anonymous namespace, after the lanes.

constexpr int kMaxRotate = 512;

// The sign bit of every element of a group.
struct Signs {
    alignas(64) uint32_t bits[kMaxRotate];
};

SLIMWIRE_LANES void draw_signs(Signs& signs, int rotate, uint32_t seed) {
    const RandomWords key = {{seed, 0, 0, static_cast<uint32_t>(RandomPurpose::kSigns)}};
    for (int begin = 0; begin < rotate; begin += 128) {
        uint32_t word[4] = {static_cast<uint32_t>(begin / 128), 0, 0, 0};
        threefry(word, key);
        for (int i = begin; i < begin + 128 && i < rotate; ++i) {
            signs.bits[i] = word[i % 128 / 32] >> (i % 32) << 31;
        }
    }
}

template <int kStride, int kVectors>
SLIMWIRE_LANES void butterflies(Floats (&x)[kVectors]) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
        x[i] = butterfly<kStride>(x[i]);
    }
}

// All stages of groups of kGroup registers.
template <int kGroup, int kVectors>
SLIMWIRE_LANES void hadamard(Floats (&x)[kVectors]) {
    if constexpr (kManyRegisters) {  // neighbouring instructions do not wait for each other
        butterflies<1>(x);
        butterflies<2>(x);
        butterflies<4>(x);
        butterflies<8>(x);
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; ++i) {
            x[i] = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(x[i]))));
        }
    }
#pragma GCC unroll 4
    for (int half = 1; half < kGroup; half *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; ++i) {
            if ((i & half) == 0) {
                const Floats a = x[i];
                const Floats b = x[i + half];
                x[i] = add(a, b);
                x[i + half] = subtract(a, b);
            }
        }
    }
}

SLIMWIRE_LANES Floats flip(Floats x, const uint32_t* signs) {
    return as_floats(bit_xor(as_words(x), load_words(signs)));
}

// Rotates the groups in 16 * kVectors elements from `from` to `to`, which may be one place. All of
// them are read first.
template <int kGroup, int kVectors, bool kSignsBefore, bool kSignsAfter, class From, class To>
SLIMWIRE_LANES void rotate_run(const From& from, const To& to, const uint32_t* signs) {
    Floats x[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
        x[i] = from(16 * i);
        if constexpr (kSignsBefore) {
            x[i] = flip(x[i], signs + 16 * (i % kGroup));
        }
    }
    hadamard<kGroup>(x);
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
        if constexpr (kSignsAfter) {
            x[i] = flip(x[i], signs + 16 * (i % kGroup));
        }
        to(16 * i, x[i]);
    }
}

struct LoadFrom {
    const float* values;
    [[gnu::always_inline]] Floats operator()(int i) const { return load_float32(values + i); }
};
struct StoreTo {
    float* values;
    [[gnu::always_inline]] void operator()(int i, Floats x) const { store_float32(values + i, x); }
};

template <int kVectors, bool kForward>
[[gnu::noinline]] static void rotate_runs(float* values, int64_t count, const uint32_t* signs) {
    for (int64_t i = 0; i < count; i += 16 * kVectors) {
        rotate_run<kVectors, kVectors, kForward, !kForward>(LoadFrom{values + i},
                                                            StoreTo{values + i}, signs);
    }
}

// One group of 512 elements: two runs of 256, then the stage between them.
template <bool kForward>
[[gnu::noinline]] static void rotate_512(float* values, const uint32_t* signs) {
    constexpr int kHalf = 256;
    for (int i = 0; i < 2 * kHalf; i += kHalf) {
        rotate_run<16, 16, kForward, false>(LoadFrom{values + i}, StoreTo{values + i}, signs + i);
    }
    for (int i = 0; i < kHalf; i += kLanes) {
        const Floats a = load_float32(values + i);
        const Floats b = load_float32(values + i + kHalf);
        const Floats sum = add(a, b);
        const Floats difference = subtract(a, b);
        store_float32(values + i, kForward ? sum : flip(sum, signs + i));
        store_float32(values + i + kHalf,
                      kForward ? difference : flip(difference, signs + i + kHalf));
    }
}

// Rotates every group of values[0, count) in place; count is a multiple of `rotate`.
template <bool kForward>
SLIMWIRE_LANES void rotate_groups(float* values, int64_t count, int rotate, const Signs& signs) {
    if (rotate == 32) {
        rotate_runs<2, kForward>(values, count, signs.bits);
    } else if (rotate == 64) {
        rotate_runs<4, kForward>(values, count, signs.bits);
    } else if (rotate == 128) {
        rotate_runs<8, kForward>(values, count, signs.bits);
    } else if (rotate == 256) {
        rotate_runs<16, kForward>(values, count, signs.bits);
    } else {
        for (int64_t i = 0; i < count; i += kMaxRotate) {
            rotate_512<kForward>(values + i, signs.bits);
        }
    }
}
