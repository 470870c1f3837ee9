// Signs and mean magnitudes of bf16 on AVX-512: two elements share a 32-bit lane, the even one in
// its low half, so a register of sums has the even lanes of FORMAT.md's, another the odd ones.
// Included by coarse_fast.h.

// How far ahead memory is asked for, as in block_float_fast_avx512.h.
constexpr int64_t kAheadBytes = 16384;

template <class Kind>
struct FastCoarse<Kind, CoarseRule::kSign> {
    static constexpr int64_t kPairLanes = 32;  // elements of a register of pairs

    struct Sums {
        __m512 even, odd;

        SLIMWIRE_LANES Sums of(__m512i pairs) {
            return {_mm512_castsi512_ps(
                        _mm512_slli_epi32(_mm512_and_si512(pairs, _mm512_set1_epi32(0x7FFF)), 16)),
                    _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0x7FFF0000)))};
        }
        // Here and now: the compiler puts sums off until it runs out of registers.
        [[gnu::always_inline]] Sums plus(const Sums& other) const {
            Sums sums = {_mm512_add_ps(even, other.even), _mm512_add_ps(odd, other.odd)};
            asm volatile("" : "+v"(sums.even), "+v"(sums.odd)::"memory");
            return sums;
        }
    };

    // The magnitudes of 32 elements, whose signs are written.
    SLIMWIRE_LANES Sums take(const uint8_t* input, uint8_t* codes) {
        const __m512i pairs = _mm512_loadu_si512(input);
        __builtin_prefetch(input + kAheadBytes);
        _store_mask32(reinterpret_cast<__mmask32*>(codes), _mm512_movepi16_mask(pairs));
        return Sums::of(pairs);
    }

    // The sums of lanes `kFirst`, kFirst + kEvery, ... of a block, in registers of 32 lanes: each
    // adds its kRounds rounds, then upper and lower halves of what is left. A tree in which few
    // sums are alive at a time, so that none leaves its register.
    template <int kRegisters, int kRounds, int kFirst, int kEvery>
    SLIMWIRE_LANES Sums sums_of(const uint8_t* input, uint8_t* codes) {
        if constexpr (kEvery == kRegisters) {
            Sums sum = take(input + 2 * kPairLanes * kFirst, codes + kPairLanes / 8 * kFirst);
#pragma GCC unroll 8
            for (int round = 1; round < kRounds; ++round) {
                const int at = kFirst + round * kRegisters;
                sum = sum.plus(take(input + 2 * kPairLanes * at, codes + kPairLanes / 8 * at));
            }
            return sum;
        } else {
            return sums_of<kRegisters, kRounds, kFirst, 2 * kEvery>(input, codes)
                .plus(sums_of<kRegisters, kRounds, kFirst + kEvery, 2 * kEvery>(input, codes));
        }
    }

    // Signs and mean magnitudes of the blocks of a tile; false where a sum is not finite.
    template <int kRegisters, int kRounds>
    [[gnu::noinline]] static bool take_blocks(const uint8_t* input,
                                              uint8_t* codes,
                                              uint8_t* scales) {
        constexpr int64_t kBlock = kRegisters * kRounds * kPairLanes;
        for (int64_t i = 0; i < kTileElems / 8; i += 64) {
            __builtin_prefetch(codes + kAheadBytes / 16 + i);
        }
        for (int64_t begin = 0; begin < kTileElems; begin += kBlock, scales += 4) {
            const Sums sums =
                sums_of<kRegisters, kRounds, 0, 1>(input + 2 * begin, codes + begin / 8);
            const float sum = sum_of_halves({sums.even}) + sum_of_halves({sums.odd});
            if (bits_of(sum) >= kInfinityBits) {
                return false;
            }
            const float mean = sum / static_cast<float>(kBlock);
            __builtin_memcpy(scales, &mean, 4);
        }
        return true;
    }

    SLIMWIRE_LANES bool encode(const uint8_t* input,
                               const CoarseShape& shape,
                               uint8_t* codes,
                               uint8_t* scales) {
        if (shape.scale != CoarseScale::kMean) {
            return false;
        }
        switch (shape.block) {
            case 32:
                return take_blocks<1, 1>(input, codes, scales);
            case 64:
                return take_blocks<2, 1>(input, codes, scales);
            case 128:
                return take_blocks<4, 1>(input, codes, scales);
            case 256:
                return take_blocks<8, 1>(input, codes, scales);
            case 512:
                return take_blocks<8, 2>(input, codes, scales);
            case 1024:
                return take_blocks<8, 4>(input, codes, scales);
            case 2048:
                return take_blocks<8, 8>(input, codes, scales);
            default:
                return false;
        }
    }

    SLIMWIRE_LANES bool decode(const uint8_t* codes,
                               const uint8_t* scales,
                               int64_t block,
                               uint8_t* output) {
        for (int64_t begin = 0; begin < kTileElems; begin += block, scales += 4) {
            uint32_t bits;
            __builtin_memcpy(&bits, scales, 4);
            if ((bits & kMagnitudeMask) >= kInfinityBits) {
                return false;
            }
            const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
            const __m512i value = _mm512_set1_epi16(static_cast<short>(rounded));
            const __m512i negated = _mm512_set1_epi16(static_cast<short>(rounded ^ 0x8000));
            for (int64_t i = begin; i < begin + block; i += kPairLanes) {
                uint32_t signs;
                __builtin_memcpy(&signs, codes + i / 8, 4);
                _mm512_storeu_si512(output + 2 * i, _mm512_mask_mov_epi16(value, signs, negated));
            }
        }
        return true;
    }
};
