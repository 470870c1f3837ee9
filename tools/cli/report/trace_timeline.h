// Puts what traces of modes record and shadow (collectives/SCHEMA.md, "Trace") tell of the links
// and of the training on a time line: at most 96 slices of equal length, whose length doubles as
// the trace goes on, so that memory does not depend on how long the job ran. Used by `slimwire
// report --html`.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/cli/report/record_files.h"

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

// Times are since each file's process began its trace.
struct TraceTimeline {
    double slice_us = 1000;
    double end_us = 0;  // of the last call
    std::array<TraceSlice, kMostSlices> slices;
    std::vector<TrainingMark> training;  // of the first process that has any; at most 4096, evenly
    size_t used = 0;                     // slices
};

// Makes it of the records of read_traces().
class TimelineReader {
  public:
    void take(const Record& record);
    // The next record is of another part or process.
    void end_part();
    TraceTimeline finish();

  private:
    struct Call {
        double at_us = 0;
        uint64_t wire_bytes = 0;
        bool alone = false;  // in no group
    };
    void take_call(const Record& record);
    void take_training(const Record& record);
    size_t slice_of(double at_us);

    TraceTimeline line_;
    std::map<uint64_t, Call> calls_;  // of the part that is read
    std::map<std::string, int> ranks_of_comm_;
    std::vector<TrainingMark> marks_;
    size_t mark_stride_ = 1, marks_seen_ = 0;
};

}  // namespace slimwire::cli
