// In which NVTX ranges the calls of one communicator are, for rules with `range`. What a rank's
// program has open is that rank's own knowledge (open_ranges.h), and ranks must never decide by
// what they do not share. So what is decided by is a table: for each place in the training step,
// which of the policy's patterns held there. The ranks compare their tables now and then, at calls
// that all of them make: one small all-reduce that the next boundary of a step reads, a step later.
// Where they are the same the table takes effect from that call on; where they are not, the ranges
// of that place are known to differ, on all ranks alike.
//
// A place that comes anew is compared after kLearnSteps steps, and everything again every
// kRenewSteps steps: so long a place is taken for what it was. Collectives only, whose places are
// sure (places.h).
//
// Part of a CommState, and like it used by one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/comparison.h"

namespace slimwire {

// The table of one rank, and when the ranks compare: equal on all ranks, given the same calls.
// Pure.
class RangeTable {
  public:
    static constexpr uint32_t kLearnSteps = 2;
    static constexpr uint32_t kRenewSteps = 16;
    static constexpr size_t kMostPlaces = 4096;  // of others nothing is known

    // The next call that asks, at a place that is sure, in the `step`-th step
    // (CallPlaces::steps()). `local`: which patterns hold on this rank; empty where it does not
    // know. Returns CallFacts::ranges.
    uint32_t next(const CallFacts& facts,
                  const StepPlace& place,
                  uint64_t step,
                  std::optional<uint32_t> local);
    // Whether what was compared is to be read, or the tables are to be compared, at this call. Both
    // stay true until it is done.
    [[nodiscard]] bool read_due() const noexcept { return read_due_; }
    [[nodiscard]] bool compare_due() const noexcept { return compare_due_; }

    // What this rank gives, of which the ranks' maximum is to be given to adopt(). What comes from
    // now on is the next comparison's.
    [[nodiscard]] std::vector<uint32_t> give();
    // How many places are not the same on all ranks.
    size_t adopt(const std::vector<uint32_t>& greatest);
    // What give() returned did not reach the others, on any rank.
    void taken_back() noexcept;

  private:
    struct Entry {
        size_t number = 0;  // in the order in which places came
        uint32_t now = 0;   // on this rank, since tables were given
        uint32_t agreed = 0;
    };
    using Key = std::tuple<uint64_t, uint64_t, uint32_t>;  // path, signature, nth

    std::map<Key, Entry> entries_;
    uint64_t path_ = 0, step_ = 0;
    uint32_t since_new_ = 0, since_given_ = 0;  // steps
    bool fresh_ = false;                        // a place came that was never compared
    bool given_ = false;
    bool read_due_ = false, compare_due_ = false;
    size_t slots_ = 0;
};

class CallRanges {
  public:
    explicit CallRanges(std::vector<std::string> patterns);

    [[nodiscard]] const std::vector<std::string>& patterns() const noexcept { return patterns_; }

    // The next call that asks, of a sure place. `captured`: nothing is read or compared at it.
    // Waits, on the host, for the ranks to have compared a step before. Errors: CUDA's, an aborted
    // or broken communicator, and a call in one group with the comparison that it reads.
    Result<uint32_t> next(const RealNccl& nccl,
                          const DeviceApi& api,
                          const CommState& state,
                          const CollectiveCall& call,
                          const StepPlace& place,
                          uint64_t step,
                          bool captured);
    // After next(): what is to be run, or queued in the thread's group, before the call; empty for
    // nothing.
    Result<std::optional<Queued>> comparison(const DeviceApi& api,
                                             CommState* state,
                                             const CollectiveCall& call,
                                             bool captured);
    // That queues what comparison() gives.
    [[nodiscard]] Comparison* compared_by() noexcept { return &comparison_; }
    // As Comparison::end().
    void end(const DeviceApi& api, int device, bool wait) noexcept {
        comparison_.end(api, device, wait);
    }

  private:
    Status read(const RealNccl& nccl, const DeviceApi& api, const CommState& state);

    const std::vector<std::string> patterns_;
    RangeTable table_;
    Comparison comparison_;
    bool told_ = false;  // that ranks differ
    std::string text_;   // of the ranges at the first place that came, for that line
};

// Looks for what hears of NVTX ranges, and says once a process where there is none.
void warn_without_ranges();

}  // namespace slimwire
