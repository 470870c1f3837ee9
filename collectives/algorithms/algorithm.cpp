#include "collectives/algorithms/algorithm.h"

#include <algorithm>
#include <utility>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/factored_blocks.h"
#include "collectives/algorithms/learned_code.h"

namespace slimwire {

#define ALGORITHM(id, name, ops, estimate_ops) \
    extern constinit const AlgorithmDescriptor k##id##Algorithm;
#include "collectives/policy/algorithms.def"
#undef ALGORITHM

namespace {

// Of calls that NCCL carries itself.
constexpr AlgorithmDescriptor kNoAlgorithm{
    .layout = [](const AlgorithmRequest&, uint64_t) { return Layout(); },
    .sizes = [](const PlannedCall&) { return ExchangeSizes(); },
    .wire_bytes = [](const PlannedCall&, int) -> uint64_t { return 0; },
    .residual_runs = [](const Plan&, const PlanShape&, int, const UseResidualRun&) {},
    .steps = [](const Plan&, const PlanShape&) { return std::vector<std::string>{"NCCL's own"}; },
    .make = nullptr,
};

// Behind a rank's own estimates: those of the sum, which lie as they do, or those of the blocks
// that all ranks give it.
void add_followed_runs(const Plan& plan,
                       const PlanShape& shape,
                       int rank,
                       std::vector<ResidualMap::Run>* runs) {
    const bool blocks = plan.signature.op == Op::kReduceScatter;
    const auto block = static_cast<int64_t>(plan.signature.count);
    const std::vector<ResidualMap::Run> own = *runs;
    for (const ResidualMap::Run& run : own) {
        const bool mine = !blocks || run.at / block == rank;
        for (int source = 0; run.sums == 0 && mine && source < (blocks ? shape.ranks : 1);
             ++source) {
            const int64_t first = blocks ? source * block + run.at % block : run.begin;
            runs->push_back({static_cast<int64_t>(plan.residual.shared_estimate) + first, run.count,
                             run.at, blocks ? 4u : 3u});
        }
    }
}

// Of a message whose parts differ, elements with residuals are counted without the others; a rule
// takes whole parameters.
void add_parameters(const Plan& plan, ResidualMap* map) {
    if (plan.parameters == nullptr) {
        return;
    }
    map->model = plan.parameters->model;
    const bool all = map->elems == plan.signature.count;
    for (const ParameterRange& one : plan.parameters->ranges) {
        int64_t at = all ? static_cast<int64_t>(one.offset) : -1;
        for (const Slice& slice : plan.layout.slices) {
            for (const Piece& piece : slice.pieces) {
                const auto before = static_cast<int64_t>(one.offset - piece.offset_elems);
                if (!all && piece.has_residual && before >= 0 && before < piece.count) {
                    at = piece.residual_offset + before;
                }
            }
        }
        if (at >= 0) {
            map->parameters.push_back({one.parameter, static_cast<uint32_t>(one.rows), at,
                                       static_cast<int64_t>(one.count)});
            map->names.push_back({one.key});
        }
    }
    std::erase_if(map->names, [](const ResidualMap::Name& name) { return name.text.empty(); });
    if (map->names.size() != map->parameters.size()) {
        map->names.clear();
    }
}

}  // namespace

constinit const AlgorithmDescriptor* const kAlgorithmDescriptors[] = {
    &kNoAlgorithm,  // kAuto
    &kNoAlgorithm,  // kNative
#define ALGORITHM(id, name, ops, estimate_ops) &k##id##Algorithm,
#include "collectives/policy/algorithms.def"
#undef ALGORITHM
};

std::vector<Algorithm> candidates(const AlgorithmRequest& request) {
    const Action& action = request.action;
    const PlanShape& shape = request.shape;
    const Op op = request.signature.op;
    if (action.algorithm != Algorithm::kAuto) {
        return {action.algorithm};
    }
    if (action.low_rank()) {
        return {factors_blocks(request) || learns_code(request) ? Algorithm::kDirect
                                                                : Algorithm::kLowRank};
    }
    if (action.pairs_masks() || goes_by_columns(*action.codec)) {
        return {Algorithm::kDirect};
    }
    const Algorithm flat = !has_form(Algorithm::kTwoShot, op) ? Algorithm::kDirect
                           : all_reduce_encodings(request)    ? Algorithm::kTwoShot
                                                              : Algorithm::kSparse;
    // Ranks of one node would each send to every rank of the others.
    if (has_form(Algorithm::kHierarchical, op) && shape.scope == Scope::kInterNode &&
        shape.max_ranks_per_node > 1 && shape.nodes != nullptr) {
        return {Algorithm::kHierarchical, flat};
    }
    return {flat};
}

std::string why_not(Algorithm algorithm, const AlgorithmRequest& request) {
    const Action& action = request.action;
    const Op op = request.signature.op;
    if (!has_form(algorithm, op)) {
        return std::string(algorithm_name(algorithm)) + " has no form of " + op_name(op);
    }
    const AlgorithmDescriptor& descriptor = descriptor_of(algorithm);
    if (!request.segments.empty() && (descriptor.segment_ops & bit_of(op)) == 0) {
        return std::string(algorithm_name(algorithm)) + " of " + op_name(op) +
               " has no form of messages whose parts differ";
    }
    const bool columns =
        goes_by_columns(*action.codec) ||
        std::any_of(request.segments.begin(), request.segments.end(), [](const Segment& segment) {
            return !segment.raw() && goes_by_columns(segment.codec);
        });
    if (columns && (algorithm != Algorithm::kDirect || !request.segments.empty())) {
        return "a codec with row goes by the columns of whole messages; write direct or auto, and "
               "one rule for the message";
    }
    const bool low_rank = action.codec->traits(request.signature.dtype).low_rank;
    const bool factors =
        algorithm == Algorithm::kLowRank ||
        (algorithm == Algorithm::kDirect && (factors_blocks(request) || learns_code(request)));
    if (low_rank != factors) {
        return action.codec->to_string() + (low_rank
                                                ? " goes by its factors; write low_rank or auto"
                                                : " has no factors of low rank");
    }
    if (action.error_feedback == ErrorFeedback::kEf21 && !has_estimates(algorithm, op)) {
        return std::string("ef21 has no form of ") + op_name(op) + " by " +
               algorithm_name(algorithm);
    }
    return descriptor.refuse(request);
}

uint64_t wire_bytes_of(const Plan& plan, const PlanShape& shape, int rank) noexcept {
    return descriptor_of(plan.algorithm).wire_bytes({plan.layout, plan.signature, shape}, rank);
}

bool encodes_contributions(const Plan& plan) noexcept {
    return descriptor_of(plan.algorithm).encodes_contributions &&
           plan.error_feedback != ErrorFeedback::kEf21 && plan.layout.factored == nullptr;
}

void for_residual_runs(const Plan& plan,
                       const PlanShape& shape,
                       int rank,
                       const UseResidualRun& use) {
    descriptor_of(plan.algorithm).residual_runs(plan, shape, rank, use);
}

ResidualMap residual_map(const Plan& plan, const PlanShape& shape, int rank) {
    const AlgorithmDescriptor& descriptor = descriptor_of(plan.algorithm);
    const CallSignature& signature = plan.signature;
    ResidualMap map{
        .type = plan.residual.type,
        .state_bytes = plan.residual.state_bytes,
        .stored_elems = plan.error_feedback == ErrorFeedback::kNone ? 0 : plan.residual.elems};
    const bool reduces = signature.op == Op::kAllReduce || signature.op == Op::kReduce ||
                         signature.op == Op::kReduceScatter;
    if (!reduces || plan.error_feedback == ErrorFeedback::kNone) {
        return map;
    }
    const auto add = [&](uint32_t sums) {
        return [&map, sums](const ResidualRun& run) {
            map.runs.push_back(
                {stored_begin(map.type, run.first, run.index), run.count, run.at, sums});
        };
    };
    descriptor.residual_runs(plan, shape, rank, add(0));
    if (descriptor.sum_runs != nullptr) {
        descriptor.sum_runs(plan, shape, rank, add(1));
    }
    if (plan.layout.intra) {
        descriptor.inner_runs(plan, shape, rank, add(2));
    }
    if (plan.error_feedback == ErrorFeedback::kEf21) {
        add_followed_runs(plan, shape, rank, &map.runs);
    }
    using Run = ResidualMap::Run;
    std::sort(map.runs.begin(), map.runs.end(), [](const Run& a, const Run& b) {
        return std::pair(a.sums, a.at) < std::pair(b.sums, b.at);
    });
    std::vector<Run> joined;
    for (const Run& run : map.runs) {
        if (!joined.empty() && joined.back().sums == run.sums &&
            joined.back().begin + joined.back().count == run.begin &&
            joined.back().at + joined.back().count == run.at) {
            joined.back().count += run.count;
        } else if (run.count > 0) {
            joined.push_back(run);
        }
    }
    map.runs = std::move(joined);
    descriptor.residual_runs(plan, shape, kEveryRank, [&](const ResidualRun& run) {
        map.elems = std::max(map.elems, static_cast<uint64_t>(run.at + run.count));
    });
    map.contributors = static_cast<uint32_t>(
        plan.algorithm == Algorithm::kHierarchical ? shape.nodes->nodes() : shape.ranks);
    if (signature.redop == RedOp::kAvg && descriptor.averages_sums) {
        map.unit = 1.0 / shape.ranks;
    }
    add_parameters(plan, &map);
    return map;
}

std::string refuse_nothing(const AlgorithmRequest&) {
    return {};
}

bool all_reduce_encodings(const AlgorithmRequest& request) {
    return request.action.codec->reduces() &&
           std::all_of(
               request.segments.begin(), request.segments.end(),
               [](const Segment& segment) { return segment.raw() || segment.codec.reduces(); });
}

std::vector<Segment> segments_of(const AlgorithmRequest& request) {
    if (request.segments.empty()) {
        return {{0, request.signature.count, *request.action.codec}};
    }
    return {request.segments.begin(), request.segments.end()};
}

std::optional<DType> residual_dtype_of(const AlgorithmRequest& request) {
    return request.action.error_feedback == ErrorFeedback::kEf21 ? std::optional(DType::kFloat32)
                                                                 : std::nullopt;
}

uint64_t block_slice_bytes(const AlgorithmRequest& request, uint64_t slice_bytes) {
    const CallSignature& signature = request.signature;
    const uint64_t block = signature.count * dtype_bytes(signature.dtype);
    const uint64_t blocks =
        message_bytes(signature, request.shape.ranks) / std::max<uint64_t>(1, block);
    return slice_bytes == 0 ? 0
                            : std::max<uint64_t>(1, slice_bytes / std::max<uint64_t>(1, blocks));
}

Layout block_layout(const AlgorithmRequest& request, uint64_t slice_bytes) {
    return make_layout(segments_of(request), request.signature.dtype, 1,
                       block_slice_bytes(request, slice_bytes), residual_dtype_of(request));
}

void message_runs(const Plan& plan, const PlanShape&, int, const UseResidualRun& use) {
    for (const Slice& slice : plan.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            if (piece.has_residual) {
                use({piece.residual_offset, piece.order, piece.count, piece.residual_offset});
            }
        }
    }
}

void block_run(const Plan& plan, int64_t stored, int64_t at, const UseResidualRun& use) {
    const auto count = static_cast<int64_t>(plan.signature.count);
    const auto pieces = static_cast<int64_t>(plan.layout.fed_pieces());
    for (const Slice& slice : plan.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            const auto offset = static_cast<int64_t>(piece.offset_elems);
            use({stored * count + offset, stored * pieces + piece.order, piece.count,
                 at * count + offset});
        }
    }
}

void block_runs(const Plan& plan, const PlanShape& shape, int, const UseResidualRun& use) {
    const int blocks = plan.signature.op == Op::kReduceScatter ? shape.ranks : 1;
    for (int block = 0; block < blocks; ++block) {
        block_run(plan, block, block, use);
    }
}

}  // namespace slimwire
