// Fast paths of block floats for buffers of bf16, one struct for each kind of scale:
//   takes<kStochastic>(shape)         whether there is one
//   measure(tile, input, block)       maxima of the blocks of a whole tile
//   takes(tile, blocks)               whether the chosen scales allow it
//   encode<kStochastic>(tile, block, input, codes)
//   decode(codes, scales, block, output)   a whole tile; false, and nothing that stays, if not
// Included by block_float.cpp inside its anonymous namespace.

template <class Element>
constexpr bool kIsBfloat16 = false;
template <>
constexpr bool kIsBfloat16<Bfloat16> = true;

#if defined(SLIMWIRE_ISA_AVX512)
#include "codecs/host/block_float_fast_avx512.h"

#include "codecs/host/block_float_kinds_avx512.h"
#else
constexpr bool kHasBfloat16Pairs = false;
#endif
