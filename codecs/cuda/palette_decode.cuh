// The decoder of the palette codec, and what adding to a buffer means for each element type; byte
// for byte codecs/host/palette_decode.h and palette_accumulate.h, also of malformed bytes. Included
// by codecs/palette.cuh.
#pragma once

#include "codecs/cuda/palette_block.cuh"

namespace slimwire {
namespace {

// The symbols of one tier; at most `limit` bytes of `rest` are read. Returns the escapes seen.
template <int kBits>
__device__ __forceinline__ int decode_tier(PaletteShared& shared,
                                           const uint8_t* words,
                                           int n,
                                           const uint8_t* palette,
                                           const uint8_t* rest,
                                           int limit,
                                           uint8_t* symbols) {
    const int begin = static_cast<int>(threadIdx.x) * kEach;
    uint32_t plane[kBits];
    uint32_t escapes = 0xFFFF;
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) {
        plane[bit] = get_word(words, bit, kBits, n);
        escapes &= plane[bit];
    }
    int total = 0;
    int at = scan_block(shared, __popc(escapes), &total);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        if (begin + k < n) {
            uint32_t code = 0;
#pragma unroll
            for (int bit = 0; bit < kBits; ++bit) {
                code |= (plane[bit] >> k & 1) << bit;
            }
            const bool escape = (escapes >> k & 1) != 0;
            symbols[begin + k] = !escape ? palette[code] : at < limit ? rest[at] : uint8_t{0};
            at += escape;
        }
    }
    __syncthreads();
    return total;
}

template <int kBytes>
__host__ __device__ constexpr int decode_shared_bytes() {
    return kPaletteBlock * kBytes + 16 + 2 * (kPaletteBlock + 16);
}

// The value of an 8-bit float, and the code of a value: nearest even, overflow to infinity or NaN.
struct SmallFloat {
    int fraction_bits;
    int bias;
    uint32_t special;  // smallest code that is not finite
    uint32_t overflow;
    uint32_t nan;

    __device__ float value(uint32_t code) const {
        const uint32_t magnitude = code & 0x7F;
        const uint32_t sign = (code & 0x80) << 24;
        if (magnitude >= special) {
            const bool infinite = magnitude == 0x7C && overflow == 0x7C;
            return __uint_as_float(sign | (infinite ? kInfinityBits : kNanFloat32));
        }
        if (magnitude >> fraction_bits == 0) {
            const auto step = static_cast<uint32_t>(128 - bias - fraction_bits) << 23;
            const float x = __fmul_rn(__uint_as_float(step), static_cast<float>(magnitude));
            return __uint_as_float(sign | __float_as_uint(x));
        }
        return __uint_as_float(sign | ((magnitude << (23 - fraction_bits)) +
                                       (static_cast<uint32_t>(127 - bias) << 23)));
    }
    __device__ uint32_t code(float x) const {
        const uint32_t bits = __float_as_uint(x);
        const uint32_t magnitude = bits & kMagnitudeMask;
        const int shift = 23 - fraction_bits;
        if (magnitude > kInfinityBits) {
            return nan;
        }
        uint32_t result;
        if (magnitude < static_cast<uint32_t>(128 - bias) << 23) {
            const auto magic = static_cast<uint32_t>(151 - bias - fraction_bits) << 23;
            const float sum = __fadd_rn(__uint_as_float(magic), __uint_as_float(magnitude));
            result = __float_as_uint(sum) - magic;
        } else {
            const uint32_t half = (1u << (shift - 1)) - 1 + (magnitude >> shift & 1);
            result = ((magnitude + half) >> shift) -
                     (static_cast<uint32_t>(127 - bias) << fraction_bits);
            result = result >= special ? overflow : result;
        }
        return result | (bits >> 24 & 0x80);
    }
    __device__ uint32_t add(uint32_t a, uint32_t b) const {
        return code(__fadd_rn(value(a), value(b)));
    }
};

// old + added, as the elements of `dtype` add.
__device__ __forceinline__ uint64_t add_bits(DType dtype, uint64_t old, uint64_t added) {
    const auto a = static_cast<uint32_t>(old);
    const auto b = static_cast<uint32_t>(added);
    switch (dtype) {
        case DType::kFloat32:
            return __float_as_uint(canonical(__fadd_rn(__uint_as_float(a), __uint_as_float(b))));
        case DType::kFloat16:
            return Float16Format::from_float(
                __fadd_rn(Float16Format::to_float(static_cast<uint16_t>(a)),
                          Float16Format::to_float(static_cast<uint16_t>(b))));
        case DType::kBfloat16:
            return Bfloat16Format::from_float(
                __fadd_rn(Bfloat16Format::to_float(static_cast<uint16_t>(a)),
                          Bfloat16Format::to_float(static_cast<uint16_t>(b))));
        case DType::kFloat64: {
            double x;
            double y;
            memcpy(&x, &old, 8);
            memcpy(&y, &added, 8);
            x += y;
            uint64_t bits;
            memcpy(&bits, &x, 8);
            return x != x ? kNanFloat64 : bits;
        }
        case DType::kFloat8e4m3:
            return SmallFloat{3, 7, 0x7F, 0x7F, 0x7F}.add(a, b);
        case DType::kFloat8e5m2:
            return SmallFloat{2, 15, 0x7C, 0x7C, 0x7E}.add(a, b);
        case DType::kInt8:
        case DType::kUint8:
        case DType::kInt32:
        case DType::kUint32:
        case DType::kInt64:
        case DType::kUint64:
            break;
    }
    return old + added;
}

// Delivers this thread's 16 elements: stores them, or adds them to what is there.
template <int kBytes>
__device__ __forceinline__ void deliver_elements(
    const DecodeArgs& args, uint8_t* output, int begin, int len, const WordOf<kBytes>* value) {
    if constexpr (kBytes < 8) {
        if (!args.accumulate && begin + kEach <= len && is_aligned16(output)) {
            constexpr int kPerWord = 4 / kBytes;
            uint32_t words[4 * kBytes] = {};
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                words[k / kPerWord] |= static_cast<uint32_t>(value[k])
                                       << (8 * kBytes * (k % kPerWord));
            }
            auto* const to = reinterpret_cast<uint4*>(output + begin * kBytes);
#pragma unroll
            for (int i = 0; i < kBytes; ++i) {
                to[i] =
                    make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
            }
            return;
        }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        if (begin + k < len) {
            store_element<kBytes>(output, begin + k, value[k]);
        }
    }
}

// Integers are coded byte by byte and added whole, from the decoded bytes in shared memory.
template <class Integer>
__device__ __forceinline__ void add_integers(const uint8_t* decoded, int bytes, uint8_t* output) {
    constexpr int kWidth = static_cast<int>(sizeof(Integer));
    for (int i = static_cast<int>(threadIdx.x); i < bytes / kWidth; i += kThreads) {
        reinterpret_cast<Integer*>(output)[i] += reinterpret_cast<const Integer*>(decoded)[i];
    }
}

// Decodes a coded payload in shared memory to this thread's 16 elements; false, the same in all
// threads, when it is malformed. `a` and `b` hold a block of symbols each.
template <int kBytes>
__device__ __forceinline__ bool decode_payload(PaletteShared& shared,
                                               const PaletteWork& work,
                                               const uint8_t* payload,
                                               int64_t bytes,
                                               int len,
                                               uint8_t* a,
                                               uint8_t* b,
                                               WordOf<kBytes>* value) {
    constexpr int kPlanes = kBytes - 1;
    const int t = static_cast<int>(threadIdx.x);
    const int begin = t * kEach;
    const uint64_t counts = *reinterpret_cast<const unsigned long long*>(payload);
    const int n = static_cast<int>(counts & 0xFFF) + 1;
    const int n1 = static_cast<int>(counts >> 12 & 0x1FFF);
    const int n2 = static_cast<int>(counts >> 25 & 0x1FFF);
    const int n3 = static_cast<int>(counts >> 38 & 0x1FFF);
    const bool zero_mode = (counts >> 51 & 1) != 0;
    if (n > len || (!zero_mode && n != len) || n1 > n || n2 > n1 || n3 > n2) {
        return false;
    }
    int64_t planes = kPaletteHeader;
    const int left = len - begin;
    uint32_t mine = left >= kEach ? 0xFFFF : left > 0 ? (1u << left) - 1 : 0;
    int at = begin;
    if (zero_mode) {
        if (bytes < kPaletteHeader + 8) {
            return false;
        }
        const auto* from = reinterpret_cast<const unsigned long long*>(payload + kPaletteHeader);
        const uint64_t groups = from[0];
        planes += 8 + 8 * __popcll(groups);
        if (planes > bytes) {
            return false;
        }
        const int group = t / 4;
        uint32_t marked = 0;
        if ((groups >> group & 1) != 0) {
            const int before = __popcll(groups & ((uint64_t{1} << group) - 1));
            marked = static_cast<uint32_t>(from[1 + before] >> (16 * (t % 4))) & 0xFFFF;
        }
        const bool outside =
            (marked & ~mine) != 0 || ((groups >> group & 1) != 0 && group * 64 >= len);
        mine = marked;
        int ones = 0;
        at = scan_block(shared, __popc(mine), &ones);
        if (__syncthreads_or(outside) != 0 || ones != n) {
            return false;
        }
    }
    const int64_t raw_words = planes + int64_t{kPlanes} * n;
    const int64_t words1 = raw_words + work.raw_bits * plane_bytes(n);
    const int64_t words2 = words1 + 2 * plane_bytes(n);
    const int64_t words3 = words2 + 2 * plane_bytes(n1);
    const int64_t symbols = words3 + 3 * plane_bytes(n2);
    if (padded8(symbols + n3) != bytes) {
        return false;
    }
    const uint8_t* const palette = payload + 8;
    if (decode_tier<3>(shared, payload + words3, n2, palette + 6, payload + symbols, n3, a) != n3 ||
        decode_tier<2>(shared, payload + words2, n1, palette + 3, a, n2, b) != n2 ||
        decode_tier<2>(shared, payload + words1, n, palette, b, n1, a) != n1) {
        return false;
    }
    if (work.raw_bits != 0) {
        for (int bit = work.raw_bits - 1; bit >= 0; --bit) {
            const uint32_t x = get_word(payload + raw_words, bit, work.raw_bits, n);
            const int shift = work.raw_bits - 1 - bit;
            for (int k = 0; k < kEach && begin + k < n; ++k) {
                // The symbol moves up as its lower bits come, the highest first.
                const uint32_t top = shift == 0 ? a[begin + k] : b[begin + k];
                b[begin + k] = static_cast<uint8_t>(top << 1 | (x >> k & 1));
            }
        }
        __syncthreads();
    }
    const uint8_t* const tops = work.raw_bits != 0 ? b : a;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        WordOf<kBytes> bits = 0;
        if ((mine >> k & 1) != 0) {
            bits = static_cast<WordOf<kBytes>>(WordOf<kBytes>{tops[at]} << (8 * kPlanes));
#pragma unroll
            for (int j = 0; j < kPlanes; ++j) {
                bits |= static_cast<WordOf<kBytes>>(WordOf<kBytes>{payload[planes + j * n + at]}
                                                    << (8 * j));
            }
            ++at;
        }
        value[k] = rotate_back<kBytes>(bits, work.rotates);
    }
    return true;
}

template <int kBytes>
__global__ void __launch_bounds__(kThreads) palette_decode(DecodeArgs args, PaletteWork work) {
    SLIMWIRE_DYNAMIC_SHARED(uint8_t, payload);
    __shared__ PaletteShared shared;
    uint8_t* const a = payload + kPaletteBlock * kBytes + 16;
    uint8_t* const b = a + kPaletteBlock + 16;
    const int begin = static_cast<int>(threadIdx.x) * kEach;
    for (int64_t unit = blockIdx.x; unit < work.chunks * work.blocks; unit += gridDim.x) {
        const int64_t chunk = unit / work.blocks;
        const int64_t block = unit - chunk * work.blocks;
        const int64_t count = chunk_count(work, chunk);
        const int64_t blocks = (count + kPaletteBlock - 1) / kPaletteBlock;
        if (block >= blocks) {
            continue;
        }
        const int64_t first = block * kPaletteBlock;
        const int len = static_cast<int>(min(count - first, int64_t{kPaletteBlock}));
        const int64_t raw = int64_t{len} * kBytes;
        const uint8_t* const input =
            static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes;
        uint8_t* const output =
            static_cast<uint8_t*>(args.output) + (chunk * work.chunk_elems + first) * kBytes;
        const int64_t size = chunk_capacity(work, chunk);
        const int64_t payloads = first_payload(blocks);
        const auto* const header = reinterpret_cast<const uint32_t*>(input);
        uint32_t magic = 0;
        uint32_t flags = 0;
        int64_t total = 0;
        if (size >= kPaletteChunkHeader) {
            magic = header[0];
            flags = header[1];
            total = static_cast<int64_t>(reinterpret_cast<const unsigned long long*>(input)[1]);
        }
        uint32_t status = 0;
        int64_t at = 0;
        int64_t end = 0;
        bool good = false;
        if (work.slotted && magic == kPaletteMagic && flags == kPaletteOverflow &&
            total == kPaletteChunkHeader) {
            status = kStatusOverflow;
        } else if (magic == kPaletteMagic && flags == 0 && total >= payloads && total <= size) {
            const auto* const ends = reinterpret_cast<const uint32_t*>(input + kPaletteChunkHeader);
            at = block == 0 ? payloads : int64_t{ends[block - 1]} * 8;
            end = int64_t{ends[block]} * 8;
            good = at >= payloads && at <= end && end <= total && end - at <= padded8(raw);
            status = block + 1 == blocks && end != total ? uint32_t{kStatusCorrupt} : 0;
        }
        const int64_t bytes = good ? end - at : 0;
        for (int64_t i = threadIdx.x; i < bytes / 8; i += kThreads) {
            reinterpret_cast<unsigned long long*>(payload)[i] =
                reinterpret_cast<const unsigned long long*>(input + at)[i];
        }
        __syncthreads();
        WordOf<kBytes> value[kEach] = {};
        if (good && bytes == padded8(raw)) {
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                value[k] =
                    begin + k < len ? load_element<kBytes>(payload, begin + k) : WordOf<kBytes>{0};
            }
        } else if (bytes != 0) {
            good = bytes >= kPaletteHeader &&
                   decode_payload<kBytes>(shared, work, payload, bytes, len, a, b, value);
            if (!good) {
#pragma unroll
                for (int k = 0; k < kEach; ++k) {
                    value[k] = 0;
                }
            }
        }
        if (!good && status == 0) {
            status = kStatusCorrupt;
        }
        if (!args.accumulate) {
            deliver_elements<kBytes>(args, output, begin, len, value);
        } else if (kBytes == 1 && work.element_bytes > 1) {
            __syncthreads();  // `b` may still be read
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                b[begin + k] = static_cast<uint8_t>(value[k]);
            }
            __syncthreads();
            if (work.element_bytes == 4) {
                add_integers<uint32_t>(b, len, output);
            } else {
                add_integers<unsigned long long>(b, len, output);
            }
        } else {
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                if (begin + k < len) {
                    const uint64_t old = load_element<kBytes>(output, begin + k);
                    store_element<kBytes>(output, begin + k, add_bits(args.dtype, old, value[k]));
                }
            }
        }
        if (status != 0 && threadIdx.x == 0 && args.status != nullptr) {
            atomicOr(args.status, status);
        }
        __syncthreads();
    }
}

}  // namespace
}  // namespace slimwire
