// What ranks must know alike, but each knows for itself only: words that they compare over the
// private communicator. The maximum of each word and of its complement tells whether it is the same
// on all ranks. Nobody waits where words are given; they are read some calls later, at one that is
// the same on all ranks, and so is what follows from them.
//
// Part of a CommState, and like it used by one thread at a time; end() may meet another that is
// still in a call (an abort).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "collectives/exchange.h"
#include "collectives/rounds.h"

namespace slimwire {

// Words and behind them their complements.
[[nodiscard]] std::vector<uint32_t> with_complements(std::vector<uint32_t> words);
// Whether all ranks gave the same word, which is then greatest[place]. `greatest`: the ranks'
// maximum of what with_complements() made.
[[nodiscard]] inline bool same_on_all(const std::vector<uint32_t>& greatest,
                                      size_t place) noexcept {
    return greatest[place] == ~greatest[greatest.size() / 2 + place];
}

class Comparison {
  public:
    struct Text {
        const char* what;    // "registered parameters"
        const char* reason;  // of its calls in the report
        const char* rules;   // "no rule with name": what does without comparisons
    };
    // The texts outlive it.
    explicit Comparison(const Text& text) noexcept : text_(text) {}

    // What is to be run, or queued in the thread's group, before `call`, which all ranks make with
    // as many words. What was given before is read.
    Result<Queued> give(const DeviceApi& api,
                        CommState* state,
                        const CollectiveCall& call,
                        const std::vector<uint32_t>& words);
    // The ranks' maxima of what was given last. Waits, on the host, for all ranks to have given
    // theirs. Errors: CUDA's, an aborted or broken communicator, and that it was given in the group
    // that the thread is in.
    Result<std::vector<uint32_t>> read(const RealNccl& nccl,
                                       const DeviceApi& api,
                                       const CommState& state);
    // The group that it was queued in never was.
    void dropped() noexcept;
    // Once after dropped(): what was given last did not reach the others, on any rank.
    [[nodiscard]] bool lost() noexcept;

    // Frees what it has. `wait`: for what is on its way; else (abort) what may still be written
    // stays, which is a few bytes a word.
    void end(const DeviceApi& api, int device, bool wait) noexcept;

  private:
    friend class ComparisonExchange;
    Status make_room(const DeviceApi& api, size_t words);
    void show_key(CommState* state);

    const Text text_;
    Plan plan_;
    std::mutex mutex_;  // of what follows, against end()
    bool ended_ = false;
    uint32_t* words_ = nullptr;  // pinned: what is given, and behind it what came back
    size_t room_ = 0;            // words of each
    cudaEvent_t ready_ = nullptr;
    bool queued_ = false, launched_ = false, lost_ = false;
};

// The all-reduce of a comparison, run as a call of its own (rounds.h).
class ComparisonExchange final : public Exchange {
  public:
    ComparisonExchange(const ExchangeContext& context, Comparison* comparison) noexcept
        : context_(context), comparison_(comparison) {}
    [[nodiscard]] int phases() const noexcept override { return 1; }
    [[nodiscard]] bool exchanges(int) const noexcept override { return true; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    ExchangeContext context_;
    Comparison* comparison_;
};

}  // namespace slimwire
