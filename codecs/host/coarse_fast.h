// The common cases of coarse quantisers without a tile of fp32, straight from and to bf16: a whole
// tile of kTileElems elements, encoded with factor 1 and without residual, decoded without
// accumulation. Same bytes as the general path. FastCoarse<Kind> has
//   encode(input, shape, codes, scales)     false, and nothing that stays, where it does not hold
//   decode(codes, scales, block, output)    the same
// Included by coarse.cpp inside its anonymous namespace.

template <class Element>
constexpr bool kIsBfloat16 = false;
template <>
constexpr bool kIsBfloat16<Bfloat16> = true;

template <class Kind, CoarseRule = Kind::kRule>
struct FastCoarse {
    SLIMWIRE_LANES bool encode(const uint8_t*, const CoarseShape&, uint8_t*, uint8_t*) {
        return false;
    }
    SLIMWIRE_LANES bool decode(const uint8_t*, const uint8_t*, int64_t, uint8_t*) { return false; }
};

#if defined(SLIMWIRE_ISA_AVX512)
#include "codecs/host/coarse_fast_avx512.h"
#endif
