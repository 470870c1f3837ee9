// Products with the matrices of a buffer, and what is made of them. Included by low_rank.cpp inside
// its anonymous namespace. The order of every sum: low_rank_shape.h.

constexpr int kGroups = kRankLanes / kLanes;  // of lanes, that take one run of columns
// Rows and factor columns whose sums are in registers together.
constexpr int kRowsTogether = kManyRegisters ? 3 : 1;
constexpr int kFactorsTogether = 4;

SLIMWIRE_LANES float canonical_one(float x) {
    return x != x ? __builtin_bit_cast(float, kNanFloat32) : x;
}

// Elements of M by row and column.
template <class Element, bool kResidual>
struct MatrixSource {
    Source<Element, kResidual> elements;
    int64_t cols;

    [[gnu::always_inline]] Floats at(int64_t row, int64_t col) const {
        const int64_t left = cols - col;
        const int64_t i = row * cols + col;
        return left >= kLanes ? elements.sixteen(i) : elements.some(i, left > 0 ? left : 0);
    }
};

template <class Run>
SLIMWIRE_LANES void visit_matrix(const LowRankChunk& chunk, Run run) {
    visit(chunk.dtype, [&](auto element) {
        using Element = decltype(element);
        const Floats factor = broadcast(chunk.factor);
        if (chunk.residual != nullptr) {
            run(element,
                MatrixSource<Element, true>{{chunk.input, chunk.residual, factor}, chunk.cols});
        } else {
            run(element, MatrixSource<Element, false>{{chunk.input, nullptr, factor}, chunk.cols});
        }
    });
}

// --- P = M Q

// Up to kFactorsTogether columns of Q, zeros behind `width` of each.
struct FactorTile {
    float v[kFactorsTogether][kRankColumns];
};

// `width`: a multiple of kRankLanes.
template <int kRows, class Matrix>
SLIMWIRE_LANES void add_products(const Matrix& matrix,
                                 const FactorTile& factors,
                                 const LowRankChunk& chunk,
                                 int64_t row,
                                 int64_t first_col,
                                 int64_t width,
                                 int32_t first_factor) {
    Floats sums[kRows][kFactorsTogether][kGroups];
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
            for (int k = 0; k < kFactorsTogether; ++k) {
                const Floats q = load_float32(factors.v[k] + j + g * kLanes);
                for (int r = 0; r < kRows; ++r) {
                    sums[r][k][g] = multiply_add(m[r], q, sums[r][k][g]);
                }
            }
        }
    }
    const int32_t left = chunk.rank - first_factor;
    for (int k = 0; k < (left < kFactorsTogether ? left : kFactorsTogether); ++k) {
        float* const to = chunk.left + (first_factor + k) * chunk.rows + row;
        for (int r = 0; r < kRows; ++r) {
            const float sum = sum_of_halves(add(sums[r][k][0], sums[r][k][1]));
            to[r] = canonical_one(first_col == 0 ? sum : to[r] + sum);
        }
    }
}

SLIMWIRE_LANES void multiply_right(const LowRankChunk& chunk) {
    FactorTile factors;
    for (int64_t first_col = 0; first_col < chunk.cols; first_col += kRankColumns) {
        const int64_t left = chunk.cols - first_col;
        const int64_t cols = left < kRankColumns ? left : kRankColumns;
        const int64_t width = (cols + kRankLanes - 1) / kRankLanes * kRankLanes;
        for (int32_t first = 0; first < chunk.rank; first += kFactorsTogether) {
            for (int k = 0; k < kFactorsTogether; ++k) {
                __builtin_memset(factors.v[k], 0, static_cast<size_t>(width) * sizeof(float));
                if (first + k < chunk.rank) {
                    __builtin_memcpy(factors.v[k],
                                     chunk.right + (first + k) * chunk.cols + first_col,
                                     static_cast<size_t>(cols) * sizeof(float));
                }
            }
            visit_matrix(chunk, [&](auto, auto matrix) {
                int64_t row = 0;
                for (; row + kRowsTogether <= chunk.rows; row += kRowsTogether) {
                    add_products<kRowsTogether>(matrix, factors, chunk, row, first_col, width,
                                                first);
                }
                for (; row < chunk.rows; ++row) {
                    add_products<1>(matrix, factors, chunk, row, first_col, width, first);
                }
            });
        }
    }
}

// --- Q = M^T P

constexpr int kRowsAdded = 4;  // of M, to a tile of sums at once

// Adds `kRows` rows from `row` on to the sums of a run, columns `col` to `end`.
template <int kRows, class Matrix>
SLIMWIRE_LANES void add_rows(const Matrix& matrix,
                             const LowRankChunk& chunk,
                             FactorTile* sums,
                             int64_t row,
                             int64_t first_col,
                             int64_t width,
                             int32_t first_factor,
                             int factors) {
    float p[kFactorsTogether][kRows];
    for (int k = 0; k < factors; ++k) {
        for (int r = 0; r < kRows; ++r) {
            p[k][r] = chunk.left[(first_factor + k) * chunk.rows + row + r];
        }
    }
    for (int64_t j = 0; j < width; j += kLanes) {
        Floats m[kRows];
        for (int r = 0; r < kRows; ++r) {
            m[r] = matrix.at(row + r, first_col + j);
        }
        for (int k = 0; k < factors; ++k) {
            Floats sum = load_float32(sums->v[k] + j);
            for (int r = 0; r < kRows; ++r) {
                sum = multiply_add(m[r], broadcast(p[k][r]), sum);
            }
            store_float32(sums->v[k] + j, sum);
        }
    }
}

// The sums of one run of rows, for `factors` columns of P and one tile of columns, into Q.
template <class Matrix>
SLIMWIRE_LANES void multiply_run(const Matrix& matrix,
                                 const LowRankChunk& chunk,
                                 int64_t first_row,
                                 int64_t first_col,
                                 int32_t first_factor) {
    const int64_t rows_left = chunk.rows - first_row;
    const int64_t end = first_row + (rows_left < kRankRows ? rows_left : kRankRows);
    const int64_t cols_left = chunk.cols - first_col;
    const int64_t cols = cols_left < kRankColumns ? cols_left : kRankColumns;
    const int64_t width = (cols + kLanes - 1) / kLanes * kLanes;
    const int32_t left = chunk.rank - first_factor;
    const int factors = left < kFactorsTogether ? left : kFactorsTogether;
    FactorTile sums;
    for (int k = 0; k < factors; ++k) {
        __builtin_memset(sums.v[k], 0, static_cast<size_t>(width) * sizeof(float));
    }
    int64_t row = first_row;
    for (; row + kRowsAdded <= end; row += kRowsAdded) {
        add_rows<kRowsAdded>(matrix, chunk, &sums, row, first_col, width, first_factor, factors);
    }
    for (; row < end; ++row) {
        add_rows<1>(matrix, chunk, &sums, row, first_col, width, first_factor, factors);
    }
    for (int k = 0; k < factors; ++k) {
        float* const to = chunk.right + (first_factor + k) * chunk.cols + first_col;
        for (int64_t j = 0; j < cols; ++j) {
            to[j] = canonical_one(first_row == 0 ? sums.v[k][j] : to[j] + sums.v[k][j]);
        }
    }
}

SLIMWIRE_LANES void multiply_left(const LowRankChunk& chunk) {
    visit_matrix(chunk, [&](auto, auto matrix) {
        for (int64_t col = 0; col < chunk.cols; col += kRankColumns) {
            for (int64_t row = 0; row < chunk.rows; row += kRankRows) {
                for (int32_t factor = 0; factor < chunk.rank; factor += kFactorsTogether) {
                    multiply_run(matrix, chunk, row, col, factor);
                }
            }
        }
    });
}

// --- output = result * P Q^T; residual = M - mean * P Q^T

SLIMWIRE_LANES void restore_low_rank(const LowRankChunk& chunk) {
    visit_matrix(chunk, [&](auto element, auto matrix) {
        using Element = decltype(element);
        const Floats mean = broadcast(chunk.mean);
        const Floats result = broadcast(chunk.result);
        for (int64_t first_col = 0; first_col < chunk.cols; first_col += kRankColumns) {
            const int64_t tile_end = first_col + kRankColumns;
            const int64_t end = tile_end < chunk.cols ? tile_end : chunk.cols;
            for (int64_t row = 0; row < chunk.rows; ++row) {
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
