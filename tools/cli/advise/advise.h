// `slimwire advise`: the step time of a training job, natively and under candidate codecs
// (topology/cost/training_cost.h), at other bandwidths and other numbers of GPUs. GPU, links and
// codecs by data sheets, or as they were measured here: by times of layers and a calibration.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "codecs/codec.h"
#include "tools/cli/report/trace_table.h"
#include "topology/cost/calibration.h"
#include "topology/cost/training_cost.h"

namespace slimwire::cli {

// What pays saves this part of a step, and of what pays the first that is as near the fastest.
inline constexpr double kLeastGain = 0.05, kNearBest = 1.02;

struct GpuModel {
    const char* name;
    double hbm_gb_s, dense_tflops,
        nvlink_gb_s;  // from data sheets; NVLink or xGMI of one direction
};
[[nodiscard]] const std::vector<GpuModel>& gpu_models();
// By its name; an error lists those that are known.
Result<GpuModel> find_gpu(const std::string& name);
// Latencies of NCCL's steps: within a node, and over a network that needs no copy by a processor.
inline constexpr LinkCost kWithinNode = {3e-6, 1, 1e-6};
inline constexpr LinkCost kBetweenNodes = {12e-6, 1, 2e-6};

struct AdviseInput {
    ModelShape model;
    Parallelism parallelism;
    ClusterCost cluster;
    GpuModel gpu{};
    DType gradients = DType::kBfloat16;
    std::vector<CodecSpec> codecs;  // from the careful to the coarse one
    // Of each of `codecs`, by a calibration; empty: by the GPU's data sheet.
    std::vector<CodecCost> measured;
    std::optional<FitQuality> layers_fit;  // of measured times of layers
};

enum class Traffic { kGradients, kBoundaries, kTensorSums };
[[nodiscard]] const char* traffic_name(Traffic traffic);

struct Candidate {
    Traffic traffic = Traffic::kGradients;
    size_t codec = 0;  // in AdviseInput::codecs
    StepCost step;
    double speedup = 1;
    double break_even_gb_s = 0;  // of the link that this traffic takes
};

struct SweepPoint {
    double x = 0;  // GPUs, or Gbit/s between nodes for a GPU
    double native_s = 0;
    std::vector<double> with_s;  // by codec, on the gradients
};

struct Advice {
    StepCost native;
    std::vector<Candidate> candidates;
    // Index of the advised candidate, on gradients: the most careful within 2 % of the fastest, if
    // that gains 5 %; -1: stay native.
    int advised = -1;
    Threshold threshold;                   // of its messages
    std::vector<SweepPoint> by_gpus;       // 8 to 16384, data parallelism grows
    std::vector<SweepPoint> by_bandwidth;  // 1 to 800 Gbit/s
};

// A codec on this GPU: its ratio for `dtype`, and the time that moving its bytes takes.
[[nodiscard]] CodecCost codec_on(const GpuModel& gpu, const CodecSpec& codec, DType dtype);
[[nodiscard]] Advice advise(const AdviseInput& input);

// Seconds of one rank's part of layers at the input's tensor parallelism, as JSON lines with
// `batch`, `sequence`, `hidden` and `seconds` (tests/papers/mcbench/layers writes them), make the
// GPU's speed. An error has the line's number.
Status use_layer_times(const std::string& path, AdviseInput* input);
// Link and codecs of a calibration of all-reduces of the gradients' type. Empty codecs: those that
// it has, each by its fastest algorithm, for `adam` without those that lose there; one that it does
// not have is an error.
Status use_calibration(const std::string& path, bool adam, AdviseInput* input);

// In Gbit/s: three digits, none of them an exponent.
[[nodiscard]] std::string gbit_s_text(double gb_s);
[[nodiscard]] std::string advice_text(const AdviseInput& input, const Advice& advice);
[[nodiscard]] nlohmann::ordered_json advice_json(const AdviseInput& input, const Advice& advice);
// How the policies of advise begin, by which it knows its own.
inline constexpr char kWrittenByAdvise[] = "# Written by slimwire advise";
// Whether policies of advise have the codec without error feedback.
[[nodiscard]] bool casts_only(const CodecSpec& codec);
// A policy file for the advised codec; empty where native is advised.
[[nodiscard]] std::string advice_policy(const AdviseInput& input, const Advice& advice);

// `slimwire advise --trace`: what codecs would gain a job whose calls were recorded
// (SLIMWIRE_MODE=record). What a call takes natively is what it took; from that follows the
// bandwidth that it found, and what it would take compressed there, by the formulas of
// topology/cost/cost.h.

struct TraceAdviseInput {
    std::vector<CodecSpec> codecs;  // from the careful to the coarse one
    GpuModel gpu{};
    LinkCost link;  // its latencies; gb_s: of calls that were not timed
};

// All calls of one operation, type and size on communicators of as many ranks.
struct TracedKind {
    std::string op, dtype;
    uint64_t count = 0, bytes = 0;  // of the message
    int ranks = 0;
    uint64_t calls = 0, timed_calls = 0;
    double native_s = 0;  // of one call: measured, or by the link where none was timed
    double gb_s = 0;      // that its wire bytes found
    // What shadow calls took to encode and decode, to what the GPU would take on paper; 1: no such
    // times.
    double codec_slowdown = 1;
    // Of one call by each codec; empty: sums that codecs may take are not among them.
    std::vector<double> with_s;
    double break_even_gb_s = 0;  // of the advised codec; 0 where none is
};

struct TraceAdvice {
    std::vector<TracedKind> kinds;  // by native time of all calls, longest first
    double recorded_s = 0;          // by the processes, together
    double native_s = 0;            // of all calls that are sums of floating-point numbers
    std::vector<double> with_s;     // the same by codec, each call whichever way is faster
    // The most careful codec within 2 % of the fastest, if it gains 5 % of these calls' time;
    // -1: stay native.
    int advised = -1;
    uint64_t min_bytes = 0;  // the smallest message that it makes faster
};

[[nodiscard]] TraceAdvice advise_trace(const TraceTable& table, const TraceAdviseInput& input);
[[nodiscard]] std::string trace_advice_text(const TraceAdvice& advice,
                                            const TraceAdviseInput& input);
[[nodiscard]] nlohmann::ordered_json trace_advice_json(const TraceAdvice& advice,
                                                       const TraceAdviseInput& input);
// Empty where native is advised.
[[nodiscard]] std::string trace_advice_policy(const TraceAdvice& advice,
                                              const TraceAdviseInput& input);

// Files of calibrations (collectives/policy/calibration_file.h reads them) as `slimwire calibrate`
// keeps them: one for each host, GPU and driver.

// Where they are kept: slimwire/calibration-HOST-GPU-DRIVER.jsonl in XDG_CACHE_HOME, or in .cache
// of HOME. `emulated`: of the emulator, which has no driver.
[[nodiscard]] std::string default_calibration_path(bool emulated);

[[nodiscard]] nlohmann::ordered_json calibration_json(const Calibration& calibration,
                                                      const std::string& link);
// Whether keep_calibration() could write it; makes the folder.
Status check_calibration_path(const std::string& path);
// Puts the line of `calibration` into the file, in place of one of the same operation, type, shape
// and link. The file is replaced only when it is written whole.
Status keep_calibration(const std::string& path,
                        const Calibration& calibration,
                        const std::string& link);

}  // namespace slimwire::cli
