// Plans: pure functions of rank-equal facts, with a reason for each decision; and their cache.
#include "collectives/plan/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "collectives/algorithms/algorithm.h"
#include "collectives/call/hash.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/dispatch/planner.h"
#include "collectives/feedback/averaging.h"
#include "collectives/feedback/residual_store.h"
#include "collectives/policy/names.h"
#include "tests/collectives/plan/plans.h"

namespace slimwire {
namespace {

TEST(Plan, CompressesWhatARuleNames) {
    const Plan plan = make_plan(sum_of(1 << 20), shape_of(4), int4_config());
    ASSERT_TRUE(plan.compressed) << plan.reason;
    EXPECT_EQ(plan.algorithm, Algorithm::kTwoShot);
    EXPECT_EQ(plan.rule, "all");
    // Two times three slots of a quarter of the elements at 4.25 bits.
    EXPECT_EQ(wire_bytes_of(plan, shape_of(4), 0), 2u * 3u * (1u << 18) * 34u / 64u);
    EXPECT_GE(plan.residual.bytes, 4u * ((1u << 20) + (1u << 18)));
}

// One operation takes all blocks where they lie back to back. Without CUDA kernels there is no
// workspace.
TEST(Plan, TheWorkspaceHoldsAllBlocksOfAMessage) {
    constexpr int kRanks = 8;
    for (const char* codec : {"topk", "threshold:refresh=9", "blocktopk"}) {
        const Config config = by_keys(std::string("codec = '") + codec + "'\n");
        CallSignature signature = sum_of(102'400);
        signature.op = Op::kReduceScatter;
        const Plan plan = make_plan(signature, shape_of(kRanks), config);
        ASSERT_TRUE(plan.compressed) << plan.reason;
        ASSERT_EQ(plan.layout.slices.size(), 1u);
        const Piece& piece = plan.layout.slices[0].pieces.at(0);
        ASSERT_EQ(piece.chunk_elems, 102'400);
        EXPECT_GE(plan.layout.workspace_bytes,
                  piece.codec.workspace_bytes(piece.dtype, kRanks * piece.count, piece.count));
    }
}

// State at fixed addresses moves on with a replay; features that count calls are native in a graph.
TEST(Plan, SlotsAreNeededForStateThatRanksKeepAlikeAndCapturedCallsHaveThem) {
    for (const bool alike : {true, false}) {
        const Config config =
            by_keys(std::string("match = { op = 'allreduce' }\ncodec = 'int4'\nef = '") +
                    (alike ? "ef21" : "ef14") + "'\n");
        const Plan plan = make_plan(sum_of(1 << 20), shape_of(4), config);
        ASSERT_TRUE(plan.compressed) << plan.reason;
        EXPECT_EQ(plan.needs_slot, alike) << "else a residual that each rank adds for itself";
        EXPECT_TRUE(plan.capturable);
        EXPECT_TRUE(config.policy.wants_steps()) << "its slot once that is known";
    }
}

struct NativeCase {
    const char* name;
    CallSignature signature;
    PlanShape shape;
    const char* reason;
    const char* remedy;  // empty: none, and no rule where it is not 'all'
};

TEST(Plan, SaysWhyACallStaysNativeAndWhatWouldChangeIt) {
    PlanShape not_agreed = shape_of(4);
    not_agreed.go = false;
    not_agreed.native_reason = "rank 1 did not answer";
    CallSignature gather = sum_of(1 << 20);
    gather.op = Op::kAllGather;
    gather.redop = RedOp::kNone;
    const NativeCase cases[] = {
        {"one rank", sum_of(1 << 20), shape_of(1), "one rank", "more ranks"},
        {"not agreed", sum_of(1 << 20), not_agreed, "rank 1 did not answer", ""},
        {"all-gather", gather, shape_of(4), "no rule matches", ""},
        {"max", sum_of(1 << 20, DType::kFloat32, RedOp::kMax), shape_of(4), "max is not a sum",
         "sums"},
        {"integers", sum_of(1 << 20, DType::kInt32), shape_of(4), "int4 does not take i32",
         "a codec that takes the type"},
        {"double", sum_of(1 << 20, DType::kFloat64), shape_of(4), "int4 does not take f64",
         "a codec that takes the type"},
        {"one element", sum_of(1), shape_of(4), "at most one element", "larger messages"},
        {"small", sum_of(200), shape_of(4), "800 bytes are less than min_bytes",
         "a smaller min_bytes"},
    };
    for (const NativeCase& one : cases) {
        const Plan plan = make_plan(one.signature, one.shape, int4_config());
        EXPECT_FALSE(plan.compressed) << one.name;
        EXPECT_NE(plan.reason.find(one.reason), std::string::npos)
            << one.name << ": " << plan.reason;
        const std::string remedy = plan.remedy != nullptr ? plan.remedy : "";
        EXPECT_EQ(remedy.empty(), *one.remedy == '\0') << one.name << ": " << remedy;
        EXPECT_NE(remedy.find(one.remedy), std::string::npos) << one.name << ": " << remedy;
        EXPECT_EQ(plan.rule, remedy.empty() ? "" : "all") << one.name;
    }
    Config small = int4_config();
    small.settings.max_memory_bytes = 1 << 20;
    EXPECT_STREQ(make_plan(sum_of(1 << 20), shape_of(4), small).remedy,
                 "a larger SLIMWIRE_MAX_MEMORY");
    EXPECT_EQ(make_plan(sum_of(1 << 20), shape_of(4), int4_config()).remedy, nullptr);
}

// policy_warnings_test.cpp has the codecs.
TEST(Plan, KnowsCodecsThatLackErrorFeedback) {
    const auto lacks = [](const std::string& keys, Op op = Op::kAllReduce) {
        CallSignature signature = sum_of(1 << 20, DType::kFloat32, RedOp::kNone, op);
        signature.redop = reduces(op) ? RedOp::kSum : RedOp::kNone;
        const Plan plan = make_plan(signature, shape_of(4), by_keys(keys + "\n"));
        EXPECT_TRUE(plan.compressed) << plan.reason;
        return plan.lacks_feedback;
    };
    EXPECT_TRUE(lacks("codec = 'int2'"));
    EXPECT_FALSE(lacks("codec = 'int2'\nerror_feedback = 'ef14'"));
    EXPECT_FALSE(lacks("codec = 'int4'"));
    EXPECT_TRUE(lacks("codec = 'topk'"));
    EXPECT_FALSE(lacks("codec = 'topk'", Op::kSend));
}

TEST(Plan, NeverSendsMoreThanNative) {
    const Config config = by_keys("codec = 'bf16'\nmatch = { op = 'allreduce' }\nmin_bytes = 0\n");
    // A 16-bit cast of 16-bit data gains nothing.
    const Plan plan = make_plan(sum_of(1 << 20, DType::kFloat16), shape_of(4), config);
    EXPECT_FALSE(plan.compressed);
    for (uint64_t count = 2; count < 300; ++count) {
        const Plan small = make_plan(sum_of(count), shape_of(8), config);
        if (small.compressed) {
            EXPECT_LT(wire_bytes_of(small, shape_of(8), 0), native_wire_bytes(small.signature, 8));
        }
    }
}

TEST(Plan, FlatTwoShotIsRefusedWhereNodesHoldManyRanks) {
    const Config int8 = by_keys("codec = 'int8'\nmatch = { op = 'allreduce' }\nmin_bytes = 0\n");
    PlanShape shape = shape_of(16);
    shape.max_ranks_per_node = 8;
    const Plan plan = make_plan(sum_of(1 << 22), shape, int8);
    EXPECT_FALSE(plan.compressed);
    EXPECT_NE(plan.reason.find("out of a node"), std::string::npos) << plan.reason;
    shape.scope = Scope::kIntraNode;
    EXPECT_TRUE(make_plan(sum_of(1 << 22), shape, int8).compressed);
}

TEST(Plan, TheMemoryLimitCountsWhatEarlierPlansTook) {
    Config config = int4_config();
    const Plan free = make_plan(sum_of(1 << 20), shape_of(4), config);
    config.settings.max_memory_bytes = free.scratch.bytes + free.residual.bytes;
    EXPECT_TRUE(make_plan(sum_of(1 << 20), shape_of(4), config).compressed);
    PlanShape later = shape_of(4);
    later.committed_bytes = 1;
    const Plan refused = make_plan(sum_of(1 << 20), later, config);
    EXPECT_FALSE(refused.compressed);
    EXPECT_NE(refused.reason.find("exceed SLIMWIRE_MAX_MEMORY"), std::string::npos)
        << refused.reason;
}

// Slices are smaller where scratch is less, down to what is native on all ranks.
TEST(Plan, FitsTheScratchThatAllRanksHave) {
    const Config config = int4_config();
    const Plan free = make_plan(sum_of(1 << 26), shape_of(4), config);
    PlanShape shape = shape_of(4);
    shape.scratch_bytes = free.scratch.bytes;
    EXPECT_EQ(make_plan(sum_of(1 << 26), shape, config).layout.slices.size(),
              free.layout.slices.size());
    shape.scratch_bytes = free.scratch.bytes / 3;
    const Plan less = make_plan(sum_of(1 << 26), shape, config);
    EXPECT_TRUE(less.compressed);
    EXPECT_LE(less.scratch.bytes, free.scratch.bytes / 3);
    EXPECT_GT(less.layout.slices.size(), free.layout.slices.size());
    shape.scratch_bytes = 4096;
    const Plan refused = make_plan(sum_of(1 << 26), shape, config);
    EXPECT_FALSE(refused.compressed);
    EXPECT_NE(refused.reason.find("more than the 4096 that all ranks have"), std::string::npos)
        << refused.reason;
    EXPECT_NE(refused.reason.find("SLIMWIRE_MAX_MEMORY"), std::string::npos) << refused.reason;
    EXPECT_NE(refused.remedy, nullptr);
    // What is reserved has room for sums of any size.
    shape.scratch_bytes = largest_scratch(shape_of(4), config);
    EXPECT_GE(*shape.scratch_bytes, free.scratch.bytes);
    EXPECT_TRUE(make_plan(sum_of(uint64_t{1} << 30), shape, config).compressed);
}

// A codec of a ramp that takes more scratch than the rule's own: both cut the message as that one
// has room, or their residuals would lie apart and the stage be native.
TEST(Plan, StagesOfARampAreCutAlike) {
    const Config config = by_keys(
        "codec = 'topk:fraction=0.01'\nef = 'ef14'\nramp = [{ until = 9, codec = "
        "'topk:fraction=0.2' }, { until = 10, codec = 'native' }]\n");
    PlanShape shape = shape_of(4);
    const Plan free = make_plan(sum_of(1 << 24), shape, config);
    ASSERT_TRUE(free.variants.at(0)->compressed) << free.variants[0]->reason;
    ASSERT_GT(free.variants[0]->scratch.bytes, free.scratch.bytes);
    for (const uint64_t part : {1, 3}) {
        shape.scratch_bytes = free.scratch.bytes / part;
        const Plan plan = make_plan(sum_of(1 << 24), shape, config);
        ASSERT_TRUE(plan.compressed) << plan.reason;
        const Plan& stage = *plan.variants.at(0);
        EXPECT_TRUE(stage.compressed) << stage.reason;
        EXPECT_TRUE(residuals_alike(plan, stage));
        EXPECT_GT(plan.layout.slices.size(), free.layout.slices.size());
        EXPECT_LE(std::max(plan.scratch.bytes, stage.scratch.bytes), *shape.scratch_bytes);
    }
    // The reserve has room for all of them as they are.
    shape.scratch_bytes = largest_scratch(shape_of(4), config);
    EXPECT_EQ(make_plan(sum_of(1 << 24), shape, config).layout.slices.size(),
              free.layout.slices.size());
}

// What an autoencoder makes of a call, or has one mask, cannot be cut, and its direction is known
// only later.
TEST(Plan, WhatCannotBeCutFitsTheScratch) {
    const struct {
        int ranks;
        const char* keys;
        std::vector<Op> ops;
        std::vector<Direction> directions;
    } cases[] = {{4,
                  "codec = 'linear_ae:width=16,row=1024'\nforward_calls = 2\n",
                  {Op::kSend, Op::kRecv, Op::kAllToAll},
                  {Direction::kForward, Direction::kBackward}},
                 {2,
                  "codec = 'threshold:fraction=0.05,refresh=1,pair=mask'\n",
                  {Op::kSend, Op::kRecv},
                  {Direction::kUnknown, Direction::kForward, Direction::kBackward}}};
    for (const auto& of : cases) {
        const bool exchanges = of.ops.size() > 2;
        const Config config = by_keys(std::string("match = { op = ['send', 'recv'") +
                                      (exchanges ? ", 'alltoall'" : "") + "] }\n" + of.keys);
        PlanShape shape = shape_of(of.ranks);
        shape.scratch_bytes = largest_scratch(shape, config);
        if (!exchanges) {
            EXPECT_LT(*shape.scratch_bytes, 32u << 20);  // frames alone; those of 1 GiB have 79 MiB
        }
        for (const Op op : of.ops) {
            for (const Direction direction : of.directions) {
                // An all-to-all's count is of each rank.
                CallSignature signature =
                    sum_of((uint64_t{1} << 26) / (op == Op::kAllToAll ? 4 : 1), DType::kFloat32,
                           RedOp::kNone, op);
                signature.direction = direction;
                signature.root_or_peer = op == Op::kAllToAll ? 0 : 1;
                const Plan plan = make_plan(signature, shape, config);
                EXPECT_TRUE(plan.compressed) << op_name(op) << ": " << plan.reason;
            }
        }
    }
}

// Stages that are each other's next one and the one before.
TEST(Plan, ChunksBetweenTwoRanksAreNative) {
    const Config config = by_keys(
        "match = { op = ['send', 'recv'] }\ncodec = 'topk:fraction=0.05,pair=mask'\npairing = 2\n");
    CallSignature signature = sum_of(1 << 20, DType::kFloat32, RedOp::kNone);
    signature.op = Op::kSend;
    signature.root_or_peer = 1;
    for (const int ranks : {2, 3}) {
        const Plan plan = make_plan(signature, shape_of(ranks), config);
        EXPECT_EQ(plan.compressed, ranks != 2) << plan.reason;
        EXPECT_EQ(plan.pairs.has_value(), ranks != 2);
        EXPECT_EQ(plan.remedy != nullptr, ranks == 2);
        EXPECT_EQ(plan.rule, "r");
        EXPECT_EQ(plan.reason.find("between two stages alone") == 0, ranks == 2) << plan.reason;
    }
}

// Slices of a message that is alone follow each other through two slots; of several messages all
// slices are under way.
TEST(Plan, MessagesOfAnySizeFitTheScratch) {
    const Config config = by_keys("match = { op = 'send' }\ncodec = 'int4'\n");
    PlanShape shape = shape_of(4);
    shape.scratch_bytes = largest_scratch(shape_of(4), config);
    CallSignature signature = sum_of(uint64_t{1} << 28, DType::kFloat32, RedOp::kNone);
    for (const Op op : {Op::kSend, Op::kRecv}) {
        signature.op = op;
        signature.root_or_peer = 1;
        const Plan plan = make_plan(signature, shape, config);
        ASSERT_TRUE(plan.compressed) << plan.reason;
        EXPECT_EQ(plan.layout.slices.size(), 64u);
        EXPECT_LE(plan.scratch.of_call(true), 2u * (16u << 20) * 17u / 128u + 512u);
        EXPECT_GE(plan.scratch.of_call(false), uint64_t{1} << 27);
    }
}

const Averaging* averaging_of(const Plan& plan) {
    return plan.part<Averaging>();
}

TEST(Plan, AveragingTakesTheCheaperWayAndCountsItsScratch) {
    const auto config = [](const std::string& more) {
        return by_keys(
            "match = { op = ['allreduce', 'reducescatter'] }\ncodec = 'topk:fraction=0.001'\nef = "
            "'ef14'\naverage_every = 20\n" +
            more);
    };
    constexpr uint64_t kCount = 1 << 20;
    const Config plain = config(""), coded = config("average_codec = 'int8'\n");
    Plan plan = make_plan(sum_of(kCount), shape_of(4), plain);
    ASSERT_NE(averaging_of(plan), nullptr) << plan.reason;
    EXPECT_TRUE(plan.needs_slot);
    EXPECT_FALSE(plan.capturable);
    EXPECT_EQ(averaging_of(plan)->every, 20u);
    EXPECT_EQ(averaging_of(plan)->elems(), kCount);
    EXPECT_EQ(averaging_wire_bytes(*averaging_of(plan), shape_of(4), 2), 2 * 3 * kCount);
    EXPECT_GE(plan.scratch.bytes, averaging_of(plan)->call.scratch.bytes);
    EXPECT_GE(averaging_of(plan)->call.scratch.bytes, 4 * kCount);
    EXPECT_NE(plan.reason.find("averaged every 20 calls"), std::string::npos);
    // One-shot of two ranks, two-shot of more.
    for (const int ranks : {2, 3, 8}) {
        plan = make_plan(sum_of(kCount), shape_of(ranks), coded);
        ASSERT_EQ(averaging_of(plan)->parts.size(), 1u);
        const Plan* const part = averaging_of(plan)->parts[0].coded.get();
        ASSERT_NE(part, nullptr);
        EXPECT_EQ(part->algorithm, ranks == 2 ? Algorithm::kGather : Algorithm::kTwoShot);
        EXPECT_EQ(part->error_feedback, ErrorFeedback::kEf14);
        EXPECT_NE(plan.reason.find("averaged every 20 calls by int8"), std::string::npos);
    }
    // In parts of four slices, at blocks of residuals; the whole buffer of a reduce-scatter.
    Config sliced = coded;
    sliced.settings.slice_bytes = 100'000;
    CallSignature scatter = sum_of(kCount / 4);
    scatter.op = Op::kReduceScatter;
    plan = make_plan(scatter, shape_of(4), sliced);
    ASSERT_TRUE(plan.compressed) << plan.reason;
    EXPECT_GT(averaging_of(plan)->parts.size(), 10u);
    int64_t end = 0;
    for (const Averaging::Part& part : averaging_of(plan)->parts) {
        EXPECT_EQ(part.begin, end);
        EXPECT_GT(part.end, part.begin);
        EXPECT_LE(part.end - part.begin, 100'000);
        end = part.end;
    }
    EXPECT_EQ(end, static_cast<int64_t>(kCount));
    EXPECT_LT(averaging_of(plan)->call.scratch.bytes, 4u << 20);
    // What does not fit is native.
    Config small = plain;
    plan = make_plan(sum_of(kCount), shape_of(4), plain);
    small.settings.max_memory_bytes = plan.scratch.bytes + plan.residual.bytes;
    EXPECT_TRUE(make_plan(sum_of(kCount), shape_of(4), small).compressed);
    --small.settings.max_memory_bytes;
    const Plan native = make_plan(sum_of(kCount), shape_of(4), small);
    EXPECT_FALSE(native.compressed);
    EXPECT_NE(native.reason.find("averaging included"), std::string::npos) << native.reason;
    // Where nothing is saved, as they are.
    const Plan wide =
        make_plan(sum_of(kCount), shape_of(4), config("average_codec = 'topk:fraction=1'\n"));
    ASSERT_TRUE(wide.compressed) << wide.reason;
    EXPECT_EQ(averaging_of(wide)->codec, "native");
    EXPECT_NE(wide.reason.find("would send more"), std::string::npos) << wide.reason;
}

// What a tensor's residuals take in each type, and that what is not fp32 of EF14 has a window.
TEST(Plan, ResidualsOfEveryTypeAndKind) {
    constexpr uint64_t kCount = 1 << 20, kOwed = kCount + kCount / 4;
    struct Case {
        const char* action;
        double bytes;
        bool apart;
    };
    for (const Case& of :
         {Case{"ef = 'ef14'", 4, false}, Case{"ef = 'ef14'\nresidual = 'bf16'", 2, true},
          Case{"ef = 'ef14'\nresidual = 'int8'", 66.0 / 64, true},
          Case{"ef = 'ema'", 66.0 / 64, true}, Case{"ef = 'ema'\nresidual = 'fp32'", 4, true}}) {
        SCOPED_TRACE(of.action);
        const Config config = by_keys(std::string("codec = 'int4'\n") + of.action + "\n");
        const Plan plan = make_plan(sum_of(kCount), shape_of(4), config);
        ASSERT_TRUE(plan.compressed) << plan.reason;
        EXPECT_GE(static_cast<double>(plan.residual.bytes), of.bytes * kOwed);
        EXPECT_LT(static_cast<double>(plan.residual.bytes), of.bytes * kOwed * 1.001);
        EXPECT_LE(static_cast<double>(plan.residual.bytes) / kOwed,
                  of.bytes == 66.0 / 64 ? 1.1 : 4.0);
        EXPECT_EQ(plan.residual.staged, of.apart);
        EXPECT_EQ(plan.draws.any, of.apart && of.bytes != 4);
        if (of.apart) {
            EXPECT_GE(plan.scratch.bytes, plan.scratch.staging_offset + 4 * kCount);
        }
    }
}

// Saved residuals are taken up by this hash: its text must stay. Variants keep residuals as their
// plan, whatever their codec.
TEST(Plan, TheShapeOfResidualsIsThatOfSavedOnes) {
    const Plan plan = make_plan(sum_of(1 << 20), shape_of(4), int4_config());
    const std::string codec = plan.layout.slices[0].pieces[0].codec.to_string();
    EXPECT_EQ(plan.residual.shape,
              stable_hash(codec + "+ef14 two_shot 0 1310720 5242880 4 1 0 1048576 262144" + codec));
    const Plan ramped = make_plan(
        sum_of(1 << 20), shape_of(4),
        by_keys("codec = 'int4'\nef = 'ef14'\nramp = [{ until = 10, codec = 'int8' }]\n"));
    ASSERT_EQ(ramped.variants.size(), 1u);
    ASSERT_TRUE(ramped.variants[0]->compressed) << ramped.variants[0]->reason;
    EXPECT_EQ(ramped.residual.shape, plan.residual.shape);
    EXPECT_EQ(ramped.variants[0]->residual.shape, ramped.residual.shape);
}

// The plan of tensors that do not come back.
TEST(Plan, WithoutResidualsNothingIsKept) {
    const Plan kept = make_plan(sum_of(1 << 20), shape_of(4), int4_config());
    const Plan plan = without_residuals(kept);
    EXPECT_TRUE(plan.compressed);
    EXPECT_EQ(plan.error_feedback, ErrorFeedback::kNone);
    EXPECT_EQ(plan.tensor_bytes(), 0u);
    EXPECT_EQ(wire_bytes_of(plan, shape_of(4), 0), wire_bytes_of(kept, shape_of(4), 0));
}

// Twice the message and a chunk, a window for differences; of a reduce-scatter what both ends of
// its blocks keep.
TEST(Plan, EstimatesOfEf21) {
    constexpr uint64_t kCount = 1 << 20;
    const Config config = by_keys("codec = 'int4'\nef = 'ef21'\n");
    CallSignature signature = sum_of(kCount);
    for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
        signature.dtype = dtype;
        const Plan plan = make_plan(signature, shape_of(4), config);
        ASSERT_TRUE(plan.compressed) << plan.reason;
        EXPECT_TRUE(plan.needs_slot);
        EXPECT_TRUE(plan.capturable);
        EXPECT_FALSE(plan.residual.staged);
        EXPECT_EQ(plan.encoded_dtype(), DType::kFloat32);
        EXPECT_EQ(plan.residual.bytes, 4 * (2 * kCount + kCount / 4));
        EXPECT_EQ(plan.residual.shared_estimate, kCount + kCount / 4);
        EXPECT_GE(plan.scratch.marks_offset, plan.scratch.staging_offset + 4 * kCount);
        EXPECT_GE(plan.scratch.bytes, plan.scratch.marks_offset + 4 * sizeof(uint32_t));
    }
    signature.dtype = DType::kBfloat16;
    // Operation, algorithm, and in blocks of `count` where copies begin and all that is kept.
    const struct {
        Op op;
        const char* algorithm;
        uint64_t begin, kept;
    } forms[] = {{Op::kAllReduce, "gather", 1, 2}, {Op::kReduceScatter, "auto", 4, 8}};
    const auto plan_of = [&](Op op, const std::string& algorithm) {
        signature.op = op;
        signature.redop = reduces(op) ? RedOp::kSum : RedOp::kNone;
        return make_plan(
            signature, shape_of(4),
            by_keys("match = { op = '" + std::string(op_name(op)) +
                    "' }\ncodec = 'int4'\nef = 'ef21'\nalgorithm = '" + algorithm + "'\n"));
    };
    for (const auto& form : forms) {
        SCOPED_TRACE(op_name(form.op));
        const Plan plan = plan_of(form.op, form.algorithm);
        ASSERT_TRUE(plan.compressed) << plan.reason;
        EXPECT_EQ(plan.residual.shared_estimate, form.begin * kCount);
        EXPECT_EQ(plan.residual.bytes, 4 * form.kept * kCount);
        for (int rank = 0; rank < 4; ++rank) {
            EXPECT_TRUE(keeps_residual(plan, rank)) << "both ends have the estimate";
        }
    }
    for (const Op op : {Op::kAllGather, Op::kAllToAll, Op::kBroadcast, Op::kGather, Op::kScatter,
                        Op::kSend, Op::kRecv}) {
        EXPECT_EQ(plan_of(op, "auto").reason,
                  std::string("ef21 has no form of ") + op_name(op) + " by direct");
    }
    for (const char* algorithm : {"auto", "two_shot"}) {
        const Plan reduced = plan_of(Op::kReduce, algorithm);
        EXPECT_FALSE(reduced.compressed);
        EXPECT_EQ(reduced.reason, "ef21 has no form of reduce by two_shot");
    }
}

TEST(Plan, PlacesAreGrantedInOrderAndTakenBack) {
    Config config = int4_config();
    const Plan plan = make_plan(sum_of(1 << 20), shape_of(4), config);
    ASSERT_GT(plan.residual.bytes, 0u);
    config.settings.max_memory_bytes = plan.scratch.bytes + 2 * plan.residual.bytes;
    Session state;
    state.granted.plans[{-1, Op::kAllReduce}].residual_bytes =
        plan.residual.bytes;  // with the plan
    const auto grant = [&](uint32_t ordinal) {
        bool first = false;
        StepPosition place;
        place.slot = 1;
        place.ordinal = ordinal;
        const bool granted = grant_place(config.settings, &state, plan, place, &first);
        EXPECT_FALSE(grant_place(config.settings, &state, plan, place, &first) != granted || first)
            << "a decision stays";
        return granted;
    };
    const auto drop = [&](uint32_t ordinal) { ungrant_place(&state, {&plan, 1, ordinal}); };
    EXPECT_TRUE(grant(7));
    EXPECT_TRUE(grant(8));
    EXPECT_FALSE(grant(9)) << "two are all there is room for";
    EXPECT_TRUE(grant(7));
    // Calls of a dropped group never were: as if the places had not been asked for.
    drop(9);
    drop(8);
    EXPECT_TRUE(grant(10));
    EXPECT_FALSE(grant(8));
    for (const uint32_t ordinal : {8, 10, 7}) {
        drop(ordinal);
    }
    EXPECT_EQ((state.granted.plans[{-1, Op::kAllReduce}].residual_bytes), plan.residual.bytes);
    EXPECT_TRUE(state.granted.places.empty());
    config.settings.max_memory_bytes = 0;
    EXPECT_TRUE(grant(7) && grant(8) && grant(9));
}

TEST(NativeWireBytes, RingFormulas) {
    EXPECT_EQ(native_wire_bytes(sum_of(1000), 4), 6000u);
    CallSignature signature = sum_of(1000);
    signature.op = Op::kAllGather;
    EXPECT_EQ(native_wire_bytes(signature, 4), 12000u);
    EXPECT_EQ(message_bytes(signature, 4), 16000u);
    signature.op = Op::kRecv;
    EXPECT_EQ(native_wire_bytes(signature, 4), 0u);
    EXPECT_EQ(native_wire_bytes(sum_of(1000), 1), 0u);
}

TEST(PlanCache, FindsWhatWasInsertedAndNothingElse) {
    PlanCache cache;
    EXPECT_EQ(cache.find(sum_of(1)), nullptr);
    for (uint64_t count = 0; count < 5000; ++count) {
        Plan plan;
        plan.signature = sum_of(count * 3);
        ASSERT_NE(cache.insert(std::move(plan)), nullptr);
    }
    for (uint64_t count = 0; count < 15000; ++count) {
        const PlanEntry* entry = cache.find(sum_of(count));
        ASSERT_EQ(entry != nullptr, count % 3 == 0) << count;
        if (entry != nullptr) {
            EXPECT_EQ(entry->plan->signature.count, count);
        }
    }
    EXPECT_EQ(cache.find(sum_of(3, DType::kFloat16)), nullptr);
}

// Two buckets of one size, or two places in the step, are two kinds of calls and two tensors.
TEST(PlanCache, TellsApartWhatCallsCarryAndWhereTheyStand) {
    for (uint32_t CallSignature::*member : {&CallSignature::ranges_id, &CallSignature::ordinal}) {
        PlanCache cache;
        CallSignature signature = sum_of(1 << 20);
        std::set<uint32_t> drawn;
        for (uint32_t value = 0; value < 200; ++value) {
            signature.*member = value;
            EXPECT_EQ(cache.find(signature), nullptr) << value;
            Plan plan;
            plan.signature = signature;
            plan.scratch.bytes = value;
            EXPECT_EQ(cache.insert(std::move(plan))->plan->scratch.bytes, value);
            EXPECT_EQ(cache.find(signature)->plan->scratch.bytes, value);
            drawn.insert(make_plan(signature, shape_of(4), int4_config()).draws.key.tensor);
        }
        EXPECT_EQ(drawn.size(), 200u) << "tensors draw different numbers";
        TensorKey one, two;
        one.signature = two.signature = signature;
        two.signature.*member = 7;
        EXPECT_FALSE(one.signature == two.signature);
        EXPECT_TRUE(one < two || two < one);
    }
}

}  // namespace
}  // namespace slimwire
