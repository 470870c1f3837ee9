// Data whose reduction is known: any rank's input and everybody's result, each from its index
// alone, so that a collective can be checked without anything else being moved. Pure, any thread;
// used by the host bodies of nccl-tests' checking kernels (kernels.cpp).
//
// The result must not depend on the order or the grouping of a reduction, in a type of p
// significant bits (hidden one included). By reduction:
//
//   none        a value with all p bits
//   sum         k_r * 2^e with one e for all ranks and sum |k_r| <= 2^p: every partial sum is exact
//   premulsum   the same with half the sum: odd ranks' inputs count twice
//   prod        one rank has the bits, one a power of two, the others 1 or -1
//   min, max    values with all p bits
//   avg         where 1/ranks is exact a sum; else two ranks give the same power of two and the
//               others 0, so that only the rounding of 1/ranks, of one sum and of the result is
//               left: at most two units, which is what the checkers allow
//
// Exponents lie in [-4, 3], avg's in [0, 3], so that the narrowest type (e4m3) neither overflows
// nor loses bits, nor does 1/ranks underflow. Zeros are positive. Integers wrap, as NCCL's do,
// except in averages, whose sums fit.
#pragma once

#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire::emulator::checking {

enum class Reduction : uint8_t { kNone, kSum, kProd, kMin, kMax, kPreMulSum, kAvg };

struct Data {
    DType element;
    Reduction reduction;
    int ranks;      // that contribute, >= 1
    uint64_t seed;  // equal on all ranks
};

[[nodiscard]] bool is_float(DType element);

// What rank `rank` multiplies its input by in a premulsum.
[[nodiscard]] constexpr int premultiplier(int rank) {
    return rank % 2 == 0 ? 1 : 2;
}

// Element `index` as bits, in the low dtype_bytes() bytes: what `rank` gives, what all get.
[[nodiscard]] uint64_t input_bits(const Data& data, int rank, int64_t index);
[[nodiscard]] uint64_t result_bits(const Data& data, int64_t index);

// `value` rounded to nearest even, as the type is computed in, and to it. It must be within the
// type's finite range.
[[nodiscard]] uint64_t float_bits(DType element, double value);
[[nodiscard]] double float_value(DType element, uint64_t bits);

// What takes the place of the exact data check when a codec rounds (SLIMWIRE_EMU_CHECK_ERROR): a
// buffer is right as a whole when its distance from the exact result, as a Euclidean norm, is at
// most a fraction of the data's own, and wrong in every element otherwise. Integers stay exact.
// Used by kernels.cpp; any thread.
//
// The data's norm is that of the result or of all inputs together, whichever is larger: where
// inputs cancel, a codec's error is still of the inputs' size.

// What is known of a buffer of expected results, because whoever compares with it later is only
// told how wide the elements are.
struct Expected {
    DType element = DType::kUint8;
    double inputs_norm2 = 0;  // sum of squares of what all ranks gave, as they were reduced
};

// Under the address at which the expected results begin. A later one takes its place.
void remember_expected(const void* at, const Expected& expected);
// Integers of one byte when nothing is known: compared exactly.
[[nodiscard]] Expected recall_expected(const void* at);

// The sum of squares of element `index` of all ranks, weighted as the reduction does.
[[nodiscard]] double inputs_norm2(const Data& data, int64_t index);

// Adds up element by element; wrong() at the end.
class Comparison {
  public:
    Comparison(const Expected& expected, double allowed_error)
        : expected_(expected), allowed_error_(allowed_error) {}
    // `got` and `wanted` as bits.
    void add(uint64_t got, uint64_t wanted);
    [[nodiscard]] int64_t wrong() const;

  private:
    const Expected expected_;
    const double allowed_error_;
    double error2_ = 0, norm2_ = 0;
    int64_t count_ = 0;
    bool not_finite_ = false;
};

}  // namespace slimwire::emulator::checking
