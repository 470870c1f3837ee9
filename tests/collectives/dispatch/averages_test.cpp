// Averages of numbers whose sum no type holds, and sums that are the largest number, by every
// algorithm, against float64; matrices of such numbers by their factors.
#include <cmath>
#include <ostream>
#include <random>
#include <span>

#include "tests/collectives/dispatch/segments_fixture.h"

namespace slimwire {
namespace {

struct Averaged {
    const char* name;
    std::vector<uint64_t> hosts;
    Op op;
    const char* action;
    Algorithm algorithm;
    double error;          // largest, as a part of the largest number
    double largest = 1.0;  // of the type's range
    size_t equal = 1;      // so many neighbours, as in the rows of a matrix of rank 1
    bool some = false;     // other elements are not sent
    bool shared = false;   // all ranks give an equal part of a sum
    bool half = false;     // only fp16: near the end of other types a rotation leaves fp32
};

void PrintTo(const Averaged& of, std::ostream* out) {
    *out << of.name;
}

void expect_near(const Averaged& of,
                 const Bytes& results,
                 DType dtype,
                 std::span<const double> expected,
                 double most) {
    size_t sent = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const float result = element(results, dtype, i);
        sent += !of.some || result != 0 ? 1 : 0;
        ASSERT_TRUE((of.some && result == 0) || std::abs(result - expected[i]) <= most)
            << "element " << i << ": " << result << " for " << expected[i];
    }
    ASSERT_GT(5 * sent, expected.size());
}

class Averages : public testing::TestWithParam<Averaged> {
  protected:
    void check(RedOp redop, DType dtype);
    // No number that comes back is finite where every rank gives three quarters of the largest.
    static void expect_overflow(Ranks* ranks,
                                const Plan& plan,
                                std::vector<Bytes> inputs,
                                double limit) {
        const DType dtype = plan.signature.dtype;
        for (Bytes& input : inputs) {
            for (size_t i = 0; i < input.size() / dtype_bytes(dtype); ++i) {
                set_element(&input, dtype, i, static_cast<float>(0.75 * limit));
            }
        }
        const std::vector<void*> residuals = ranks->make_residuals(plan);
        const Bytes result = ranks->run(plan, inputs, residuals, false, {})[0];
        for (size_t i = 0; i < plan.signature.count; ++i) {
            const float of = element(result, dtype, i);
            ASSERT_TRUE(of == 0 || !std::isfinite(of)) << "element " << i << ": " << of;
        }
        Ranks::free_all(residuals);
    }
    std::mt19937 random_{test_seed()};
};

void Averages::check(RedOp redop, DType dtype) {
    const Averaged& of = GetParam();
    Ranks ranks(of.hosts);
    const size_t all = of.hosts.size();
    const Config config = config_of(
        rule("averages", "op = ['allreduce', 'reduce', 'reducescatter']", of.action), 3000);
    const CallSignature signature{of.op, dtype, redop, 0, 1600};
    const Plan plan = make_plan(signature, ranks.shape(), config);
    if (dtype != DType::kFloat32 && !plan.compressed) {
        return;  // too little to gain
    }
    ASSERT_EQ(plan.algorithm, of.algorithm) << plan.reason;
    const bool sums = redop == RedOp::kSum;
    const double limit = of.largest * (dtype == DType::kFloat16 ? 65504 : 0x1.FEp127);
    const size_t count = signature.count * (of.op == Op::kReduceScatter ? all : 1);
    std::vector<Bytes> inputs(all, Bytes(count * dtype_bytes(dtype)));
    std::vector<double> expected(count);
    bool alike = false;  // the sign of all ranks, else of the first half
    double sign = 1;
    for (size_t i = 0; i < count; ++i) {
        if (i % of.equal == 0) {
            alike = random_() % 4 != 0;
            sign = random_() % 2 == 0 ? -1 : 1;
        }
        const double magnitude = limit * (1 - static_cast<double>(i / of.equal % 8) / 16);
        for (size_t rank = 0; rank < all; ++rank) {
            // The first and the last rank each give half of a sum.
            const double part = !sums                          ? 1
                                : of.shared                    ? 1 / static_cast<double>(all)
                                : rank == 0 || rank == all - 1 ? 0.5
                                                               : 0;
            const double by = part * (alike || 2 * rank < all ? sign : -sign);
            set_element(&inputs[rank], dtype, i, static_cast<float>(by * magnitude));
            expected[i] += static_cast<double>(element(inputs[rank], dtype, i)) /
                           static_cast<double>(sums ? 1 : all);
        }
    }
    const std::vector<void*> residuals = ranks.make_residuals(plan);
    const bool estimates = plan.error_feedback == ErrorFeedback::kEf21;
    // From one end of the range to the other differences leave it: those of averages come later, in
    // part, those of sums are infinite.
    for (int call = 0; call < (estimates && !sums ? 3 : 1); ++call) {
        const std::vector<Bytes> results = ranks.run(plan, inputs, residuals, false, {});
        for (size_t rank = 0; rank < (of.op == Op::kReduce ? 1 : all); ++rank) {
            SCOPED_TRACE("call " + std::to_string(call) + " rank " + std::to_string(rank));
            const size_t first = of.op == Op::kReduceScatter ? rank * signature.count : 0;
            expect_near(of, results[rank], dtype,
                        {expected.data() + first, static_cast<size_t>(signature.count)},
                        (call == 0 ? of.error : 1.01) * limit);
        }
        for (size_t i = 0; i < count; ++i) {
            expected[i] = -expected[i];
            for (Bytes& input : inputs) {
                set_element(&input, dtype, i, -element(input, dtype, i));
            }
        }
    }
    Ranks::free_all(residuals);
    if (sums && !estimates && of.error < 1) {
        expect_overflow(&ranks, plan, inputs, limit);
    }
}

TEST_P(Averages, AndSumsOfTheLargestNumbersAreThoseOfFloat64) {
    SCOPED_TRACE("seed " + std::to_string(test_seed()));
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
        for (const RedOp redop : {RedOp::kAvg, RedOp::kSum}) {
            SCOPED_TRACE(std::string(dtype_name(dtype)) +
                         (redop == RedOp::kSum ? ", sums" : ", averages"));
            const bool left_out = GetParam().half && dtype != DType::kFloat16;
            if (!left_out &&
                (redop == RedOp::kAvg || GetParam().algorithm != Algorithm::kLowRank)) {
                check(redop, dtype);
            }
        }
    }
}

// What differs from the estimate is rounded up again and again.
TEST(EstimatedSums, OfTheLargestNumberStayFinite) {
    Ranks ranks({1, 1});
    for (const std::string algorithm : {"two_shot", "gather"}) {
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
            const std::string action =
                "codec = 'natural'\nef = 'ef21'\nalgorithm = '" + algorithm + "'";
            const CallSignature signature{Op::kAllReduce, dtype, RedOp::kSum, 0, 1600};
            const Plan plan = make_plan(signature, ranks.shape(),
                                        config_of(rule("sums", "op = 'allreduce'", action), 0));
            if (dtype != DType::kFloat32 && !plan.compressed) {
                continue;  // too little to gain
            }
            ASSERT_EQ(plan.error_feedback, ErrorFeedback::kEf21) << plan.reason;
            const std::vector<void*> residuals = ranks.make_residuals(plan);
            std::vector<Bytes> inputs(2, Bytes(signature.count * dtype_bytes(dtype)));
            const float most = dtype == DType::kFloat16 ? 65504.0f : 0x1.FEp127f;
            for (size_t i = 0; i < signature.count; ++i) {
                set_element(&inputs[i % 2], dtype, i, i % 3 == 0 ? -most : most);
            }
            for (int call = 0; call < 4; ++call) {
                for (const Bytes& result : ranks.run(plan, inputs, residuals, false, {})) {
                    for (size_t i = 0; i < signature.count; ++i) {
                        ASSERT_TRUE(std::isfinite(element(result, dtype, i)))
                            << algorithm << " " << dtype_name(dtype) << " call " << call;
                    }
                }
            }
            Ranks::free_all(residuals);
        }
    }
}

constexpr char kEight[] = "codec = 'int8:block=32'\nef = 'ef14'";
const std::vector<uint64_t> kFive = {1, 1, 1, 1, 1};

INSTANTIATE_TEST_SUITE_P(
    Algorithms,
    Averages,
    testing::Values(
        Averaged{"two_shot_of_2", kTwo, Op::kAllReduce, kEight, Algorithm::kTwoShot, 0.02},
        Averaged{"two_shot_of_3", kThree, Op::kAllReduce, "codec = 'bf16'", Algorithm::kTwoShot,
                 0.01},
        Averaged{"reduce_of_4", kOneNode, Op::kReduce, "codec = 'fp8e4m3'", Algorithm::kTwoShot,
                 0.1},
        Averaged{"two_shot_of_5", kFive, Op::kAllReduce, "codec = 'int4:block=16'",
                 Algorithm::kTwoShot, 0.16},
        Averaged{"two_shot_estimated", kThree, Op::kAllReduce,
                 "codec = 'int8:block=32'\nef = 'ef21'", Algorithm::kTwoShot, 0.02},
        Averaged{"gather_estimated", kTwo, Op::kAllReduce,
                 "codec = 'int8:block=32'\nef = 'ef21'\nalgorithm = 'gather'", Algorithm::kGather,
                 0.02},
        Averaged{"direct_estimated", kTwo, Op::kReduceScatter,
                 "codec = 'int8:block=32'\nef = 'ef21'", Algorithm::kDirect, 0.02},
        Averaged{"sparse_of_2", kTwo, Op::kAllReduce, "codec = 'topk:fraction=0.4'",
                 Algorithm::kSparse, 0.01, 1.0, 1, true},
        Averaged{"sparse_of_5", kFive, Op::kAllReduce, "codec = 'topk:fraction=0.4,values=int8'",
                 Algorithm::kSparse, 0.02, 1.0, 1, true},
        Averaged{"gather", kThree, Op::kAllReduce, "codec = 'int8:block=32'\nalgorithm = 'gather'",
                 Algorithm::kGather, 0.02},
        Averaged{"hierarchical", kUneven, Op::kAllReduce, kEight, Algorithm::kHierarchical, 0.02},
        Averaged{"hierarchical_intra", kTwoNodes, Op::kAllReduce,
                 "codec = 'int8:block=32'\nintra_codec = 'int8:block=32'", Algorithm::kHierarchical,
                 0.03},
        Averaged{"hierarchical_scatter", kTwoNodes, Op::kReduceScatter,
                 "codec = 'int8:block=32'\nalgorithm = 'hierarchical'", Algorithm::kHierarchical,
                 0.02},
        Averaged{"direct", kFive, Op::kReduceScatter, kEight, Algorithm::kDirect, 0.02},
        Averaged{"rounded_up", kTwo, Op::kAllReduce, "codec = 'natural'", Algorithm::kTwoShot, 1.0},
        Averaged{"each_rounded_up", kThree, Op::kAllReduce, "codec = 'natural'",
                 Algorithm::kTwoShot, 1.0, 1.0, 1, false, true},
        Averaged{"rotated", kThree, Op::kAllReduce, "codec = 'int8:rotate=64'", Algorithm::kTwoShot,
                 0.08, 1.0, 1, false, false, true},
        Averaged{"direct_float", kTwo, Op::kReduceScatter, "codec = 'fp8e5m2'", Algorithm::kDirect,
                 0.2},
        // NCCL itself adds what is rounded to the type, as natively.
        Averaged{"summable", kThree, Op::kAllReduce,
                 "codec = 'randomk:fraction=0.4'\nalgorithm = 'summable'", Algorithm::kSummable,
                 0.01, 0.97, 1, true},
        Averaged{"low_rank", kFive, Op::kAllReduce, "codec = 'powersgd:rank=1,row=40'",
                 Algorithm::kLowRank, 0.01, 1.0, 40}),
    [](const auto& info) { return std::string(info.param.name); });

// --- Factors of matrices: finite in, finite out

constexpr size_t kRows = 40, kCols = 40, kSize = kRows * kCols;

struct Factored {
    const char* name;
    const char* action;
    Op op = Op::kAllReduce;
    RedOp redop = RedOp::kSum;
    double room = 1;    // of the range, that sums of many signs take: what is owed comes on top
    bool exact = true;  // masks and rows come as they are

    [[nodiscard]] size_t matrices(size_t ranks) const { return op == Op::kAllReduce ? 1 : ranks; }
    [[nodiscard]] bool sums() const { return op != Op::kAllToAll && redop == RedOp::kSum; }
};

void PrintTo(const Factored& of, std::ostream* out) {
    *out << of.name;
}

enum class Filling { kMask, kRow, kSigns, kAny };

class FactoredMatrices : public testing::TestWithParam<Factored> {
  protected:
    // Elements of the largest magnitude `limit`: two columns of a mask, a row, or all.
    void fill(Bytes* input, DType dtype, Filling filling, double limit) {
        const size_t matrices = input->size() / dtype_bytes(dtype) / kSize;
        for (size_t i = 0; i < matrices * kSize; ++i) {
            const size_t row = i / kCols % kRows, col = i % kCols;
            const double sign = random_() % 2 == 0 ? limit : -limit;
            const double any = sign * std::exp2(-std::uniform_real_distribution<>(0, 40)(random_));
            const double value = filling == Filling::kMask    ? (col % 20 == 7 ? -limit : 0)
                                 : filling == Filling::kRow   ? (row == 3 ? limit : 0)
                                 : filling == Filling::kSigns ? sign
                                                              : any;
            set_element(input, dtype, i, static_cast<float>(value));
        }
    }
    std::mt19937 random_{test_seed()};
};

size_t count_finite(const std::vector<Bytes>& results, DType dtype) {
    size_t finite = 0;
    for (const Bytes& result : results) {
        for (size_t i = 0; i < result.size() / dtype_bytes(dtype); ++i) {
            finite += std::isfinite(element(result, dtype, i)) ? 1 : 0;
        }
    }
    return finite;
}

TEST_P(FactoredMatrices, FiniteOnesComeBackFiniteAtAnyMagnitude) {
    const Factored& of = GetParam();
    SCOPED_TRACE("seed " + std::to_string(test_seed()));
    const Config config = config_of(
        rule("factors", "op = ['allreduce', 'alltoall', 'reducescatter']", of.action), 3000);
    for (const size_t all : {2, 3}) {
        Ranks ranks(std::vector<uint64_t>(all, 1));
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
            const CallSignature signature{of.op, dtype, of.redop, 0, kSize};
            const Plan plan = make_plan(signature, ranks.shape(), config);
            ASSERT_NE(plan.layout.factored, nullptr) << plan.reason;
            const double most = dtype == DType::kFloat32   ? 0x1.fffffep127
                                : dtype == DType::kFloat16 ? 65504
                                                           : 0x1.FEp127;
            const size_t received = of.op == Op::kReduceScatter ? 1 : of.matrices(all);
            const size_t bytes = of.matrices(all) * kSize * dtype_bytes(dtype);
            for (const Filling filling :
                 {Filling::kMask, Filling::kRow, Filling::kSigns, Filling::kAny}) {
                const bool spread = filling == Filling::kSigns || filling == Filling::kAny;
                SCOPED_TRACE(std::to_string(all) + " ranks, " + std::string(dtype_name(dtype)) +
                             ", filling " + std::to_string(static_cast<int>(filling)));
                const std::vector<void*> residuals = ranks.make_residuals(plan);
                const auto run = [&](const std::vector<Bytes>& inputs) {
                    std::vector<Bytes> results = ranks.run(plan, inputs, residuals, false, {});
                    for (size_t rank = 0; rank < all; ++rank) {
                        results[rank].resize(received * kSize * dtype_bytes(dtype));
                    }
                    return results;
                };
                std::vector<Bytes> inputs(all, Bytes(bytes));
                // One rank has all of a sum's range, or each an equal part.
                for (int call = 0; call < 4; ++call) {
                    const bool alone = call % 2 == 0;
                    const double part = !of.sums() || alone ? 1 : 0.99 / static_cast<double>(all);
                    for (size_t rank = 0; rank < all; ++rank) {
                        const bool silent = of.sums() && alone && rank > 0;
                        fill(&inputs[rank], dtype, filling,
                             silent ? 0 : most * part * (of.sums() && spread ? of.room : 1));
                    }
                    const std::vector<Bytes> results = run(inputs);
                    ASSERT_EQ(count_finite(results, dtype), all * received * kSize) << call;
                    for (size_t i = 0; i < kSize && !spread && of.exact; ++i) {
                        ASSERT_NEAR(element(results[0], dtype, i) / most,
                                    element(inputs[0], dtype, i) / most / part, 0.02)
                            << call << ", element " << i;
                    }
                }
                // A sum out of the range, where it is the factors' to tell.
                for (Bytes& input : inputs) {
                    fill(&input, dtype, filling, 0.75 * most);
                }
                if (of.sums() && !spread) {
                    EXPECT_LT(count_finite(run(inputs), dtype), all * received * kSize);
                }
                for (const float bad : {INFINITY, NAN}) {
                    fill(&inputs[1], dtype, filling, most);
                    set_element(&inputs[1], dtype, 7 * kCols + 5, bad);
                    EXPECT_LT(count_finite(run(inputs), dtype), all * received * kSize) << bad;
                }
                for (Bytes& input : inputs) {
                    fill(&input, dtype, filling, 0.01 * most);
                }
                EXPECT_EQ(count_finite(run(inputs), dtype), all * received * kSize) << "no trace";
                Ranks::free_all(residuals);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Codecs,
    FactoredMatrices,
    testing::Values(
        Factored{"sum", "codec = 'powersgd:rank=2,row=40'"},
        Factored{"sum_fed", "codec = 'powersgd:rank=3,row=40'\nef = 'ef14'", Op::kAllReduce,
                 RedOp::kSum, 0.1, false},
        Factored{"average", "codec = 'powersgd:rank=3,row=40'", Op::kAllReduce, RedOp::kAvg},
        Factored{"average_fed", "codec = 'powersgd:rank=2,row=40'\nef = 'ef14'\nresidual = 'bf16'",
                 Op::kAllReduce, RedOp::kAvg},
        Factored{"autoencoded_sum", "codec = 'linear_ae:width=2,row=40'", Op::kAllReduce,
                 RedOp::kSum, 1, false},
        Factored{"autoencoded_average_fed", "codec = 'linear_ae:width=3,row=40'\nef = 'ef14'",
                 Op::kAllReduce, RedOp::kAvg, 1, false},
        Factored{"all_to_all", "codec = 'powersgd:rank=2,row=40'", Op::kAllToAll},
        Factored{"reduce_scatter", "codec = 'powersgd:rank=2,row=40'", Op::kReduceScatter,
                 RedOp::kSum, 0.1}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace slimwire
