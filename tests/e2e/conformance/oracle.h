// What a call must give: float64 (integers: 64-bit) arithmetic over the ranks' inputs, which every
// rank can compute for all others, and how far a result may lie from it.
//
// Native floats. A sum of n elements takes n - 1 roundings in some order; avg and a pre-multiplied
// sum round the factor and each product once more: |error| <= (n + 3) u sum|s x|, plus n
// subnormals. The float64 sum itself adds n 2^-53. A product: (n + 1) u |product|.
//
// Compressed all-reduce and reduce with a block codec of relative error e (of the block's largest
// magnitude). Blocks lie at multiples of the block size in the message, because chunks begin at
// multiples of it. With M_r the largest |s x| of rank r in the block and M = sum of M_r: each
// rank's code is off by at most e M_r, so the sum of the decoded ones is off by e M and no larger
// than (1 + e) M; encoding the sum adds e (1 + e) M. Sums in fp32 add (n + 2) 2^-23 (1 + e)^2 M and
// the last rounding to the type u (1 + e)^2 M. With avg the factor 1 / n stands before everything.
// A cast is a block of one element. A reduce_scatter encodes only the contributions, blocks counted
// from the start of each rank's part; sums may be rounded to the type at every step: e M + n (1 +
// e) u M.
//
// A compressed move is off by at most e of the largest magnitude in the block, and the last
// rounding; what a rank sends to itself is exact.
//
// With error feedback a rank may owe what earlier calls lost: of each element at most e / (1 - e)
// of the largest input M there can be (R), which the code may lose again and the sum of n ranks
// then holds n times; and the owner of a sum as much of what sums there can be.
//
// Sparsifiers have an oracle of their own. A call that a rule takes may still be native, where that
// sends less; then it is exact.
#pragma once

#include <string>

#include "tests/e2e/conformance/rules.h"

namespace conformance {

// Where rank `rank`'s input of a call begins in the call's table.
size_t table_offset(const Call& call, int rank);

class Oracle {
  public:
    // `ranks` and `rank` are those of the call's communicator.
    Oracle(const Call& call, const Codec& codec, int ranks, int rank);

    // Fills `elems` elements: the input of `rank`.
    void write_input(char* input) const;
    // Value of the scalar of a pre-multiplied sum, as element of the call's type.
    [[nodiscard]] const char* scalar() const;
    // Compares `output`, all elements of this rank's result, or of an all-reduce (whose copies are
    // compared with each other elsewhere) this rank's share. Empty when right.
    [[nodiscard]] std::string check(const char* output) const;
    // Whether slimwire, told of the codec, may compress this call.
    [[nodiscard]] bool compressible() const;
    // `count` elements of `source`'s input from `source_begin` on, in the output at `output_begin`.
    [[nodiscard]] std::string check_copy(const char* output,
                                         int source,
                                         size_t source_begin,
                                         size_t output_begin) const;

  private:
    [[nodiscard]] std::string check_dense(const char* output) const;
    // How much a result may owe to earlier calls: of a copy, or of a sum.
    [[nodiscard]] double owed(bool sum) const;
    [[nodiscard]] std::string check_lossy_copy(const char* output,
                                               int source,
                                               size_t source_begin,
                                               size_t output_begin) const;
    // Element of the input of `special_rank` that is not finite.
    [[nodiscard]] size_t special_at() const;
    [[nodiscard]] std::string check_integers(const char* output, size_t base) const;
    [[nodiscard]] std::string check_floats(const char* output,
                                           size_t base,
                                           size_t begin,
                                           size_t end) const;

    const Call& call_;
    const Codec& codec_;
    const TypeFacts& signature_;
    const Table& table_;
    int ranks_, rank_;
};

}  // namespace conformance
