// The host bodies for one instruction set; compiled once per set, with its flags and
// SLIMWIRE_LANES_* chosen by codecs/meson.build. Everything but the table is local to this object
// (see table.h), hence no standard header beyond integer types.
#include "codecs/host/table.h"

#include <stddef.h>
#include <stdint.h>
#if defined(SLIMWIRE_ISA_AVX512) || defined(SLIMWIRE_ISA_AVX2)
#include <immintrin.h>
#endif

#include "codecs/numeric.h"

namespace slimwire {
namespace {

#if defined(SLIMWIRE_ISA_AVX512)
#include "codecs/host/lanes_avx512.h"
#define SLIMWIRE_TABLE host_table_avx512
#elif defined(SLIMWIRE_ISA_AVX2)
#include "codecs/host/lanes_avx2.h"
#define SLIMWIRE_TABLE host_table_avx2
#else
#include "codecs/host/lanes_scalar.h"
#define SLIMWIRE_TABLE host_table_scalar
#endif

#include "codecs/host/elements.h"

#include "codecs/host/block_int_kernels.h"
#include "codecs/host/cast_kernels.h"

}  // namespace

const HostTable SLIMWIRE_TABLE = {
    BlockInt<8>::kKernels,    BlockInt<4>::kKernels,   BlockInt<2>::kKernels,
    Cast<Bfloat16>::kKernels, Cast<Float16>::kKernels,
};

}  // namespace slimwire
