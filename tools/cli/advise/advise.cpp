#include "tools/cli/advise/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "tools/cli/common/commands.h"

namespace slimwire::cli {
namespace {

constexpr double kOfMemoryBandwidth = 0.85;  // what streaming kernels reach
constexpr double kLaunchS = 5e-6;

CompressionChoice choice_of(Traffic traffic, const CodecCost& codec) {
    constexpr std::optional<CodecCost> CompressionChoice::*kOf[] = {
        &CompressionChoice::gradients, &CompressionChoice::boundaries,
        &CompressionChoice::tensor_sums};
    CompressionChoice choice;
    choice.*kOf[static_cast<size_t>(traffic)] = codec;
    return choice;
}

CodecCost cost_of(const AdviseInput& input, size_t codec, DType dtype) {
    return input.measured.empty() ? codec_on(input.gpu, input.codecs[codec], dtype)
                                  : input.measured[codec];
}

DType dtype_of(const AdviseInput& input, Traffic traffic) {
    return traffic == Traffic::kGradients ? input.gradients : DType::kBfloat16;
}

double break_even_of(const AdviseInput& input, Traffic traffic, const CodecCost& codec) {
    const double activation = input.model.micro_batch * input.model.sequence * input.model.hidden *
                              input.cluster.activation_bytes;
    switch (traffic) {
        case Traffic::kGradients:
            return break_even_gb_s(
                gradient_cost(input.model, input.parallelism, input.cluster, std::nullopt),
                gradient_cost(input.model, input.parallelism, input.cluster, codec));
        case Traffic::kBoundaries:
            return break_even_gb_s(send_cost(activation, input.cluster.between),
                                   compressed_send_cost(activation, input.cluster.between, codec));
        case Traffic::kTensorSums:
            return break_even_gb_s(
                dense_ring_cost(activation, input.parallelism.tensor, input.cluster.within),
                two_shot_cost(activation, input.parallelism.tensor, input.cluster.within, codec));
    }
    return 0;
}

SweepPoint sweep_point(const AdviseInput& input, double x) {
    SweepPoint point;
    point.x = x;
    point.native_s = step_cost(input.model, input.parallelism, input.cluster, {}).total_s();
    for (size_t i = 0; i < input.codecs.size(); ++i) {
        const CodecCost cost = cost_of(input, i, input.gradients);
        point.with_s.push_back(step_cost(input.model, input.parallelism, input.cluster,
                                         choice_of(Traffic::kGradients, cost))
                                   .total_s());
    }
    return point;
}

}  // namespace

const std::vector<GpuModel>& gpu_models() {
    static const std::vector<GpuModel> models = {
        {"v100", 900, 125, 150},  {"a100", 2039, 312, 300},   {"h100", 3350, 989, 450},
        {"h200", 4800, 989, 450}, {"b200", 8000, 2250, 900},  {"l40s", 864, 362, 24},
        {"a10g", 600, 125, 12},   {"mi300x", 5300, 1307, 448}};
    return models;
}

Result<GpuModel> find_gpu(const std::string& name) {
    for (const GpuModel& known : gpu_models()) {
        if (name == known.name) {
            return known;
        }
    }
    return invalid(
        fmt::format("--gpu {}; accepted: {}", name,
                    fmt::join(gpu_models() | std::views::transform(&GpuModel::name), " ")));
}

const char* traffic_name(Traffic traffic) {
    constexpr const char* kNames[] = {"gradients", "stages", "tensor sums"};
    return kNames[static_cast<size_t>(traffic)];
}

CodecCost codec_on(const GpuModel& gpu, const CodecSpec& codec, DType dtype) {
    constexpr int64_t kElems = 1 << 24;
    const double dense = static_cast<double>(kElems) * static_cast<double>(dtype_bytes(dtype));
    const double ratio = dense / static_cast<double>(codec.encoded_bytes(dtype, kElems));
    const double rate = kOfMemoryBandwidth * gpu.hbm_gb_s / (1 + 1 / ratio);
    return {ratio, TimeBySize::of_rate(rate, kLaunchS), TimeBySize::of_rate(rate, kLaunchS)};
}

Advice advise(const AdviseInput& input) {
    Advice advice;
    advice.native = step_cost(input.model, input.parallelism, input.cluster, {});
    double fastest = advice.native.total_s();
    for (const auto& [traffic, ranks] : {std::pair(Traffic::kGradients, input.parallelism.data),
                                         {Traffic::kBoundaries, input.parallelism.pipeline},
                                         {Traffic::kTensorSums, input.parallelism.tensor}}) {
        for (size_t i = 0; i < input.codecs.size(); ++i) {
            if (ranks == 1 || !input.codecs[i].accepts(dtype_of(input, traffic))) {
                continue;  // nobody to send it to, or a cast to the type that activations have
            }
            const CodecCost cost = cost_of(input, i, dtype_of(input, traffic));
            Candidate candidate;
            candidate.traffic = traffic;
            candidate.codec = i;
            candidate.step =
                step_cost(input.model, input.parallelism, input.cluster, choice_of(traffic, cost));
            candidate.speedup = advice.native.total_s() / candidate.step.total_s();
            candidate.break_even_gb_s = break_even_of(input, traffic, cost);
            if (traffic == Traffic::kGradients) {
                fastest = std::min(fastest, candidate.step.total_s());
            }
            advice.candidates.push_back(candidate);
        }
    }
    for (size_t i = 0; i < advice.candidates.size() && advice.advised < 0; ++i) {
        const Candidate& candidate = advice.candidates[i];
        if (candidate.traffic == Traffic::kGradients &&
            candidate.step.total_s() <= kNearBest * fastest &&
            candidate.step.total_s() <= (1 - kLeastGain) * advice.native.total_s()) {
            advice.advised = static_cast<int>(i);
        }
    }
    if (advice.advised >= 0) {
        const CodecCost cost = cost_of(
            input, advice.candidates[static_cast<size_t>(advice.advised)].codec, input.gradients);
        const GroupSpan span = data_span(input.parallelism, input.cluster.gpus_per_node);
        const CommCost comm{span.nodes, span.local, input.cluster.within, input.cluster.between};
        advice.threshold = find_threshold(
            uint64_t{1} << 34, kLeastGain,
            [&](double bytes) {
                return span.nodes > 1 ? dense_hierarchical_cost(bytes, comm).total_s()
                                      : dense_ring_cost(bytes, span.ranks, comm.within).total_s();
            },
            [&](double bytes) {
                return (span.nodes > 1 ? hierarchical_cost(bytes, comm, cost)
                                       : two_shot_cost(bytes, span.ranks, comm.within, cost))
                    .best_sliced_s(input.cluster.slices, input.cluster.slice_s);
            });
    }
    for (int gpus = 8; gpus <= 16384; gpus *= 2) {
        AdviseInput scaled = input;
        const int replica = input.parallelism.tensor * input.parallelism.pipeline;
        if (gpus % replica == 0) {
            scaled.parallelism.data = gpus / replica;
            advice.by_gpus.push_back(sweep_point(scaled, gpus));
        }
    }
    for (const double gbit_s : {1, 2, 5, 10, 25, 50, 100, 200, 400, 800}) {
        AdviseInput scaled = input;
        scaled.cluster.between.gb_s = gbit_s / 8;
        advice.by_bandwidth.push_back(sweep_point(scaled, gbit_s));
    }
    return advice;
}

}  // namespace slimwire::cli
