// Counts how often a DistributedDataParallel model began on one communicator, by facts alone: what
// its constructor does is one int64 of each rank gathered (how many parameters), an even number of
// int64 broadcast (their sizes and strides), and parameters broadcast, one right after the other.
// DdpListener reads the values too, where a rule asks for parameters; this costs a call nothing.
//
// A new model may have buckets at addresses of one that is gone, so residuals that go by addresses
// begin at zero after each start. A program whose every step looked like a start would lose its
// residuals each time: after kMost no more are counted.
//
// One thread at a time. This rank's own knowledge as far as calls of dropped groups go: for local
// state only.
#pragma once

#include <cstdint>

#include "collectives/call/call.h"

namespace slimwire {

class ModelStarts {
  public:
    static constexpr uint32_t kMost = 64;

    // The next call of the communicator.
    void hear(const CallSignature& signature) noexcept {
        if (signature.op != Op::kAllGather && signature.op != Op::kBroadcast) {
            heard_ = Heard::kNothing;
            return;
        }
        const bool gathered = signature.op == Op::kAllGather;
        const bool integers = signature.dtype == DType::kInt64;
        if (gathered) {
            heard_ = integers && signature.count == 1 ? Heard::kCounts : Heard::kNothing;
        } else if (heard_ == Heard::kCounts && integers && signature.root_or_peer == 0 &&
                   signature.count > 0 && signature.count % 2 == 0) {
            heard_ = Heard::kShapes;
        } else {
            count_ += heard_ == Heard::kShapes && !integers && count_ < kMost ? 1 : 0;
            heard_ = Heard::kNothing;
        }
    }
    [[nodiscard]] uint32_t count() const noexcept { return count_; }

  private:
    enum class Heard : uint8_t { kNothing, kCounts, kShapes };
    Heard heard_ = Heard::kNothing;
    uint32_t count_ = 0;
};

}  // namespace slimwire
