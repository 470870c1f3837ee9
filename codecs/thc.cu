// Kernels of thc.h; byte for byte the bodies of thc.cpp. A thread block takes a group at a time,
// whose rotated elements lie in shared memory.
#include "codecs/cuda/elements.cuh"
#include "codecs/cuda/work.cuh"
#include "codecs/thc_args.h"
#include "codecs/thc_math.h"

namespace slimwire {
namespace {

constexpr int kEach = kThcGroup / kThreads;  // elements of a thread
constexpr int kSignWords = kThcGroup / 32;
static_assert(kEach == 4, "a thread rounds its elements by one counter");

struct Group {
    int64_t number, begin;
    int32_t elems;    // those that complete the last rotation included
    int32_t present;  // those of the message
};

// Calls run(Group) for all groups of this block, all of its threads together.
template <class Run>
__device__ __forceinline__ void for_each_group(const ThcArgs& args, Run run) {
    const int64_t groups = (args.count + kThcGroup - 1) / kThcGroup;
    for (int64_t g = blockIdx.x; g < groups; g += gridDim.x) {
        const int64_t begin = g * kThcGroup;
        const int64_t elems = thc_group_elems(args.count, g, args.block);
        const int64_t present = args.count - begin < elems ? args.count - begin : elems;
        run(Group{g, begin, static_cast<int32_t>(elems), static_cast<int32_t>(present)});
    }
}

__device__ __forceinline__ ThcDraw draw_of(const ThcArgs& args) {
    return thc_draw(args.random, args.random.step_ptr == nullptr ? 0 : *args.random.step_ptr);
}

// Readable after the next barrier.
__device__ __forceinline__ void draw_signs(const ThcDraw& draw, int64_t group, uint32_t* signs) {
    if (threadIdx.x < kSignWords / 4) {
        uint32_t x[4];
        thc_signs(draw, group, threadIdx.x, x);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            signs[4 * threadIdx.x + k] = x[k];
        }
    }
}

__device__ __forceinline__ float flipped(float x, const uint32_t* signs, int i) {
    return thc_flip(x, signs[i / 32], static_cast<uint32_t>(i % 32));
}

// Ends after a barrier; begins with one.
__device__ __forceinline__ void hadamard(float* y, int32_t elems, int32_t block) {
    for (int stride = 1; stride < block; stride *= 2) {
        __syncthreads();
        for (int pair = static_cast<int>(threadIdx.x); pair < elems / 2; pair += kThreads) {
            const int i = pair / stride * 2 * stride + pair % stride;
            const float a = y[i];
            const float b = y[i + stride];
            y[i] = __fadd_rn(a, b);
            y[i + stride] = __fsub_rn(a, b);
        }
    }
    __syncthreads();
}

// Element i of the group; zero past the message.
template <class Element>
__device__ __forceinline__ float element_of(const ThcArgs& args,
                                            const Group& group,
                                            float factor,
                                            int i) {
    if (i >= group.present) {
        return 0.0f;
    }
    const int64_t at = group.begin + i;
    const float x = __fmul_rn(
        factor, Element::get(static_cast<const uint8_t*>(args.input) + at * Element::kBytes));
    return args.residual == nullptr ? x : __fadd_rn(x, args.residual[at]);
}

// p of this thread's elements, and all of the group rotated. The group before must be done with.
template <class Element>
__device__ __forceinline__ void rotate(const ThcArgs& args,
                                       const Group& group,
                                       const ThcDraw& draw,
                                       float factor,
                                       uint32_t* signs,
                                       float (&p)[kEach],
                                       float* y) {
    draw_signs(draw, group.number, signs);
    __syncthreads();
    const float part = 1.0f / static_cast<float>(args.block);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        const int i = static_cast<int>(threadIdx.x) + k * kThreads;
        p[k] = element_of<Element>(args, group, factor, i);
        if (i < group.elems) {
            y[i] = flipped(__fmul_rn(p[k], part), signs, i);
        }
    }
    hadamard(y, group.elems, args.block);
}

template <class Element>
__global__ void __launch_bounds__(kThreads) measure_kernel(ThcArgs args) {
    __shared__ float y[kThcGroup];
    __shared__ uint32_t signs[kSignWords];
    __shared__ uint32_t found[kThreads];
    const ThcDraw draw = draw_of(args);
    const float factor = encode_factor<Element>(args);
    for_each_group(args, [&](const Group& group) {
        float p[kEach];
        rotate<Element>(args, group, draw, factor, signs, p, y);
        uint32_t largest = 0;
        for (int i = static_cast<int>(threadIdx.x); i < group.elems; i += kThreads) {
            const uint32_t magnitude = magnitude_of(y[i]);
            largest = magnitude > largest ? magnitude : largest;
        }
        found[threadIdx.x] = largest;
        for (unsigned half = kThreads / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half && found[threadIdx.x + half] > found[threadIdx.x]) {
                found[threadIdx.x] = found[threadIdx.x + half];
            }
        }
        if (threadIdx.x == 0) {
            args.scales[group.number] = found[0] >= kInfinityBits ? kNanFloat32 : found[0];
        }
        __syncthreads();
    });
}

template <class Element>
__global__ void __launch_bounds__(kThreads) quantise_kernel(ThcArgs args) {
    __shared__ float y[kThcGroup];
    __shared__ uint32_t signs[kSignWords];
    __shared__ uint8_t level[kThcGroup];
    const ThcDraw draw = draw_of(args);
    const float factor = encode_factor<Element>(args);
    const int32_t bits = thc_field_bits(args.levels, args.ranks);
    const int64_t words_of_group = thc_words_of(kThcGroup, bits);
    for_each_group(args, [&](const Group& group) {
        uint64_t* const words = args.words + group.number * words_of_group;
        const auto number = static_cast<int32_t>(thc_words_of(group.elems, bits));
        const float reach = thc_reach(args.scales[group.number], args.clip);
        float p[kEach];
        if (reach > 0.0f) {
            rotate<Element>(args, group, draw, factor, signs, p, y);
            const float steps = __fdiv_rn(__fmul_rn(static_cast<float>(args.levels), 0.5f), reach);
            const float half_step = __fdiv_rn(reach, static_cast<float>(args.levels));
            const int first = kEach * static_cast<int>(threadIdx.x);
            if (first < group.elems) {
                uint32_t x[4];
                thc_rounding(draw, static_cast<uint64_t>(group.begin + first) / 4, x);
#pragma unroll
                for (int k = 0; k < kEach; ++k) {
                    const uint32_t found =
                        thc_level(y[first + k], steps, static_cast<uint32_t>(args.levels), x[k]);
                    level[first + k] = static_cast<uint8_t>(found);
                    y[first + k] =
                        thc_value(static_cast<int32_t>(found), args.levels, 1, half_step);
                }
            }
            __syncthreads();
            for (int j = static_cast<int>(threadIdx.x); j < number; j += kThreads) {
                uint64_t word = 0;
                for (int i = j, field = 0; i < group.elems; i += number, field += bits) {
                    word |= static_cast<uint64_t>(level[i]) << field;
                }
                words[j] = word;
            }
            if (args.residual != nullptr) {
                hadamard(y, group.elems, args.block);
            }
        } else {
            for (int j = static_cast<int>(threadIdx.x); j < number; j += kThreads) {
                words[j] = 0;
            }
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                p[k] = element_of<Element>(args, group, factor,
                                           static_cast<int>(threadIdx.x) + k * kThreads);
            }
        }
        if (args.residual != nullptr && reach >= 0.0f) {
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                const int i = static_cast<int>(threadIdx.x) + k * kThreads;
                if (i < group.present) {
                    const float sent = reach > 0.0f ? flipped(y[i], signs, i) : 0.0f;
                    const float left = __fsub_rn(p[k], sent);
                    if (magnitude_of(left) < kInfinityBits) {
                        args.residual[group.begin + i] = left;
                    }
                }
            }
        }
        __syncthreads();
    });
}

template <class Element>
__global__ void __launch_bounds__(kThreads) restore_kernel(ThcArgs args) {
    __shared__ float y[kThcGroup];
    __shared__ uint32_t signs[kSignWords];
    const ThcDraw draw = draw_of(args);
    const int32_t bits = thc_field_bits(args.levels, args.ranks);
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    const int64_t words_of_group = thc_words_of(kThcGroup, bits);
    for_each_group(args, [&](const Group& group) {
        const uint64_t* const words = args.words + group.number * words_of_group;
        const auto number = static_cast<int32_t>(thc_words_of(group.elems, bits));
        const float reach = thc_reach(args.scales[group.number], args.clip);
        if (reach > 0.0f) {
            const float half_step = __fdiv_rn(reach, static_cast<float>(args.levels));
            draw_signs(draw, group.number, signs);
            for (int j = static_cast<int>(threadIdx.x); j < number; j += kThreads) {
                uint64_t word = words[j];
                for (int i = j; i < group.elems; i += number) {
                    y[i] = thc_value(static_cast<int32_t>(word & mask), args.levels, args.ranks,
                                     half_step);
                    word >>= bits;
                }
            }
            hadamard(y, group.elems, args.block);
        }
        for (int i = static_cast<int>(threadIdx.x); i < group.present; i += kThreads) {
            const float sum = reach > 0.0f ? flipped(y[i], signs, i) : reach;
            Element::put(static_cast<uint8_t*>(args.output) + (group.begin + i) * Element::kBytes,
                         canonical(__fmul_rn(args.result, sum)));
        }
        __syncthreads();
    });
}

cudaError_t start(void (*kernel)(ThcArgs), const ThcArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    int processors = 0;
    const cudaError_t error = processor_count(&processors);
    if (error != cudaSuccess) {
        return error;
    }
    const int64_t groups = (args.count + kThcGroup - 1) / kThcGroup;
    const int64_t most =
        args.max_blocks > 0 ? args.max_blocks : int64_t{processors} * kBlocksPerProcessor;
    return start_kernel(kernel, static_cast<unsigned>(groups < most ? groups : most), kThreads, 0,
                        stream, args);
}

}  // namespace

cudaError_t measure_thc_on_cuda(const ThcArgs& args, cudaStream_t stream) {
    return visit(args.dtype, [&](auto element) {
        return start(measure_kernel<decltype(element)>, args, stream);
    });
}

cudaError_t quantise_thc_on_cuda(const ThcArgs& args, cudaStream_t stream) {
    return visit(args.dtype, [&](auto element) {
        return start(quantise_kernel<decltype(element)>, args, stream);
    });
}

cudaError_t restore_thc_on_cuda(const ThcArgs& args, cudaStream_t stream) {
    return visit(args.dtype, [&](auto element) {
        return start(restore_kernel<decltype(element)>, args, stream);
    });
}

}  // namespace slimwire
