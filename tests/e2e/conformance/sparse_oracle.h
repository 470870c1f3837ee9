// What a call must give when a sparsifier stands below it (codecs/FORMAT.md, "Sparse"; chunks:
// collectives/FORMAT.md). An element that is sent is the true value up to the code of values and
// the roundings of sums; one that is not sent counts for nothing, exactly; and which ones are sent
// is no liberty:
//
// One encoding (moves, reduce-scatter, gather, summable): the choice of every contributor follows
// from its input, so the result is the sum of what the contributors chose. Of randomk only the
// strata are known: in each, one run of 32 elements is the whole sum and the others are zero.
//
// Two (all-reduce, reduce): of these sums the owner of a chunk chooses again. There the sums are
// known up to roundings, so: no more elements than the codec has room for; what is there is the
// sum; what is missing is smaller than all that is there (threshold: than the threshold), or what
// is there ends by itself.
//
// A chunk with a NaN or an infinity must have one in its result, and its other elements may be
// anything up to the sum of all magnitudes.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/conformance/rules.h"

namespace conformance {

class SparseOracle {
  public:
    SparseOracle(const Call& call, const Codec& codec, int ranks, int rank);
    // As Oracle::check().
    [[nodiscard]] std::string check(const char* output) const;

  private:
    struct Chunk {
        size_t begin = 0, end = 0;  // elements of the message
        int owner = 0;
    };
    // Element by element of a chunk, over all contributors.
    struct Sums {
        std::vector<double> sum, magnitude, all;  // of what is sent; of everything
        double largest = 0;                       // sum over contributors of the largest sent
        bool special = false;
    };

    [[nodiscard]] std::vector<Chunk> chunks(bool two_shot) const;
    // Elements [begin, end) of rank `source`'s input from `base` on, as the codec gets them.
    [[nodiscard]] std::vector<float> values_of(int source,
                                               size_t base,
                                               const Chunk& chunk,
                                               float factor) const;
    void add(int source, size_t base, const Chunk& chunk, float factor, Sums* sums) const;
    [[nodiscard]] std::vector<char> chosen(const std::vector<float>& values) const;
    void choose_largest(const float* values, size_t count, size_t kept, char* chosen) const;
    [[nodiscard]] size_t capacity(size_t count) const;

    [[nodiscard]] std::string check_sum(const char* output, size_t base) const;
    [[nodiscard]] std::string check_copy(const char* output,
                                         int source,
                                         size_t base,
                                         size_t output_begin) const;
    [[nodiscard]] std::string check_chunk(
        const char* output, const Chunk& chunk, const Sums& sums, bool again, double factor) const;
    // Of check_chunk(): the results against what an owner may choose of [begin, end).
    [[nodiscard]] std::string check_choice(const std::vector<double>& results,
                                           const std::vector<double>& sums,
                                           const std::vector<double>& slack,
                                           size_t begin,
                                           size_t end,
                                           size_t room) const;
    [[nodiscard]] std::string check_runs(const std::vector<double>& results,
                                         const std::vector<double>& sums,
                                         const std::vector<double>& slack) const;

    const Call& call_;
    const Codec& codec_;
    const TypeFacts& signature_;
    const Table& table_;
    int ranks_, rank_;
};

}  // namespace conformance
