// Series: the same tensors reduced or moved in many calls, with error feedback below them. First
// some calls with fresh data, then calls with nothing but zeros, until what was kept back has come
// out. What was sent and what is still kept make up the inputs, so at the end the sum of all
// results must be the sum of all inputs up to what the format cannot bring out:
//
// - Sums of decoded values are rounded to the element type, which nothing keeps: with n ranks at
// most
//   2 n + 8 roundings of the magnitudes that were sent, over all calls. These are the inputs'
//   (S, element by element); codes of values relative to the largest of a block add e of the
//   largest S there is (G) with each call.
// - A residual takes part in every sum of its call, in fp32: a rounding for each call.
// - What is below a threshold is kept for ever: once at each encoder.
// - A code leaves e of what it sends, so sending everything W times leaves e^W G; W is such that
// this
//   is a millionth. A sparsifier of fraction f sends the largest that it has, so ceil(1 / f) calls
//   send everything; randomk by chance: enough calls that no run is left out.
//
// An encoder whose input comes from another one can only begin when that has ended, so the calls
// with zeros are as many as all levels need one after the other.
//
// The first call meets no residual and must give what SparseOracle says of such a call. A NaN or an
// infinity in a later call must come out in that call and in no other; elements that were not
// finite then are not compared at the end, and of codes with blocks no element is.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/e2e/conformance/player.h"

namespace conformance {

// Messages of series, as slimwire counts them. Policies tell them from others by their size.
inline constexpr size_t kSeriesBytesFrom = 64 << 10;
inline constexpr size_t kSeriesBytesUntil = 192 << 10;
inline constexpr size_t kSeriesTensors = 3;
// Elements of 8 bytes that a player's arenas need.
inline constexpr size_t kSeriesArenaElems = kSeriesTensors * (kSeriesBytesUntil / 8 + 64);

struct Series {
    std::vector<Batch> steps;  // the same tensors in each, other data
    [[nodiscard]] size_t calls() const { return steps.size() * steps.front().calls.size(); }
};

// Draws series whose tensors are no other series' of the run. All ranks draw the same.
class SeriesDrawer {
  public:
    SeriesDrawer(const Rules& rules, int world_ranks);
    Series draw(Chance& chance);
    [[nodiscard]] uint64_t drawn() const { return drawn_; }

  private:
    [[nodiscard]] Call draw_tensor(Chance& chance);

    int world_ranks_;
    size_t flushes_;  // calls with zeros
    uint64_t drawn_ = 0;
    std::set<size_t> counts_;
};

// Sums up what one rank puts in and gets of one tensor.
class Ledger {
  public:
    // Text when this call's result cannot be; `first` and `last` of the series.
    std::string add(const Call& call,
                    const Codec& codec,
                    const Member& member,
                    const char* output,
                    bool first,
                    bool last);

  private:
    // `count` elements of the result from `begin` on come from these ranks' elements from `base`
    // on.
    struct Part {
        size_t begin = 0, base = 0;
        int source = -1;  // all
    };
    static std::vector<Part> parts_of(const Call& call, int ranks, int rank);
    void expect(const Call& call, const Part& part, int ranks);
    [[nodiscard]] std::string take(const Call& call,
                                   const Part& part,
                                   int ranks,
                                   const char* output);
    [[nodiscard]] std::string settle(const Call& call, const Codec& codec, int ranks) const;

    int calls_ = 0;
    bool special_ = false;
    std::vector<double> put_, magnitude_, got_;
    std::vector<char> lost_;  // not finite in some call
};

class SeriesJudge {
  public:
    // Both must outlive it.
    SeriesJudge(const Series& series, const Rules& rules);
    Player::Judge of_step(size_t step);

  private:
    const Series& series_;
    const Rules& rules_;
    std::vector<Ledger> ledgers_;
};

}  // namespace conformance
