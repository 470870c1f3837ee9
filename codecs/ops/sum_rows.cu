// Kernel of sum_rows; byte for byte the bodies of codecs/ops/host/sum_rows_kernels.h. A thread
// takes eight neighbours of all rows, so that the output may be one of the rows.
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/ops/sum_rows.h"

namespace slimwire {
namespace {

template <class Input>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    sum_rows_kernel(SumRowsArgs args, Work work) {
    const float factor = encode_factor<Input>(args);
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        const int64_t i = unit * kPerThread;
        const auto* row = static_cast<const uint8_t*>(args.input);
        Eight sum;
        load_eight<Input>(row, i, args.count, sum);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            sum.v[k] = __fmul_rn(args.input_scale, sum.v[k]);
        }
#pragma unroll 2
        for (int32_t r = 1; r < args.rows; ++r) {
            row += args.row_bytes;
            Eight x;
            load_eight<Input>(row, i, args.count, x);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                sum.v[k] = __fmaf_rn(args.input_scale, x.v[k], sum.v[k]);
            }
        }
        limit_sums(args.sum_limit, sum);
        scale_and_add(factor, kInfinityBits, nullptr, i, args.count, sum);
        deliver(args.output_dtype, static_cast<uint8_t*>(args.output), i, args.count, false, sum);
    });
}

}  // namespace

cudaError_t sum_rows_on_cuda(const SumRowsArgs& args, cudaStream_t stream) {
    const int64_t count = args.rows > 0 ? args.count : 0;
    return visit(args.input_dtype, [&](auto input) {
        return launch_eights(sum_rows_kernel<decltype(input)>, args, count, count, stream);
    });
}

}  // namespace slimwire
