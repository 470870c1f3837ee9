// Times of calls that a new communicator tried natively and compressed
// (dispatch/timing/call_timer.h), and what follows from them: calibrations of its shape. Pure; of
// numbers that ranks agreed on, so all get the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/call/call.h"
#include "topology/cost/calibration.h"

namespace slimwire {

// Calls that are timed at several sizes, compressed by one codec and algorithm.
struct TimedKind {
    Op op = Op::kAllReduce;
    DType dtype = DType::kFloat32;
    std::string codec, algorithm;
    bool operator==(const TimedKind&) const = default;
};

// By kind and size. Ranks send it to each other.
struct TimedCalls {
    static constexpr size_t kKinds = 4;
    static constexpr std::array<uint64_t, 4> kBytes = {8 << 10, 64 << 10, 512 << 10,
                                                       4 << 20};  // of message
    static constexpr size_t kFirstSizes = 2;                      // are timed together
    static constexpr int kRuns = 2;                    // of each, the faster of which counts
    static constexpr uint64_t kBudgetNs = 60'000'000;  // expected of all
    struct Pair {
        uint32_t native_ns = 0, compressed_ns = 0;  // 0: not timed
    };
    std::array<std::array<Pair, kBytes.size()>, kKinds> pairs = {};

    // Of what each rank timed: on a busy machine some rank is always late.
    [[nodiscard]] static TimedCalls median_of(const std::vector<TimedCalls>& ranks);
    // Whether size number `size` is to be timed after those before it: it is expected to keep to
    // the budget.
    [[nodiscard]] bool goes_on(size_t size) const noexcept;
};

// One for each operation and type, of kinds with two sizes or more; straight on beyond the largest
// size. Of these links: they say nothing of other bandwidths.
[[nodiscard]] std::vector<Calibration> calibrations_of(const std::vector<TimedKind>& kinds,
                                                       const TimedCalls& times,
                                                       int ranks,
                                                       int nodes);

}  // namespace slimwire
