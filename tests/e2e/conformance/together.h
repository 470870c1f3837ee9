// All ranks in one thread, which drives a device for each of them: every call of every rank is in a
// group with the others' of its kind, as NCCL asks of such programs.
#pragma once

#include <memory>
#include <vector>

#include "tests/e2e/conformance/messages.h"
#include "tests/e2e/conformance/series.h"

namespace conformance {

class Together {
  public:
    // One world for each device. Values are judged, or may be any, but equal on all.
    Together(const std::vector<ncclComm_t>& worlds,
             const Rules& rules,
             const Weights& weights,
             size_t arena_elems,
             bool judged);

    void play(const Batch& batch, uint64_t number);
    void play(const Traffic& traffic, uint64_t number);
    void play(const Series& series, uint64_t number);
    void compare_digests(uint64_t number);
    [[nodiscard]] uint64_t own_digest() const { return players_[0]->own_digest(); }

  private:
    void issue(const Batch& batch, Grouping grouping, bool device_by_device);

    const Rules& rules_;
    const bool judged_;
    std::vector<std::unique_ptr<Player>> players_;
    std::vector<std::unique_ptr<Messenger>> messengers_;
};

}  // namespace conformance
