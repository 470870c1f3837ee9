// The decoding kernel of topk and threshold: a thread block for 65536 elements, in which a warp
// reads the positions of a span, or the whole block those of two bytes. No atomics on elements: an
// element has one value at most.
#pragma once

#include "codecs/sparse/sparse.cuh"

namespace slimwire {
namespace {

// One warp reads the positions of one span: take(position in the span, number of the value).
template <class Take>
__device__ __forceinline__ bool read_span(const SparsePlan& plan,
                                          const uint8_t* input,
                                          int64_t span,
                                          int64_t start,
                                          int64_t end,
                                          Take take) {
    const int64_t left = plan.count - span * kSparseSpan;
    const int64_t elems = left < kSparseSpan ? left : kSparseSpan;
    const uint8_t* indices = input + plan.indices;
    if (end < start) {
        return false;
    }
    if (plan.form == IndexForm::kBitmap) {
        return read_bits(indices + span * (kSparseSpan / 8), elems, start, end, take);
    }
    if (plan.form == IndexForm::kLocal8) {  // a segment a lane
        const uint8_t* entry = input + kSparseHeader + kLocal8Entry * span;
        const uint32_t full = *reinterpret_cast<const uint32_t*>(entry + 4);
        const uint32_t count =
            entry[8 + lane_number()] + ((full >> lane_number() & 1) != 0 ? kSparseSegment : 0);
        int64_t first = start + sum_before(count);
        int64_t next = first + count;
        bool good = next <= end && (lane_number() != kWarpThreads - 1 || next == end);
        first = first < end ? first : end;
        next = next < end ? next : end;
        int64_t before = -1;
        for (int64_t i = first; i < next; ++i) {
            const int64_t at = indices[i];
            if (at <= before || lane_number() * kSparseSegment + at >= elems) {
                good = false;
                break;
            }
            take(lane_number() * kSparseSegment + at, i);
            before = at;
        }
        return good;
    }
    // Elias-Fano: a word of bits a lane.
    const auto* bits = reinterpret_cast<const uint32_t*>(indices) + start / 32 + kEliasWords * span;
    const uint8_t* lows = input + plan.lows + (start + 1) / 2 + span;
    const auto low_of = [&](int64_t i) { return lows[i / 2] >> (i % 2 * 4) & 15; };
    const int64_t values = end - start;
    const int64_t words = (elems + kEliasElems - 1) / kEliasElems + (values + 31) / 32;
    int64_t number = 0;
    bool good = true;
    for (int64_t first = 0; first < words && good; first += kWarpThreads) {
        const int64_t word = first + lane_number();
        const uint32_t ones = word < words ? bits[word] : 0;
        const uint32_t earlier = ones != 0 && word > 0 ? bits[word - 1] >> 31 : 0;
        const int64_t begin = number + sum_before(__popc(ones));
        const auto at_of = [&](uint32_t rest, int64_t i) {
            return 16 * (32 * word + __ffs(static_cast<int>(rest)) - 1 - i) + low_of(i);
        };
        // Up to the first that has no place: values of one sixteen have ones side by side.
        uint32_t rest = ones;
        int64_t i = begin;
        for (; rest != 0 && i < values && at_of(rest, i) < elems; rest &= rest - 1, ++i) {
            const bool beside = ((ones << 1 | earlier) & rest & (0u - rest)) != 0;
            if (beside && low_of(i) <= low_of(i - 1)) {
                break;
            }
        }
        const unsigned bad = __ballot_sync(kAllLanes, rest != 0);
        good = bad == 0;
        if (good || lane_number() < __ffs(static_cast<int>(bad))) {
            uint32_t taken = ones;
            for (int64_t k = begin; k < i; ++k, taken &= taken - 1) {
                take(at_of(taken, k), start + k);
            }
        }
        number = __shfl_sync(kAllLanes, i, kWarpThreads - 1);
    }
    return good && number == values;
}

// A thread block reads the positions of 65536 elements of an encoding, of which the header, the
// table and the indices are there: take(position in the chunk, number of the value). `first_bad`
// is shared. All threads begin together.
template <class Take>
__device__ __forceinline__ bool read_unit(
    const SparsePlan& plan, const uint8_t* input, int64_t unit, unsigned* first_bad, Take take) {
    const auto* header = reinterpret_cast<const uint32_t*>(input);
    const int64_t begin = unit * kSparseWide;
    const int64_t kept = header[0] < plan.capacity ? header[0] : plan.capacity;
    bool good = header[0] <= plan.capacity &&
                (header[3] & ~kFlagNonFinite) == static_cast<uint32_t>(plan.form);
    const int64_t left = plan.count - begin;
    const int64_t elems = left < kSparseWide ? left : kSparseWide;
    if (threadIdx.x == 0) {
        *first_bad = 0xFFFFFFFFu;
    }
    __syncthreads();
    const bool wide = plan.form == IndexForm::kLocal16;
    const auto start_of = [&](int64_t which) -> int64_t {
        if (which * (wide ? kSparseWide : kSparseSpan) >= plan.count) {
            return kept;
        }
        const int64_t words = plan.form == IndexForm::kLocal8 ? kLocal8Entry / 4 : 1;
        const int64_t start = header[4 + words * which];
        return start < kept ? start : kept;
    };
    if (wide) {
        const int64_t start = start_of(unit);
        const int64_t end = start_of(unit + 1);
        const auto* list = reinterpret_cast<const uint16_t*>(input + plan.indices);
        good = good && start <= end;
        for (int64_t i = start + threadIdx.x; i < end; i += blockDim.x) {
            if (list[i] >= elems || (i > start && list[i] <= list[i - 1])) {
                atomicMin(first_bad, static_cast<unsigned>(i - start));
            }
        }
        __syncthreads();
        const int64_t bad = *first_bad;
        good = good && bad == 0xFFFFFFFFu;
        for (int64_t i = start + threadIdx.x; i < end && i - start < bad; i += blockDim.x) {
            take(begin + list[i], i);
        }
    } else {
        for (int64_t span = begin / kSparseSpan + threadIdx.x / kWarpThreads;
             span * kSparseSpan < begin + elems; span += blockDim.x / kWarpThreads) {
            const auto in_span = [&](int64_t at, int64_t number) {
                take(span * kSparseSpan + at, number);
            };
            good =
                read_span(plan, input, span, start_of(span), start_of(span + 1), in_span) && good;
        }
    }
    return good;
}

struct ChosenDecodeArgs {
    DecodeArgs decode;
    SparseWork work;
};

// A thread block decodes 65536 elements: zeros, then what was sent.
template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    chosen_decode_kernel(ChosenDecodeArgs args) {
    __shared__ unsigned first_bad;
    const DecodeArgs& decode = args.decode;
    const int64_t units = (args.work.chunk_elems + kSparseWide - 1) / kSparseWide;
    for (int64_t work = blockIdx.x; work < args.work.chunks * units; work += gridDim.x) {
        const int64_t chunk = work / units;
        const int64_t unit = work - chunk * units;
        const SparsePlan& plan = args.work.plan(chunk);
        const int64_t begin = unit * kSparseWide;
        if (begin >= plan.count) {
            continue;
        }
        const uint8_t* input =
            static_cast<const uint8_t*>(decode.input) + chunk * decode.slot_bytes;
        uint8_t* output =
            static_cast<uint8_t*>(decode.output) + chunk * args.work.chunk_elems * Element::kBytes;
        if (!decode.accumulate) {
            const int64_t left = plan.count - begin;
            zero_elements<Element>(output, begin, left < kSparseWide ? left : kSparseWide,
                                   static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
        }
        const bool good = read_unit(plan, input, unit, &first_bad, [&](int64_t at, int64_t number) {
            place<Element>(output, at, decode, get_value<Element>(plan, input, number));
        });
        report(decode.status, good);
        __syncthreads();
        const auto* header = reinterpret_cast<const uint32_t*>(input);
        if (unit == 0 && threadIdx.x == 0 && (header[3] & kFlagNonFinite) != 0) {
            Element::put(output, __uint_as_float(kNanFloat32));
        }
    }
}

}  // namespace
}  // namespace slimwire
