#include "codecs/sparse/threshold_control.h"

#include <cmath>
#include <limits>
#include <vector>

#include "codecs/launch.h"
#include "codecs/simd/chunks.h"
#include "codecs/simd/single_elements.h"
#include "codecs/sparse/host/table.h"
#include "codecs/sparse/sparse_plan.h"

namespace slimwire {
namespace {

// What finds the exact threshold of a chunk: its plan, as if it had room for the target alone.
SparsePlan exact_plan(const CodecParams& params, DType dtype, int64_t count) {
    SparsePlan plan = sparse_plan(SparseKind::kTopK, params, dtype, count);
    plan.capacity = survivor_target(plan.capacity);
    return plan;
}

// p of the sample, in its order.
std::vector<float> drawn(const EncodeChunk& chunk, const ThresholdSample& sample) {
    std::vector<float> p(static_cast<size_t>(sample.elems));
    visit_single(chunk.dtype, [&](auto element) {
        using Element = decltype(element);
        const auto* const input = reinterpret_cast<const typename Element::Bits*>(chunk.input);
        for (int64_t i = 0; i < sample.elems; ++i) {
            const int64_t at = i / kSampleGroup * sample.stride + i % kSampleGroup;
            const float scaled = chunk.factor * Element::get(input[at]);
            const float stored = Element::get(Element::put(scaled));
            const float x = std::isfinite(stored) ? scaled : stored;
            const float sum = chunk.residual == nullptr ? x : x + chunk.residual[at];
            p[static_cast<size_t>(i)] = std::isfinite(x) && std::isinf(sum)
                                            ? std::copysign(std::numeric_limits<float>::max(), sum)
                                            : sum;
        }
    });
    return p;
}

}  // namespace

int64_t threshold_workspace_bytes(const CodecParams& params,
                                  DType dtype,
                                  int64_t count,
                                  int64_t chunk_elems) {
    return threshold_workspace_on_cuda != nullptr
               ? threshold_workspace_on_cuda(params, dtype, count, chunk_elems)
               : 0;
}

void adapt_threshold_on_host(const ThresholdArgs& args) {
    const SparseTable& host = host_table<SparseTable>();
    auto& run = *device_view_as<ThresholdRun>(args.state);
    ThresholdChunk* state = threshold_chunks(&run);
    const CodecParams& params = args.encode.params;
    const bool exact = finds_exact(run, params.refresh);
    for_each_chunk(args.encode, [&](const EncodeChunk& chunk) {
        SparsePlan plan = exact_plan(params, chunk.dtype, chunk.count);
        const ThresholdSample sample = threshold_sample(chunk.count, plan.capacity);
        state->target = static_cast<uint32_t>(plan.capacity);
        if (exact) {
            state->threshold = found_threshold(state->threshold, host.cut(chunk, plan));
        } else {
            const std::vector<float> p = drawn(chunk, sample);
            const EncodeChunk of_sample{.input = reinterpret_cast<const uint8_t*>(p.data()),
                                        .output = nullptr,
                                        .residual = nullptr,
                                        .count = sample.elems,
                                        .factor = 1.0f,
                                        .dtype = DType::kFloat32,
                                        .random = {},
                                        .slot_bytes = 0,
                                        .status = nullptr};
            if (!threshold_stays(sample, host.reach(of_sample, magnitude_from(state->threshold)))) {
                plan.count = sample.elems;
                plan.capacity = sample.wanted;
                plan.dtype = DType::kFloat32;
                state->threshold = found_threshold(state->threshold, host.cut(of_sample, plan));
                ++run.moved;
            }
        }
        ++state;
    });
}

void finish_threshold_on_host(const ThresholdArgs& args) {
    auto& run = *device_view_as<ThresholdRun>(args.state);
    ThresholdChunk* chunk = threshold_chunks(&run);
    const bool exact = finds_exact(run, args.encode.params.refresh);
    const auto* header = device_view_as<const uint8_t>(args.encode.output);
    for (int64_t done = 0; done < args.encode.count; done += args.encode.chunk_elems) {
        chunk->survivors = reinterpret_cast<const uint32_t*>(header)[1];
        run.survivors += chunk->survivors;
        run.wanted += chunk->target;
        header += args.encode.slot_bytes;
        ++chunk;
    }
    ++run.encodings;
    run.since = exact ? 0 : run.since + 1;
    run.exact += exact ? 1 : 0;
}

Status enqueue(const DeviceApi& api,
               ThresholdStep step,
               const ThresholdArgs& args,
               cudaStream_t stream) {
    static const Operation<ThresholdArgs> kSteps[] = {
        {"adapt_threshold", adapt_threshold_on_host, adapt_threshold_on_cuda, "threshold"},
        {"finish_threshold", finish_threshold_on_host, finish_threshold_on_cuda, "threshold"},
    };
    return enqueue_operation(api, kSteps[static_cast<size_t>(step)], args, stream);
}

}  // namespace slimwire
