// What traces of modes record and shadow (collectives/SCHEMA.md, "Trace") tell, over all files
// given: by tensor, for `slimwire report`, and on a time line, for its page (--html).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "tools/cli/report/record_files.h"

namespace slimwire::cli {

inline constexpr size_t kMostSlices = 96;

// The time line of links and training: at most kMostSlices slices of equal length, which doubles as
// the trace goes on, so that memory does not depend on how long the job ran.

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

// The table of tensors: what a job calls, how often, how large, how long.

// What samples of a tensor's data said: sums over samples.
struct TracedSamples {
    uint64_t samples = 0, nonfinite = 0;
    double mean_square = 0, zeros_percent = 0, exponent_bits = 0;
};

// Mode shadow: what mode on would do with a tensor.
struct TracedShadow {
    std::string codec, algorithm, rule, reason;  // empty where that was not asked
    bool stand_in = false;                       // what is rehearsed is not what is encoded
    uint64_t calls = 0, wire_bytes = 0, native_bytes = 0;  // sums
    uint64_t rehearsed = 0, codec_times = 0;
    double rel_error = 0, codec_us = 0;  // sums
    double largest_rel_error = 0;        // of a call
    // Calls that were rehearsed, by when they were made: at most kMostErrors, evenly.
    std::vector<std::pair<double, double>> errors;  // seconds since the trace began, rel_error
};

struct TracedTensor {
    // Equal in all its calls.
    std::string tensor, op, dtype, redop;
    uint64_t count = 0;
    int ranks = 0;  // of the communicator
    // Sums over calls and files.
    uint64_t calls = 0, bytes = 0, captured = 0, refused = 0, timed_calls = 0;
    double device_us = 0, host_us = 0;
    TracedSamples data;
    TracedShadow shadow;
    // Place in the step -> calls there, where the place is known.
    std::map<uint32_t, uint64_t> places;
};

struct TraceTable {
    uint64_t files = 0, communicators = 0, calls = 0, bytes = 0;
    std::map<uint64_t, uint64_t> bytes_by_second;  // since each trace began, in buffers
    double recorded_us = 0;                        // from first to last call, of all files
    uint64_t lost_items = 0;                       // by a full ring
    uint64_t lost_calls = 0;                       // in files that made way and were not given
    std::vector<TracedTensor> tensors;             // by bytes, largest first
    std::vector<std::string> notes;                // a cut last line
    TraceTimeline timeline;
};

// Whether the file begins as a trace does.
[[nodiscard]] bool is_trace(const std::string& path);
// Errors have the form "FILE:LINE: what", as those of merge_reports().
Result<TraceTable> read_traces(const std::vector<std::string>& files);
// "yes", "no", "?" or "-": whether mode on would save time (collectives/SCHEMA.md, trace_tensor).
[[nodiscard]] std::string pays(const TracedTensor& of);
void print_traces(const TraceTable& table, bool json);

}  // namespace slimwire::cli
