// The cost model against values worked out by hand from its formulas, and fits against the
// constants that made their samples.
#include "topology/cost/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "topology/cost/cost_fit.h"
#include "topology/cost/training_cost.h"

namespace slimwire {
namespace {

CodecCost codec_of(double ratio, double encode_gb_s, double decode_gb_s, double launch_s = 0) {
    return {ratio, TimeBySize::of_rate(encode_gb_s, launch_s),
            TimeBySize::of_rate(decode_gb_s, launch_s)};
}
const CodecCost kFree = codec_of(4, 1e12, 1e12);

TEST(Cost, DenseRing) {
    const CallCost cost = dense_ring_cost(1e9, 4, {10e-6, 25});
    EXPECT_NEAR(cost.latency_s, 60e-6, 1e-15);
    EXPECT_NEAR(cost.wire_bytes, 1.5e9, 1);
    EXPECT_NEAR(cost.total_s(), 0.06 + 60e-6, 1e-12);
    EXPECT_EQ(dense_ring_cost(1e9, 1, {1, 1}).total_s(), 0);
}

TEST(Cost, DenseTree) {
    const CallCost cost = dense_tree_cost(1e6, 9, {10e-6, 25});
    EXPECT_NEAR(cost.latency_s, 80e-6, 1e-15) << "four levels, up and down";
    EXPECT_NEAR(cost.wire_bytes, 2e6, 1e-6);
    // The faster of both: of many nodes and little data the tree.
    EXPECT_NEAR(dense_hierarchical_cost(8e6, {9, 8, {0, 1e9}, {10e-6, 25}}).total_s(),
                80e-6 + 2e6 / 25e9, 1e-9);
}

TEST(Cost, GroupedMessagesHaveALatencyOfTheirOwn) {
    const LinkCost link{10e-6, 25, 2e-6};
    EXPECT_NEAR(two_shot_cost(1e9, 4, link, kFree).latency_s, 2 * 14e-6, 1e-15);
    EXPECT_NEAR(one_shot_cost(1e9, 4, link, kFree).latency_s, 14e-6, 1e-15);
    EXPECT_NEAR(dense_ring_cost(1e9, 4, link).latency_s, 60e-6, 1e-15);
}

TEST(Cost, TwoShot) {
    const CallCost cost = two_shot_cost(1e9, 4, {10e-6, 25}, codec_of(4, 400, 200));
    EXPECT_NEAR(cost.wire_bytes, 1.5e9 / 4, 1);
    // Encode all, decode all summed, encode a quarter, decode all.
    EXPECT_NEAR(cost.codec_s, 0.0025 + 0.005 + 0.000625 + 0.005, 1e-12);
    EXPECT_NEAR(cost.latency_s, 60e-6, 1e-15);
    // Four launches.
    const CallCost launched = two_shot_cost(1e9, 4, {10e-6, 25}, codec_of(4, 400, 200, 7e-6));
    EXPECT_NEAR(launched.codec_s - cost.codec_s, 28e-6, 1e-12);
}

// One-shot against the dense ring: as fast where the ratio is half the ranks.
TEST(Cost, OneShotPaysAboveHalfTheRanks) {
    const LinkCost link{0, 10};
    const double dense = dense_ring_cost(1e8, 8, link).total_s();
    EXPECT_NEAR(one_shot_cost(1e8, 8, link, codec_of(4, 1e15, 1e15)).total_s(), dense, 1e-9);
    EXPECT_LT(one_shot_cost(1e8, 8, link, codec_of(4.1, 1e15, 1e15)).total_s(), dense);
    EXPECT_GT(one_shot_cost(1e8, 8, link, codec_of(3.9, 1e15, 1e15)).total_s(), dense);
    // Its codec: one encoding, everybody's decoding.
    EXPECT_NEAR(one_shot_cost(1e9, 8, link, codec_of(4, 100, 400)).codec_s, 0.01 + 0.02, 1e-12);
}

TEST(Cost, HierarchicalSendsAPartBetweenNodes) {
    const CallCost cost = hierarchical_cost(1e9, {2, 8, {0, 350}, {0, 50}}, kFree);
    EXPECT_NEAR(cost.wire_bytes, 1e9 / 8 / 4, 1) << "2 (M-1)/M = 1 of the eighth, in a quarter";
    EXPECT_NEAR(cost.fixed_s, 2 * 7.0 / 8 / 350, 1e-9);
    const CallCost native = dense_hierarchical_cost(1e9, {2, 8, {0, 350}, {0, 50}});
    EXPECT_NEAR(native.wire_s, 1.0 / 8 / 50, 1e-9);
    EXPECT_NEAR(native.fixed_s, cost.fixed_s, 1e-12);
}

// 4 nodes of 8 ranks, int8 of fp32: a flat two-shot sends 1.6 times what native does between nodes,
// a hierarchical one a fifth.
TEST(Cost, FlatTwoShotSendsMoreBetweenNodesThanNative) {
    const CodecCost int8 = codec_of(32 / 8.25, 1e12, 1e12);
    const LinkCost within{0, 350}, between{0, 10};
    // A ring crosses each boundary once: a rank's share of its node's NICs is an eighth.
    const double native = 2 * 31.0 / 32 * 1e9 / 8;
    EXPECT_NEAR(flat_two_shot_cost(1e9, {4, 8, within, between}, int8).wire_bytes / native, 1.597,
                0.001);
    EXPECT_NEAR(hierarchical_cost(1e9, {4, 8, within, between}, int8).wire_bytes / native, 0.1996,
                0.0001);
    // Of one node, and of nodes of one rank, it is the two-shot.
    EXPECT_DOUBLE_EQ(flat_two_shot_cost(1e9, {1, 8, within, between}, int8).wire_bytes,
                     two_shot_cost(1e9, 8, within, int8).wire_bytes);
    EXPECT_DOUBLE_EQ(flat_two_shot_cost(1e9, {8, 1, within, between}, int8).total_s(),
                     two_shot_cost(1e9, 8, between, int8).total_s());
}

TEST(Cost, TheFastestFollowsSizeShapeAndNetwork) {
    const CodecCost int4 = codec_of(4, 2000, 2000, 5e-6);
    CommCost comm{4, 8, {3e-6, 400, 1e-6}, {12e-6, 3, 2e-6}, 8, 10e-6};
    const auto chosen = [&](double bytes) {
        const std::vector<AlgorithmTime> times = all_reduce_times(bytes, comm, int4);
        const auto faster = [](const AlgorithmTime& left, const AlgorithmTime& right) {
            return left.seconds < right.seconds;
        };
        return std::min_element(times.begin(), times.end(), faster)->algorithm;
    };
    EXPECT_EQ(all_reduce_times(1e8, comm, int4).size(), 4u);
    EXPECT_EQ(chosen(1e9), CostAlgorithm::kHierarchical);
    EXPECT_EQ(chosen(1e3), CostAlgorithm::kNative);
    comm.within.gb_s = comm.between.gb_s = 4000;
    EXPECT_EQ(chosen(1e9), CostAlgorithm::kNative) << "links faster than the codec";
    comm = {4, 1, {3e-6, 400, 1e-6}, {12e-6, 1.25, 2e-6}, 8, 10e-6};
    EXPECT_EQ(all_reduce_times(1e8, comm, int4).size(), 3u);
    EXPECT_EQ(chosen(1e9), CostAlgorithm::kTwoShot);
    comm.nodes = 2;
    EXPECT_EQ(chosen(1e5), CostAlgorithm::kOneShot) << "one step of two, and as many bytes";
    EXPECT_STREQ(cost_algorithm_name(CostAlgorithm::kOneShot), "gather");
}

TEST(Cost, CallsOfOneHop) {
    const CodecCost codec = codec_of(4, 400, 200);
    const auto same = [](const std::vector<AlgorithmTime>& times,
                         const std::vector<double>& seconds) {
        ASSERT_EQ(times.size(), seconds.size());
        for (size_t i = 0; i < times.size(); ++i) {
            EXPECT_NEAR(times[i].seconds, seconds[i], 1e-9)
                << cost_algorithm_name(times[i].algorithm);
        }
    };
    const auto expect = [&](CostHop hop, const CommCost& comm, const std::vector<double>& seconds) {
        same(hop_times(hop, 1e9, comm, codec), seconds);
    };
    const CommCost node{1, 4, {10e-6, 25}, {0, 1}};
    expect(CostHop::kReduceScatter, node, {0.03 + 30e-6, 0.0075 + 0.0025 + 0.005 + 30e-6});
    expect(CostHop::kAllGather, node, {0.03 + 30e-6, 0.0075 + 0.000625 + 0.005 + 30e-6});
    expect(CostHop::kAllToAll, node, {0.03 + 30e-6, 0.0075 + 0.0025 + 0.005 + 30e-6});
    expect(CostHop::kMessage, node, {0.04 + 10e-6, 0.01 + 0.0025 + 0.005 + 10e-6});
    // A root sends or gets all, and codes all.
    expect(CostHop::kBroadcast, node, {0.04 + 30e-6, 0.01 + 0.0025 + 0.005 + 30e-6});
    expect(CostHop::kGather, node, {0.03 + 30e-6, 0.0075 + 0.000625 + 0.005 + 30e-6});
    expect(CostHop::kScatter, node, {0.03 + 30e-6, 0.0075 + 0.0025 + 0.00125 + 30e-6});
    // Rings leave a node by all its NICs; pieces for each rank of others cross them, too.
    const CommCost nodes{4, 8, {0, 350}, {0, 10}};
    const double inside = 7.0 / 8 / 350;
    expect(CostHop::kReduceScatter, nodes,
           {0.75 / 80 + inside, 0.75 / 40 + 0.0075, 0.75 / 320 + 0.0075 / 8 + inside});
    expect(CostHop::kAllGather, nodes,
           {0.75 / 80 + inside, (0.75 / 80 + inside) / 4 + 0.0025 / 32 + 0.005});
    const double chain = 1.0 / 80 + 1.0 / 350;
    expect(CostHop::kBroadcast, nodes, {chain, chain / 4 + 0.0025 + 0.005});
    same(reduce_times(1e9, nodes, codec),
         {chain, 2 * 0.75 / 40 + 0.0025 * (1 + 1.0 / 32) + 2 * 0.005,
          2 * 0.75 / 320 + (0.0025 * (1 + 1.0 / 4) + 2 * 0.005) / 8 + inside});
}

// A fused two-shot codec of 400 GB/s at 1/4: pays below 200 GB/s; a message below 150.
TEST(Cost, BreakEvenBandwidth) {
    // From rates alone: f (1 - 1/r) / ((1 + 1/N) / Ce + 2 / Cd), f = 2 (N-1) / N.
    constexpr double kOfFour = 1.5 * 0.75 / (3.25 / 400);
    const CodecCost codec = codec_of(4, 400, 400);
    EXPECT_NEAR(break_even_gb_s(dense_ring_cost(1e9, 1 << 30, {0, 7}),
                                two_shot_cost(1e9, 1 << 30, {0, 7}, codec)),
                200, 1e-5);
    EXPECT_NEAR(break_even_gb_s(dense_ring_cost(1e9, 4, {1e-6, 7}),
                                two_shot_cost(1e9, 4, {1e-6, 7}, codec)),
                kOfFour, 1e-6);
    EXPECT_NEAR(break_even_gb_s(send_cost(1e9, {0, 3}), compressed_send_cost(1e9, {0, 3}, codec)),
                150, 1e-6);
    // At that bandwidth both take as long.
    const LinkCost link{5e-6, kOfFour};
    EXPECT_NEAR(dense_ring_cost(1e9, 4, link).total_s(),
                two_shot_cost(1e9, 4, link, codec).total_s(), 1e-9);
    EXPECT_EQ(break_even_gb_s(send_cost(1e9, {0, 3}),
                              compressed_send_cost(1e9, {0, 3}, codec_of(1, 400, 400))),
              0)
        << "nothing saved: never";
    EXPECT_EQ(break_even_gb_s(send_cost(1e9, {0, 3}),
                              compressed_send_cost(1e9, {0, 3}, CodecCost{2, {}, {}})),
              kNoLimit)
        << "nothing spent: always";
}

TEST(Cost, SlicesOverlapCodecAndWire) {
    CallCost cost;
    cost.latency_s = 0.1;
    cost.wire_s = 8;
    cost.codec_s = 4;
    cost.fixed_s = 1;
    EXPECT_DOUBLE_EQ(cost.sliced_s(1, 0.05), 13.1);
    // A quarter of both, then three quarters of the slower.
    EXPECT_DOUBLE_EQ(cost.sliced_s(4, 0.05), 1 + 0.4 + 0.2 + 3 + 6);
    EXPECT_DOUBLE_EQ(cost.best_sliced_s(4, 0.05), 10.6);
    EXPECT_DOUBLE_EQ(cost.best_sliced_s(64, 10), 13.1) << "slices that cost too much are not cut";
}

TEST(Cost, TimesBySizeAreInterpolated) {
    const TimeBySize line{{{1000, 5e-6}, {3000, 9e-6}, {7000, 10e-6}}};
    EXPECT_DOUBLE_EQ(line.seconds(10), 5e-6);
    EXPECT_DOUBLE_EQ(line.seconds(2000), 7e-6);
    EXPECT_DOUBLE_EQ(line.seconds(7000), 10e-6);
    EXPECT_DOUBLE_EQ(line.seconds(11000), 11e-6) << "at the last two points' rate";
    EXPECT_DOUBLE_EQ(line.seconds(0), 0);
    EXPECT_NEAR(TimeBySize::of_rate(100, 3e-6).seconds(5e9), 0.05 + 3e-6, 1e-12);
    EXPECT_DOUBLE_EQ((TimeBySize{{{1000, 5e-6}}}).seconds(2000), 10e-6);
}

// 10 us + n / 1 GB/s against 100 us + n / 4 GB/s: equal at 120000 bytes, 5 % less at 129286.
TEST(Cost, ThresholdsHaveHysteresis) {
    const auto native = [](double bytes) { return 10e-6 + bytes / 1e9; };
    const auto compressed = [](double bytes) { return 100e-6 + bytes / 4e9; };
    const Threshold found = find_threshold(1 << 30, 0.05, native, compressed);
    EXPECT_TRUE(found.pays);
    EXPECT_GE(found.enter_bytes, 129286u);
    EXPECT_LE(found.enter_bytes, 129286u * 65 / 64);
    EXPECT_GE(found.leave_bytes, 120000u);
    EXPECT_LE(found.leave_bytes, 120000u * 65 / 64);
    EXPECT_FALSE(find_threshold(1 << 16, 0.05, native, compressed).pays);
    const Threshold always = find_threshold(1 << 30, 0.05, native, [](double) { return 0.0; });
    EXPECT_EQ(always.enter_bytes, 256u);
    // Worse again for large tensors: no threshold, for all from there on must pay.
    const auto island = [](double bytes) { return bytes < 1e6 ? 0 : 1 + bytes; };
    EXPECT_FALSE(find_threshold(1 << 30, 0.05, native, island).pays);
}

TEST(CostFit, AlphaAndBetaComeBack) {
    std::vector<FitSample> samples;
    for (double bytes = 4096; bytes <= 1e9; bytes *= 4) {
        samples.push_back({bytes, 20e-6 + bytes / 12.5e9});
    }
    auto fit = fit_alpha_beta(samples);
    ASSERT_TRUE(fit.ok());
    EXPECT_NEAR(fit.value().link.alpha_s, 20e-6, 1e-11);
    EXPECT_NEAR(fit.value().link.gb_s, 12.5, 1e-6);
    EXPECT_NEAR(fit.value().quality.r_squared, 1, 1e-9);
    EXPECT_LT(fit.value().quality.worst_error, 1e-6);
    // Off by 5 %, up and down in turn.
    for (size_t i = 0; i < samples.size(); ++i) {
        samples[i].seconds *= i % 2 == 0 ? 1.05 : 0.95;
    }
    fit = fit_alpha_beta(samples);
    ASSERT_TRUE(fit.ok());
    EXPECT_NEAR(fit.value().link.gb_s, 12.5, 1.25);
    EXPECT_GT(fit.value().quality.median_error, 0.02);
    EXPECT_LT(fit.value().quality.median_error, 0.08);
    // Faster than in proportion: no latency below 0.
    EXPECT_EQ(fit_alpha_beta({{1e6, 1e-3}, {2e6, 3e-3}}).value().link.alpha_s, 0);
}

TEST(CostFit, WhatCannotBeFittedIsAnError) {
    EXPECT_EQ(fit_alpha_beta({{1e6, 1e-3}, {1e6, 2e-3}}).status().message(),
              "latency and bandwidth: samples of 1 sizes; accepted: 2 or more");
    EXPECT_EQ(fit_alpha_beta({{1e6, 1e-3}, {2e6, 0}}).status().message(),
              "latency and bandwidth: a sample of no size or time; accepted: both above 0");
    EXPECT_FALSE(fit_alpha_beta({{1e3, 1e-3}, {2e3, 1e-4}}).ok());
    EXPECT_FALSE(fit_rate({}).ok());
}

TEST(CostFit, ARateComesBackWithItsQuality) {
    std::vector<FitSample> samples;
    for (const double hidden : {1024, 4096, 12288, 25600}) {
        const double operations = layer_operations(16, 128, hidden);
        samples.push_back({operations, 2.5e-14 * operations});
    }
    auto fit = fit_rate(samples);
    ASSERT_TRUE(fit.ok());
    EXPECT_NEAR(fit.value().seconds_per_unit / 2.5e-14, 1, 1e-9);
    EXPECT_LT(fit.value().quality.worst_error, 1e-9);
    samples[0].seconds *= 1.1;
    fit = fit_rate(samples);
    ASSERT_TRUE(fit.ok());
    EXPECT_GT(fit.value().quality.worst_error, 0.05);
}

// 4 layers of hidden 1000, sequence 100, one sample a micro-batch, 4 micro-batches.
ModelShape small_model() {
    return {4, 1000, 100, 1, 4, 1000};
}

TEST(TrainingCost, OneGpuComputesOnly) {
    ClusterCost cluster;
    cluster.gpu_flops = 1e12;
    const StepCost step = step_cost(small_model(), {}, cluster, {});
    // 16 passes of 96 x 100 x 10^6 + 16 x 10^4 x 1000 operations.
    EXPECT_NEAR(step.compute_s, 16 * 9.76e9 / 1e12, 1e-12);
    EXPECT_DOUBLE_EQ(step.total_s(), step.compute_s);
    EXPECT_DOUBLE_EQ(small_model().parameters(), 12 * 4 * 1e6 + 1e6);
    EXPECT_DOUBLE_EQ(layer_operations(1, 1, 10), 9760);
}

// MCBench's conclusion: on a fixed cluster compressing activations gains less as layers grow.
TEST(TrainingCost, TensorSumsGainLessAsModelsGrow) {
    ClusterCost cluster;
    cluster.within = {3e-6, 12};
    cluster.gpu_flops = 1e14;
    CompressionChoice choice;
    choice.tensor_sums = codec_of(8, 500, 500);
    double before = 10;
    for (const double hidden : {1024, 4096, 12288, 25600}) {
        const ModelShape model{1, hidden, 128, 16, 1, 0};
        const Parallelism parallelism{4, 1, 1};
        const double gain = step_cost(model, parallelism, cluster, {}).total_s() /
                            step_cost(model, parallelism, cluster, choice).total_s();
        EXPECT_LT(gain, before);
        EXPECT_GT(gain, 1);
        before = gain;
    }
}

TEST(TrainingCost, GradientsOverNodes) {
    ClusterCost cluster;
    cluster.gpus_per_node = 8;
    cluster.within = {0, 400};
    cluster.between = {0, 10};
    cluster.gpu_flops = 1e12;
    cluster.overlap = 0;
    const Parallelism parallelism{1, 1, 16};
    const StepCost native = step_cost(small_model(), parallelism, cluster, {});
    // 49 million parameters of 2 bytes: within the node 2 x 7/8, between 2 nodes an eighth.
    EXPECT_NEAR(native.gradient_s, 98e6 * 1.75 / 400e9 + 98e6 / 8 / 10e9, 1e-12);
    EXPECT_DOUBLE_EQ(native.gradient_exposed_s, native.gradient_s);
    CompressionChoice choice;
    choice.gradients = codec_of(4, 1e12, 1e12);
    cluster.slices = 1;
    const StepCost compressed = step_cost(small_model(), parallelism, cluster, choice);
    EXPECT_NEAR(compressed.gradient_s, 98e6 * 1.75 / 400e9 + 98e6 / 8 / 4 / 10e9, 1e-9);
    // Behind three quarters of the last micro-batch's pass, 0.03904 s, there is nothing left to
    // gain.
    cluster.overlap = 1;
    EXPECT_EQ(step_cost(small_model(), parallelism, cluster, {}).gradient_exposed_s, 0);
}

TEST(TrainingCost, StagesAndTensorGroups) {
    ClusterCost cluster;
    cluster.gpus_per_node = 2;
    cluster.within = {0, 100};
    cluster.between = {0, 1};
    cluster.gpu_flops = 1e12;
    const StepCost step = step_cost(small_model(), {2, 2, 1}, cluster, {});
    // (3 / 2 + 1) x 4 layers' times, halved by the tensor group.
    EXPECT_NEAR(step.compute_s, 10 * 9.76e9 / 2 / 1e12, 1e-12);
    // Four sums of 200 kB over 2 ranks a layer.
    EXPECT_NEAR(step.tensor_s, 10 * 4 * 200e3 / 100e9, 1e-12);
    // One boundary, there and back, half the activation on each of two ranks; the pass hides the
    // rest.
    EXPECT_NEAR(step.boundary_s, 2 * 100e3 / 1e9, 1e-12);
    const GroupSpan span = data_span({2, 1, 8}, 8);
    EXPECT_EQ(span.local, 4);
    EXPECT_EQ(span.nodes, 2);
    EXPECT_EQ(data_span({8, 1, 8}, 8).local, 1);
    EXPECT_EQ(tensor_span({8, 1, 8}, 8).nodes, 1);
}

}  // namespace
}  // namespace slimwire
