// P to orthonormal columns by the Cholesky factor of P^T P, in fp64: products of fp32 values are
// exact there. Included by low_rank.cpp inside its anonymous namespace.

constexpr int kSolvedTogether = 64;  // rows

// Lanes as for M Q, over the rows of P; rows that are missing are not added.
SLIMWIRE_LANES double inner_product(const float* a, const float* b, int64_t rows) {
    double lanes[kRankLanes] = {};
    int64_t i = 0;
    for (; i + kRankLanes <= rows; i += kRankLanes) {
        for (int l = 0; l < kRankLanes; ++l) {
            lanes[l] += static_cast<double>(a[i + l]) * b[i + l];
        }
    }
    for (int l = 0; i + l < rows; ++l) {
        lanes[l] += static_cast<double>(a[i + l]) * b[i + l];
    }
    for (int half = kRankLanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) {
            lanes[l] += lanes[l + half];
        }
    }
    return lanes[0];
}

struct CholeskyFactor {
    double lower[kMostRank][kMostRank];
    double inverse[kMostRank];  // of the diagonal; 0 where a column depends on those before
    bool finite;
};

SLIMWIRE_LANES void factorise(const LowRankChunk& chunk, CholeskyFactor* factor) {
    factor->finite = true;
    for (int k = 0; k < chunk.rank; ++k) {
        for (int a = k; a < chunk.rank; ++a) {
            double rest =
                inner_product(chunk.left + a * chunk.rows, chunk.left + k * chunk.rows, chunk.rows);
            const double whole = rest;
            for (int t = 0; t < k; ++t) {
                rest -= factor->lower[a][t] * factor->lower[k][t];
            }
            if (a > k) {
                factor->lower[a][k] = rest * factor->inverse[k];
                continue;
            }
            // Squares of fp32 values do not overflow in fp64: only P itself can be the cause.
            factor->finite = factor->finite && whole - whole == 0;
            const bool depends = !(rest > whole * kRankDependent);
            factor->inverse[k] = depends ? 0.0 : 1.0 / __builtin_sqrt(rest);
            factor->lower[k][k] = rest * factor->inverse[k];
        }
    }
}

SLIMWIRE_LANES void orthogonalise(const LowRankChunk& chunk) {
    CholeskyFactor factor;
    factorise(chunk, &factor);
    double solved[kMostRank][kSolvedTogether];
    for (int64_t row = 0; row < chunk.rows; row += kSolvedTogether) {
        const int64_t left = chunk.rows - row;
        const int64_t rows = left < kSolvedTogether ? left : kSolvedTogether;
        for (int k = 0; k < chunk.rank; ++k) {
            float* const p = chunk.left + k * chunk.rows + row;
            for (int64_t i = 0; i < rows; ++i) {
                solved[k][i] = p[i];
            }
            for (int t = 0; t < k; ++t) {
                const double lower = factor.lower[k][t];
                for (int64_t i = 0; i < rows; ++i) {
                    solved[k][i] -= lower * solved[t][i];
                }
            }
            for (int64_t i = 0; i < rows; ++i) {
                solved[k][i] *= factor.inverse[k];
                p[i] = factor.finite ? static_cast<float>(solved[k][i])
                                     : __builtin_bit_cast(float, kNanFloat32);
            }
        }
    }
}
