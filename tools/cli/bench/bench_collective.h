// `slimwire bench collective`: a compressed operation against the native one, and against moving as
// many plain bytes, in the same processes, on the emulator or on the GPUs of the job it is started
// in.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/call/call.h"
#include "tools/cli/run/job.h"

namespace CLI {
class App;
}

namespace slimwire::cli {

// What CollectiveOptions::algorithm may be.
inline const std::vector<std::string> kBenchedAlgorithms = {"auto",   "two_shot",     "sparse",
                                                            "gather", "hierarchical", "direct"};

struct CollectiveOptions {
    std::string op = "all_reduce";
    std::string codecs = "int4";  // comma list; commas inside a specification belong to it
    std::string dtype = "f32";
    std::string bytes = "64MiB";  // comma list
    std::string algorithm;        // empty: auto
    std::string error_feedback;
    int ranks = 0;  // 0: the job's own where it is started in one, else 4 emulated ones
    int nodes = 0;  // 0: each rank is a node
    std::string link;
    int rounds = 5;
    int warmup = 1;
    uint64_t seed = 1;
    bool json = false;
};

// What `bench collective` and `calibrate` alike may be told to run.
void add_run_options(CLI::App* command, CollectiveOptions* run);

// What the worker and slimwire's report said about one size, before judgement.
struct CollectiveMeasurement {
    std::string codec;                      // as asked for
    std::string reported_codec, algorithm;  // of slimwire's report; empty: no such call in it
    std::string reason;
    Op op = Op::kAllReduce;
    int ranks = 1;
    uint64_t bytes = 0, count = 0;
    std::vector<double> native_us, time_us, raw_us;  // slowest rank of each round
    bool counted = false;                            // the emulator counted the bytes
    double wire_bytes = 0, native_wire_bytes = 0;    // per call and rank, counted
    double between_nodes_bytes = 0, native_between_nodes_bytes = 0;  // per call, of all ranks
    double reported_wire_bytes = 0,
           formula_bytes = 0;  // per call and rank, by slimwire and the ring
    double rel_error = 0;
    bool identical = true;
    double ideal_us = 0;
    int nodes = 0;           // asked for; 0: the job's own
    int reported_nodes = 0;  // as slimwire saw them
};

// The members of a result (collectives/SCHEMA.md) that follow from it: medians, ratios, and in
// `failed` why this is none. Pure.
[[nodiscard]] nlohmann::ordered_json judge(const CollectiveMeasurement& measurement);

// Bytes that the neediest rank gives to the transport for a native call whose larger buffer has
// `bytes` bytes: ring and chain formulas.
[[nodiscard]] double native_bytes(Op op, double bytes, int ranks);

// "int4,int8:block=128,scale=f32,bf16" -> the three specifications.
[[nodiscard]] std::vector<std::string> split_codecs(const std::string& text);

// Whether a launcher started this process as one of several ranks, and they are what is measured.
[[nodiscard]] bool measures_own_job(const CollectiveOptions& options);

// What is wrong with the options; nothing is started.
Status check_collectives(const CollectiveOptions& options);

// All codecs and sizes, without a verdict; empty on ranks other than a job's first.
Result<std::vector<CollectiveMeasurement>> measure_collectives(const CollectiveOptions& options);

int bench_collective(const CollectiveOptions& options);

}  // namespace slimwire::cli
