// What a training step of a transformer takes, from its shape, its parallelism and the cluster,
// natively and with codecs on the gradients, activations between stages, or tensor-parallel sums. A
// model on paper: good for what pays and where, not for milliseconds.
//
// Operations as MCBench counts them (with activations recomputed), 1F1B pipelines, tensor
// parallelism of four all-reduces a layer and micro-batch. Pure.
#pragma once

#include <optional>

#include "topology/cost/cost.h"

namespace slimwire {

struct ModelShape {
    double layers = 24, hidden = 1024, sequence = 1024, micro_batch = 8;
    double micro_batches = 8;  // of a step and pipeline
    double vocabulary = 50304;
    [[nodiscard]] double parameters() const {
        return 12 * layers * hidden * hidden + vocabulary * hidden;
    }
};

// Of one transformer layer, forward, forward again and backward, on all ranks of its tensor group
// together: 96 B s h^2 + 16 B s^2 h (MCBench, MLSys 2024).
[[nodiscard]] double layer_operations(double batch, double sequence, double hidden);

struct Parallelism {
    int tensor = 1, pipeline = 1, data = 1;
    [[nodiscard]] int gpus() const { return tensor * pipeline * data; }
};

struct ClusterCost {
    int gpus_per_node = 8;
    LinkCost within;            // between GPUs of a node
    LinkCost between;           // one GPU's share of its node's NICs
    double gpu_flops = 400e12;  // reached, a second
    double layer_s = 0;         // of a layer's launches, whatever their size
    double gradient_bytes = 2;  // an element, on the wire natively
    double activation_bytes = 2;
    double overlap = 1;      // the part of the last backward pass that gradients can hide behind
    int slices = 8;          // at most, of a compressed message
    double slice_s = 10e-6;  // launches of one slice
};

// What a codec is put on; none: native.
struct CompressionChoice {
    std::optional<CodecCost> gradients, boundaries, tensor_sums;
};

struct StepCost {
    double compute_s = 0;           // with the pipeline's bubble
    double tensor_s = 0;            // tensor-parallel all-reduces, all exposed
    double boundary_s = 0;          // between pipeline stages
    double gradient_s = 0;          // data-parallel all-reduce
    double gradient_exposed_s = 0;  // what is not behind the backward pass
    [[nodiscard]] double total_s() const {
        return compute_s + tensor_s + boundary_s + gradient_exposed_s;
    }
};

[[nodiscard]] StepCost step_cost(const ModelShape& model,
                                 const Parallelism& parallelism,
                                 const ClusterCost& cluster,
                                 const CompressionChoice& choice);

// Where tensor, pipeline and data groups lie: consecutive ranks are of one tensor group, then of
// one data group, then of the stages of a pipeline.
struct GroupSpan {
    int ranks = 1, nodes = 1, local = 1;  // local: ranks of the group on one node
};
[[nodiscard]] GroupSpan tensor_span(const Parallelism& parallelism, int gpus_per_node);
[[nodiscard]] GroupSpan data_span(const Parallelism& parallelism, int gpus_per_node);

// The data-parallel all-reduce of one GPU's gradients.
[[nodiscard]] CallCost gradient_cost(const ModelShape& model,
                                     const Parallelism& parallelism,
                                     const ClusterCost& cluster,
                                     const std::optional<CodecCost>& codec);

}  // namespace slimwire
