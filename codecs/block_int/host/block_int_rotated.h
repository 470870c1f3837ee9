// Rotated block integers whose rotation fits the registers: one pass rotates a whole tile and
// measures its blocks, a second quantises the elements of a rotation, rotates what they decode to
// back and leaves the residual, all in registers. Same bytes as the general path of
// block_int_kernels.h, which calls this. Included by block_int.cpp inside its anonymous namespace.

// What the tiles of one operation share.
struct Workshop {
    Tile tile;
    alignas(64) float kept[kTileElems];  // p, where the rotation took its place in the tile
    Signs signs;

    Workshop(const BlockIntShape& shape, uint32_t most) {
        tile.most = most;
        if (shape.rotate != 0) {
            draw_signs(signs, shape.rotate, shape.seed);
        }
    }
    // x after a rotation, within the user's type.
    [[gnu::always_inline]] Floats decoded(Floats x) const { return Limit(tile.most)(x); }
};

// Calls run(vectors) with the number of registers of a rotation, as a type; false above 256
// elements, which take more than a run.
template <int kVectors>
struct RunOf {};
template <class Run>
SLIMWIRE_LANES bool with_run(int rotate, Run run) {
    if (rotate == 32) {
        run(RunOf<2>{});
    } else if (rotate == 64) {
        run(RunOf<4>{});
    } else if (rotate == 128) {
        run(RunOf<8>{});
    } else if (rotate == 256) {
        run(RunOf<16>{});
    } else {
        return false;
    }
    return true;
}

template <int kBits, int kVectors>
SLIMWIRE_LANES void pack_run(const Words (&codes)[kVectors], uint8_t* to) {
    if constexpr (kVectors % 4 == 0) {
#pragma GCC unroll 4
        for (int k = 0; k < kVectors; k += 4) {
            pack_64<kBits>({codes[k], codes[k + 1], codes[k + 2], codes[k + 3]},
                           to + 2 * kBits * k);
        }
    } else {
        for (int k = 0; k < kVectors; ++k) {
            pack<kBits>(codes[k], to + 2 * kBits * k);
        }
    }
}

// Registers that are rotated side by side.
template <int kVectors>
constexpr int kTogether = kManyRegisters&& kVectors < 8 ? 8 : kVectors;

// y of a whole tile and its block maxima; p is kept for a residual. The source may read from
// `tile.values`.
template <int kVectors, bool kKeep, class Source>
SLIMWIRE_LANES void fill_rotated(Workshop& work, const Source& source, int64_t block) {
    constexpr int kSpan = kTogether<kVectors>;
    constexpr int kGroup = 16 * kVectors;
    const bool measures = kManyRegisters && block >= kGroup;
    Tile& tile = work.tile;
    Words most[kLanes];
    Words block_most = broadcast_bits(0);
    int64_t groups = 0;  // of the block so far
    int64_t b = 0;
    for (int64_t begin = 0; begin < kTileElems; begin += 16 * kSpan) {
        const auto element = [&](int i) {
            if constexpr (requires { source.ahead(i); }) {
                source.ahead(begin + i);
            }
            const Floats p = source.sixteen(begin + i);
            if constexpr (kKeep) {
                store_float32(work.kept + begin + i, p);
            }
            return p;
        };
        Words group_most[kSpan / kVectors];
        const auto put = [&](int i, Floats y) {
            store_float32(tile.values + begin + i, y);
            if constexpr (kManyRegisters) {
                Words& so_far = group_most[i / kGroup];
                so_far = i % kGroup == 0 ? magnitude_of(y) : maximum(so_far, magnitude_of(y));
            }
        };
        rotate_run<kVectors, kSpan, true, false>(element, put, work.signs.bits);
        if (!measures) {
            continue;
        }
        for (const Words& one : group_most) {
            block_most = maximum(block_most, one);
            if (++groups * kGroup != block) {
                continue;
            }
            most[b++ % kLanes] = block_most;
            block_most = broadcast_bits(0);
            groups = 0;
            if (b % kLanes == 0) {
                store_words(tile.magnitude + b - kLanes, largest_of_each(most));
            }
        }
    }
    for (int64_t k = b / kLanes * kLanes; k < b; ++k) {
        tile.magnitude[k] = largest(most[k % kLanes]);
    }
    if (!measures) {
        measure_tile(tile, kTileElems, block);
    }
}

// The residual of a whole finite tile whose values are decoded but not rotated back.
template <int kVectors>
SLIMWIRE_LANES void put_finite_residual(const Workshop& work, float* residual) {
    for (int64_t begin = 0; begin < kTileElems; begin += 16 * kVectors) {
        const auto lost = [&](int i, Floats x) {
            __builtin_prefetch(residual + begin + i + kTileElems, 1);
            store_float32(residual + begin + i,
                          subtract(load_float32(work.kept + begin + i), work.decoded(x)));
        };
        rotate_run<kVectors, kVectors, false, true>(LoadFrom{work.tile.values + begin}, lost,
                                                    work.signs.bits);
    }
}

// Codes and residual of a whole finite tile. One scale serves 16 * kPerScale elements or a
// multiple.
template <int kBits, bool kStochastic, int kVectors, int kPerScale>
[[gnu::noinline]] static void encode_rotated_runs(const Workshop& work,
                                                  const BlockIntShape& shape,
                                                  uint8_t* codes,
                                                  float* residual) {
    constexpr int kSpan = kTogether<kVectors>;
    constexpr int kStep = kSpan < 4 ? kSpan : 4;
    const Tile& tile = work.tile;
    const int log2_block = shape.log2_block;
    const float unrotate = shape.unrotate;
    for (int64_t begin = 0; begin < kTileElems; begin += 16 * kSpan) {
        Floats decoded[kSpan];
        Floats inverse = broadcast(0.0f);
        CodeValues<kBits> value_of(0.0f);
#pragma GCC unroll 4
        for (int j = 0; j < kSpan; j += kStep) {
            Words quantised[kStep];
#pragma GCC unroll 4
            for (int k = 0; k < kStep; ++k) {
                const int64_t i = begin + 16 * (j + k);
                if ((j + k) % kPerScale == 0) {
                    const int64_t block = i >> log2_block;
                    inverse = broadcast(tile.inverse[block]);
                    value_of =
                        CodeValues<kBits>(__builtin_bit_cast(float, tile.scale[block]) * unrotate);
                }
                const Floats y = load_float32(tile.values + i);
                if constexpr (kStochastic) {
                    quantised[k] =
                        quantise_stochastic<kBits>(y, inverse, load_bytes(tile.random + i));
                } else {
                    quantised[k] = quantise(y, inverse);
                }
                decoded[j + k] = value_of(quantised[k]);
            }
            pack_run<kBits>(quantised, codes);
            codes += 2 * kBits * kStep;
        }
        const auto lost = [&](int i, Floats x) {
            __builtin_prefetch(residual + begin + i + kTileElems, 1);
            store_float32(residual + begin + i,
                          subtract(load_float32(work.kept + begin + i), work.decoded(x)));
        };
        rotate_run<kVectors, kSpan, false, true>([&](int i) { return decoded[i / 16]; }, lost,
                                                 work.signs.bits);
    }
}

// The same for a tile that fill_rotated() filled, whose scales are chosen and whose random bytes
// are drawn; false where the rotation is too long, and nothing was done.
template <int kBits, bool kStochastic>
SLIMWIRE_LANES bool encode_rotated(Workshop& work,
                                   const BlockIntShape& shape,
                                   uint8_t* codes,
                                   float* residual) {
    return with_run(shape.rotate, [&]<int kVectors>(RunOf<kVectors>) {
        if constexpr (!kManyRegisters) {
            encode_blocks<kBits, kStochastic, After::kDecoded>(
                work.tile, kTileElems >> shape.log2_block, shape, codes, residual, kTileElems);
            put_finite_residual<kVectors>(work, residual);
        } else if (shape.block >= shape.rotate) {
            encode_rotated_runs<kBits, kStochastic, kVectors, kVectors>(work, shape, codes,
                                                                        residual);
        } else {
            encode_rotated_runs<kBits, kStochastic, kVectors, 1>(work, shape, codes, residual);
        }
    });
}
