#include "topology/cost/training_cost.h"

#include <algorithm>

namespace slimwire {
namespace {

// An all-reduce over a group: within its node, or hierarchically over its nodes.
CallCost all_reduce(double bytes,
                    const GroupSpan& span,
                    const ClusterCost& cluster,
                    const std::optional<CodecCost>& codec) {
    if (span.nodes <= 1) {
        return codec ? two_shot_cost(bytes, span.ranks, cluster.within, *codec)
                     : dense_ring_cost(bytes, span.ranks, cluster.within);
    }
    const CommCost comm{span.nodes, span.local, cluster.within, cluster.between};
    return codec ? hierarchical_cost(bytes, comm, *codec) : dense_hierarchical_cost(bytes, comm);
}

double seconds(const CallCost& cost, const ClusterCost& cluster, bool compressed) {
    return compressed ? cost.best_sliced_s(cluster.slices, cluster.slice_s) : cost.total_s();
}

// Ranks that lie `stride` apart.
GroupSpan span_of(int ranks, int stride, int gpus_per_node) {
    GroupSpan span;
    span.ranks = ranks;
    span.local = std::clamp(gpus_per_node / std::max(stride, 1), 1, ranks);
    span.nodes = (ranks + span.local - 1) / span.local;
    return span;
}

}  // namespace

GroupSpan tensor_span(const Parallelism& parallelism, int gpus_per_node) {
    return span_of(parallelism.tensor, 1, gpus_per_node);
}

GroupSpan data_span(const Parallelism& parallelism, int gpus_per_node) {
    return span_of(parallelism.data, parallelism.tensor, gpus_per_node);
}

CallCost gradient_cost(const ModelShape& model,
                       const Parallelism& parallelism,
                       const ClusterCost& cluster,
                       const std::optional<CodecCost>& codec) {
    const double bytes =
        model.parameters() / (parallelism.tensor * parallelism.pipeline) * cluster.gradient_bytes;
    return all_reduce(bytes, data_span(parallelism, cluster.gpus_per_node), cluster, codec);
}

double layer_operations(double batch, double sequence, double hidden) {
    return 96 * batch * sequence * hidden * hidden + 16 * batch * sequence * sequence * hidden;
}

StepCost step_cost(const ModelShape& model,
                   const Parallelism& parallelism,
                   const ClusterCost& cluster,
                   const CompressionChoice& choice) {
    const double stages = parallelism.pipeline;
    const double micro = model.micro_batches;
    // ((m - 1) / n + 1) K layers' times: MCBench's form of (m + n - 1) stages' times.
    const double layers = ((micro - 1) / stages + 1) * model.layers;
    const double operations = layer_operations(model.micro_batch, model.sequence, model.hidden);
    const double layer_s = cluster.layer_s + operations / parallelism.tensor / cluster.gpu_flops;
    const double activation =
        model.micro_batch * model.sequence * model.hidden * cluster.activation_bytes;
    StepCost step;
    step.compute_s = layers * layer_s;
    const CallCost sum = all_reduce(activation, tensor_span(parallelism, cluster.gpus_per_node),
                                    cluster, choice.tensor_sums);
    // Two of the forward, two of the backward pass.
    step.tensor_s = layers * 4 * seconds(sum, cluster, choice.tensor_sums.has_value());
    if (parallelism.pipeline > 1) {
        const bool other_node = parallelism.tensor * parallelism.data >= cluster.gpus_per_node ||
                                parallelism.gpus() > cluster.gpus_per_node;
        const LinkCost& link = other_node ? cluster.between : cluster.within;
        const CallCost message =
            choice.boundaries
                ? compressed_send_cost(activation / parallelism.tensor, link, *choice.boundaries)
                : send_cost(activation / parallelism.tensor, link);
        // Forward and backward over all boundaries once; the rest is behind computing, unless a
        // message takes longer than a stage's pass.
        const double one = seconds(message, cluster, choice.boundaries.has_value());
        const double pass = layer_s * model.layers / stages / 2;
        step.boundary_s = 2 * (stages - 1) * one + 2 * (micro - 1) * std::max(0.0, one - pass);
    }
    step.gradient_s = seconds(gradient_cost(model, parallelism, cluster, choice.gradients), cluster,
                              choice.gradients.has_value());
    // The last micro-batch's backward pass, 3 of 4 parts with recomputation.
    const double hides = cluster.overlap * 0.75 * layer_s * model.layers / stages;
    step.gradient_exposed_s = std::max(0.0, step.gradient_s - hides);
    return step;
}

}  // namespace slimwire
