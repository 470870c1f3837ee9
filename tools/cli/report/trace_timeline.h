// Puts what traces of modes record and shadow (collectives/SCHEMA.md, "Trace") tell of the links
// and of the training on a time line: at most 96 slices of equal length, whose length doubles as
// the trace goes on, so that memory does not depend on how long the job ran. Used by `slimwire
// report --html`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

inline constexpr size_t kMostSlices = 96;

// Sums over all processes.
struct TraceSlice {
    // Of timed calls of 64 KiB on the wire and more, outside groups: what native NCCL sends by the
    // ring formula, and for how long.
    uint64_t timed_wire_bytes = 0;
    double timed_us = 0;
};

// What one process's program told of its training.
struct TrainingMark {
    double at_us = 0;
    std::string phase;
    int64_t step = -1;
    double learning_rate = -1, loss_scale = -1;  // below 0: not told
};

struct TraceTimeline {
    double slice_us = 1000;
    double end_us = 0;  // of the last call
    std::array<TraceSlice, kMostSlices> slices;
    std::vector<TrainingMark> training;  // of the first process that has any; at most 4096, evenly
    size_t used = 0;                     // slices
};

// The same files as read_traces() read without an error. Times are since each file's process began
// its trace.
Result<TraceTimeline> read_timeline(const std::vector<std::string>& files);

}  // namespace slimwire::cli
