// Kernels of masked_values.h; byte for byte its host bodies.
#include "codecs/sparse/masked_values.h"
#include "codecs/sparse/sparse_chosen_decode.cuh"

namespace slimwire {
namespace {

struct GatherWork {
    GatherMaskedArgs gather;
    MaskedFrame frame;
};

// A thread block takes 65536 elements: those that are kept, and whether all are finite.
template <class Word, Word kExponent>
__global__ void __launch_bounds__(kThreads, kResidentBlocks) gather_masked_kernel(GatherWork work) {
    __shared__ unsigned first_bad;
    const GatherMaskedArgs& args = work.gather;
    const SparsePlan& plan = work.frame.plan;
    const auto* const input = static_cast<const Word*>(args.input);
    auto* const frame = static_cast<uint8_t*>(args.frame);
    auto* const values = reinterpret_cast<Word*>(frame + plan.values);
    auto* const trailer = reinterpret_cast<MaskTrailer*>(frame + work.frame.trailer);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        trailer->number = args.mask != nullptr ? args.number : kNoMask;
    }
    for (int64_t unit = blockIdx.x; unit * kSparseWide < plan.count; unit += gridDim.x) {
        const int64_t begin = unit * kSparseWide;
        const int64_t end = begin + kSparseWide < plan.count ? begin + kSparseWide : plan.count;
        bool finite = true;
        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            finite = finite && (input[i] & kExponent) != kExponent;
        }
        if (!finite) {
            atomicOr(&trailer->non_finite, 1u);
        }
        if (args.mask != nullptr && plan.kind != SparseKind::kRuns) {
            read_unit(plan, static_cast<const uint8_t*>(args.mask), unit, &first_bad,
                      [&](int64_t at, int64_t number) { values[number] = input[at]; });
            __syncthreads();
        }
    }
    if (args.mask == nullptr || plan.kind != SparseKind::kRuns) {
        return;
    }
    const Choice choice = choice_of(static_cast<const uint8_t*>(args.mask));
    for (int64_t j = thread_index() / kWarpThreads; j < plan.groups;
         j += thread_total() / kWarpThreads) {
        const int64_t i = stratum_of(plan, choice, j).chosen + lane_number();
        if (i < plan.count) {
            values[j * kSparseRun + lane_number()] = input[i];
        }
    }
}

struct JoinWork {
    JoinMaskedArgs join;
    MaskedFrame frame;
};

__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    join_masked_kernel(const __grid_constant__ JoinWork work) {
    const JoinMaskedArgs& args = work.join;
    auto* const frame = static_cast<uint8_t*>(args.frame);
    const auto* const trailer = reinterpret_cast<const MaskTrailer*>(frame + work.frame.trailer);
    const uint32_t number = trailer->number;
    const uint4* mask = nullptr;
    for (int32_t i = 0; i < args.held && mask == nullptr; ++i) {
        mask = args.numbers[i] == number ? static_cast<const uint4*>(args.masks[i]) : nullptr;
    }
    auto* const to = reinterpret_cast<uint4*>(frame);
    const bool lost = trailer->non_finite != 0;
    const int64_t values = work.frame.plan.values / 16;
    const int64_t end = mask != nullptr ? values + 1 : work.frame.trailer / 16;
    for (int64_t i = thread_index(); i < end; i += thread_total()) {
        uint4 some = mask == nullptr ? uint4{0, 0, 0, 0} : i < values ? mask[i] : to[i];
        if (i == 0) {
            some.w = lost ? work.frame.lost : work.frame.word;
        }
        if (i == values && lost) {
            some.x = (some.x & work.frame.keep) | work.frame.set;
        }
        to[i] = some;
    }
    if (mask == nullptr && thread_index() == 0) {
        ++*args.misses;
    }
}

}  // namespace

cudaError_t gather_masked_on_cuda(const GatherMaskedArgs& args, cudaStream_t stream) {
    const GatherWork work = {args, MaskedFrame::of(args.params, args.dtype, args.count)};
    const int64_t units = (args.count + kSparseWide - 1) / kSparseWide;
    const auto kernel = args.dtype == DType::kFloat32 ? gather_masked_kernel<uint32_t, 0x7F800000u>
                        : args.dtype == DType::kFloat16 ? gather_masked_kernel<uint16_t, 0x7C00>
                                                        : gather_masked_kernel<uint16_t, 0x7F80>;
    return launch_threads(kernel, units * kThreads, 0, stream, work);
}

cudaError_t join_masked_on_cuda(const JoinMaskedArgs& args, cudaStream_t stream) {
    const JoinWork work = {args, MaskedFrame::of(args.params, args.dtype, args.count)};
    return launch_threads(join_masked_kernel, work.frame.plan.values / 16 + 1, 0, stream, work);
}

}  // namespace slimwire
