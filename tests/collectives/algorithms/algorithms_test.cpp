// Which algorithm a call gets, why another is refused, and the formulas of those without a test of
// their own.
#include "collectives/algorithms/algorithm.h"

#include <gtest/gtest.h>

namespace slimwire {
namespace {

CallSignature facts_of(Op op, uint64_t count = 1 << 20, DType dtype = DType::kFloat32) {
    CallSignature signature;
    signature.op = op;
    signature.count = count;
    signature.dtype = dtype;
    signature.redop = reduces(op) ? RedOp::kSum : RedOp::kNone;
    return signature;
}

PlanShape four_ranks() {
    PlanShape shape;
    shape.ranks = 4;
    shape.go = true;
    return shape;
}

Action action_of(const char* codec, Algorithm algorithm = Algorithm::kAuto) {
    Result<CodecSpec> spec = parse_codec(codec);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    Action action;
    action.codec = spec.value();
    action.algorithm = algorithm;
    return action;
}

TEST(Algorithms, AutoTakesTheOneThatTheCodecAndTheOperationAllow) {
    struct Case {
        Op op;
        const char* codec;
        Algorithm expected;
    };
    for (const Case& of : {Case{Op::kAllReduce, "int4", Algorithm::kTwoShot},
                           Case{Op::kAllReduce, "topk", Algorithm::kSparse},
                           Case{Op::kReduce, "threshold", Algorithm::kSparse},
                           Case{Op::kAllReduce, "randomk", Algorithm::kTwoShot},
                           Case{Op::kReduceScatter, "int4", Algorithm::kDirect},
                           Case{Op::kSend, "bf16", Algorithm::kDirect}}) {
        const Action action = action_of(of.codec);
        const CallSignature signature = facts_of(of.op);
        const std::vector<Algorithm> found = candidates({signature, four_ranks(), action});
        ASSERT_EQ(found.size(), 1u);
        EXPECT_EQ(found[0], of.expected) << of.codec;
        EXPECT_EQ(why_not(found[0], {signature, four_ranks(), action}), "");
    }
}

TEST(Algorithms, ARefusalSaysWhy) {
    struct Case {
        Op op;
        const char* codec;
        Algorithm algorithm;
        const char* reason;
    };
    for (const Case& of :
         {Case{Op::kAllReduce, "int4", Algorithm::kDirect, "direct has no form of allreduce"},
          Case{Op::kAllGather, "int4", Algorithm::kGather, "gather has no form of allgather"},
          Case{Op::kReduceScatter, "int4", Algorithm::kTwoShot,
               "two_shot has no form of reducescatter"},
          Case{Op::kAllReduce, "topk", Algorithm::kTwoShot, "does not reduce in one pass"},
          Case{Op::kReduce, "threshold", Algorithm::kTwoShot, "write sparse"},
          Case{Op::kAllReduce, "int4", Algorithm::kSparse, "reduces in one pass; write two_shot"},
          Case{Op::kReduce, "rowtopk", Algorithm::kSparse, "reduces in one pass; write two_shot"},
          Case{Op::kReduceScatter, "topk", Algorithm::kSparse,
               "sparse has no form of reducescatter"},
          Case{Op::kReduceScatter, "topk", Algorithm::kSummable, "do not add up"},
          Case{Op::kReduce, "blocktopk", Algorithm::kSummable, "do not add up"},
          Case{Op::kAllReduce, "int4", Algorithm::kSummable, "do not add up"},
          Case{Op::kAllReduce, "randomk:values=int8", Algorithm::kSummable, "do not add up"}}) {
        const std::string reason = why_not(
            of.algorithm, {facts_of(of.op), four_ranks(), action_of(of.codec, of.algorithm)});
        EXPECT_NE(reason.find(of.reason), std::string::npos) << reason;
    }
}

// The worked examples of collectives/FORMAT.md.
TEST(Gather, WorkedExampleOfTheFormat) {
    const CallSignature signature = facts_of(Op::kAllReduce, 1000);
    const AlgorithmDescriptor& gather = descriptor_of(Algorithm::kGather);
    const Layout layout = gather.layout({signature, four_ranks(), action_of("int4:block=64")}, 0);
    EXPECT_EQ(layout.total_slot_bytes, 544);
    EXPECT_EQ(gather.wire_bytes({layout, signature, four_ranks()}, 0), 1632u);
    EXPECT_EQ(gather.sizes({layout, signature, four_ranks()}).residual_elems, 1000u);
}

TEST(Summable, WorkedExampleOfTheFormat) {
    const CallSignature signature = facts_of(Op::kAllReduce, 100000);
    const AlgorithmDescriptor& summable = descriptor_of(Algorithm::kSummable);
    const Layout layout =
        summable.layout({signature, four_ranks(), action_of("randomk:fraction=0.1")}, 0);
    EXPECT_EQ(layout.total_slot_bytes, 16 + 40064);
    EXPECT_EQ(summable.wire_bytes({layout, signature, four_ranks()}, 0), 60096u);
    const CallSignature scattered = facts_of(Op::kReduceScatter, 100000);
    EXPECT_EQ(summable.wire_bytes({layout, scattered, four_ranks()}, 0), 3u * (16 + 40064));
    EXPECT_EQ(summable.sizes({layout, scattered, four_ranks()}).residual_elems, 400000u);
}

// Runs of any lengths share no block with each other and end in the store.
TEST(StoredResiduals, RunsShareNoBlock) {
    uint64_t draw = 12345;
    for (const ResidualType type :
         {ResidualType::kFloat32, ResidualType::kBfloat16, ResidualType::kInt8}) {
        const int64_t block = type == ResidualType::kFloat32 ? 1 : kResidualBlock;
        for (int runs = 1; runs < 200; ++runs) {
            int64_t first = 0, end_before = 0;
            for (int index = 0; index < runs; ++index) {
                draw = draw * 6364136223846793005u + 1442695040888963407u;
                const auto count = static_cast<int64_t>(1 + (draw >> 33) % 200);
                const int64_t begin = stored_begin(type, first, index);
                EXPECT_EQ(begin % block, 0);
                EXPECT_GE(begin, end_before) << "run " << index << " of " << runs;
                end_before = (begin + count + block - 1) / block * block;
                first += count;
            }
            const uint64_t elems =
                stored_elems(type, static_cast<uint64_t>(first), static_cast<uint64_t>(runs));
            EXPECT_EQ(elems % static_cast<uint64_t>(block), 0u);
            EXPECT_LE(static_cast<uint64_t>(end_before), elems);
        }
    }
}

}  // namespace
}  // namespace slimwire
