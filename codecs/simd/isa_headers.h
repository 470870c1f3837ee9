// What codecs/<family>/host/<family>.cpp includes before its namespaces, after its table: the
// intrinsics, and SLIMWIRE_HOST_TABLE(name), the table's name with the instruction set as its
// ending. Objects that include it may include no standard header beyond integer types (table.h says
// why).
#pragma once

#include <stddef.h>
#include <stdint.h>
#if defined(SLIMWIRE_ISA_AVX512) || defined(SLIMWIRE_ISA_AVX2)
#include <immintrin.h>
#endif

#include "codecs/numeric.h"
#include "codecs/simd/table.h"

#if defined(SLIMWIRE_ISA_AVX512)
#define SLIMWIRE_HOST_TABLE(name) name##_avx512
#elif defined(SLIMWIRE_ISA_AVX2)
#define SLIMWIRE_HOST_TABLE(name) name##_avx2
#else
#define SLIMWIRE_HOST_TABLE(name) name##_scalar
#endif
