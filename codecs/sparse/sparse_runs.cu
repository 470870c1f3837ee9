// Kernels of randomk: a warp takes two strata, whose runs are one block of 64 values. Whether
// something that is not sent is not finite is collected in header word 3; the first block of values
// waits for it, in a second launch or behind a barrier where a message of up to 256 KiB has a
// thread block for each chunk.
#include "codecs/sparse/sparse.cuh"

namespace slimwire {
namespace {

struct RunArgs {
    EncodeArgs encode;
    SparseWork work;
    bool start;   // header
    bool send;    // all but the first block of values
    bool finish;  // that one
    bool block_for_chunk;
};

// Places of the two values of each lane: elements of the chunk, -1 where there is none.
__device__ __forceinline__ void places_of(const SparsePlan& plan,
                                          const Choice& choice,
                                          int64_t block,
                                          int64_t (&at)[2]) {
    const int64_t j = block * 2 + lane_number() / 16;
    at[0] = -1;
    at[1] = -1;
    if (j < plan.groups) {
        const int64_t i = stratum_of(plan, choice, j).chosen + lane_number() % 16 * 2;
        at[0] = i < plan.count ? i : -1;
        at[1] = i + 1 < plan.count ? i + 1 : -1;
    }
}

// Values 64 * block and following from p, which become what is left. `poison`: the first value must
// be NaN. Unsent residuals (p) stand already.
template <class Native>
__device__ __forceinline__ void put_runs(const SparsePlan& plan,
                                         uint8_t* output,
                                         float* residual,
                                         int64_t block,
                                         const int64_t (&at)[2],
                                         float (&p)[2],
                                         bool poison) {
    const int64_t number = block * kSparseBlock + lane_number() * 2;
    const bool first = poison && number == 0;
    bool sent[2] = {true, true};
    if (plan.format == ValueFormat::kNative) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            if (number + k < plan.capacity) {
                const bool bad = first && k == 0;
                const float value = bad ? __uint_as_float(kNanFloat32) : p[k];
                const float left =
                    __fsub_rn(p[k], put_native<Native>(output + plan.values, number + k, value));
                sent[k] = !bad && is_finite(p[k]);
                p[k] = left;
            }
        }
    } else {
        if (first) {
            p[0] = __uint_as_float(kNanFloat32);
        }
        const bool good = put_block(plan, output, block, p);
        sent[0] = good;
        sent[1] = good;
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        if (residual != nullptr && at[k] >= 0 && sent[k]) {
            residual[at[k]] = p[k];
        }
    }
}

template <class Element>
struct RunEncoder {
    const SparsePlan& plan;
    UserSource<Element> source;
    uint8_t* output;
    float* residual;
    Choice choice;

    // Everything of a stratum but its run: residual; true when all is finite.
    __device__ bool rest(const Stratum& stratum) const {
        bool finite = true;
        for (int64_t i = stratum.first + lane_number() * kPerThread; i < stratum.end;
             i += kRoundElems) {
            if (i >= stratum.chosen && i < stratum.chosen + kSparseRun) {
                continue;  // eight lie in one run
            }
            Eight p;
            source.eight(i, p);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const bool good = is_finite(p.v[k]);
                finite = finite && (good || i + k >= stratum.end);
                if (residual != nullptr && good && i + k < stratum.end) {
                    residual[i + k] = p.v[k];
                }
            }
        }
        return finite;
    }

    __device__ void values(int64_t block, bool poison) const {
        int64_t at[2];
        places_of(plan, choice, block, at);
        float p[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            p[k] = at[k] >= 0 ? source.one(at[k]) : 0.0f;
            if (residual != nullptr && at[k] >= 0 && is_finite(p[k])) {
                residual[at[k]] = p[k];
            }
        }
        put_runs<Element>(plan, output, residual, block, at, p, poison);
    }

    __device__ void send(int64_t block) const {
        bool finite = true;
        for (int64_t j = block * 2; j < block * 2 + 2 && j < plan.groups; ++j) {
            finite = rest(stratum_of(plan, choice, j)) && finite;
        }
        if (!finite) {
            atomicOr(reinterpret_cast<unsigned*>(output) + 3, 1u);
        }
        if (block > 0) {
            values(block, false);
        }
    }
};

template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks) run_encode_kernel(RunArgs args) {
    const EncodeArgs& encode = args.encode;
    const float factor = encode_factor<Element>(encode);
    const uint32_t step =
        encode.random.step + (encode.random.step_ptr != nullptr ? *encode.random.step_ptr : 0);
    const int64_t block_warps = blockDim.x / kWarpThreads;
    const int64_t own = threadIdx.x / kWarpThreads;
    for (int64_t chunk = args.block_for_chunk ? blockIdx.x : 0; chunk < args.work.chunks;
         chunk += args.block_for_chunk ? gridDim.x : 1) {
        const SparsePlan& plan = args.work.plan(chunk);
        const int64_t at = chunk * args.work.chunk_elems;
        const int64_t warp = args.block_for_chunk ? own : blockIdx.x * block_warps + own;
        const int64_t warps = args.block_for_chunk ? block_warps : gridDim.x * block_warps;
        float* residual = encode.residual != nullptr ? encode.residual + at : nullptr;
        uint8_t* output = static_cast<uint8_t*>(encode.output) + chunk * encode.slot_bytes;
        const RunEncoder<Element> encoder{
            plan,
            {static_cast<const uint8_t*>(encode.input) + at * Element::kBytes, residual, plan.count,
             factor},
            output,
            residual,
            {step, encode.random.tensor, static_cast<uint32_t>(chunk)}};
        auto* header = reinterpret_cast<uint32_t*>(output);
        if (args.start && warp == 0 && lane_number() < 4) {
            const int word = lane_number();
            header[word] = word == 0   ? step
                           : word == 1 ? encode.random.tensor
                           : word == 2 ? static_cast<uint32_t>(chunk)
                                       : 0;
        }
        if (args.block_for_chunk) {
            __syncthreads();
        }
        const int64_t blocks = (plan.groups + 1) / 2;
        for (int64_t block = warp; args.send && block < blocks; block += warps) {
            encoder.send(block);
        }
        if (args.block_for_chunk) {
            __syncthreads();
        }
        if (args.finish && warp == 0) {
            encoder.values(0, header[3] != 0);
            __syncwarp();
            if (lane_number() == 0) {
                header[3] = 0;
            }
        }
    }
}

struct RunDecodeArgs {
    DecodeArgs decode;
    SparseWork work;
};

template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks) run_decode_kernel(RunDecodeArgs args) {
    const DecodeArgs& decode = args.decode;
    const int64_t strata = args.work.full.groups;
    const int64_t warps = thread_total() / kWarpThreads;
    for (int64_t work = thread_index() / kWarpThreads; work < args.work.chunks * strata;
         work += warps) {
        const int64_t chunk = work / strata;
        const int64_t j = work - chunk * strata;
        const SparsePlan& plan = args.work.plan(chunk);
        if (j >= plan.groups) {
            continue;
        }
        const uint8_t* input =
            static_cast<const uint8_t*>(decode.input) + chunk * decode.slot_bytes;
        uint8_t* output =
            static_cast<uint8_t*>(decode.output) + chunk * args.work.chunk_elems * Element::kBytes;
        const Stratum stratum = stratum_of(plan, choice_of(input), j);
        if (!decode.accumulate) {
            zero_elements<Element>(output, stratum.first, stratum.end - stratum.first,
                                   lane_number(), kWarpThreads);
            __syncwarp();
        }
        const int64_t i = stratum.chosen + lane_number();
        if (i < plan.count) {
            place<Element>(output, i, decode,
                           get_value<Element>(plan, input, j * kSparseRun + lane_number()));
        }
        if (j == 0) {
            report(decode.status, reinterpret_cast<const uint32_t*>(input)[3] == 0);
        }
    }
}

// Whether all sources have the choice of source 0, and a header that an encoder writes.
struct Agreement {
    bool alike;
    bool good;

    __device__ static __forceinline__ Agreement of(const uint8_t* input,
                                                   int64_t input_stride,
                                                   int32_t inputs,
                                                   const Choice& choice) {
        Agreement sources{true, true};
        for (int32_t s = 0; s < inputs; ++s) {
            const auto* words = reinterpret_cast<const uint32_t*>(input + s * input_stride);
            sources.alike = sources.alike && words[0] == choice.step && words[1] == choice.tensor &&
                            words[2] == choice.chunk;
            sources.good = sources.good && words[3] == 0;
        }
        return sources;
    }
};

// Value `number` summed over the sources.
template <class Native, class Args>
__device__ __forceinline__ float sum_value(const SparsePlan& plan,
                                           const Args& args,
                                           int64_t number) {
    const auto* input = static_cast<const uint8_t*>(args.input);
    float sum = __fmul_rn(args.input_scale, get_value<Native>(plan, input, number));
    for (int32_t s = 1; s < args.inputs; ++s) {
        input += args.input_stride;
        sum = __fmaf_rn(args.input_scale, get_value<Native>(plan, input, number), sum);
    }
    return limited(sum, args.sum_limit);
}

struct RunReduceArgs {
    DecodeReduceEncodeArgs reduce;
    SparsePlan plan;
};

template <class Native>
__global__ void __launch_bounds__(kThreads, kResidentBlocks) run_reduce_kernel(RunReduceArgs args) {
    const DecodeReduceEncodeArgs& reduce = args.reduce;
    const SparsePlan& plan = args.plan;
    const auto* input = static_cast<const uint8_t*>(reduce.input);
    auto* output = static_cast<uint8_t*>(reduce.output);
    const Choice choice = choice_of(input);
    const Agreement sources = Agreement::of(input, reduce.input_stride, reduce.inputs, choice);
    if (thread_index() < 4) {
        const auto word = static_cast<int>(thread_index());
        reinterpret_cast<uint32_t*>(output)[word] = word == 0   ? choice.step
                                                    : word == 1 ? choice.tensor
                                                    : word == 2 ? choice.chunk
                                                                : 0;
        report(reduce.status, sources.alike && sources.good);
    }
    const int64_t warps = thread_total() / kWarpThreads;
    for (int64_t block = thread_index() / kWarpThreads; block < (plan.groups + 1) / 2;
         block += warps) {
        int64_t at[2];
        places_of(plan, choice, block, at);
        float p[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const int64_t number = block * kSparseBlock + lane_number() * 2 + k;
            if (at[k] < 0) {
                continue;
            }
            p[k] = __fmul_rn(reduce.scale, sum_value<Native>(plan, reduce, number));
            p[k] = overflowed(p[k], Native::kOverflowBits);
            if (reduce.residual != nullptr) {
                p[k] = add_residual(p[k], reduce.residual[at[k]]);
            }
            if (sources.alike && reduce.residual != nullptr && is_finite(p[k])) {
                reduce.residual[at[k]] = p[k];
            }
        }
        if (!sources.alike) {
            p[0] = p[1] = __uint_as_float(kNanFloat32);
        }
        put_runs<Native>(plan, output, reduce.residual, block, at, p, false);
    }
}

struct RunSumArgs {
    DecodeReduceArgs reduce;
    SparsePlan plan;
};

// A warp takes a stratum.
template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks) run_sum_kernel(RunSumArgs args) {
    const DecodeReduceArgs& reduce = args.reduce;
    const SparsePlan& plan = args.plan;
    const auto* input = static_cast<const uint8_t*>(reduce.input);
    auto* output = static_cast<uint8_t*>(reduce.output);
    const Choice choice = choice_of(input);
    const Agreement sources = Agreement::of(input, reduce.input_stride, reduce.inputs, choice);
    if (thread_index() == 0) {
        report(reduce.status, sources.alike && sources.good);
    }
    const float unsent = __fmul_rn(reduce.scale, 0.0f);
    const int64_t warps = thread_total() / kWarpThreads;
    for (int64_t j = thread_index() / kWarpThreads; j < plan.groups; j += warps) {
        const Stratum stratum = stratum_of(plan, choice, j);
        fill_elements<Element>(output, stratum.first, stratum.end - stratum.first, unsent,
                               lane_number(), kWarpThreads);
        __syncwarp();
        const int64_t i = stratum.chosen + lane_number();
        if (i < plan.count) {
            float x = sum_value<Element>(plan, reduce, j * kSparseRun + lane_number());
            x = sources.alike ? x : __uint_as_float(kNanFloat32);
            Element::put(output + i * Element::kBytes, canonical(__fmul_rn(reduce.scale, x)));
        }
    }
}

}  // namespace

template <>
struct SparseKernels<SparseKind::kRuns> {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        RunArgs runs = {};
        runs.encode = args;
        runs.work = SparseWork::of(SparseKind::kRuns, args, args.chunk_elems);
        const bool small = runs.work.chunk_elems * static_cast<int64_t>(dtype_bytes(args.dtype)) <=
                           kOneLaunchBytes;
        const int64_t threads =
            small ? runs.work.chunks * kThreads : (runs.work.full.groups + 1) / 2 * kWarpThreads;
        return visit(args.dtype, [&](auto element) {
            cudaError_t error = cudaSuccess;
            for (int phase = 0; phase < (small ? 1 : 3) && error == cudaSuccess; ++phase) {
                runs.block_for_chunk = small;
                runs.start = small || phase == 0;
                runs.send = small || phase == 1;
                runs.finish = small || phase == 2;
                error = launch_threads(run_encode_kernel<decltype(element)>, threads,
                                       args.max_blocks, stream, runs);
            }
            return error;
        });
    }

    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        const SparseWork work = SparseWork::of(SparseKind::kRuns, args, args.chunk_elems);
        return visit(args.dtype, [&](auto element) {
            return launch_threads(run_decode_kernel<decltype(element)>,
                                  work.chunks * work.full.groups * kWarpThreads, args.max_blocks,
                                  stream, RunDecodeArgs{args, work});
        });
    }

    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        const SparsePlan plan = sparse_plan(SparseKind::kRuns, args.params, args.dtype, args.count);
        return visit(args.dtype, [&](auto element) {
            return launch_threads(run_reduce_kernel<decltype(element)>,
                                  (plan.groups + 1) / 2 * kWarpThreads, args.max_blocks, stream,
                                  RunReduceArgs{args, plan});
        });
    }

    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream) {
        const SparsePlan plan = sparse_plan(SparseKind::kRuns, args.params, args.dtype, args.count);
        return visit(args.dtype, [&](auto element) {
            return launch_threads(run_sum_kernel<decltype(element)>, plan.groups * kWarpThreads,
                                  args.max_blocks, stream, RunSumArgs{args, plan});
        });
    }
};

template struct Launchers<SparseKernels<SparseKind::kRuns>>;

}  // namespace slimwire
