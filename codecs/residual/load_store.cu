// Kernels of load_store.h; byte for byte the bodies of load_store.cpp. A thread takes eight
// neighbours, eight threads a block of int8, a warp a span, so that all its lanes meet in the
// shuffles.
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/random.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/residual/load_store.h"
#include "codecs/residual/residual_math.h"
#include "codecs/residual/stored_residuals.cuh"

namespace slimwire {
namespace {

constexpr int kBlockThreads = kResidualBlock / kPerThread;

__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    load_residual_kernel(LoadResidualArgs args, Work work) {
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        const int64_t i = unit * kPerThread;
        Eight x;
        load_stored(args.stored, i, args.count, x);
        store_eight<Float32>(reinterpret_cast<uint8_t*>(args.output), i, args.count, x);
    });
}

__device__ __forceinline__ void draw_eight(const DeviceRandom& random,
                                           int64_t element,
                                           EightBytes& drawn) {
    const uint64_t group = static_cast<uint64_t>(element) / kRandomGroup;
    uint32_t x[4] = {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), 0,
                     random.step};
    threefry(x, random.key);
    const bool second = element % kRandomGroup != 0;
    drawn = {{second ? x[2] : x[0], second ? x[3] : x[1]}};
}

__global__ void __launch_bounds__(kThreads, resident_blocks(true))
    store_residual_kernel(StoreResidualArgs args, Work work) {
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kResidual);
    auto* const bytes = static_cast<uint8_t*>(args.stored.bytes);
    const int64_t lane = threadIdx.x % kWarpThreads;
    work.walk(
        thread_index() / kWarpThreads, thread_total() / kWarpThreads, kWarpElems,
        [&](int64_t, int64_t unit, int64_t) {
            const int64_t i = unit * kWarpElems + lane * kPerThread;
            const int64_t at = args.stored.first + i;
            Eight old, next;
            load_stored(args.stored, i, args.count, old);
            load_eight<Float32>(reinterpret_cast<const uint8_t*>(args.input), i, args.count, next);
            uint32_t largest = 0, changes = 0;
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                next.v[k] = next_residual(old.v[k], next.v[k], args.keep, args.take);
                changes |= __float_as_uint(next.v[k]) ^ __float_as_uint(old.v[k]);
                const uint32_t magnitude = magnitude_of(next.v[k]);
                largest = magnitude > largest ? magnitude : largest;
            }
            if (args.stored.type == ResidualType::kFloat32) {
                store_eight<Float32>(bytes + args.stored.first * 4, i, args.count, next);
                return;
            }
        // A whole block, because what it leaves alone must not be rounded again.
#pragma unroll
            for (int by = 1; by < kBlockThreads; by *= 2) {
                const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, largest, by);
                changes |= __shfl_xor_sync(0xFFFFFFFFu, changes, by);
                largest = other > largest ? other : largest;
            }
            if (changes == 0 || i >= args.count) {
                return;
            }
            EightBytes drawn;
            draw_eight(random, at, drawn);
            if (args.stored.type == ResidualType::kBfloat16) {
                auto* to = reinterpret_cast<uint16_t*>(bytes) + at;
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    if (i + k < args.count) {
                        to[k] = bfloat16_residual(next.v[k], drawn.drawn(k));
                    }
                }
                return;
            }
            const uint16_t scale = residual_scale(largest);
            uint32_t codes[2] = {0, 0};
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const auto code =
                    i + k < args.count
                        ? static_cast<uint8_t>(residual_code(next.v[k], scale, drawn.drawn(k)))
                        : uint8_t{0};
                codes[k / 4] |= static_cast<uint32_t>(code) << (8 * (k % 4));
            }
            *reinterpret_cast<uint2*>(bytes + at) = make_uint2(codes[0], codes[1]);
            if (lane % kBlockThreads == 0) {
                reinterpret_cast<uint16_t*>(bytes + args.stored.elems)[at / kResidualBlock] = scale;
            }
        });
}

// A thread takes one number of the store at a time: this is for the rare call after a scale
// changed.
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    rescale_residual_kernel(RescaleResidualArgs args, Work work) {
    auto* const bytes = static_cast<uint8_t*>(args.stored.bytes);
    const bool scales = args.stored.type == ResidualType::kInt8;
    auto* const floats = reinterpret_cast<float*>(bytes);
    auto* const halves = reinterpret_cast<uint16_t*>(bytes + (scales ? args.stored.elems : 0));
    work.walk(thread_index(), thread_total(), 1, [&](int64_t, int64_t i, int64_t) {
        if (args.stored.type == ResidualType::kFloat32) {
            floats[i] = rescaled_residual(floats[i], args.factor);
        } else {
            halves[i] = scales ? rescaled_residual_scale(halves[i], args.factor)
                               : rescaled_bfloat16_residual(halves[i], args.factor);
        }
    });
}

}  // namespace

cudaError_t load_residual_on_cuda(const LoadResidualArgs& args, cudaStream_t stream) {
    return launch_eights(load_residual_kernel, args, args.count, args.count, stream);
}

cudaError_t store_residual_on_cuda(const StoreResidualArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.count, kWarpElems);
    return launch(store_residual_kernel, args, work, kWarpThreads, stream);
}

cudaError_t rescale_residual_on_cuda(const RescaleResidualArgs& args, cudaStream_t stream) {
    const bool scales = args.stored.type == ResidualType::kInt8;
    const int64_t numbers = args.stored.elems / (scales ? kResidualBlock : 1);
    if (numbers <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(numbers, numbers, 1);
    return launch(rescale_residual_kernel, args, work, 1, stream);
}

}  // namespace slimwire
