#include "collectives/factor_probe.h"

#include <algorithm>
#include <utility>

#include "codecs/low_rank.h"
#include "collectives/algorithms.h"
#include "collectives/comm_state.h"
#include "collectives/low_rank_exchange.h"

namespace slimwire {
namespace {

uint64_t aligned(uint64_t bytes) noexcept {
    return (bytes + 255) / 256 * 256;
}

// Where in the scratch what lies, from its begin.
struct FactorRoom {
    uint64_t work = 0, left, right, state, sums, end;

    explicit FactorRoom(const std::vector<std::shared_ptr<const FactoredMessage>>& ladder) {
        int64_t most_left = 0, most_right = 0, most_work = 0;
        for (const auto& message : ladder) {
            most_left = std::max(most_left, message->factors.left_elems);
            most_right = std::max(most_right, message->factors.right_elems);
            most_work = std::max(most_work, message->factors.work_elems);
        }
        const auto floats = [](int64_t elems) {
            return aligned(static_cast<uint64_t>(elems) * sizeof(float));
        };
        left = aligned(sizeof(MeasureWork));
        right = left + floats(most_left);
        state = right + floats(most_right);
        sums = state + floats(most_right);
        end = sums + floats(most_work);
    }
};

// Newton's, because nothing of libm shall be loaded for it.
double root_of(double x) noexcept {
    double root = x > 1 ? x : 1;
    for (double next = (root + x / root) / 2; next < root; next = (root + x / root) / 2) {
        root = next;
    }
    return root;
}

}  // namespace

uint32_t matrices_of(const Plan& plan) noexcept {
    const auto& factored = plan.probe->factored;
    return factored.empty() ? 0 : static_cast<uint32_t>(factored.front()->factors.matrices.size());
}

double needed_share(int64_t rows, int64_t cols, uint32_t rank) noexcept {
    const double m = static_cast<double>(rows), n = static_cast<double>(cols);
    const double noise = rank * (m + n + 2 * root_of(m * n)) / (m * n);
    return std::min(1.25 * noise, 0.9);
}

uint64_t factor_probe_bytes(const std::vector<std::shared_ptr<const FactoredMessage>>& ladder) {
    return FactorRoom(ladder).end;
}

ChosenMatrices choose_matrices(const std::vector<ProbedMatrix>& matrices,
                               const std::vector<uint32_t>& ranks,
                               DType dtype) {
    ChosenMatrices best;
    double least = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
        ChosenMatrices chosen{static_cast<int>(i), {}};
        double bytes = 0;
        for (uint32_t m = 0; m < matrices.size(); ++m) {
            const ProbedMatrix& matrix = matrices[m];
            const double rows = matrix.shape.rows, cols = matrix.shape.cols;
            const double needed =
                matrix.square * needed_share(matrix.shape.rows, matrix.shape.cols, ranks[i]);
            if (matrix.kept[i] >= needed) {
                bytes += ranks[i] * (rows + cols) * sizeof(float);
            } else {
                bytes += rows * cols * static_cast<double>(dtype_bytes(dtype));
                chosen.refused.push_back(m);
            }
        }
        const bool refuses_all = chosen.refused.size() == matrices.size();
        if (!refuses_all && (best.rung < 0 || bytes < least)) {
            least = bytes;
            best = std::move(chosen);
        }
    }
    return best;
}

// With orthonormal P and Q = M^T P the product P Q^T is M's projection, and off by what Q lacks.
// What is needed of each matrix is a share of its own norm.
Probed found_of_factors(const Measured* measured, const Plan& plan) {
    const auto& factored = plan.probe->factored;
    const size_t codecs = factored.size(), count = matrices_of(plan);
    std::vector<ProbedMatrix> matrices(count);
    std::vector<uint32_t> ranks;
    for (const auto& message : factored) {
        ranks.push_back(message->codec.params.kept);
    }
    double whole = 0;
    for (size_t m = 0; m < count; ++m) {
        const Measured& of_all = measured[codecs * count + m];
        if (of_all.nonfinite != 0) {
            return {};
        }
        matrices[m].shape = factored.front()->factors.matrices[m];
        matrices[m].square = of_all.square_sum;
        whole += of_all.square_sum;
        for (size_t i = 0; i < codecs; ++i) {
            const Measured& kept = measured[i * count + m];
            if (kept.nonfinite != 0) {
                return {};
            }
            matrices[m].kept.push_back(kept.square_sum);
        }
    }
    Probed found;
    for (size_t i = 0; i < codecs; ++i) {
        double kept = 0, needed = 0;
        for (const ProbedMatrix& matrix : matrices) {
            kept += matrix.kept[i];
            needed += matrix.square * needed_share(matrix.shape.rows, matrix.shape.cols, ranks[i]);
        }
        found.squares.push_back(whole > 0 ? std::max(0.0, 1 - kept / whole) : 0);
        if (plan.budget->beats_random) {
            found.bounds.push_back(whole > 0 ? 1 - needed / whole : 1);
        }
    }
    if (plan.budget->beats_random) {
        found.chosen = choose_matrices(matrices, ranks, plan.facts.dtype);
    }
    return found;
}

std::shared_ptr<Plan> without_refused(const Plan& plan,
                                      const std::vector<uint32_t>& refused,
                                      const CommState& state,
                                      uint64_t* more_wire_bytes) {
    auto partial = std::make_shared<Plan>(plan);
    partial->layout = without_matrices(plan.layout, refused, plan.facts.count);
    const uint64_t room = LowRankMap(partial->layout, plan.facts.dtype).scratch.bytes();
    const uint64_t before = LowRankMap(plan.layout, plan.facts.dtype).scratch.bytes();
    const uint64_t moved = room > before ? aligned(room - before) : 0;
    partial->window_offset += moved;
    partial->marks_offset += moved;
    *more_wire_bytes = wire_bytes_of(*partial, state.shape, state.rank) -
                       wire_bytes_of(plan, state.shape, state.rank);
    return partial;
}

Status measure_factors(const DeviceApi& api,
                       const Plan& plan,
                       const void* result,
                       char* scratch,
                       Measured* measured,
                       uint64_t probe,
                       cudaStream_t stream) {
    const DType dtype = plan.facts.dtype;
    const size_t codecs = plan.factored.size();
    const FactorRoom room(plan.factored);
    SLIMWIRE_TRY(
        cuda_status(api, api.memset_async(scratch, 0, room.left, stream), "matrices of max_error"));
    const auto measure = [&](const void* from, int64_t count, DType type, size_t into) {
        MeasureArgs args{};
        args.input = from;
        args.work = reinterpret_cast<MeasureWork*>(scratch + room.work);
        args.result = measured + into;
        args.count = count;
        args.scale = 1.0f;
        args.dtype = type;
        args.mark = 1;
        return enqueue(api, args, stream);
    };
    const auto& matrices = plan.factored.front()->factors.matrices;
    for (size_t m = 0; m < matrices.size(); ++m) {
        const LowRankMatrix& matrix = matrices[m];
        SLIMWIRE_TRY(measure(static_cast<const char*>(result) +
                                 matrix.element * static_cast<int64_t>(dtype_bytes(dtype)),
                             int64_t{matrix.rows} * matrix.cols, dtype,
                             codecs * matrices.size() + m));
    }
    for (size_t i = 0; i < plan.factored.size(); ++i) {
        const FactoredMessage& message = *plan.factored[i];
        const auto floats = [&](uint64_t offset) {
            return reinterpret_cast<float*>(scratch + offset);
        };
        LowRankArgs args{};
        args.input = result;
        args.left = floats(room.left);
        args.right = floats(room.right);
        args.state = floats(room.state);
        args.work = floats(room.sums);
        args.scale = args.mean = args.result = 1.0f;
        args.dtype = dtype;
        args.rank = args.state_rank = static_cast<int32_t>(message.codec.params.kept);
        args.random = plan.random;
        args.random.seed += message.codec.params.seed;
        args.random.step = static_cast<uint32_t>(probe);
        // Where nothing is kept columns are drawn; the second round is what a warm start would be.
        SLIMWIRE_TRY(cuda_status(api,
                                 api.memset_async(args.right, 0, room.sums - room.right, stream),
                                 "factors of max_error"));
        for (const LowRankStep step :
             {LowRankStep::kBegin, LowRankStep::kMultiplyRight, LowRankStep::kOrthogonalise,
              LowRankStep::kMultiplyLeft, LowRankStep::kMultiplyRight, LowRankStep::kOrthogonalise,
              LowRankStep::kMultiplyLeft}) {
            SLIMWIRE_TRY(enqueue(api, step, message.factors, args, stream));
        }
        for (size_t m = 0; m < matrices.size(); ++m) {
            const LowRankMatrix& matrix = message.factors.matrices[m];
            SLIMWIRE_TRY(measure(floats(room.right) + matrix.right,
                                 int64_t{matrix.cols} * args.rank, DType::kFloat32,
                                 i * matrices.size() + m));
        }
    }
    return {};
}

}  // namespace slimwire
