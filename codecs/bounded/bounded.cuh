// Kernels of codec bounded; byte for byte the bodies of codecs/bounded/host/bounded_kernels.h. A
// warp works on a group of 1024 elements, 32 in each thread's registers; a thread block on a tile
// of neighbouring groups, in the order of the turn. Where its payload goes it learns from the tiles
// before by look-back while those write, so one launch reads the input once. Instantiated by
// bounded.cu.
#pragma once

#include "codecs/bounded/bounded_planes.cuh"
#include "codecs/bounded/bounded_work.h"
#include "codecs/gpu/look_back.cuh"

namespace slimwire {
namespace {

constexpr int kBoundedSpans = kBoundedGroup / (kWarpThreads * kPerThread);
constexpr int kBoundedWarps = kThreads / kWarpThreads;
static_assert(kBoundedWarps == kBoundedTileGroups);

__device__ __forceinline__ void report_corrupt(bool valid, uint32_t* status) {
    if (!valid && status != nullptr && threadIdx.x % kWarpThreads == 0) {
        atomicOr(status, static_cast<uint32_t>(kStatusCorrupt));
    }
}
__device__ __forceinline__ int64_t bounded_element(int64_t group, int span) {
    return group * kBoundedGroup + (span * kWarpThreads + threadIdx.x % kWarpThreads) * kPerThread;
}

// Where p of a group comes from: the user's buffer, or encodings that are summed.
template <class Element>
struct BoundedInput {
    UserSource<Element> source;

    __device__ __forceinline__ void group(int64_t group, Eight (&p)[kBoundedSpans]) const {
#pragma unroll
        for (int s = 0; s < kBoundedSpans; ++s) {
            source.eight(bounded_element(group, s), p[s]);
        }
    }
};
struct BoundedSources {
    const uint8_t* input;
    int64_t input_stride;
    int32_t inputs;
    float input_scale;
    SumLimit sum_limit;
    uint32_t* status;
    DType dtype;  // of the user's elements
    const BoundedPlan& plan;

    __device__ __forceinline__ void sum(int64_t group, Eight (&p)[kBoundedSpans]) const {
        bool valid = true;
        for (int32_t i = 0; i < inputs; ++i) {
            const uint8_t* encoding = input + i * input_stride;
            const BoundedBlocks blocks = BoundedBlocks::of(encoding, plan, group);
            valid = valid && blocks.valid;
#pragma unroll
            for (int s = 0; s < kBoundedSpans; ++s) {
                Eight x;
                blocks.get(encoding, plan, s, x);
                keep_within(max_bits(dtype), x);
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    p[s].v[k] = i == 0 ? __fmul_rn(input_scale, x.v[k])
                                       : __fmaf_rn(input_scale, x.v[k], p[s].v[k]);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kBoundedSpans; ++s) {
            limit_sums(sum_limit, p[s]);
        }
        report_corrupt(valid, status);
    }
};
struct BoundedSum {
    BoundedSources sources;
    const float* residual;
    float factor;

    __device__ __forceinline__ void group(int64_t group, Eight (&p)[kBoundedSpans]) const {
        sources.sum(group, p);
#pragma unroll
        for (int s = 0; s < kBoundedSpans; ++s) {
            scale_and_add(factor, overflow_bits(sources.dtype), residual, bounded_element(group, s),
                          sources.plan.count, p[s]);
        }
    }
};

struct BoundedShared {
    uint64_t sums[kBoundedWarps];
    uint64_t before;
    int64_t tile;
    bool last;
};

// In lane l the width that block l of the group needs.
__device__ __forceinline__ uint32_t bounded_width(const BoundedPlan& plan,
                                                  const Eight (&p)[kBoundedSpans]) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    const unsigned lane = threadIdx.x % kWarpThreads;
    uint32_t magnitude = 0;
#pragma unroll
    for (int s = 0; s < kBoundedSpans; ++s) {
        uint32_t most = 0;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            most = max(most, magnitude_of(p[s].v[k]));
        }
        most = max(most, __shfl_xor_sync(kAll, most, 1));
        most = max(most, __shfl_xor_sync(kAll, most, 2));
        const uint32_t mine = __shfl_sync(kAll, most, static_cast<int>(lane % 8 * 4));
        magnitude = lane / 8 == static_cast<unsigned>(s) ? mine : magnitude;
    }
    const float steps = __fmaf_rn(__uint_as_float(magnitude), plan.inverse, kBoundedMagic);
    const uint32_t largest = __float_as_uint(steps) - __float_as_uint(kBoundedMagic);
    const uint32_t width =
        largest == 0 ? 0 : static_cast<uint32_t>(33 - __clz(static_cast<int>(largest)));
    return magnitude >= kInfinityBits   ? kBoundedPoison
           : magnitude >= plan.raw_from ? kBoundedRaw
                                        : width;
}

// Writes the eight of a block that is sent, and makes what is left of them; what they decode to
// ends at `most`.
__device__ __forceinline__ void send_bounded(
    const BoundedPlan& plan, uint32_t width, uint32_t most, uint8_t* to, Eight& p) {
    if (width == kBoundedRaw) {
        float* const values = reinterpret_cast<float*>(to) + threadIdx.x % 4 * 8;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            values[k] = p.v[k];
            p.v[k] = __fsub_rn(p.v[k], saturated(p.v[k], most));
        }
        return;
    }
    uint32_t code[kPerThread];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const float q = __fmaf_rn(p.v[k], plan.inverse, kBoundedMagic);
        code[k] = __float_as_uint(q);
        const float value = __fmul_rn(__fsub_rn(q, kBoundedMagic), plan.step);
        p.v[k] = __fsub_rn(p.v[k], saturated(value, most));
    }
    put_bounded_codes(code, width, to);
}

// A group whose payload would begin at word `base`; `ahead` and `width` are of the lane's block.
__device__ __forceinline__ void write_bounded_group(const BoundedPlan& plan,
                                                    int64_t group,
                                                    int64_t base,
                                                    uint32_t ahead,
                                                    uint32_t width,
                                                    uint32_t most,
                                                    uint8_t* output,
                                                    float* residual,
                                                    Eight (&p)[kBoundedSpans]) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    const unsigned lane = threadIdx.x % kWarpThreads;
    const int64_t at = base + ahead;
    const uint32_t words = bounded_words(width);
    const bool fits = at + words <= plan.capacity;
    if (!fits && at <= plan.capacity) {  // the first that does not
        for (int64_t word = at; word < plan.capacity; ++word) {
            reinterpret_cast<uint32_t*>(output + plan.payload)[word] = 0;
        }
    }
    width = fits || width == kBoundedPoison ? width : 0;
    output[plan.widths + group * kBoundedGroupBlocks + lane] = static_cast<uint8_t>(width);
    if (lane == 0) {
        reinterpret_cast<uint32_t*>(output + plan.starts)[group] =
            static_cast<uint32_t>(min(base, plan.capacity));
    }
#pragma unroll
    for (int s = 0; s < kBoundedSpans; ++s) {
        const int block = static_cast<int>(8 * s + lane / 4);
        const uint32_t bits = __shfl_sync(kAll, width, block);
        const int64_t begin = base + __shfl_sync(kAll, ahead, block);
        if (bits != 0 && bits != kBoundedPoison) {
            send_bounded(plan, bits, most, output + plan.payload + 4 * begin, p[s]);
        }
        if (residual != nullptr && bits != kBoundedPoison) {
            store_eight<Float32>(reinterpret_cast<uint8_t*>(residual), bounded_element(group, s),
                                 plan.count, p[s]);
        }
    }
}

// Zeros after the payload, and leaves the workspace for the next launch of a graph.
__device__ __forceinline__ void finish_bounded(BoundedShared& shared,
                                               const BoundedWork& work,
                                               unsigned long long* workspace,
                                               uint8_t* output,
                                               int64_t slot_bytes) {
    auto* const states = reinterpret_cast<LookBackState*>(workspace + kLookBackCounters);
    for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
        const BoundedPlan& plan = chunk + 1 == work.chunks ? work.last : work.full;
        const int64_t tiles = (plan.groups + kBoundedWarps - 1) / kBoundedWarps;
        if (threadIdx.x == 0) {
            shared.before = sum_up_to(states + chunk * work.tiles + tiles - 1, work.nonce);
        }
        __syncthreads();
        auto* const words = reinterpret_cast<uint32_t*>(output + chunk * slot_bytes + plan.payload);
        for (int64_t i = static_cast<int64_t>(shared.before) + thread_index(); i < plan.capacity;
             i += thread_total()) {
            words[i] = 0;
        }
        __syncthreads();
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = count_up(workspace + 1, work.nonce) + 1 == int64_t{gridDim.x};
    }
    __syncthreads();
    if (shared.last) {
        __threadfence();
        forget(states, work.chunks * work.tiles, threadIdx.x, kThreads);
        if (threadIdx.x < kLookBackCounters) {
            workspace[threadIdx.x] = 0;
        }
    }
}

// Encodes every tile. source_of(chunk, plan): its p.
template <class SourceOf>
__device__ __forceinline__ void encode_bounded(const BoundedWork& work,
                                               unsigned long long* workspace,
                                               uint32_t step,
                                               uint32_t most,
                                               uint8_t* output,
                                               int64_t slot_bytes,
                                               float* residual,
                                               SourceOf source_of) {
    __shared__ BoundedShared shared;
    auto* const states = reinterpret_cast<LookBackState*>(workspace + kLookBackCounters);
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    for (;;) {
        if (threadIdx.x == 0) {
            shared.tile = count_up(workspace, work.nonce);
        }
        __syncthreads();
        const int64_t ticket = shared.tile;
        __syncthreads();
        if (ticket >= work.chunks * work.tiles) {
            break;
        }
        const int64_t chunk = ticket / work.tiles;
        const int64_t tile = ticket - chunk * work.tiles;
        const BoundedPlan& plan = chunk + 1 == work.chunks ? work.last : work.full;
        const int64_t place = tile * kBoundedWarps + warp;
        if (tile * kBoundedWarps >= plan.groups) {
            continue;
        }
        const BoundedTurn turn = bounded_turn(step, plan.blocks);
        int64_t group = turn.group + place;
        group -= group >= plan.groups ? plan.groups : 0;
        Eight p[kBoundedSpans];
        uint32_t width = 0;
        uint32_t ahead = 0;
        uint32_t total = 0;
        if (place < plan.groups) {
            source_of(chunk, plan).group(group, p);
            width = bounded_width(plan, p);
            ahead = BoundedBlocks::before(bounded_words(width), turn.block, &total);
        }
        if (threadIdx.x % kWarpThreads == 0) {
            shared.sums[warp] = total;
        }
        __syncthreads();
        uint64_t base = 0;
        uint64_t all = 0;
#pragma unroll
        for (int w = 0; w < kBoundedWarps; ++w) {
            base += w < warp ? shared.sums[w] : 0;
            all += shared.sums[w];
        }
        if (warp == 0) {
            const uint64_t before =
                look_back(states + chunk * work.tiles, tile, all, work.nonce, Plus{});
            if (threadIdx.x == 0) {
                shared.before = before;
            }
        }
        __syncthreads();
        base += shared.before;
        uint8_t* const encoding = output + chunk * slot_bytes;
        if (place < plan.groups) {
            write_bounded_group(
                plan, group, static_cast<int64_t>(base), ahead, width, most, encoding,
                residual != nullptr ? residual + chunk * work.chunk_elems : nullptr, p);
        }
        if (threadIdx.x == 0 && (tile + 1) * kBoundedWarps >= plan.groups) {
            auto* const header = reinterpret_cast<uint32_t*>(encoding);
            const uint64_t needed = shared.before + all;
            header[0] = needed < UINT32_MAX ? static_cast<uint32_t>(needed) : UINT32_MAX;
            header[1] = turn.block;
            header[2] = 0;
            header[3] = 0;
            for (int64_t i = plan.starts + 4 * plan.groups; i < plan.payload; i += 4) {
                *reinterpret_cast<uint32_t*>(encoding + i) = 0;
            }
        }
        __syncthreads();
    }
    finish_bounded(shared, work, workspace, output, slot_bytes);
}

__device__ __forceinline__ uint32_t step_of(const RandomKey& random) {
    return random.step + (random.step_ptr != nullptr ? *random.step_ptr : 0);
}

template <class Element>
__global__ void __launch_bounds__(kThreads, 2)
    bounded_encode_kernel(EncodeArgs args, BoundedWork work) {
    const float factor = encode_factor<Element>(args);
    encode_bounded(
        work, static_cast<unsigned long long*>(args.workspace), step_of(args.random),
        Element::kMaxBits, static_cast<uint8_t*>(args.output), args.slot_bytes, args.residual,
        [&](int64_t chunk, const BoundedPlan& plan) {
            const int64_t at = chunk * work.chunk_elems;
            return BoundedInput<Element>{
                {static_cast<const uint8_t*>(args.input) + at * Element::kBytes,
                 args.residual != nullptr ? args.residual + at : nullptr, plan.count, factor}};
        });
}

__global__ void __launch_bounds__(kThreads, 2)
    bounded_reduce_kernel(DecodeReduceEncodeArgs args, BoundedWork work) {
    encode_bounded(work, static_cast<unsigned long long*>(args.workspace), step_of(args.random),
                   max_bits(args.dtype), static_cast<uint8_t*>(args.output), 0, args.residual,
                   [&](int64_t, const BoundedPlan& plan) {
                       return BoundedSum{
                           {static_cast<const uint8_t*>(args.input), args.input_stride, args.inputs,
                            args.input_scale, args.sum_limit, args.status, args.dtype, plan},
                           args.residual,
                           args.scale};
                   });
}

template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    bounded_decode_kernel(DecodeArgs args, BoundedWork bounded, Work work) {
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kBoundedGroup,
              [&](int64_t chunk, int64_t group, int64_t count) {
                  const BoundedPlan& plan =
                      chunk + 1 == bounded.chunks ? bounded.last : bounded.full;
                  const uint8_t* encoding =
                      static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes;
                  uint8_t* const output = static_cast<uint8_t*>(args.output) +
                                          chunk * work.chunk_elems * Element::kBytes;
                  const BoundedBlocks blocks = BoundedBlocks::of(encoding, plan, group);
                  report_corrupt(blocks.valid, args.status);
                  for (int s = 0; s < kBoundedSpans; ++s) {
                      Eight x;
                      blocks.get(encoding, plan, s, x);
                      keep_within(Element::kMaxBits, x);
                      deliver<Element>(output, bounded_element(group, s), count, args.accumulate, x,
                                       args.sum_limit);
                  }
              });
}

__global__ void __launch_bounds__(kThreads, 2)
    bounded_sum_kernel(DecodeReduceArgs args, BoundedWork bounded, Work work) {
    const BoundedSources sources{static_cast<const uint8_t*>(args.input),
                                 args.input_stride,
                                 args.inputs,
                                 args.input_scale,
                                 args.sum_limit,
                                 args.status,
                                 args.dtype,
                                 bounded.last};
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kBoundedGroup,
              [&](int64_t, int64_t group, int64_t count) {
                  Eight p[kBoundedSpans];
                  sources.sum(group, p);
#pragma unroll
                  for (int s = 0; s < kBoundedSpans; ++s) {
                      const int64_t i = bounded_element(group, s);
                      scale_and_add(args.scale, kInfinityBits, nullptr, i, count, p[s]);
                      deliver(args.dtype, static_cast<uint8_t*>(args.output), i, count, false,
                              p[s]);
                  }
              });
}

}  // namespace
}  // namespace slimwire
