// What oracles know of codecs: that they encode and decode, and of an autoencoder that learns from
// answers what its weights are in fp64.
#pragma once

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

// On the columns of two rows' worth of factors of what arrived; elements of no row as they are.
inline Values projected(const Values& gradient, const Values& arrived) {
    constexpr size_t kTall = 30;
    std::vector<Values> basis;
    for (size_t column = 0; column < kCols && basis.size() < 2; column += 9) {
        Values next(kTall);
        for (size_t i = 0; i < kTall; ++i) {
            next[i] = arrived[i * kCols + column];
        }
        for (int again = 0; again < 2; ++again) {
            for (const Values& one : basis) {
                double product = 0;
                for (size_t i = 0; i < kTall; ++i) {
                    product += one[i] * next[i];
                }
                for (size_t i = 0; i < kTall; ++i) {
                    next[i] -= product * one[i];
                }
            }
        }
        const double length = norm(next);
        for (double& value : next) {
            value /= length;
        }
        basis.push_back(next);
    }
    Values out = gradient;
    for (size_t j = 0; j < kCols; ++j) {
        Values column(kTall);
        for (const Values& one : basis) {
            double product = 0;
            for (size_t i = 0; i < kTall; ++i) {
                product += one[i] * gradient[i * kCols + j];
            }
            for (size_t i = 0; i < kTall; ++i) {
                column[i] += product * one[i];
            }
        }
        for (size_t i = 0; i < kTall; ++i) {
            out[i * kCols + j] = column[i];
        }
    }
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
