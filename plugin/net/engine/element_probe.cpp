#include "plugin/net/engine/element_probe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>

namespace slimwire::net {
namespace {

constexpr size_t kLlLine = 16;
constexpr size_t kLl128Line = 128;
constexpr size_t kLinesSeen = 16;

template <class Word>
Word load(const uint8_t* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

// Lines of `line` bytes whose last word of each `step` bytes is the same number, not 0, and whose
// other words are not all that number too.
template <class Word>
bool same_flag_in_lines(const uint8_t* data, size_t bytes, size_t line, size_t step) {
    const size_t lines = std::min(bytes / line, kLinesSeen);
    if (lines < 2) {
        return false;
    }
    const Word flag = load<Word>(data + step - sizeof(Word));
    bool other = false;
    // The flags stand in every line: some at the begin and some at the end are enough to rule out.
    for (size_t k = 0; k < lines; ++k) {
        const size_t at = k * (bytes / line - 1) / (lines - 1) * line;
        for (size_t word = 0; word < line; word += sizeof(Word)) {
            const bool is_flag = word % step == step - sizeof(Word);
            const bool equal = load<Word>(data + at + word) == flag;
            if (is_flag && !equal) {
                return false;
            }
            other = other || (!is_flag && !equal);
        }
    }
    return flag != 0 && other;
}

// How the palette sees an element type: codecs/FORMAT.md, "Palette".
struct Candidate {
    DType element;
    int width;     // bytes
    int raw_bits;  // of the top byte
    bool rotated;
};
constexpr std::array kCandidates = {
    Candidate{DType::kBfloat16, 2, 0, true},   Candidate{DType::kFloat32, 4, 0, true},
    Candidate{DType::kFloat16, 2, 3, true},    Candidate{DType::kFloat64, 8, 0, true},
    Candidate{DType::kFloat8e4m3, 1, 4, true}, Candidate{DType::kFloat8e5m2, 1, 3, true},
    Candidate{DType::kUint8, 1, 0, false},
};

constexpr size_t kSamples = 512;
constexpr size_t kRun = 32;  // elements next to each other

uint8_t symbol_of(const Candidate& type, const uint8_t* element) {
    uint8_t top = element[type.width - 1];
    if (type.rotated) {
        const uint8_t below = type.width > 1 ? element[type.width - 2] : element[0];
        top = static_cast<uint8_t>(top << 1 | below >> 7);
    }
    return static_cast<uint8_t>(top >> type.raw_bits);
}

// Expected part of the raw size: the tiers' codes and escapes of the sampled symbols.
double expected_ratio(const Candidate& type, const uint8_t* data, size_t bytes) {
    const size_t width = static_cast<size_t>(type.width);
    const size_t count = bytes / width;
    const size_t samples = std::min(count, kSamples) / kRun * kRun;
    if (samples == 0) {
        return 1;
    }
    const size_t runs = samples / kRun;
    std::array<int, 256> seen{};
    for (size_t run = 0; run < runs; ++run) {
        const size_t first = runs > 1 ? run * (count - kRun) / (runs - 1) : 0;
        for (size_t i = 0; i < kRun; ++i) {
            ++seen[symbol_of(type, data + (first + i) * width)];
        }
    }
    const double n = static_cast<double>(samples);
    // More than an eighth zeros are marked by a bit each instead of coded.
    const double zeros = seen[0] > static_cast<int>(samples / 8) ? seen[0] / n : 0;
    if (zeros > 0) {
        seen[0] = 0;
    }
    std::partial_sort(seen.begin(), seen.begin() + 13, seen.end(), std::greater<>());
    const auto part = [&](int from, int to) {
        int sum = 0;
        for (int i = from; i < to; ++i) {
            sum += seen[static_cast<size_t>(i)];
        }
        return sum / n;
    };
    const double coded = 1 - zeros;
    const double escapes1 = coded - part(0, 3);
    const double escapes2 = escapes1 - part(3, 6);
    const double escapes3 = escapes2 - part(6, 13);
    const double bits = (zeros > 0 ? 1 : 0) + coded * (8.0 * (type.width - 1) + type.raw_bits + 2) +
                        2 * escapes1 + 3 * escapes2 + 8 * escapes3;
    return std::min(1.0, bits / (8.0 * type.width) + 24.0 / (4096.0 * type.width));
}

}  // namespace

bool is_float(DType element) noexcept {
    switch (element) {
        case DType::kFloat16:
        case DType::kFloat32:
        case DType::kFloat64:
        case DType::kBfloat16:
        case DType::kFloat8e4m3:
        case DType::kFloat8e5m2:
            return true;
        case DType::kInt8:
        case DType::kUint8:
        case DType::kInt32:
        case DType::kUint32:
        case DType::kInt64:
        case DType::kUint64:
            return false;
    }
    return false;
}

bool carries_flags(const uint8_t* data, size_t bytes) noexcept {
    static_assert(std::endian::native == std::endian::little);
    return same_flag_in_lines<uint32_t>(data, bytes, kLlLine, 8) ||
           same_flag_in_lines<uint64_t>(data, bytes, kLl128Line, kLl128Line);
}

std::optional<ElementGuess> guess_element(const uint8_t* data, size_t bytes) noexcept {
    constexpr double kWorthIt = 15.0 / 16;
    std::optional<ElementGuess> best;
    for (const Candidate& type : kCandidates) {
        if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(type.width) != 0) {
            continue;
        }
        const double ratio = expected_ratio(type, data, bytes);
        if (ratio < (best.has_value() ? best->ratio : kWorthIt)) {
            best = ElementGuess{type.element, ratio};
        }
    }
    return best;
}

}  // namespace slimwire::net
