// Constants of the cost models from measurements, by least squares of relative errors (sizes span
// decades, so absolute ones would see the largest alone), with the quality of the fit.
//
// MCBench's model (MLSys 2024) of a transformer layer under tensor parallelism, batch B, sequence
// s, hidden h, code size e: computing a (96 B s h^2 + 16 B s^2 h), communicating x elements c below
// d elements and b x from there on, encoding and decoding g B s h. Pure; no libm.
#pragma once

#include <vector>

#include "codecs/base/status.h"
#include "topology/cost.h"

namespace slimwire {

struct FitSample {
    double x = 0;        // bytes, elements or operations
    double seconds = 0;  // > 0
};

struct FitQuality {
    double median_error = 0;  // relative: |predicted - measured| / measured
    double worst_error = 0;
    double r_squared = 0;  // of absolute times; 1: all of the spread is explained
};

struct AlphaBetaFit {
    LinkCost link;  // x in bytes
    FitQuality quality;
};
// At least two sizes. alpha is not below 0.
Result<AlphaBetaFit> fit_alpha_beta(const std::vector<FitSample>& samples);

struct McbenchConstants {
    double a = 0;  // seconds an operation
    double b = 0;  // seconds an element
    double c = 0;  // seconds
    double g = 0;  // seconds an element
    double d = 0;  // elements
};

struct McbenchLayer {
    double batch = 1, sequence = 1, hidden = 1;
};
[[nodiscard]] double mcbench_operations(const McbenchLayer& layer) noexcept;
[[nodiscard]] double mcbench_communication_s(const McbenchConstants& k, double elements) noexcept;
// One layer natively, and with an auto-encoder of code size `code`.
[[nodiscard]] double mcbench_layer_s(const McbenchConstants& k, const McbenchLayer& layer) noexcept;
[[nodiscard]] double mcbench_encoded_layer_s(const McbenchConstants& k,
                                             const McbenchLayer& layer,
                                             double code) noexcept;
// A step over `nodes` pipeline nodes: ((m - 1) / n + 1) K T_layer + (n - 1) elements / w.
struct McbenchCluster {
    double nodes = 1, micro_batches = 1, layers = 1;
    double elements_per_s = 1;  // between nodes
};
[[nodiscard]] double mcbench_step_s(const McbenchCluster& cluster,
                                    double layer_s,
                                    double boundary_elements) noexcept;

struct McbenchFit {
    McbenchConstants constants;
    FitQuality compute, communicate, encode;
};
// x of `compute` in operations, of the others in elements. `communicate` needs two sizes, the
// others one.
Result<McbenchFit> fit_mcbench(const std::vector<FitSample>& compute,
                               const std::vector<FitSample>& communicate,
                               const std::vector<FitSample>& encode);

// MCBench's own grid of hidden sizes and micro-batches, sequence 128, for a calibrator to run.
[[nodiscard]] std::vector<McbenchLayer> mcbench_grid();

}  // namespace slimwire
