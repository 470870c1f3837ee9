// Probes by codecs of low rank (error_budget.h): what factors of each rank keep of every matrix of
// an exact sum, and which matrices are worth sending so. Part of error_budget.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/low_rank_args.h"
#include "codecs/measure.h"
#include "collectives/layout.h"

namespace slimwire {

struct CommState;
struct Plan;

// One matrix of a probe, and what a codec of the ladder keeps of it.
struct ProbedMatrix {
    LowRankMatrix shape;
    double square = 0;         // of its norm
    std::vector<double> kept;  // of that, by each codec
};
struct ChosenMatrices {
    int rung = -1;                  // of the ladder; -1: native
    std::vector<uint32_t> refused;  // ascending; empty where the rung is native
};
// The rung that sends least where each matrix of which it keeps less than needed_share() goes raw;
// the stronger of equal ones, and native where all would.
[[nodiscard]] ChosenMatrices choose_matrices(const std::vector<ProbedMatrix>& matrices,
                                             const std::vector<uint32_t>& ranks,
                                             DType dtype);

// The share of its squared norm that a matrix must keep in factors of this rank for them to be
// worth sending: 1.25 times what independent noise keeps at most, rank (sqrt rows + sqrt cols)^2 /
// (rows cols), where its spectrum ends (Marchenko, Pastur 1967); but 0.9 of matrices so small that
// rank holds most of anything.
[[nodiscard]] double needed_share(int64_t rows, int64_t cols, uint32_t rank) noexcept;

// Scratch of a probe by codecs of low rank.
[[nodiscard]] uint64_t factor_probe_bytes(
    const std::vector<std::shared_ptr<const FactoredMessage>>& ladder);
// What a probe found, as ErrorBudgetControl::decide() takes it; of matrices that are looked at one
// by one also what choose() does.
struct Probed {
    std::vector<double> squares, bounds;
    ChosenMatrices chosen;
};

// Of a plan whose ladder is of low rank; else 0.
[[nodiscard]] uint32_t matrices_of(const Plan& plan) noexcept;

// Enqueues on `stream` what measures the result of probe number `probe`: of each codec and matrix
// what its factor keeps, and behind them the norm of each matrix. `plan`: the probe's; `scratch`:
// factor_probe_bytes().
Status measure_factors(const DeviceApi& api,
                       const Plan& plan,
                       const void* result,
                       char* scratch,
                       Measured* measured,
                       uint64_t probe,
                       cudaStream_t stream);
// What that came to, for the plan whose probe it was; empty where something was not finite.
[[nodiscard]] Probed found_of_factors(const Measured* measured, const Plan& plan);

// The plan with the refused matrices of its message raw, and how much more a call of it sends. Room
// for them was planned (add_ladder()).
[[nodiscard]] std::shared_ptr<Plan> without_refused(const Plan& plan,
                                                    const std::vector<uint32_t>& refused,
                                                    const CommState& state,
                                                    uint64_t* more_wire_bytes);

}  // namespace slimwire
