// Products with the matrices of a buffer, and what is made of them. Included by low_rank.cpp inside
// its anonymous namespace. The order of every sum: low_rank_shape.h.

constexpr int kGroups = kRankLanes / kLanes;  // of lanes, that take one run of columns
constexpr int kFactorsTogether = 4;           // columns of P or Q that one reading of M serves

SLIMWIRE_LANES float canonical_one(float x) {
    return x != x ? __builtin_bit_cast(float, kNanFloat32) : x;
}

// Elements of M by row and column.
template <class Element, bool kResidual, bool kScaled>
struct MatrixSource {
    Source<Element, kResidual, kScaled> elements;
    int64_t cols;

    [[gnu::always_inline]] Floats at(int64_t row, int64_t col) const {
        const int64_t left = cols - col;
        const int64_t i = row * cols + col;
        return left >= kLanes ? elements.sixteen(i) : elements.some(i, left > 0 ? left : 0);
    }
};

template <class Element, bool kResidual, class Run>
SLIMWIRE_LANES void visit_scale(const LowRankChunk& chunk, Run run) {
    const Floats factor = broadcast(chunk.factor);
    if (chunk.factor == 1.0f) {
        run(Element(), MatrixSource<Element, kResidual, false>{
                           {chunk.input, chunk.residual, factor}, chunk.cols});
    } else {
        run(Element(), MatrixSource<Element, kResidual, true>{{chunk.input, chunk.residual, factor},
                                                              chunk.cols});
    }
}

template <class Run>
SLIMWIRE_LANES void visit_matrix(const LowRankChunk& chunk, Run run) {
    visit(chunk.dtype, [&](auto element) {
        using Element = decltype(element);
        if (chunk.residual != nullptr) {
            visit_scale<Element, true>(chunk, run);
        } else {
            visit_scale<Element, false>(chunk, run);
        }
    });
}

template <int kFactors>
struct Factors {
    static constexpr int kCount = kFactors;
};
// Calls run(Factors) with the number of factors that are taken together from one of which `left`
// are left, as a constant: a sum that nobody asked for would cost as much as one that counts.
template <class Run>
SLIMWIRE_LANES void with_factors(int32_t left, Run run) {
    switch (left) {
        case 1:
            return run(Factors<1>());
        case 2:
            return run(Factors<2>());
        case 3:
            return run(Factors<3>());
        default:
            return run(Factors<kFactorsTogether>());
    }
}

// Of the columns of a run. Rows do not lie a page apart: a load would wait for a store of the same
// place in another page.
struct FactorTile {
    float v[kFactorsTogether][kRankColumns + kLanes];
};

// --- P = M Q

// Rows whose sums with `factors` columns are in registers together.
constexpr int rows_together(int factors) {
    constexpr int kMany[] = {4, 4, 3, 2};
    constexpr int kFew[] = {2, 1, 1, 1};
    return (kManyRegisters ? kMany : kFew)[factors - 1];
}

// `width`: a multiple of kRankLanes.
template <int kRows, int kFactors, class Matrix>
SLIMWIRE_LANES void add_products(const Matrix& matrix,
                                 const FactorTile& factors,
                                 const LowRankChunk& chunk,
                                 int64_t row,
                                 int64_t first_col,
                                 int64_t width,
                                 int32_t first_factor) {
    Floats sums[kRows][kFactors][kGroups];
    for (auto& of_row : sums) {
        for (auto& of_factor : of_row) {
            for (Floats& sum : of_factor) {
                sum = broadcast(0.0f);
            }
        }
    }
    for (int64_t j = 0; j < width; j += kRankLanes) {
        for (int g = 0; g < kGroups; ++g) {
            Floats m[kRows];
            for (int r = 0; r < kRows; ++r) {
                m[r] = matrix.at(row + r, first_col + j + g * kLanes);
            }
            for (int k = 0; k < kFactors; ++k) {
                const Floats q = load_float32(factors.v[k] + j + g * kLanes);
                for (int r = 0; r < kRows; ++r) {
                    sums[r][k][g] = multiply_add(m[r], q, sums[r][k][g]);
                }
            }
        }
    }
    constexpr int kSums = kRows * kFactors;
    Floats lanes[kSums];
    for (int r = 0; r < kRows; ++r) {
        for (int k = 0; k < kFactors; ++k) {
            lanes[r * kFactors + k] = add(sums[r][k][0], sums[r][k][1]);
        }
    }
    float whole[kSums];
    constexpr int kInFours = kSums / 4 * 4;
    for (int i = 0; i < kInFours; i += 4) {
        four_sums_of_halves(lanes + i, whole + i);
    }
    for (int i = kInFours; i < kSums; ++i) {
        whole[i] = sum_of_halves(lanes[i]);
    }
    for (int k = 0; k < kFactors; ++k) {
        float* const to = chunk.left + (first_factor + k) * chunk.rows + row;
        for (int r = 0; r < kRows; ++r) {
            const float sum = whole[r * kFactors + k];
            to[r] = canonical_one(first_col == 0 ? sum : to[r] + sum);
        }
    }
}

template <int kFactors>
SLIMWIRE_LANES void multiply_columns(const LowRankChunk& chunk, int64_t first_col, int32_t first) {
    const int64_t left = chunk.cols - first_col;
    const int64_t cols = left < kRankColumns ? left : kRankColumns;
    const int64_t width = (cols + kRankLanes - 1) / kRankLanes * kRankLanes;
    FactorTile factors;
    for (int k = 0; k < kFactors; ++k) {
        __builtin_memcpy(factors.v[k], chunk.right + (first + k) * chunk.cols + first_col,
                         static_cast<size_t>(cols) * sizeof(float));
        __builtin_memset(factors.v[k] + cols, 0, static_cast<size_t>(width - cols) * sizeof(float));
        for (int64_t j = 0; j < width; j += kLanes) {
            float* const to = factors.v[k] + j;
            store_float32(to, multiply(broadcast(chunk.product_scale), load_float32(to)));
        }
    }
    visit_matrix(chunk, [&](auto, auto matrix) {
        constexpr int kRows = rows_together(kFactors);
        int64_t row = 0;
        for (; row + kRows <= chunk.rows; row += kRows) {
            add_products<kRows, kFactors>(matrix, factors, chunk, row, first_col, width, first);
        }
        for (; row < chunk.rows; ++row) {
            add_products<1, kFactors>(matrix, factors, chunk, row, first_col, width, first);
        }
    });
}

SLIMWIRE_LANES void multiply_right(const LowRankChunk& chunk) {
    for (int64_t first_col = 0; first_col < chunk.cols; first_col += kRankColumns) {
        for (int32_t first = 0; first < chunk.rank; first += kFactorsTogether) {
            with_factors(chunk.rank - first, [&](auto factors) {
                multiply_columns<decltype(factors)::kCount>(chunk, first_col, first);
            });
        }
    }
}

// --- Q = M^T P

constexpr int kRowsAdded = 16;  // to sums in registers

// Vectors of columns whose sums with `factors` columns of P are in registers together.
constexpr int vectors_together(int factors) {
    return kManyRegisters ? (factors < 2 ? 8 : 4) : (factors < 3 ? 2 : 1);
}

// Adds `rows` rows from `row` on, times `p`, to the sums of the vectors from column `first_col` +
// `j` on. kWhole: all of them are of M.
template <int kVectors, int kFactors, bool kWhole, class Matrix>
SLIMWIRE_LANES void add_rows(const Matrix& matrix,
                             const LowRankChunk& chunk,
                             const float (&p)[kFactors][kRowsAdded],
                             FactorTile* sums,
                             int64_t row,
                             int64_t rows,
                             int64_t first_col,
                             int64_t j) {
    Floats sum[kFactors][kVectors];
    for (int k = 0; k < kFactors; ++k) {
        for (int v = 0; v < kVectors; ++v) {
            sum[k][v] = load_float32(sums->v[k] + j + v * kLanes);
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
        Floats factor[kFactors];
        for (int k = 0; k < kFactors; ++k) {
            factor[k] = broadcast(p[k][r]);
        }
        for (int v = 0; v < kVectors; ++v) {
            const int64_t col = first_col + j + v * kLanes;
            const Floats m = kWhole ? matrix.elements.sixteen((row + r) * chunk.cols + col)
                                    : matrix.at(row + r, col);
            for (int k = 0; k < kFactors; ++k) {
                sum[k][v] = multiply_add(m, factor[k], sum[k][v]);
            }
        }
    }
    for (int k = 0; k < kFactors; ++k) {
        for (int v = 0; v < kVectors; ++v) {
            store_float32(sums->v[k] + j + v * kLanes, sum[k][v]);
        }
    }
}

// The sums of one run of rows, for `kFactors` columns of P and one run of columns of M, into Q.
template <int kFactors, class Matrix>
SLIMWIRE_LANES void multiply_rows(const Matrix& matrix,
                                  const LowRankChunk& chunk,
                                  int64_t first_row,
                                  int64_t first_col,
                                  int32_t first_factor) {
    constexpr int kVectors = vectors_together(kFactors);
    const int64_t rows_left = chunk.rows - first_row;
    const int64_t end = first_row + (rows_left < kRankRows ? rows_left : kRankRows);
    const int64_t cols_left = chunk.cols - first_col;
    const int64_t cols = cols_left < kRankColumns ? cols_left : kRankColumns;
    const int64_t width = (cols + kLanes - 1) / kLanes * kLanes;
    FactorTile sums;
    for (int k = 0; k < kFactors; ++k) {
        __builtin_memset(sums.v[k], 0, static_cast<size_t>(width) * sizeof(float));
    }
    for (int64_t row = first_row; row < end; row += kRowsAdded) {
        const int64_t rows = end - row < kRowsAdded ? end - row : kRowsAdded;
        float p[kFactors][kRowsAdded];
        for (int k = 0; k < kFactors; ++k) {
            for (int64_t r = 0; r < rows; ++r) {
                p[k][r] =
                    chunk.product_scale * chunk.left[(first_factor + k) * chunk.rows + row + r];
            }
        }
        int64_t j = 0;
        for (; j + kVectors * kLanes <= cols; j += kVectors * kLanes) {
            add_rows<kVectors, kFactors, true>(matrix, chunk, p, &sums, row, rows, first_col, j);
        }
        for (; j < cols; j += kLanes) {
            add_rows<1, kFactors, false>(matrix, chunk, p, &sums, row, rows, first_col, j);
        }
    }
    for (int k = 0; k < kFactors; ++k) {
        float* const to = chunk.right + (first_factor + k) * chunk.cols + first_col;
        for (int64_t j = 0; j < cols; j += kLanes) {
            uint8_t* const at = bytes_of(to + j);
            const int64_t some = cols - j < kLanes ? cols - j : kLanes;
            Floats sum = load_float32(sums.v[k] + j);
            if (first_row != 0) {
                sum = add(load_some<Float32>(at, some), sum);
            }
            store_some<Float32>(at, canonical(sum), some);
        }
    }
}

SLIMWIRE_LANES void multiply_left(const LowRankChunk& chunk) {
    visit_matrix(chunk, [&](auto, auto matrix) {
        for (int64_t col = 0; col < chunk.cols; col += kRankColumns) {
            for (int64_t row = 0; row < chunk.rows; row += kRankRows) {
                for (int32_t first = 0; first < chunk.rank; first += kFactorsTogether) {
                    with_factors(chunk.rank - first, [&](auto factors) {
                        multiply_rows<decltype(factors)::kCount>(matrix, chunk, row, col, first);
                    });
                }
            }
        }
    });
}

// --- output = result * P Q^T; residual = M - mean * P Q^T

// NaN where one is.
SLIMWIRE_LANES float largest_magnitude(const float* x, int64_t count) {
    Words most = broadcast_bits(0);
    for (int64_t i = 0; i < count; i += kLanes) {
        const Floats some = count - i >= kLanes ? load_float32(x + i)
                                                : load_some<Float32>(bytes_of(x + i), count - i);
        most = maximum(most, bit_and(as_words(some), broadcast_bits(kMagnitudeMask)));
    }
    return __builtin_bit_cast(float, largest(most));
}

SLIMWIRE_LANES void restore_low_rank(const LowRankChunk& chunk) {
    visit_matrix(chunk, [&](auto element, auto matrix) {
        using Element = decltype(element);
        const Floats mean = broadcast(chunk.mean);
        const Floats result = broadcast(chunk.result);
        const Words limit = as_words(broadcast(chunk.sum_limit));
        for (int64_t first_col = 0; first_col < chunk.cols; first_col += kRankColumns) {
            const int64_t tile_end = first_col + kRankColumns;
            const int64_t end = tile_end < chunk.cols ? tile_end : chunk.cols;
            float largest_q[kMostRank];
            for (int32_t k = 0; k < chunk.rank; ++k) {
                largest_q[k] =
                    largest_magnitude(chunk.right + k * chunk.cols + first_col, end - first_col);
            }
            for (int64_t row = 0; row < chunk.rows; ++row) {
                float reach = 0;
                for (int32_t k = 0; k < chunk.rank; ++k) {
                    reach += __builtin_fabsf(chunk.left[k * chunk.rows + row]) * largest_q[k];
                }
                const bool near = !(reach < 0.5f * chunk.sum_limit);
                for (int64_t col = first_col; col < end; col += kLanes) {
                    const int64_t left = end - col;
                    Floats sum = broadcast(0.0f);
                    for (int32_t k = 0; k < chunk.rank; ++k) {
                        const float* q = chunk.right + k * chunk.cols + col;
                        sum = multiply_add(broadcast(chunk.left[k * chunk.rows + row]),
                                           left >= kLanes ? load_float32(q)
                                                          : load_some<Float32>(bytes_of(q), left),
                                           sum);
                    }
                    sum = near ? saturated(sum, limit) : sum;
                    const int64_t i = row * chunk.cols + col;
                    if (chunk.residual != nullptr) {
                        // What is not finite keeps the residual that was.
                        const Floats rest = subtract(matrix.at(row, col), multiply(mean, sum));
                        const Words magnitude =
                            bit_and(as_words(rest), broadcast_bits(kMagnitudeMask));
                        uint8_t* const owed = bytes_of(chunk.residual + i);
                        if (left >= kLanes) {
                            store_words(owed, select_at_least(magnitude, kInfinityBits,
                                                              load_words(owed), as_words(rest)));
                        } else {
                            const Words before = as_words(load_some<Float32>(owed, left));
                            store_some<Float32>(owed,
                                                as_floats(select_at_least(magnitude, kInfinityBits,
                                                                          before, as_words(rest))),
                                                left);
                        }
                    }
                    uint8_t* const to = chunk.output + i * Element::kBytes;
                    const Floats out = canonical(multiply(result, sum));
                    if (left >= kLanes) {
                        Element::store(to, out);
                    } else {
                        store_some<Element>(to, out, left);
                    }
                }
            }
        }
    });
}
