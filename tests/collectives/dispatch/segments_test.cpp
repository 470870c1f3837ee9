// Messages whose parts travel differently, through the real exchanges: plans made of what a call
// carries, run by hand on emulated devices. Raw parts must be the sum that the format says to the
// bit, every other part what a message of that part alone is.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <random>

#include "tests/collectives/dispatch/segments_fixture.h"

namespace slimwire {
namespace {

float rounded(DType dtype, float x) {
    Bytes one(4);
    set_element(&one, dtype, 0, x);
    return element(one, dtype, 0);
}

struct Case {
    const char* name;
    std::vector<uint64_t> hosts;
    DType dtype;
    RedOp redop;
    Op op;
    const char* weights;     // action of the rule for two dimensions
    const char* embeddings;  // of the rule for three; empty: there are none
    Algorithm algorithm;
    uint64_t slice_bytes;
    bool in_place;
};

void PrintTo(const Case& of, std::ostream* out) {
    *out << of.name;
}

class Segments : public testing::TestWithParam<Case> {
  protected:
    // Parameters of one, two and three dimensions in any order and of any size.
    ParameterRanges random_parameters() {
        const int kinds = *GetParam().embeddings == '\0' ? 2 : 3;
        ParameterRanges parameters;
        uint64_t offset = 0;
        const size_t ranges = 300;  // more raw ones than one launch takes
        for (uint32_t i = 0; i < ranges; ++i) {
            // Never many codec parts: those are other tests' business.
            const bool norm = i % 15 != 3;
            const auto dimensions =
                static_cast<uint8_t>(norm ? 1 : 2 + random_() % static_cast<unsigned>(kinds - 1));
            // What is kept apart is so only by plans that gain something by themselves.
            const char* const weights = GetParam().weights;
            const bool apart =
                std::strstr(weights, "ema") != nullptr || std::strstr(weights, "ef21") != nullptr;
            const uint64_t least = apart ? 1000 : 1;
            const uint64_t count = norm ? 1 + random_() % 40 : least + random_() % 4000;
            parameters.ranges.push_back({offset, count, i, dimensions, ""});
            offset += count;
        }
        return parameters;
    }

    // The format's sum of raw elements: FORMAT.md, "Raw elements".
    float raw_sum(const PlanShape& shape,
                  Algorithm algorithm,
                  const std::vector<Bytes>& inputs,
                  size_t i,
                  const std::vector<float>& scalars) const {
        const Case& of = GetParam();
        const auto given = [&](int rank) {
            const auto r = static_cast<size_t>(rank);
            volatile float x = element(inputs[r], of.dtype, i);
            if (of.redop == RedOp::kPreMulSum) {
                x = rounded(of.dtype, scalars[r] * x);
            }
            return static_cast<float>(x);
        };
        const float factor =
            of.redop == RedOp::kAvg ? 1.0f / static_cast<float>(shape.ranks) : 1.0f;
        const auto sum_of = [&](const std::vector<int>& ranks) {
            volatile float sum = given(ranks[0]);
            for (size_t r = 1; r < ranks.size(); ++r) {
                sum = sum + given(ranks[r]);
            }
            return rounded(of.dtype, factor * sum);
        };
        if (algorithm != Algorithm::kHierarchical) {
            std::vector<int> all;
            for (int rank = 0; rank < shape.ranks; ++rank) {
                all.push_back(rank);
            }
            return sum_of(all);
        }
        volatile float sum = sum_of(shape.nodes->ranks_of(0));
        for (int node = 1; node < shape.nodes->nodes(); ++node) {
            sum = sum + sum_of(shape.nodes->ranks_of(node));
        }
        return rounded(of.dtype, sum);
    }

    Bytes random_values(uint64_t count, DType dtype) {
        std::normal_distribution<float> normal;
        Bytes values(count * dtype_bytes(dtype));
        for (size_t i = 0; i < count; ++i) {
            set_element(&values, dtype, i, normal(random_));
        }
        return values;
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
};

TEST_P(Segments, RawPartsAreSumsAndTheOthersAsAlone) {
    const Case& of = GetParam();
    SCOPED_TRACE("seed " + std::to_string(seed_));
    Ranks ranks(of.hosts);
    const std::string ops = "op = ['allreduce', 'reduce']";
    const std::string weights = rule("weights", "param = '2d'", of.weights);
    const std::string embeddings =
        *of.embeddings == '\0' ? "" : rule("embeddings", "param = '3d'", of.embeddings);
    const Config config = config_of(
        rule("norms", "param = '1d'", "codec = 'native'") + weights + embeddings, of.slice_bytes);
    const ParameterRanges parameters = random_parameters();
    CallSignature signature;
    signature.op = of.op;
    signature.dtype = of.dtype;
    signature.redop = of.redop;
    signature.root_or_peer = of.op == Op::kReduce ? 1 : 0;
    signature.ranges_id = 1;
    signature.count = parameters.ranges.back().offset + parameters.ranges.back().count;
    const Plan plan = make_plan(signature, ranks.shape(), config, &parameters);
    ASSERT_TRUE(plan.compressed) << plan.reason;
    ASSERT_EQ(plan.algorithm, of.algorithm) << plan.reason;
    ASSERT_GT(plan.layout.largest_raw_part(), 0);
    const size_t bytes = dtype_bytes(of.dtype);

    // Every run of elements that one rule decides, and a plan of its own for each with a codec.
    struct Part {
        uint64_t offset = 0, count = 0;
        uint8_t dimensions = 0;
        Plan plan;
        std::vector<void*> residuals;
    };
    std::vector<Part> parts;
    for (const ParameterRange& range : parameters.ranges) {
        if (!parts.empty() && parts.back().dimensions == range.dimensions) {
            parts.back().count += range.count;
        } else {
            parts.push_back({range.offset, range.count, range.dimensions, {}, {}});
        }
    }
    for (Part& part : parts) {
        if (part.dimensions == 1) {
            continue;
        }
        CallSignature alone = signature;
        alone.count = part.count;
        alone.ranges_id = 0;
        std::string action = part.dimensions == 2 ? of.weights : of.embeddings;
        Config own = config_of(rule("alone", ops, action), 0);
        part.plan = make_plan(alone, ranks.shape(), own);
        if (!part.plan.compressed || part.plan.algorithm != of.algorithm) {
            // Too small to gain anything by itself: made as if it did.
            part.plan.compressed = true;
            part.plan.algorithm = of.algorithm;
            const Action& asked = own.policy.rules[0].action;
            const AlgorithmDescriptor& descriptor = descriptor_of(of.algorithm);
            part.plan.layout = descriptor.layout({alone, ranks.shape(), asked}, 0);
            const ExchangeSizes sizes = descriptor.sizes({part.plan.layout, alone, ranks.shape()});
            part.plan.scratch.bytes = sizes.scratch_bytes;
            part.plan.error_feedback = asked.error_feedback;
            part.plan.residual.bytes =
                asked.error_feedback == ErrorFeedback::kNone ? 0 : 4 * sizes.residual_elems;
        }
        part.residuals = ranks.make_residuals(part.plan);
    }
    const std::vector<void*> residuals = ranks.make_residuals(plan);
    std::vector<float> scalars;
    for (int rank = 0; rank < ranks.size(); ++rank) {
        scalars.push_back(0.3f + static_cast<float>(rank));
    }

    for (int step = 0; step < 3; ++step) {
        std::vector<Bytes> inputs;
        for (int rank = 0; rank < ranks.size(); ++rank) {
            inputs.push_back(random_values(signature.count, of.dtype));
        }
        const std::vector<Bytes> results = ranks.run(plan, inputs, residuals, of.in_place, scalars);
        const auto gets = [&](size_t rank) {
            return of.op == Op::kAllReduce || static_cast<int>(rank) == signature.root_or_peer;
        };
        for (const Part& part : parts) {
            std::vector<Bytes> expected;
            if (part.dimensions == 1) {
                Bytes sums(part.count * bytes);
                for (uint64_t i = 0; i < part.count; ++i) {
                    set_element(
                        &sums, of.dtype, i,
                        raw_sum(ranks.shape(), plan.algorithm, inputs, part.offset + i, scalars));
                }
                expected.assign(inputs.size(), sums);
            } else {
                std::vector<Bytes> own;
                for (const Bytes& input : inputs) {
                    const auto begin =
                        input.begin() + static_cast<std::ptrdiff_t>(part.offset * bytes);
                    own.emplace_back(begin,
                                     begin + static_cast<std::ptrdiff_t>(part.count * bytes));
                }
                expected = ranks.run(part.plan, own, part.residuals, false, scalars);
            }
            for (size_t rank = 0; rank < results.size(); ++rank) {
                if (!gets(rank)) {
                    continue;
                }
                ASSERT_EQ(0, std::memcmp(results[rank].data() + part.offset * bytes,
                                         expected[rank].data(), part.count * bytes))
                    << "step " << step << " rank " << rank << " elements " << part.offset << "+"
                    << part.count << " of " << int{part.dimensions} << " dimensions";
            }
        }
        // What nobody said must not be written: another rank's result of a reduce.
        for (size_t rank = 0; rank < results.size(); ++rank) {
            if (!gets(rank) && !of.in_place) {
                ASSERT_EQ(results[rank], Bytes(results[rank].size(), 0xA5)) << "rank " << rank;
            }
        }
    }
    Ranks::free_all(residuals);
    for (const Part& part : parts) {
        Ranks::free_all(part.residuals);
    }
}

constexpr char kInt4[] = "codec = 'int4'\nef = 'ef14'";
constexpr char kInt8[] = "codec = 'int8'";
constexpr char kEstimated[] = "codec = 'int4'\nef = 'ef21'";
constexpr char kTopk[] = "codec = 'topk:fraction=0.2'";

INSTANTIATE_TEST_SUITE_P(
    Algorithms,
    Segments,
    testing::Values(Case{"two_shot", kOneNode, DType::kFloat32, RedOp::kSum, Op::kAllReduce, kInt4,
                         "", Algorithm::kTwoShot, 0, false},
                    Case{"two_shot_sliced", kOneNode, DType::kBfloat16, RedOp::kAvg, Op::kAllReduce,
                         kInt4, kInt8, Algorithm::kTwoShot, 9000, true},
                    Case{"two_shot_many_slices", kThree, DType::kFloat32, RedOp::kPreMulSum,
                         Op::kAllReduce, kInt8, kInt4, Algorithm::kTwoShot, 1500, false},
                    Case{"two_shot_half", kTwo, DType::kFloat16, RedOp::kPreMulSum, Op::kAllReduce,
                         kInt4, kInt8, Algorithm::kTwoShot, 20000, true},
                    Case{"two_shot_average", kOneNode, DType::kFloat32, RedOp::kSum, Op::kAllReduce,
                         "codec = 'int4'\nef = 'ema'\nresidual = 'fp32'", kInt8,
                         Algorithm::kTwoShot, 9000, true},
                    Case{"two_shot_estimated", kOneNode, DType::kFloat32, RedOp::kAvg,
                         Op::kAllReduce, kEstimated, kInt8, Algorithm::kTwoShot, 9000, true},
                    Case{"two_shot_estimated_half", kOneNode, DType::kFloat16, RedOp::kPreMulSum,
                         Op::kAllReduce, kEstimated, kEstimated, Algorithm::kTwoShot, 20000, false},
                    Case{"sparse_estimated", kOneNode, DType::kBfloat16, RedOp::kSum,
                         Op::kAllReduce, "codec = 'topk:fraction=0.1'\nef = 'ef21'", kTopk,
                         Algorithm::kSparse, 0, false},
                    Case{"gather_estimated", kThree, DType::kBfloat16, RedOp::kPreMulSum,
                         Op::kAllReduce, "codec = 'int4'\nef = 'ef21'\nalgorithm = 'gather'",
                         "codec = 'int8'\nalgorithm = 'gather'", Algorithm::kGather, 20000, true},
                    Case{"reduce", kOneNode, DType::kFloat32, RedOp::kAvg, Op::kReduce, kInt4,
                         kInt8, Algorithm::kTwoShot, 30000, false},
                    Case{"sparse", kOneNode, DType::kFloat32, RedOp::kSum, Op::kAllReduce,
                         "codec = 'int8'\nef = 'ef14'", "codec = 'topk:fraction=0.1'\nef = 'ef14'",
                         Algorithm::kSparse, 0, true},
                    Case{"gather", kTwo, DType::kFloat32, RedOp::kAvg, Op::kAllReduce,
                         "codec = 'int4'\nef = 'ef14'\nalgorithm = 'gather'",
                         "codec = 'int8'\nalgorithm = 'gather'", Algorithm::kGather, 20000, false},
                    Case{"gather_bf16", kOneNode, DType::kBfloat16, RedOp::kPreMulSum,
                         Op::kAllReduce, "codec = 'int2'\nef = 'ef14'\nalgorithm = 'gather'", "",
                         Algorithm::kGather, 0, true},
                    Case{"hierarchical", kTwoNodes, DType::kFloat32, RedOp::kSum, Op::kAllReduce,
                         kInt4, kInt8, Algorithm::kHierarchical, 20000, true},
                    Case{"hierarchical_uneven", kUneven, DType::kBfloat16, RedOp::kAvg,
                         Op::kAllReduce, kInt4, "", Algorithm::kHierarchical, 0, false},
                    Case{"hierarchical_scaled", kTwoNodes, DType::kFloat16, RedOp::kPreMulSum,
                         Op::kAllReduce, kInt4, kInt8, Algorithm::kHierarchical, 9000, false},
                    Case{"hierarchical_intra", kTwoNodes, DType::kFloat32, RedOp::kAvg,
                         Op::kAllReduce, "codec = 'int4'\nef = 'ef14'\nintra_codec = 'int8'", "",
                         Algorithm::kHierarchical, 20000, false},
                    Case{"hierarchical_reduce", kUneven, DType::kFloat32, RedOp::kSum, Op::kReduce,
                         kInt4, kInt8, Algorithm::kHierarchical, 20000, false}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace slimwire
