// What the conformance program does next: batches of calls, drawn from a seed. Every rank draws the
// same sequence, so nothing here may depend on the rank.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/conformance/elements.h"

namespace conformance {

enum class Kind : int {
    kAllReduce,
    kReduceScatter,
    kReduce,
    kAllGather,
    kBroadcast,
    kBcast,
    kAllToAll,
    kSendRecv,  // each rank sends to rank + shift, receives from rank - shift; a group of its own
    kGather,
    kScatter,
};
inline constexpr int kKinds = 10;
enum class Operator : int { kSum, kProd, kMax, kMin, kAvg, kPreMulHost, kPreMulDevice };
enum class Communicator : int { kWorld, kSplit };
enum class StreamChoice : int { kNull, kBlocking, kNonBlocking, kOther, kPerThread };
inline constexpr int kStreamChoices = 5;
// How the calls of a batch are issued.
enum class Grouping : int { kOneByOne, kGroup, kNestedGroups };

struct Call {
    Kind kind = Kind::kAllReduce;
    ncclDataType_t type = ncclFloat32;
    Operator op = Operator::kSum;
    Communicator communicator = Communicator::kWorld;
    StreamChoice stream = StreamChoice::kNull;
    Shape shape = Shape::kSpread;
    size_t count = 0;  // NCCL's argument
    bool in_place = false;
    int root = 0;          // root, or shift; modulo the communicator's ranks
    int misalignment = 0;  // elements
    size_t scalar = 0;     // pre-multiplied sums: element of the table of kFactors
    uint64_t data = 0;     // seed of the ranks' offsets into the table
    // Floats, reductions only where they sum: one element of one rank's input is NaN or infinite.
    bool special = false, infinity = false;
    int special_rank = 0;      // modulo the communicator's ranks
    size_t special_index = 0;  // modulo the elements of an input

    [[nodiscard]] bool reduces() const {
        return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
    }
    [[nodiscard]] bool parts_input() const {  // an input of count x ranks
        return kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter;
    }
    [[nodiscard]] bool collects_output() const {  // an output of count x ranks
        return kind == Kind::kAllGather || kind == Kind::kAllToAll || kind == Kind::kGather;
    }
    [[nodiscard]] size_t input_elems(int ranks) const {
        return parts_input() ? count * static_cast<size_t>(ranks) : count;
    }
    [[nodiscard]] size_t output_elems(int ranks) const {
        return collects_output() ? count * static_cast<size_t>(ranks) : count;
    }
    // Whether every rank's result must be the same bits.
    [[nodiscard]] bool equal_on_all_ranks() const {
        return kind == Kind::kAllReduce || kind == Kind::kAllGather || kind == Kind::kBroadcast ||
               kind == Kind::kBcast;
    }
    // Whether a rank reads its input, and gets a result.
    [[nodiscard]] bool has_input(int ranks, int rank) const {
        return (kind != Kind::kBroadcast && kind != Kind::kBcast && kind != Kind::kScatter) ||
               root % ranks == rank;
    }
    [[nodiscard]] bool has_output(int ranks, int rank) const {
        return (kind != Kind::kReduce && kind != Kind::kGather) || root % ranks == rank;
    }
    [[nodiscard]] std::string text() const;
};

struct Batch {
    Grouping grouping = Grouping::kOneByOne;
    std::vector<Call> calls;
    bool repeat = false;    // once more with another grouping; the bits must be the same,
    bool all_exact = true;  // of native calls, too
};

struct Weights {
    size_t max_count = 1000000, min_count = 0;  // the latter where there is room for it
    // Shares of calls, in percent: sums and moves of the types that codecs take, and among them
    // all-reduces.
    int compressible_percent = 60;
    int all_reduce_percent = 25;
    // All ranks put the same messages into a group. The real NCCL wants that: it refuses a first
    // contact that is one way here and both ways there, and works a group's messages off in rounds.
    // Nor are there averages and factors on one rank: 2.28.9 leaves out an element of 11,017, as it
    // divides them between thread blocks rounding down (oneRankReduce). Nor are groups of messages
    // simulated: it never forgets these, and its next group hangs. Sums may have other bits in
    // another group.
    bool alike = false;
};

Batch draw_batch(Chance& chance, const Weights& weights, int world_ranks);

}  // namespace conformance
