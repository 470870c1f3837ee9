// Spellings of operations, types and the rest, and the suggestions that error messages make.
#include "collectives/policy/names.h"

#include <gtest/gtest.h>

#include "codecs/spec.h"

namespace slimwire {
namespace {

TEST(Names, every_printed_name_is_read_back) {
    for (int i = 0; i < kOpCount; ++i) {
        EXPECT_EQ(parse_op(op_name(static_cast<Op>(i))), static_cast<Op>(i));
    }
    for (int i = 0; i < kDTypeCount; ++i) {
        EXPECT_EQ(parse_dtype(dtype_name(static_cast<DType>(i))), static_cast<DType>(i));
    }
    for (int i = 0; i < kRedOpCount; ++i) {
        EXPECT_EQ(parse_redop(redop_name(static_cast<RedOp>(i))), static_cast<RedOp>(i));
    }
    for (int i = 0; i < kScopeCount; ++i) {
        EXPECT_EQ(parse_scope(scope_name(static_cast<Scope>(i))), static_cast<Scope>(i));
    }
    for (int i = 0; i < kAlgorithmCount; ++i) {
        EXPECT_EQ(parse_algorithm(algorithm_name(static_cast<Algorithm>(i))),
                  static_cast<Algorithm>(i));
    }
    for (int i = 0; i < kErrorFeedbackCount; ++i) {
        EXPECT_EQ(parse_error_feedback(error_feedback_name(static_cast<ErrorFeedback>(i))),
                  static_cast<ErrorFeedback>(i));
    }
    for (int i = 0; i < kResidualTypeCount; ++i) {
        EXPECT_EQ(parse_residual_type(residual_type_name(static_cast<ResidualType>(i))),
                  static_cast<ResidualType>(i));
    }
}

TEST(Names, other_spellings) {
    for (const char* text : {"allreduce", "all_reduce", "AllReduce", "all-reduce", "ALLREDUCE"}) {
        EXPECT_EQ(parse_op(text), Op::kAllReduce) << text;
    }
    EXPECT_EQ(parse_op("reduce_scatter"), Op::kReduceScatter);
    EXPECT_EQ(parse_op("all_to_all"), Op::kAllToAll);
    EXPECT_EQ(parse_op("bcast"), Op::kBroadcast);
    for (const char* text : {"fp32", "float32", "float", "f32"}) {
        EXPECT_EQ(parse_dtype(text), DType::kFloat32) << text;
    }
    for (const char* text : {"half", "fp16", "float16"}) {
        EXPECT_EQ(parse_dtype(text), DType::kFloat16) << text;
    }
    EXPECT_EQ(parse_dtype("bfloat16"), DType::kBfloat16);
    EXPECT_EQ(parse_redop("pre_mul_sum"), RedOp::kPreMulSum);
}

TEST(Names, unknown_names_are_not_guessed) {
    EXPECT_EQ(parse_op("allreduc"), std::nullopt);
    EXPECT_EQ(parse_op(""), std::nullopt);
    EXPECT_EQ(parse_dtype("fp8"), std::nullopt);
    EXPECT_EQ(parse_redop("mean"), std::nullopt);
}

TEST(Names, nearest_takes_slips_and_leaves_the_rest) {
    const auto ops = op_names();
    EXPECT_EQ(nearest_word("alreduce", ops), "allreduce");
    EXPECT_EQ(nearest_word("brodcast", ops), "broadcast");
    EXPECT_EQ(nearest_word("ALLREDUCE", ops), "allreduce");
    EXPECT_EQ(nearest_word("sned", ops), "send");
    EXPECT_EQ(nearest_word("quantise", ops), "");
    EXPECT_EQ(nearest_word("", ops), "");
    EXPECT_EQ(suggestion("codek", {"codec", "match"}), " (did you mean 'codec'?)");
    EXPECT_EQ(suggestion("zzzzz", {"codec", "match"}), "");
    EXPECT_EQ(join({"a", "b", "c"}), "a, b, c");
}

}  // namespace
}  // namespace slimwire
