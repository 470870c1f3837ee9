// What oracles know of codecs: that they encode and decode, that a tensor is owed what it lacks,
// and of an autoencoder that learns from answers what its weights are in fp64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "codecs/codec.h"
#include "codecs/low_rank/low_rank.h"

namespace slimwire::test {

// Values as they come out of one chunk of int4.
inline std::vector<float> coded(const std::vector<float>& p) {
    const CodecSpec codec = parse_codec("int4").value();
    const auto count = static_cast<int64_t>(p.size());
    const int64_t slot = (codec.encoded_bytes(DType::kFloat32, count) + 15) / 16 * 16;
    std::vector<uint8_t> bytes(static_cast<size_t>(slot) + 16);
    uint8_t* const encoded = bytes.data() + (-reinterpret_cast<uintptr_t>(bytes.data()) & 15);
    EncodeArgs encode{};
    encode.input = p.data();
    encode.output = encoded;
    encode.scale = 1.0f;
    encode.count = encode.chunk_elems = count;
    encode.slot_bytes = slot;
    encode.params = codec.params;
    encode.dtype = DType::kFloat32;
    codec.codec->host.encode(encode);
    std::vector<float> decoded(p.size());
    DecodeArgs decode{};
    decode.input = encoded;
    decode.output = decoded.data();
    decode.count = decode.chunk_elems = count;
    decode.slot_bytes = slot;
    decode.params = codec.params;
    decode.dtype = DType::kFloat32;
    codec.codec->host.decode(decode);
    return decoded;
}

// A tensor whose sums are compressed, and what they have been off by so far.
struct FedTensor {
    FedTensor(float scale, size_t count) : values(count), error(count) {
        for (size_t i = 0; i < count; ++i) {
            values[i] = scale * std::sin(0.7f * static_cast<float>(i) + scale);
        }
    }
    void came(const std::vector<float>& sum, double ranks = 2) {
        for (size_t i = 0; i < sum.size(); ++i) {
            error[i] += static_cast<double>(sum[i]) - ranks * values[i];
        }
    }
    // With its own residual the error is what is left in it: less than the largest value, where
    // another tensor's would be thousands of times that.
    void expect_own_residual() const {
        double most = 0, largest = 0;
        for (size_t i = 0; i < values.size(); ++i) {
            most = std::max(most, std::abs(error[i]));
            largest = std::max(largest, std::abs(static_cast<double>(values[i])));
        }
        EXPECT_LT(most, largest);
        EXPECT_GT(most, 0.0) << "nothing was compressed";
    }

    std::vector<float> values;
    std::vector<double> error;
    int compressed = 0;
};
inline void expect_own_residuals(const std::vector<FedTensor>& tensors) {
    for (const FedTensor& tensor : tensors) {
        tensor.expect_own_residual();
    }
}

namespace code {

// Blocks of kRows rows, and what is behind them.
inline constexpr size_t kRows = 3, kCols = 40, kRaw = 17, kWidth = 4;
inline constexpr size_t kCount = kRows * kCols + kRaw;
inline constexpr double kRate = 0.02;

using Values = std::vector<double>;

// Of one end: columns, one after the other, and what Adam knows of them.
struct Weights {
    Values at = Values(kCols * kWidth), first = at, second = at, sum = at;
    double steps = 0;

    [[nodiscard]] double of(size_t column, size_t k) const { return at[k * kCols + column]; }
    void add(const Values& rows, const Values& numbers) {
        for (size_t i = 0; i < kRows; ++i) {
            for (size_t j = 0; j < kCols; ++j) {
                for (size_t k = 0; k < kWidth; ++k) {
                    sum[k * kCols + j] += rows[i * kCols + j] * numbers[i * kWidth + k];
                }
            }
        }
    }
    void step() {
        ++steps;
        for (size_t i = 0; i < at.size(); ++i) {
            first[i] = 0.9 * first[i] + 0.1 * sum[i];
            second[i] = 0.999 * second[i] + 0.001 * sum[i] * sum[i];
            at[i] -= kRate * first[i] / (1 - std::pow(0.9, steps)) /
                     (std::sqrt(second[i] / (1 - std::pow(0.999, steps))) + 1e-8);
            sum[i] = 0;
        }
    }
    [[nodiscard]] Values numbers(const Values& rows) const {
        Values out(kRows * kWidth);
        for (size_t i = 0; i < kRows; ++i) {
            for (size_t k = 0; k < kWidth; ++k) {
                for (size_t j = 0; j < kCols; ++j) {
                    out[i * kWidth + k] += rows[i * kCols + j] * of(j, k);
                }
            }
        }
        return out;
    }
    // `raw`: whose elements of no row come as they are.
    [[nodiscard]] Values rows(const Values& numbers, const Values& raw) const {
        Values out = raw;
        for (size_t i = 0; i < kRows; ++i) {
            for (size_t j = 0; j < kCols; ++j) {
                out[i * kCols + j] = 0;
                for (size_t k = 0; k < kWidth; ++k) {
                    out[i * kCols + j] += numbers[i * kWidth + k] * of(j, k);
                }
            }
        }
        return out;
    }
};

// As both ends draw them.
inline Weights drawn(uint64_t seed = 5) {
    const MatrixShape shape{0, kRows, kCols}, transposed{0, kCols, kRows};
    std::vector<float> zeros(kCols * kWidth), weights(kCols * kWidth);
    LowRankArgs args{};
    args.left = args.right = weights.data();
    args.state = zeros.data();
    args.rank = args.state_rank = kWidth;
    args.matrices = 1;
    args.random.seed = seed;
    args.list[0] = low_rank_layout({&shape, 1}, kWidth).matrices[0];
    begin_low_rank_on_host(args);
    args.list[0] = low_rank_layout({&transposed, 1}, kWidth).matrices[0];
    orthogonalise_on_host(args);
    Weights out;
    std::copy(weights.begin(), weights.end(), out.at.begin());
    return out;
}

// Rows of a space of few dimensions, which both ends can learn.
inline Values activation(int number) {
    Values out(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        const double row = static_cast<double>(i / kCols) + 3.0 * number;
        const double column = static_cast<double>(i % kCols);
        for (int k = 0; k < static_cast<int>(kWidth); ++k) {
            out[i] += std::sin(1.3 * (k + 1) * row + k) * std::cos((k + 2) * 0.33 * column) /
                      std::sqrt(kCols);
        }
    }
    return out;
}

// What the rows that arrive are to be: a function of the same rank of those given. That rows come
// as they are would teach the encoder nothing at first, whose gradient is then at right angles to
// it.
inline Values wanted(const Values& given) {
    Values out = given;
    for (size_t i = 0; i < kRows * kCols; ++i) {
        out[i] = given[i / kCols * kCols + (i + 7) % kCols];
    }
    return out;
}

inline double distance(const Values& a, const Values& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return std::sqrt(sum);
}
inline double norm(const Values& a) {
    return distance(a, Values(a.size()));
}

// Makes the columns of `of` (rows x columns) orthonormal, twice over for accuracy.
inline Values orthonormal(Values of, size_t rows, size_t columns) {
    for (int again = 0; again < 2; ++again) {
        for (size_t k = 0; k < columns; ++k) {
            for (size_t t = 0; t <= k; ++t) {
                double product = 0;
                for (size_t i = 0; i < rows; ++i) {
                    product += of[i * columns + k] * of[i * columns + t];
                }
                for (size_t i = 0; i < rows; ++i) {
                    double& value = of[i * columns + k];
                    value =
                        t == k ? value / std::sqrt(product) : value - product * of[i * columns + t];
                }
            }
        }
    }
    return of;
}

// a (rows x inner) times b (inner x columns); of `a` transposed where told.
inline Values times(const Values& a,
                    const Values& b,
                    size_t rows,
                    size_t inner,
                    size_t columns,
                    bool transposed = false) {
    Values product(rows * columns);
    for (size_t i = 0; i < rows; ++i) {
        for (size_t k = 0; k < inner; ++k) {
            const double value = transposed ? a[k * rows + i] : a[i * inner + k];
            for (size_t j = 0; j < columns; ++j) {
                product[i * columns + j] += value * b[k * columns + j];
            }
        }
    }
    return product;
}

// On two columns of what arrived, 30 rows in factors of two; elements of no row as they are.
inline Values projected(const Values& gradient, const Values& arrived) {
    constexpr size_t kTall = 30, kTwo = 2;
    Values columns(kTall * kTwo);
    for (size_t i = 0; i < columns.size(); ++i) {
        columns[i] = arrived[i / kTwo * kCols + i % kTwo * 9];
    }
    const Values basis = orthonormal(columns, kTall, kTwo);
    const Values factors = times(basis, gradient, kTwo, kTall, kCols, true);
    const Values product = times(basis, factors, kTall, kTwo, kCols);
    Values out = gradient;
    std::copy(product.begin(), product.end(), out.begin());
    return out;
}

inline Values drawn_values(int seed, size_t count) {
    Values out(count);
    for (size_t i = 0; i < count; ++i) {
        out[i] = std::sin(1.7 * static_cast<double>(i + 1) * (seed + 1) +
                          0.3 * static_cast<double>(i * i % 97));
    }
    return out;
}

}  // namespace code

}  // namespace slimwire::test
