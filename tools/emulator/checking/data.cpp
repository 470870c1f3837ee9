#include "tools/emulator/checking/data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "codecs/base/element_types.h"

namespace slimwire::emulator::checking {
namespace {

struct Format {
    DType type;
    int significant_bits;  // of a float, the hidden one included; 0: an integer
    bool is_signed;
    int bytes = static_cast<int>(dtype_bytes(type));
};
constexpr Format kFormats[] = {
    {DType::kInt8, 0, true},     {DType::kUint8, 0, false},     {DType::kInt32, 0, true},
    {DType::kUint32, 0, false},  {DType::kInt64, 0, true},      {DType::kUint64, 0, false},
    {DType::kFloat16, 11, true}, {DType::kFloat32, 24, true},   {DType::kFloat64, 53, true},
    {DType::kBfloat16, 8, true}, {DType::kFloat8e4m3, 4, true}, {DType::kFloat8e5m2, 3, true}};

const Format& format_of(DType element) {
    return kFormats[static_cast<size_t>(element)];
}

// Spreads every bit of `x` over the result: two rounds of xor-shift and an odd multiplier.
constexpr uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 29)) * 0xa0761d6478bd642fu;
    return x ^ (x >> 32);
}

// Random bits that all ranks have for an element, and those that only `rank` has.
uint64_t shared_bits(const Data& data, int64_t index) {
    return mix(mix(data.seed + 0x51ed270b) + static_cast<uint64_t>(index));
}
uint64_t own_bits(uint64_t shared, int rank) {
    return mix(shared + (static_cast<uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15u);
}

// In [0, bound), bound > 0.
uint64_t below(uint64_t random, uint64_t bound) {
    return random % bound;
}

// In [-limit, limit]; limit < 2^62.
int64_t within(uint64_t random, int64_t limit) {
    return static_cast<int64_t>(below(random, 2 * static_cast<uint64_t>(limit) + 1)) - limit;
}

// How much of `budget` is this rank's: an equal part, or with more ranks than units, one unit for
// ranks that differ from element to element.
int64_t share(int64_t budget, uint64_t shared, int ranks, int rank) {
    if (budget >= ranks) {
        return budget / ranks;
    }
    const uint64_t turn = (shared >> 8) % static_cast<uint64_t>(ranks);
    return static_cast<int64_t>((turn + static_cast<uint64_t>(rank)) %
                                static_cast<uint64_t>(ranks)) < budget
               ? 1
               : 0;
}

int exponent(uint64_t random) {
    return static_cast<int>(random & 7) - 4;
}

bool exact_reciprocal(int ranks) {
    return std::has_single_bit(static_cast<unsigned>(ranks));
}

double average_input(const Data& data, const Format& format, int rank, uint64_t shared) {
    const int scale = static_cast<int>(shared & 3);
    if (exact_reciprocal(data.ranks)) {
        const int64_t limit =
            share(int64_t{1} << format.significant_bits, shared, data.ranks, rank);
        return std::ldexp(static_cast<double>(within(own_bits(shared, rank), limit)), scale);
    }
    const auto ranks = static_cast<uint64_t>(data.ranks);
    const uint64_t first = (shared >> 8) % ranks;
    const uint64_t second = (first + 1 + (shared >> 32) % (ranks - 1)) % ranks;
    const auto mine = static_cast<uint64_t>(rank);
    if (mine != first && mine != second) {
        return 0;
    }
    const int bit =
        static_cast<int>(below(shared >> 20, static_cast<uint64_t>(format.significant_bits)));
    return std::ldexp((shared & 4) != 0 ? -1.0 : 1.0, bit + scale);
}

double float_input(const Data& data, const Format& format, int rank, uint64_t shared) {
    const uint64_t own = own_bits(shared, rank);
    const int64_t all_bits = int64_t{1} << format.significant_bits;
    switch (data.reduction) {
        case Reduction::kNone:
        case Reduction::kMin:
        case Reduction::kMax:
            return std::ldexp(static_cast<double>(within(own, all_bits - 1)), exponent(mix(own)));
        case Reduction::kSum:
        case Reduction::kPreMulSum: {
            const int64_t budget = data.reduction == Reduction::kSum ? all_bits : all_bits / 2;
            const int64_t limit = share(budget, shared, data.ranks, rank);
            return std::ldexp(static_cast<double>(within(own, limit)), exponent(shared));
        }
        case Reduction::kProd: {
            const auto ranks = static_cast<uint64_t>(data.ranks);
            double value = (own & 1) != 0 ? -1.0 : 1.0;
            if (static_cast<uint64_t>(rank) == (shared >> 8) % ranks) {
                value *= static_cast<double>(1 + below(own, static_cast<uint64_t>(all_bits) - 1));
            }
            if (static_cast<uint64_t>(rank) == (shared >> 40) % ranks) {
                value = std::ldexp(value, exponent(shared));
            }
            return value;
        }
        case Reduction::kAvg:
            return average_input(data, format, rank, shared);
    }
    return 0;
}

uint64_t integer_input(const Data& data, const Format& format, int rank, uint64_t shared) {
    const uint64_t own = own_bits(shared, rank);
    if (data.reduction == Reduction::kProd) {
        return own | 1;  // even factors would soon make every product 0
    }
    if (data.reduction == Reduction::kAvg) {
        // 62 bits of 64 are enough, and keep the arithmetic here from wrapping.
        const int bits = std::min(8 * format.bytes - (format.is_signed ? 1 : 0), 62);
        const int64_t limit = share((int64_t{1} << bits) - 1, shared, data.ranks, rank);
        const int64_t value = within(own, limit);
        return static_cast<uint64_t>(format.is_signed ? value : std::abs(value));
    }
    return own;
}

uint64_t mask_of(const Format& format) {
    return ~uint64_t{0} >> (64 - 8 * format.bytes);
}

int64_t sign_extended(uint64_t bits, const Format& format) {
    const int unused = 64 - 8 * format.bytes;
    return static_cast<int64_t>(bits << unused) >> unused;
}

uint64_t integer_result(const Data& data, const Format& format, uint64_t shared) {
    uint64_t result = 0;
    for (int rank = 0; rank < data.ranks; ++rank) {
        uint64_t value = integer_input(data, format, rank, shared);
        value = format.is_signed ? static_cast<uint64_t>(sign_extended(value, format))
                                 : value & mask_of(format);
        if (data.reduction == Reduction::kPreMulSum) {
            value *= static_cast<uint64_t>(premultiplier(rank));
        }
        const bool smaller = format.is_signed
                                 ? static_cast<int64_t>(value) < static_cast<int64_t>(result)
                                 : value < result;
        if (rank == 0) {
            result = value;
        } else if (data.reduction == Reduction::kProd) {
            result *= value;
        } else if (data.reduction == Reduction::kMin) {
            result = smaller ? value : result;
        } else if (data.reduction == Reduction::kMax) {
            result = smaller ? result : value;
        } else {
            result += value;
        }
    }
    if (data.reduction == Reduction::kAvg) {
        // Truncates towards zero.
        return format.is_signed ? static_cast<uint64_t>(static_cast<int64_t>(result) / data.ranks)
                                : result / static_cast<uint64_t>(data.ranks);
    }
    return result;
}

double float_result(const Data& data, const Format& format, uint64_t shared) {
    double result = 0;
    for (int rank = 0; rank < data.ranks; ++rank) {
        double value = float_input(data, format, rank, shared);
        if (data.reduction == Reduction::kPreMulSum) {
            value *= premultiplier(rank);
        }
        if (rank == 0) {
            result = value;
        } else if (data.reduction == Reduction::kProd) {
            result *= value;
        } else if (data.reduction == Reduction::kMin) {
            result = std::min(result, value);
        } else if (data.reduction == Reduction::kMax) {
            result = std::max(result, value);
        } else {
            result += value;
        }
    }
    return data.reduction == Reduction::kAvg ? result / data.ranks : result;
}

}  // namespace

bool is_float(DType element) {
    return format_of(element).significant_bits > 0;
}

double float_value(DType element, uint64_t bits) {
    double value = 0;
    element_types::visit_element(element, [&](auto type) {
        typename decltype(type)::Storage stored;
        std::memcpy(&stored, &bits, sizeof stored);
        value = static_cast<double>(decltype(type)::load(stored));
    });
    return value;
}

uint64_t float_bits(DType element, double value) {
    uint64_t bits = 0;
    element_types::visit_element(element, [&](auto type) {
        using Type = decltype(type);
        const auto stored = Type::store(static_cast<typename Type::Compute>(value));
        std::memcpy(&bits, &stored, sizeof stored);
    });
    return bits;
}

uint64_t input_bits(const Data& data, int rank, int64_t index) {
    const Format& format = format_of(data.element);
    const uint64_t shared = shared_bits(data, index);
    return format.significant_bits > 0
               ? float_bits(data.element, float_input(data, format, rank, shared))
               : integer_input(data, format, rank, shared) & mask_of(format);
}

uint64_t result_bits(const Data& data, int64_t index) {
    const Format& format = format_of(data.element);
    const uint64_t shared = shared_bits(data, index);
    return format.significant_bits > 0
               ? float_bits(data.element, float_result(data, format, shared))
               : integer_result(data, format, shared) & mask_of(format);
}

namespace {

struct Table {
    std::mutex mutex;
    std::unordered_map<const void*, Expected> rows;
};
// Kept to the process's end: workers of streams may still be running.
Table& table() {
    static auto* const kept = new Table;
    return *kept;
}

}  // namespace

void remember_expected(const void* at, const Expected& expected) {
    const std::lock_guard lock(table().mutex);
    table().rows[at] = expected;
}

Expected recall_expected(const void* at) {
    const std::lock_guard lock(table().mutex);
    const auto found = table().rows.find(at);
    return found == table().rows.end() ? Expected{} : found->second;
}

double inputs_norm2(const Data& data, int64_t index) {
    double sum = 0;
    for (int rank = 0; rank < data.ranks; ++rank) {
        double value = float_value(data.element, input_bits(data, rank, index));
        value *= data.reduction == Reduction::kPreMulSum ? premultiplier(rank) : 1;
        value /= data.reduction == Reduction::kAvg ? data.ranks : 1;
        sum += value * value;
    }
    return sum;
}

void Comparison::add(uint64_t got, uint64_t wanted) {
    const double value = float_value(expected_.element, got);
    const double exact = float_value(expected_.element, wanted);
    not_finite_ = not_finite_ || !std::isfinite(value);
    error2_ += (value - exact) * (value - exact);
    norm2_ += exact * exact;
    ++count_;
}

int64_t Comparison::wrong() const {
    const double scale2 = std::max(norm2_, expected_.inputs_norm2);
    return not_finite_ || error2_ > allowed_error_ * allowed_error_ * scale2 ? count_ : 0;
}

}  // namespace slimwire::emulator::checking
