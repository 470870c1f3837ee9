// The lanes of the instruction set that this object is compiled for, and the name of its table. The
// first include of codecs/<family>/host/<family>.cpp inside the anonymous namespace of slimwire,
// after codecs/simd/isa_headers.h.

#if defined(SLIMWIRE_ISA_AVX512)
#include "codecs/simd/lanes_avx512.h"

#include "codecs/simd/lanes_avx512_codes.h"
#elif defined(SLIMWIRE_ISA_AVX2)
#include "codecs/simd/lanes_avx2.h"

#include "codecs/simd/lanes_avx2_codes.h"

#include "codecs/simd/lanes_packing.h"
#else
#include "codecs/simd/lanes_scalar.h"

#include "codecs/simd/lanes_scalar_codes.h"

#include "codecs/simd/lanes_packing.h"
#endif

#include "codecs/simd/random_lanes.h"

#include "codecs/simd/elements.h"
