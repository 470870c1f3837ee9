// `slimwire advise`: the step time of a training job, natively and under candidate codecs
// (topology/cost/training_cost.h), at other bandwidths and other numbers of GPUs. GPU, links and
// codecs by data sheets, or as they were measured here: by times of layers and a calibration.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "codecs/codec.h"
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

}  // namespace slimwire::cli
