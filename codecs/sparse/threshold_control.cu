// Kernels of threshold_control.h; bit for bit the host bodies of threshold_control.cpp. One counts
// what of the samples reaches the thresholds, one finds others if need be (sparse_chosen.cuh), one
// finishes.
#include <algorithm>

#include "codecs/sparse/sparse_chosen.cuh"
#include "codecs/sparse/threshold_control.h"

namespace slimwire {
namespace {

// Chunks as threshold_control.cpp's exact_plan() sees them.
SparseWork exact_work(const EncodeArgs& args) {
    SparseWork work = SparseWork::of(SparseKind::kTopK, args, args.chunk_elems);
    for (SparsePlan* plan : {&work.full, &work.last}) {
        plan->capacity = survivor_target(plan->capacity);
        plan->format = ValueFormat::kNative;  // nothing is staged
    }
    return work;
}

// Of a chunk, whichever elements are looked at.
int64_t threshold_space_bytes(const SparseWork& work) {
    int64_t most = 0;
    for (SparsePlan plan : {work.full, work.last}) {
        most = std::max(most, ChosenSpace::of(plan).bytes);
        const ThresholdSample sample = threshold_sample(plan.count, plan.capacity);
        plan.count = sample.elems;
        plan.capacity = sample.wanted;
        most = std::max(most, ChosenSpace::of(plan).bytes);
    }
    return most;
}

constexpr int64_t kPartGroups = 4 * kThreads;  // of a sample, for a thread block at a time

// Counts, for each chunk, the elements of its sample that reach its threshold.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    reach_kernel(EncodeArgs encode, SparseWork work, int64_t parts, ThresholdRun* run) {
    if (finds_exact(*run, encode.params.refresh)) {
        return;
    }
    __shared__ unsigned reach;
    const float factor = encode_factor<Element>(encode);
    for (int64_t item = blockIdx.x; item < work.chunks * parts; item += gridDim.x) {
        const int64_t number = item / parts;
        const SparsePlan& plan = work.plan(number);
        ThresholdChunk& chunk = threshold_chunks(run)[number];
        const uint32_t least = magnitude_from(chunk.threshold);
        const ThresholdSample sample = threshold_sample(plan.count, plan.capacity);
        const int64_t at = number * work.chunk_elems;
        const SampledSource<Element> source = {
            static_cast<const uint8_t*>(encode.input) + at * Element::kBytes,
            encode.residual != nullptr ? encode.residual + at : nullptr, sample.elems,
            sample.stride, factor};
        __syncthreads();
        if (threadIdx.x == 0) {
            reach = 0;
        }
        __syncthreads();
        unsigned own = 0;
        const int64_t begin = item % parts * kPartGroups * kSampleGroup;
#pragma unroll 1
        for (int64_t i = begin + int64_t{threadIdx.x} * kPerThread;
             i < begin + kPartGroups * kSampleGroup && i < sample.elems;
             i += kThreads * kPerThread) {
            Eight p;
            source.eight(i, p);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                own += i + k < sample.elems && magnitude_of(p.v[k]) >= least ? 1 : 0;
            }
        }
        if (own > 0) {
            atomicAdd(&reach, own);
        }
        __syncthreads();
        if (threadIdx.x == 0 && reach > 0) {
            atomicAdd(&chunk.reach, reach);
        }
    }
}

// One thread block.
__global__ void __launch_bounds__(kThreads) finish_kernel(const uint8_t* output,
                                                          int64_t slot_bytes,
                                                          int64_t chunks,
                                                          uint32_t refresh,
                                                          ThresholdRun* run) {
    for (int64_t number = threadIdx.x; number < chunks; number += kThreads) {
        ThresholdChunk& chunk = threshold_chunks(run)[number];
        chunk.survivors = reinterpret_cast<const uint32_t*>(output + number * slot_bytes)[1];
        chunk.reach = 0;
        atomicAdd(&run->survivors, static_cast<unsigned long long>(chunk.survivors));
        atomicAdd(&run->wanted, static_cast<unsigned long long>(chunk.target));
    }
    if (threadIdx.x == 0) {
        const bool exact = finds_exact(*run, refresh);
        ++run->encodings;
        run->since = exact ? 0 : run->since + 1;
        run->exact += exact ? 1 : 0;
    }
}

}  // namespace

cudaError_t adapt_threshold_on_cuda(const ThresholdArgs& args, cudaStream_t stream) {
    if (args.encode.count <= 0) {
        return cudaSuccess;
    }
    if (args.encode.workspace == nullptr) {
        return cudaErrorInvalidValue;
    }
    const SparseWork work = exact_work(args.encode);
    const ThresholdSample sample = threshold_sample(work.full.count, work.full.capacity);
    const int64_t parts =
        (sample.elems + kPartGroups * kSampleGroup - 1) / (kPartGroups * kSampleGroup);
    int processors = 0;
    cudaError_t error = processor_count(&processors);
    if (error != cudaSuccess) {
        return error;
    }
    const int64_t most = int64_t{processors} * kBlocksPerProcessor;
    const int64_t items = work.chunks * parts;
    error = visit(args.encode.dtype, [&](auto element) {
        return start_kernel(reach_kernel<decltype(element)>,
                            static_cast<unsigned>(items < most ? items : most), kThreads, 0, stream,
                            args.encode, work, parts, args.state);
    });
    if (error != cudaSuccess) {
        return error;
    }
    ChosenArgs chosen = chosen_args(ChosenTask::kAdapt, args.encode, work, next_nonce());
    chosen.thresholds = args.state;
    chosen.space.bytes = threshold_space_bytes(work);
    return launch_task<ChosenTask::kAdapt>(chosen, stream);
}

cudaError_t finish_threshold_on_cuda(const ThresholdArgs& args, cudaStream_t stream) {
    if (args.encode.count <= 0) {
        return cudaSuccess;
    }
    const int64_t elems =
        args.encode.chunk_elems < args.encode.count ? args.encode.chunk_elems : args.encode.count;
    return start_kernel(finish_kernel, 1u, kThreads, 0, stream,
                        static_cast<const uint8_t*>(args.encode.output), args.encode.slot_bytes,
                        (args.encode.count + elems - 1) / elems, args.encode.params.refresh,
                        args.state);
}

int64_t threshold_workspace_on_cuda(const CodecParams& params,
                                    DType dtype,
                                    int64_t count,
                                    int64_t chunk_elems) {
    if (count <= 0) {
        return 0;
    }
    EncodeArgs args = {};
    args.params = params;
    args.dtype = dtype;
    args.count = count;
    args.chunk_elems = chunk_elems;
    const SparseWork work = exact_work(args);
    return 8 * kLookBackCounters + work.chunks * threshold_space_bytes(work);
}

}  // namespace slimwire
