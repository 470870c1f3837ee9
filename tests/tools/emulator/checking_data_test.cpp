// The data of nccl-tests' hosted kernels: that they reduce to what is expected in any order, that a
// missing rank or a shifted buffer shows, and what the oracle for lossy codecs lets pass.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "codecs/base/element_types.h"
#include "tools/emulator/checking/data.h"

namespace slimwire::testing {
namespace {

using namespace emulator::checking;

constexpr DType kElements[] = {
    DType::kInt8,    DType::kUint8,      DType::kInt32,      DType::kUint32,
    DType::kInt64,   DType::kUint64,     DType::kFloat16,    DType::kBfloat16,
    DType::kFloat32, DType::kFloat8e4m3, DType::kFloat8e5m2, DType::kFloat64,
};
constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProd,      Reduction::kMin,
                                     Reduction::kMax, Reduction::kPreMulSum, Reduction::kAvg};

template <class Storage>
Storage from_bits(uint64_t bits) {
    Storage value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
template <class Storage>
uint64_t to_bits(Storage value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class Compute>
Compute combine(Reduction reduction, Compute a, Compute b) {
    if (reduction == Reduction::kMin) {
        return a < b ? a : b;
    }
    if (reduction == Reduction::kMax) {
        return a < b ? b : a;
    }
    if constexpr (std::is_integral_v<Compute>) {
        const auto x = static_cast<uint64_t>(a);
        const auto y = static_cast<uint64_t>(b);
        return static_cast<Compute>(reduction == Reduction::kProd ? x * y : x + y);
    } else {
        return reduction == Reduction::kProd ? a * b : a + b;
    }
}

// Rounded to the type after every step, ranks in the given order, as a ring would.
template <class Type>
uint64_t reduced(const Data& data, int64_t index, int first_rank, bool backwards) {
    using Compute = typename Type::Compute;
    using Storage = typename Type::Storage;
    constexpr bool kFloat = std::is_floating_point_v<Compute>;
    Compute sum{};
    for (int i = 0; i < data.ranks; ++i) {
        const int step = backwards ? data.ranks - 1 - i : i;
        const int rank = (first_rank + step) % data.ranks;
        Compute value = Type::load(from_bits<Storage>(input_bits(data, rank, index)));
        if (data.reduction == Reduction::kPreMulSum) {
            value = static_cast<Compute>(value * static_cast<Compute>(premultiplier(rank)));
        } else if (kFloat && data.reduction == Reduction::kAvg) {
            value *= Type::load(Type::store(Compute{1} / static_cast<Compute>(data.ranks)));
        }
        value = Type::load(Type::store(value));
        sum = i == 0 ? value : Type::load(Type::store(combine(data.reduction, sum, value)));
    }
    if (!kFloat && data.reduction == Reduction::kAvg) {
        using Wide = std::conditional_t<std::is_signed_v<Compute>, int64_t, uint64_t>;
        sum = static_cast<Compute>(static_cast<Wide>(sum) / static_cast<Wide>(data.ranks));
    }
    return to_bits(Type::store(sum));
}

uint64_t distance(uint64_t a, uint64_t b) {
    return a < b ? b - a : a - b;
}

TEST(CheckingData, reduces_to_the_result_in_any_order) {
    for (const DType element : kElements) {
        for (const Reduction reduction : kReductions) {
            for (const int ranks : {1, 2, 3, 4, 5, 8, 13, 64, 300}) {
                const Data data{element, reduction, ranks, 0x5eed};
                SCOPED_TRACE(::testing::Message() << "element " << int(element) << " reduction "
                                                  << int(reduction) << " ranks " << ranks);
                element_types::visit_element(element, [&](auto type) {
                    using Type = decltype(type);
                    const bool average = reduction == Reduction::kAvg &&
                                         std::is_floating_point_v<typename Type::Compute>;
                    for (int64_t index = 0; index < (ranks < 64 ? 300 : 30); ++index) {
                        const uint64_t expected = result_bits(data, index);
                        for (const bool backwards : {false, true}) {
                            const uint64_t got = reduced<Type>(
                                data, index, static_cast<int>(index % ranks), backwards);
                            ASSERT_LE(distance(got, expected), average ? 2u : 0u)
                                << "index " << index << ": " << std::hex << got << ", expected "
                                << expected;
                        }
                    }
                });
            }
        }
    }
}

TEST(CheckingData, floats_are_finite_and_of_many_values) {
    for (const DType element : kElements) {
        element_types::visit_element(element, [&](auto type) {
            using Type = decltype(type);
            using Storage = typename Type::Storage;
            std::map<uint64_t, int> seen;
            for (int64_t index = 0; index < 2000; ++index) {
                const uint64_t bits = input_bits({element, Reduction::kNone, 1, 7}, 0, index);
                ++seen[bits];
                EXPECT_TRUE(
                    std::isfinite(static_cast<double>(Type::load(from_bits<Storage>(bits)))));
                EXPECT_EQ(bits, result_bits({element, Reduction::kNone, 1, 7}, index));
            }
            // e5m2 has 7 magnitudes an exponent, of which many coincide.
            EXPECT_GT(seen.size(), sizeof(Storage) == 1   ? 40u
                                   : sizeof(Storage) == 2 ? 1200u
                                                          : 1990u)
                << "element " << int(element);
        });
    }
}

// A check that everything passes would be worth nothing: most results must tell a forgotten rank,
// another place and another seed.
TEST(CheckingData, results_tell_mistakes) {
    for (const DType element : kElements) {
        for (const Reduction reduction :
             {Reduction::kSum, Reduction::kPreMulSum, Reduction::kMax}) {
            const Data data{element, reduction, 4, 11};
            const Data fewer{element, reduction, 3, 11};
            const Data other{element, reduction, 4, 12};
            int forgotten = 0;
            int shifted = 0;
            int reseeded = 0;
            for (int64_t index = 0; index < 1000; ++index) {
                const uint64_t expected = result_bits(data, index);
                forgotten += result_bits(fewer, index) != expected ? 1 : 0;
                shifted += result_bits(data, index + 1) != expected ? 1 : 0;
                reseeded += result_bits(other, index) != expected ? 1 : 0;
            }
            SCOPED_TRACE(::testing::Message()
                         << "element " << int(element) << " reduction " << int(reduction));
            EXPECT_GT(forgotten, 150);  // the largest of four is often among three of them
            EXPECT_GT(shifted, 800);
            EXPECT_GT(reseeded, 800);
        }
    }
}

// One value of every element off by `error` times the largest: what the comparison says of 64.
int64_t compared(double error, double allowed, double inputs_norm2 = 0) {
    Comparison comparison({DType::kFloat32, inputs_norm2}, allowed);
    for (int i = 1; i <= 64; ++i) {
        comparison.add(float_bits(DType::kFloat32, i + error * (i % 2 == 0 ? 64 : -64)),
                       float_bits(DType::kFloat32, i));
    }
    return comparison.wrong();
}

TEST(CheckingOracle, wrong_beyond_the_allowed_error_as_a_whole) {
    EXPECT_EQ(compared(0, 0.01), 0);
    EXPECT_EQ(compared(0.01, 0.02), 0);  // the data's norm is 0.58 of 64 times its largest
    EXPECT_EQ(compared(0.01, 0.01), 64);
    EXPECT_EQ(compared(0.2, 0.02), 64);
    // Inputs that cancelled were larger than what is left of them.
    EXPECT_EQ(compared(0.01, 0.01, 64.0 * 64 * 64), 0);
    EXPECT_EQ(compared(0.2, 0.01, 64.0 * 64 * 64), 64);
}

TEST(CheckingOracle, not_finite_is_wrong) {
    for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        Comparison comparison({DType::kFloat64, 1e300}, 0.9);
        comparison.add(float_bits(DType::kFloat64, value), float_bits(DType::kFloat64, 1));
        EXPECT_EQ(comparison.wrong(), 1);
    }
}

TEST(CheckingOracle, norm_of_the_inputs_as_they_are_reduced) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kPreMulSum, Reduction::kAvg}) {
        const Data data{DType::kFloat32, reduction, 4, 3};
        double sum = 0;
        for (int rank = 0; rank < 4; ++rank) {
            const double value = float_value(DType::kFloat32, input_bits(data, rank, 17)) *
                                 (reduction == Reduction::kPreMulSum ? 1 + rank % 2
                                  : reduction == Reduction::kAvg     ? 0.25
                                                                     : 1);
            sum += value * value;
        }
        EXPECT_DOUBLE_EQ(inputs_norm2(data, 17), sum);
    }
}

TEST(CheckingOracle, remembers_the_last_of_an_address) {
    const int at[2] = {};
    EXPECT_FALSE(is_float(recall_expected(&at[0]).element));
    remember_expected(&at[0], {DType::kFloat16, 3});
    remember_expected(&at[0], {DType::kBfloat16, 5});
    EXPECT_EQ(recall_expected(&at[0]).element, DType::kBfloat16);
    EXPECT_EQ(recall_expected(&at[0]).inputs_norm2, 5);
    EXPECT_FALSE(is_float(recall_expected(&at[1]).element));
}

}  // namespace
}  // namespace slimwire::testing
