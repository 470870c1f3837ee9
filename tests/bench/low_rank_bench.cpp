// The products of PowerSGD on the host beside OpenBLAS' for the same fp32 matrices, on one core:
// P = M Q and Q = M^T P, in turn, best instruction set. One JSON line a shape and rank: medians of
// both in microseconds, what part of OpenBLAS' speed that is (the median of the pairs' ratios), and
// orthogonalising P beside it.
//   low_rank_bench [ROUNDS]      (21)
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "codecs/base/isa.h"
#include "codecs/low_rank/low_rank.h"
#include "tools/cli/common/median.h"

namespace slimwire {
namespace {

using cli::median;

template <class Body>
double microseconds(const Body& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
}

void measure(int rows, int cols, int rank, int rounds) {
    const auto elems = [](int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); };
    std::vector<float> m(elems(rows, cols));
    for (size_t i = 0; i < m.size(); ++i) {
        m[i] = static_cast<float>(i * 2654435761u % 65536) / 65536.0f - 0.5f;
    }
    std::vector<float> p(elems(rows, rank)), q(elems(cols, rank), 0.5f);
    std::vector<float> blas_p = p, blas_q = q;
    const MatrixShape shape{0, rows, cols};
    const LowRankLayout layout = low_rank_layout({&shape, 1}, rank);
    LowRankArgs args{};
    args.input = m.data();
    args.left = p.data();
    args.right = q.data();
    args.scale = 1.0f;
    args.dtype = DType::kFloat32;
    args.rank = rank;
    args.state_rank = rank;
    args.matrices = 1;
    args.list[0] = layout.matrices[0];
    std::vector<double> ours, theirs, ratios, orthogonal;
    for (int round = 0; round < rounds + 1; ++round) {
        const double own = microseconds([&] {
            multiply_right_on_host(args);
            multiply_left_on_host(args);
        });
        const double blas = microseconds([&] {
            // Factors are column after column: P^T = Q^T M^T, Q^T = P^T M, row after row.
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rank, rows, cols, 1.0f,
                        blas_q.data(), cols, m.data(), cols, 0.0f, blas_p.data(), rows);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rank, cols, rows, 1.0f,
                        blas_p.data(), rows, m.data(), cols, 0.0f, blas_q.data(), cols);
        });
        const double solved = microseconds([&] { orthogonalise_on_host(args); });
        std::fill(q.begin(), q.end(), 0.5f);
        std::fill(blas_q.begin(), blas_q.end(), 0.5f);
        if (round > 0) {
            ours.push_back(own);
            theirs.push_back(blas);
            ratios.push_back(blas / own);
            orthogonal.push_back(solved);
        }
    }
    std::printf(
        "{\"v\":1,\"record\":\"bench_low_rank\",\"rows\":%d,\"cols\":%d,\"rank\":%d,\"rounds\":%d,"
        "\"isa\":\"%s\",\"products_us\":%.1f,\"openblas_us\":%.1f,\"of_openblas\":%.3f,"
        "\"orthogonalise_us\":%.1f}\n",
        rows, cols, rank, rounds, isa_name(active_isa()), median(ours), median(theirs),
        median(ratios), median(orthogonal));
}

}  // namespace
}  // namespace slimwire

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 21;
    if (rounds < 1) {
        std::fprintf(stderr, "low_rank_bench: ROUNDS is a number from 1 on, not \"%s\"\n", argv[1]);
        return 2;
    }
    openblas_set_num_threads(1);
    for (const int rank : {1, 2, 4, 8, 16, 32}) {
        for (const auto& [rows, cols] : {std::pair{256, 256}, {512, 4608}, {2048, 2048}}) {
            slimwire::measure(rows, cols, rank, rounds);
        }
    }
    return 0;
}
