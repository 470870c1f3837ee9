// What takes the place of the exact data check when a codec rounds (SLIMWIRE_EMU_CHECK_ERROR): a
// buffer is right as a whole when its distance from the exact result, as a Euclidean norm, is at
// most a fraction of the data's own, and wrong in every element otherwise. Integers stay exact.
// Used by kernels.cpp; any thread.
//
// The data's norm is that of the result or of all inputs together, whichever is larger: where
// inputs cancel, a codec's error is still of the inputs' size.
#pragma once

#include <cstdint>

#include "tools/emulator/checking/data.h"

namespace slimwire::emulator::checking {

// What is known of a buffer of expected results, because whoever compares with it later is only
// told how wide the elements are.
struct Expected {
    Element element = Element::kUint8;
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
