// Codec bounded of codecs/FORMAT.md, bit by bit: real arithmetic for the steps, a list of blocks in
// the order of their turns, and nothing about groups but where their entries stand.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/codecs/reference.h"

namespace slimwire::reference {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kGroup = 32;  // blocks
constexpr int kRaw = 32;
constexpr int kPoison = 255;

struct Places {
    int64_t blocks, groups, widths, starts, payload, capacity, bytes;
};
Places places_of(const CodecSpec& spec, int64_t count, DType dtype) {
    Places at{};
    at.blocks = (count + kBlock - 1) / kBlock;
    at.groups = (at.blocks + kGroup - 1) / kGroup;
    at.widths = 16;
    at.starts = at.widths + at.groups * kGroup;
    at.payload = (at.starts + 4 * at.groups + 15) / 16 * 16;
    const double raw =
        static_cast<double>(at.blocks * kBlock) * static_cast<double>(dtype_bytes(dtype));
    at.capacity = static_cast<int64_t>(std::floor(double{spec.params.slot} * raw / 4 + 0.5));
    at.capacity = std::min(std::max<int64_t>(at.capacity, 32), 32 * at.blocks);
    at.bytes = at.payload + 4 * at.capacity;
    return at;
}

// The largest power of two that is at most twice the bound.
double step_of(const CodecSpec& spec) {
    double step = std::ldexp(1.0, -200);
    while (step * 2 <= 2 * double{spec.params.threshold}) {
        step *= 2;
    }
    return step;
}

int width_of(const float* p, int64_t elems, double step) {
    double most = 0;
    for (int64_t i = 0; i < elems; ++i) {
        if (!std::isfinite(p[i])) {
            return kPoison;
        }
        most = std::max(most, std::abs(double{p[i]}));
    }
    if (most >= step * 0x1p20) {
        return kRaw;
    }
    const double largest = std::nearbyint(most / step);
    int width = 0;
    while (largest > 0 && largest > std::ldexp(1.0, width - 1) - 1) {
        ++width;
    }
    return width;
}

void put_block(std::vector<uint8_t>& bytes,
               int64_t at,
               int width,
               const float* p,
               int64_t elems,
               double step) {
    for (int64_t i = 0; i < elems; ++i) {
        if (width == kRaw) {
            put_bits(bytes.data(), 8 * (at + 4 * i), 32, std::bit_cast<uint32_t>(p[i]));
            continue;
        }
        const auto code = static_cast<int64_t>(std::nearbyint(double{p[i]} / step));
        for (int bit = 0; bit < width; ++bit) {
            const int value = static_cast<int>(code >> bit & 1) << (i % 8);
            bytes[static_cast<size_t>(at + 4 * bit + i / 8)] |= static_cast<uint8_t>(value);
        }
    }
}

}  // namespace

std::vector<uint8_t> encode_bounded(const CodecSpec& spec,
                                    const std::vector<float>& p,
                                    const Draw& draw,
                                    DType dtype) {
    const auto count = static_cast<int64_t>(p.size());
    const Places at = places_of(spec, count, dtype);
    const double step = step_of(spec);
    std::vector<uint8_t> bytes(static_cast<size_t>(at.bytes));
    const uint32_t steps = draw.key.step + (draw.key.step_ptr != nullptr ? *draw.key.step_ptr : 0);
    const uint64_t turn = uint64_t{steps * 0x9E3779B9u} * static_cast<uint64_t>(at.blocks) >> 32;
    const auto first_group = static_cast<int64_t>(turn) / kGroup;
    const auto first_block = static_cast<int64_t>(turn) % kGroup;
    int64_t needed = 0;
    for (int64_t g = 0; g < at.groups; ++g) {
        const int64_t group = (first_group + g) % at.groups;
        put_bits(bytes.data(), 8 * (at.starts + 4 * group), 32,
                 static_cast<uint32_t>(std::min(needed, at.capacity)));
        for (int64_t b = 0; b < kGroup; ++b) {
            const int64_t block = group * kGroup + (first_block + b) % kGroup;
            if (block >= at.blocks) {
                continue;
            }
            const float* values = p.data() + block * kBlock;
            const int64_t elems = std::min(kBlock, count - block * kBlock);
            const int width = width_of(values, elems, step);
            uint8_t& stored = bytes[static_cast<size_t>(at.widths + block)];
            if (width == kPoison) {
                stored = kPoison;
                continue;
            }
            if (needed + width <= at.capacity) {
                stored = static_cast<uint8_t>(width);
                put_block(bytes, at.payload + 4 * needed, width, values, elems, step);
            }
            needed += width;
        }
    }
    put_bits(bytes.data(), 0, 32, static_cast<uint32_t>(std::min<int64_t>(needed, UINT32_MAX)));
    put_bits(bytes.data(), 32, 32, static_cast<uint32_t>(first_block));
    return bytes;
}

std::vector<float> decode_bounded(const CodecSpec& spec,
                                  const uint8_t* bytes,
                                  int64_t count,
                                  DType dtype) {
    const Places at = places_of(spec, count, dtype);
    const double step = step_of(spec);
    const int64_t first_block = get_bits(bytes, 32, 32) % kGroup;
    std::vector<float> result(static_cast<size_t>(at.groups * kGroup * kBlock));
    for (int64_t group = 0; group < at.groups; ++group) {
        const int64_t start = get_bits(bytes, 8 * (at.starts + 4 * group), 32);
        const uint8_t* widths = bytes + at.widths + group * kGroup;
        int64_t end = start;
        bool valid = true;
        for (int64_t b = 0; b < kGroup; ++b) {
            const int w = widths[b];
            valid = valid && (w == 0 || (w >= 2 && w <= 22) || w == kRaw || w == kPoison);
            end += w == kPoison ? 0 : w;
        }
        if (!valid || end > at.capacity) {
            continue;
        }
        int64_t word = start;
        for (int64_t b = 0; b < kGroup; ++b) {
            const int64_t block = (first_block + b) % kGroup;
            const int width = widths[block];
            const uint8_t* from = bytes + at.payload + 4 * word;
            for (int64_t i = 0; i < kBlock; ++i) {
                float& value = result[static_cast<size_t>((group * kGroup + block) * kBlock + i)];
                if (width == kPoison) {
                    value = float_of(0x7FC00000u);
                } else if (width == kRaw) {
                    value = float_of(get_bits(from, 32 * i, 32));
                } else if (width > 0) {
                    int64_t code = 0;
                    for (int bit = 0; bit < width; ++bit) {
                        const int64_t one = from[4 * bit + i / 8] >> (i % 8) & 1;
                        code += bit == width - 1 ? -(one << bit) : one << bit;
                    }
                    value = static_cast<float>(static_cast<double>(code) * step);
                }
            }
            word += width == kPoison ? 0 : width;
        }
    }
    result.resize(static_cast<size_t>(count));
    return result;
}

}  // namespace slimwire::reference
