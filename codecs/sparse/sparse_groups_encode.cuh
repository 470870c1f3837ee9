// The encoding kernel of blocktopk and rowtopk, also of sums of sources: a warp selects, writes or
// sums one group. Groups of up to 256 elements stay in registers; larger ones are read again, from
// cache, for every step of the search. sparse_groups.cu launches it.
#pragma once

#include "codecs/sparse/sparse.cuh"

namespace slimwire {
namespace {

struct GroupArgs {
    EncodeArgs encode;  // of the sums, where sources are reduced
    SparseWork work;
    int64_t workspace_bytes;  // of a chunk
    bool select;
    bool quantise;
    bool block_for_chunk;
    // Sources whose sum is written to encode.input before it is read; or none.
    const uint8_t* sources;
    int64_t input_stride;
    int32_t inputs;
    float input_scale;
    SumLimit sum_limit;
};

// The workspace of a chunk: for integer values what is sent as fp32 and its position.
struct GroupSpace {
    int64_t positions;
    int64_t sent;
    int64_t bytes;

    __host__ __device__ static GroupSpace of(const SparsePlan& plan) {
        const int64_t staged = plan.format == ValueFormat::kNative ? 0 : plan.capacity;
        return {0, staged * 8, (staged * 12 + 15) / 16 * 16};
    }
    // Behind it, of an operation with one chunk.
    __host__ __device__ static int64_t sum_bytes(const SparsePlan& plan) {
        return plan.groups * plan.group * 4;
    }
};

// Hands what group `g` holds to take(position in the chunk, number), padding left out.
template <class Take>
__device__ __forceinline__ bool read_group(const SparsePlan& plan,
                                           const uint8_t* input,
                                           int64_t g,
                                           Take take) {
    const int64_t begin = g * plan.group;
    const int64_t first = g * plan.kept;
    const auto inside = [&](int64_t at, int64_t number) {
        if (begin + at < plan.count) {
            take(begin + at, number);
        }
    };
    const uint8_t* indices = input + plan.indices;
    if (plan.form == IndexForm::kLocal8) {
        return read_list<1>(indices, plan.group, first, first + plan.kept, inside);
    }
    if (plan.form == IndexForm::kLocal16) {
        return read_list<2>(indices, plan.group, first, first + plan.kept, inside);
    }
    return read_bits(indices + g * ((plan.group + 7) / 8), plan.group, first, first + plan.kept,
                     inside);
}

// Element: of the source; Native: of native values. They differ where the source are sums.
template <class Element, class Native>
struct GroupEncoder {
    const SparsePlan& plan;
    GroupSpace space;
    UserSource<Element, Native> source;
    uint8_t* output;
    float* residual;
    uint8_t* workspace;

    // p of round `round` of the group at `begin`, eight a lane; zero outside. Groups need not start
    // at multiples of eight.
    __device__ void load(int64_t begin, int64_t round, Eight& p) const {
        const int64_t at = round * kRoundElems + lane_number() * kPerThread;
        if (plan.group % kPerThread == 0) {
            p = {};
            if (at < plan.group) {
                source.eight(begin + at, p);
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            const int64_t i = begin + at + k;
            p.v[k] = 0;
            if (at + k < plan.group && i < plan.count) {
                p.v[k] = source.one(i);
            }
        }
    }

    // Calls body(round, p) over the group; one that fits the registers is read once.
    template <class Body>
    __device__ void walk(int64_t begin, int64_t rounds, Eight& held, Body body) const {
        for (int64_t round = 0; round < rounds; ++round) {
            if (rounds > 1) {
                load(begin, round, held);
            }
            body(round, held);
        }
    }

    __device__ void group(int64_t g) const {
        const int64_t begin = g * plan.group;
        const int64_t rounds = (plan.group + kRoundElems - 1) / kRoundElems;
        Eight p;
        load(begin, 0, p);
        // The cut: the largest value that at least `kept` elements reach.
        uint32_t low = 0;
        uint32_t high = 0;
        walk(begin, rounds, p, [&](int64_t, const Eight& x) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                high = max(high, order_of(x.v[k]));
            }
        });
#pragma unroll
        for (int by = kWarpThreads / 2; by > 0; by /= 2) {
            high = max(high, __shfl_xor_sync(kAllLanes, high, by));
        }
        ++high;
        uint32_t above = 0;  // elements not below `high`
        constexpr uint32_t kNear = 4u << 23;
        uint32_t middle = high > kNear ? high - kNear : high / 2;
        bool exact = false;  // `low` cuts off `kept` elements without ties
        while (high - low > 1 && !exact) {
            uint32_t count = 0;
            walk(begin, rounds, p, [&](int64_t round, const Eight& x) {
                const int64_t at = round * kRoundElems + lane_number() * kPerThread;
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    count += at + k < plan.group && order_of(x.v[k]) >= middle ? 1 : 0;
                }
            });
            count = sum_of_warp(count);
            exact = count == plan.kept;
            if (count >= plan.kept) {
                low = middle;
            } else {
                high = middle;
                above = count;
            }
            middle = low + (high - low) / 2;
        }
        send(g, begin, rounds, p, low, exact ? plan.kept : plan.kept - above);
    }

    __device__ void send(
        int64_t g, int64_t begin, int64_t rounds, Eight& p, uint32_t cut, uint32_t most) const {
        uint32_t before = 0;
        uint32_t ties_before = 0;
        walk(begin, rounds, p, [&](int64_t round, const Eight& x) {
            const int64_t at = round * kRoundElems + lane_number() * kPerThread;
            const uint32_t mask =
                byte_of(x, at, plan.group, [&](uint32_t order) { return order >= cut; });
            const uint32_t tie =
                byte_of(x, at, plan.group, [&](uint32_t order) { return order == cut; });
            uint32_t above = before + sum_before(static_cast<uint32_t>(__popc(mask ^ tie)));
            uint32_t ties = ties_before + sum_before(static_cast<uint32_t>(__popc(tie)));
            before = __shfl_sync(kAllLanes, above + static_cast<uint32_t>(__popc(mask ^ tie)),
                                 kWarpThreads - 1);
            ties_before =
                __shfl_sync(kAllLanes, ties + static_cast<uint32_t>(__popc(tie)), kWarpThreads - 1);
            uint32_t sent = 0;
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const bool is_tie = (tie >> k & 1) != 0;
                const bool is_sent = (mask >> k & 1) != 0 && (!is_tie || ties < most);
                const int64_t i = begin + at + k;
                float left = x.v[k];
                if (is_sent) {
                    sent |= 1u << k;
                    const int64_t number = g * plan.kept + above + (ties < most ? ties : most);
                    put_position(at + k, number);
                    if (plan.format == ValueFormat::kNative) {
                        left = __fsub_rn(x.v[k],
                                         put_native<Native>(output + plan.values, number, x.v[k]));
                    } else {
                        reinterpret_cast<int64_t*>(workspace + space.positions)[number] = i;
                        reinterpret_cast<float*>(workspace + space.sent)[number] = x.v[k];
                    }
                }
                above += (mask >> k & 1) != 0 && !is_tie ? 1 : 0;
                ties += is_tie ? 1 : 0;
                if (residual != nullptr && at + k < plan.group && i < plan.count &&
                    is_finite(x.v[k])) {
                    residual[i] = left;
                }
            }
            if (plan.form == IndexForm::kBitmap && at < plan.group) {
                output[plan.indices + g * ((plan.group + 7) / 8) + at / 8] =
                    static_cast<uint8_t>(sent);
            }
        });
    }

    __device__ void put_position(int64_t at, int64_t number) const {
        uint8_t* indices = output + plan.indices;
        if (plan.form == IndexForm::kLocal8) {
            indices[number] = static_cast<uint8_t>(at);
        } else if (plan.form == IndexForm::kLocal16) {
            reinterpret_cast<uint16_t*>(indices)[number] = static_cast<uint16_t>(at);
        }
    }

    __device__ void block(int64_t block) const {
        const auto* sent = reinterpret_cast<const float*>(workspace + space.sent);
        const auto* positions = reinterpret_cast<const int64_t*>(workspace + space.positions);
        const int64_t number = block * kSparseBlock + lane_number() * 2;
        float p[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            p[k] = number + k < plan.capacity ? sent[number + k] : 0.0f;
        }
        if (put_block(plan, output, block, p) && residual != nullptr) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                if (number + k < plan.capacity && positions[number + k] < plan.count) {
                    residual[positions[number + k]] = p[k];
                }
            }
        }
    }
};

// Sums group g of `inputs` sources into the plan.group floats at `sum`, by one warp.
__device__ __forceinline__ bool sum_group(const uint8_t* sources,
                                          int64_t input_stride,
                                          int32_t inputs,
                                          float input_scale,
                                          SumLimit sum_limit,
                                          const SparsePlan& plan,
                                          int64_t g,
                                          float* sum) {
    for (int64_t i = lane_number(); i < plan.group; i += kWarpThreads) {
        sum[i] = 0;
    }
    const int64_t begin = g * plan.group;
    bool good = true;
    for (int32_t s = 0; s < inputs; ++s) {
        __syncwarp();
        const uint8_t* input = sources + s * input_stride;
        good = read_group(plan, input, g,
                          [&](int64_t at, int64_t number) {
                              const float x = get_value_of(plan, input, number);
                              float& here = sum[at - begin];
                              here = s == 0 ? __fmul_rn(input_scale, x)
                                            : __fmaf_rn(input_scale, x, here);
                          }) &&
               good;
    }
    __syncwarp();
    for (int64_t i = lane_number(); sum_limit.most < kNoSumLimit && i < plan.group;
         i += kWarpThreads) {
        sum[i] = limited(sum[i], sum_limit);
    }
    __syncwarp();
    return good;
}

template <class Element, class Native>
__global__ void __launch_bounds__(kThreads, kBroadBlocks) group_kernel(GroupArgs args) {
    const EncodeArgs& encode = args.encode;
    const float factor = encode_factor<Element>(encode);
    const int64_t block_warps = blockDim.x / kWarpThreads;
    const int64_t own = threadIdx.x / kWarpThreads;
    for (int64_t chunk = args.block_for_chunk ? blockIdx.x : 0; chunk < args.work.chunks;
         chunk += args.block_for_chunk ? gridDim.x : 1) {
        const SparsePlan& plan = args.work.plan(chunk);
        const int64_t at = chunk * args.work.chunk_elems;
        const int64_t warp = args.block_for_chunk ? own : blockIdx.x * block_warps + own;
        const int64_t warps = args.block_for_chunk ? block_warps : gridDim.x * block_warps;
        float* residual = encode.residual != nullptr ? encode.residual + at : nullptr;
        const GroupEncoder<Element, Native> encoder{
            plan,
            GroupSpace::of(plan),
            {static_cast<const uint8_t*>(encode.input) + at * Element::kBytes, residual, plan.count,
             factor},
            static_cast<uint8_t*>(encode.output) + chunk * encode.slot_bytes,
            residual,
            static_cast<uint8_t*>(encode.workspace) + chunk * args.workspace_bytes};
        if (args.select) {
            if (warp == 0) {  // between the sections
                const int64_t used =
                    plan.form == IndexForm::kBitmap
                        ? plan.groups * ((plan.group + 7) / 8)
                        : plan.capacity * (plan.form == IndexForm::kLocal16 ? 2 : 1);
                zero_bytes(encoder.output, plan.indices + used, plan.values, lane_number(),
                           kWarpThreads);
            }
            bool good = true;
            for (int64_t g = warp; g < plan.groups; g += warps) {
                if (args.inputs > 0) {
                    float* sums = static_cast<float*>(const_cast<void*>(encode.input));
                    good = sum_group(args.sources, args.input_stride, args.inputs, args.input_scale,
                                     args.sum_limit, plan, g, sums + g * plan.group) &&
                           good;
                }
                encoder.group(g);
            }
            report(encode.status, good);
        }
        if (args.block_for_chunk) {
            __syncthreads();
        }
        if (args.quantise) {
            const int64_t blocks = (plan.capacity + kSparseBlock - 1) / kSparseBlock;
            for (int64_t block = warp; block < blocks; block += warps) {
                encoder.block(block);
            }
        }
        if (args.block_for_chunk) {
            __syncthreads();
        }
    }
}

}  // namespace
}  // namespace slimwire
