// From counters to text: the records of a report file (collectives/SCHEMA.md) and the summary
// printed at exit. Pure functions over copies; called by the reporter (reporter.cpp) and by tests.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collectives/call/training.h"
#include "collectives/observe/stats.h"

namespace slimwire {

// Totals of one key, or of several added up.
struct KeyRecord : KeyFacts {
    uint64_t calls = 0, input_bytes = 0, wire_bytes = 0, native_wire_bytes = 0;
    uint64_t timed_calls = 0, time_ns = 0;
    std::string name;  // of the buffers of all its calls; empty where there is no such
    uint64_t shadow_wire_bytes = 0;
    ReportFields fields;  // of the features; no lists when folded
};

struct CommRecord : CommFacts, CommCounts<uint64_t> {
    bool retired = false;
    uint64_t communicators = 1;
    std::vector<KeyRecord> keys;
};

// What the program told of its training (training.h).
struct TrainingRecord {
    Phase phase = Phase::kTraining;
    std::optional<uint64_t> step;
    std::optional<double> learning_rate, loss_scale;
};
[[nodiscard]] TrainingRecord training_record(const Training& training);

struct ProcessRecord {
    ProcessInfo info;
    std::string host;
    int64_t pid = 0;
    std::optional<int> launcher_rank;
    uint64_t uptime_us = 0;
    TrainingRecord training = {};
};

// Bounds on a report file's size.
inline constexpr size_t kMaxKeysPerComm = 1000;
inline constexpr size_t kMaxRetiredComms = 256;

// Adds up the keys beyond the first `max_keys` that agree in everything but count, peer and
// address.
void fold_keys(size_t max_keys, CommRecord* comm);
// Adds `comm` to `total`, a record named "folded" of communicators that are gone.
void fold_comm(const CommRecord& comm, CommRecord* total);

// A communicator with its keys, and the whole file: process, then each communicator.
[[nodiscard]] std::string comm_lines(const CommRecord& comm);
[[nodiscard]] std::string report_lines(const ProcessRecord& process,
                                       const std::vector<CommRecord>& comms);

// At most five lines without the "slimwire: summary: " that begins each when printed; none when
// nothing was compressed and no rule was active. `report_path` is named when not empty.
[[nodiscard]] std::vector<std::string> summary_lines(const ProcessRecord& process,
                                                     const std::vector<CommRecord>& comms,
                                                     const std::string& report_path);

// The largest entries of `counts`, "name (n), name (n)", at most `shown` of them.
[[nodiscard]] std::string largest_counts(const std::map<std::string, uint64_t>& counts,
                                         size_t shown);

// "1.50 GiB", "12.0 KiB", "17 B".
[[nodiscard]] std::string format_bytes(uint64_t bytes);

}  // namespace slimwire
