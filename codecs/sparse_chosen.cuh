// Kernels of topk and threshold. A message of up to 256 KiB has a thread block for each chunk and
// goes through all phases (sparse_chosen_phases.cuh) in one launch; larger ones take a launch for
// each phase.
#pragma once

#include "codecs/sparse_chosen_decode.cuh"
#include "codecs/sparse_chosen_phases.cuh"

namespace slimwire {
namespace {

// The chunk `chunk` as the kernel's warps see it.
template <class Element>
__device__ __forceinline__ Chosen<Element> chosen_of(const ChosenArgs& args,
                                                     const SparsePlan& plan,
                                                     int64_t chunk,
                                                     float factor) {
    const EncodeArgs& encode = args.encode;
    const int64_t block_warps = blockDim.x / kWarpThreads;
    const int64_t own = threadIdx.x / kWarpThreads;
    const int64_t at = chunk * args.work.chunk_elems;
    float* residual = encode.residual != nullptr ? encode.residual + at : nullptr;
    return {plan,
            ChosenSpace::of(plan),
            {static_cast<const uint8_t*>(encode.input) + at * Element::kBytes, residual, plan.count,
             factor},
            static_cast<uint8_t*>(encode.output) + chunk * encode.slot_bytes,
            residual,
            static_cast<uint8_t*>(encode.workspace) + chunk * args.workspace_bytes,
            encode.threshold_ptr,
            args.block_for_chunk ? own : blockIdx.x * block_warps + own,
            args.block_for_chunk ? block_warps : gridDim.x * block_warps,
            args.block_for_chunk || blockIdx.x == chunk % gridDim.x};
}

template <class Element>
__global__ void __launch_bounds__(kThreads, kBroadBlocks) chosen_encode_kernel(ChosenArgs args) {
    const float factor = encode_factor<Element>(args.encode);
    for (int64_t chunk = args.block_for_chunk ? blockIdx.x : 0; chunk < args.work.chunks;
         chunk += args.block_for_chunk ? gridDim.x : 1) {
        const SparsePlan& plan = args.work.plan(chunk);
        const Chosen<Element> chosen = chosen_of<Element>(args, plan, chunk, factor);
        for (int phase = static_cast<int>(args.first); phase < static_cast<int>(args.last);
             ++phase) {
            if (!chosen.top() && phase > static_cast<int>(ChosenPhase::kPrepare) &&
                phase < static_cast<int>(ChosenPhase::kMark)) {
                continue;
            }
            __syncthreads();
            chosen.run(static_cast<ChosenPhase>(phase));
            __syncthreads();
        }
    }
}

// One phase that streams, in fewer registers.
template <class Element>
__global__ void __launch_bounds__(kThreads, 2) chosen_stream_kernel(ChosenArgs args) {
    const float factor = encode_factor<Element>(args.encode);
    for (int64_t chunk = 0; chunk < args.work.chunks; ++chunk) {
        const SparsePlan& plan = args.work.plan(chunk);
        chosen_of<Element>(args, plan, chunk, factor).stream(args.first);
    }
}

}  // namespace

template <SparseKind kKind>
cudaError_t SparseCuda<kKind>::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    if (args.workspace == nullptr) {
        return cudaErrorInvalidValue;
    }
    const SparseWork work = SparseWork::of(kKind, args, args.chunk_elems);
    ChosenArgs chosen{
        args, work, ChosenSpace::of(work.full).bytes, ChosenPhase::kPrepare, ChosenPhase::kEnd,
        true};
    const int64_t spans = (work.chunk_elems + kSparseSpan - 1) / kSparseSpan;
    const bool small =
        work.chunk_elems * static_cast<int64_t>(dtype_bytes(args.dtype)) <= kOneLaunchBytes;
    unsigned blocks = 0;
    cudaError_t error = blocks_for(
        args.max_blocks, small ? work.chunks * (kThreads / kWarpThreads) : spans, &blocks);
    // 16-bit elements as they are have no bits below the second digit.
    const bool two_digits = dtype_bytes(args.dtype) == 2 && args.residual == nullptr &&
                            args.scale == 1.0f && args.scale_ptr == nullptr;
    return visit(args.dtype, [&](auto element) {
        const auto kernel = chosen_encode_kernel<decltype(element)>;
        if (small) {
            return error != cudaSuccess ? error
                                        : start_kernel(kernel, blocks, kThreads, 0, stream, chosen);
        }
        chosen.block_for_chunk = false;
        for (int phase = 0; phase < static_cast<int>(ChosenPhase::kEnd) && error == cudaSuccess;
             ++phase) {
            const auto now = static_cast<ChosenPhase>(phase);
            const bool digit = now > ChosenPhase::kPrepare && now < ChosenPhase::kMark;
            const bool last_digit = now == ChosenPhase::kCount0 || now == ChosenPhase::kDigit0;
            if (digit && (kKind != SparseKind::kTopK || (last_digit && two_digits))) {
                continue;
            }
            chosen.first = now;
            chosen.last = static_cast<ChosenPhase>(phase + 1);
            error = start_kernel(Chosen<decltype(element)>::streams(now)
                                     ? chosen_stream_kernel<decltype(element)>
                                     : kernel,
                                 blocks, kThreads, 0, stream, chosen);
        }
        return error;
    });
}

template <SparseKind kKind>
cudaError_t SparseCuda<kKind>::decode(const DecodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const SparseWork work = SparseWork::of(kKind, args, args.chunk_elems);
    const int64_t units = work.chunks * ((work.chunk_elems + kSparseWide - 1) / kSparseWide);
    unsigned blocks = 0;
    const cudaError_t error =
        blocks_for(args.max_blocks, units * (kThreads / kWarpThreads), &blocks);
    if (error != cudaSuccess) {
        return error;
    }
    return visit(args.dtype, [&](auto element) {
        return start_kernel(chosen_decode_kernel<decltype(element)>, blocks, kThreads, 0, stream,
                            ChosenDecodeArgs{args, work});
    });
}

template <SparseKind kKind>
int64_t SparseCuda<kKind>::workspace_bytes(const CodecParams& params,
                                           DType dtype,
                                           int64_t count,
                                           int64_t chunk_elems) {
    if (count <= 0) {
        return 0;
    }
    const int64_t elems = chunk_elems < count ? chunk_elems : count;
    const int64_t chunks = (count + elems - 1) / elems;
    return chunks * ChosenSpace::of(sparse_plan(kKind, params, dtype, elems)).bytes;
}

}  // namespace slimwire
