// Reads the report files of a job's ranks (collectives/SCHEMA.md) and adds them up: one entry per
// communicator and tensor key over all ranks, with what differs between ranks said in words. Used
// by `slimwire report` and by `bench collective`.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/observe/stats.h"

namespace slimwire::cli {

// What one tensor's controller (collectives/adaptive/accordion.h) decided: equal on all ranks.
struct MergedAccordion {
    uint64_t windows = 0, high_windows = 0, lr_drops = 0;
    std::string decisions;  // of the last windows: H for the stronger compression, L for the weaker
    std::map<std::pair<uint64_t, std::string>, std::set<int>>
        hashes;  // of so many windows -> ranks
};

// Of thresholds that follow the data.
struct ThresholdTotals {
    uint64_t encodings = 0, exact = 0, moved = 0, survivors = 0, wanted = 0;

    void add(const ThresholdTotals& other) noexcept {
        encodings += other.encodings;
        exact += other.exact;
        moved += other.moved;
        survivors += other.survivors;
        wanted += other.wanted;
    }
};

// What features of a plan did with the calls of a key: sums over ranks.
struct MergedFeatures {
    bool averages = false;  // residuals over the ranks
    uint64_t averagings = 0, averaging_wire_bytes = 0;
    bool steps_ahead = false;  // gathers are moved by their residual
    uint64_t previews = 0;
    double step_size = 0;  // of the rank merged last that knows it
    ThresholdTotals thresholds;
    // By call: squared norms of what the ranks gave, and of their residuals behind it.
    std::map<uint64_t, std::pair<double, double>> residual_norms;
    // By slot and ordinal of the tensor's place in the step.
    std::map<std::pair<uint32_t, uint32_t>, MergedAccordion> accordions;
};

struct MergedKey {
    // The call and its plan, equal for all ranks added up here.
    std::string op, direction, dtype, redop, rule, codec, algorithm, reason, remedy;
    uint64_t count = 0;
    bool folded = false;
    std::string shadow_codec, shadow_algorithm;  // of native calls that mode on would compress
    // Sums over ranks.
    uint64_t calls = 0, input_bytes = 0, wire_bytes = 0, native_wire_bytes = 0, timed_calls = 0;
    double time_us = 0;
    uint64_t shadow_calls = 0, shadow_wire_bytes = 0, shadow_native_bytes = 0;
    MergedFeatures features;
    bool wire_is_estimate = false;
    std::map<int, uint64_t> calls_of_rank;
    std::set<std::string> names;  // of the buffers, as ranks call them; "" where one has none

    // What all ranks call them; empty where they do not.
    [[nodiscard]] std::string name() const {
        return names.size() == 1 ? *names.begin() : std::string();
    }
};

struct MergedComm : CommCounts<uint64_t> {
    std::string comm;
    int ranks = 0;
    int nodes = 0;
    std::set<int> ranks_seen;
    std::map<std::string, std::set<int>> agreements;  // text -> ranks
    CommLinks links;                        // without nodes where nobody said; no more than is told
    std::vector<CostThreshold> thresholds;  // as calibrated
    std::vector<MergedKey> keys;            // by input bytes, largest first
    std::vector<std::string> differences;   // one line each
};

// What the net plugin of all processes carried to or from one host, over one device.
struct MergedPeer {
    std::string direction, peer, wire, device;
    uint64_t processes = 0;
    uint64_t connections = 0, messages = 0, bytes = 0, wire_bytes = 0;
    uint64_t coded_messages = 0, coded_bytes = 0, coded_wire_bytes = 0;
    uint64_t flagged_messages = 0, flagged_bytes = 0;
    uint64_t timed_raw_bytes = 0, timed_coded_bytes = 0;
    double timed_raw_us = 0, timed_coded_us = 0;
};
// Its sums, in the order of a record.
inline constexpr std::pair<const char*, uint64_t MergedPeer::*> kPeerCounts[] = {
    {"connections", &MergedPeer::connections},
    {"messages", &MergedPeer::messages},
    {"bytes", &MergedPeer::bytes},
    {"wire_bytes", &MergedPeer::wire_bytes},
    {"coded_messages", &MergedPeer::coded_messages},
    {"coded_bytes", &MergedPeer::coded_bytes},
    {"coded_wire_bytes", &MergedPeer::coded_wire_bytes},
    {"flagged_messages", &MergedPeer::flagged_messages},
    {"flagged_bytes", &MergedPeer::flagged_bytes},
    {"timed_raw_bytes", &MergedPeer::timed_raw_bytes},
    {"timed_coded_bytes", &MergedPeer::timed_coded_bytes},
};

struct MergedReport {
    int processes = 0;
    double uptime_us = 0;                  // of the process that ran longest
    std::vector<MergedComm> comms;         // in order of appearance
    std::vector<std::string> differences;  // between processes
    std::vector<std::string> notes;        // a cut last line and the like
    MergedKey total;                       // only the sums
    std::vector<MergedPeer> peers;         // by direction, then bytes, largest first
    bool throttled = false;                // SLIMWIRE_NET_LINK in a process
};

// Errors have the form "FILE:LINE: what". An unreadable file, text that is not JSON (except in a
// last line without a newline, which is noted), another format version.
Result<MergedReport> merge_reports(const std::vector<std::string>& files);

// native_wire_bytes / wire_bytes; 1 when nothing was sent.
[[nodiscard]] double wire_ratio(const MergedKey& key);
// The same of what mode on would send.
[[nodiscard]] double shadow_ratio(const MergedKey& key);

}  // namespace slimwire::cli
