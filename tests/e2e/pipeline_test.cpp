// Pipelines of stages: rules by direction, on both ends of every message alike, and activations and
// gradients that share masks (programs/pipeline.cpp).
#include "collectives/identity/message_rows.h"
#include "tests/e2e/stages.h"
#include "tests/support/has.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

TEST(Pipeline, RulesByDirection) {
    const std::string policy =
        "[[rule]]\nname = \"activations\"\ncodec = \"int8\"\n"
        "match = { op = [\"send\", \"recv\"], direction = \"forward\" }\n"
        "[[rule]]\nname = \"gradients\"\ncodec = \"bf16\"\n"
        "match = { op = [\"send\", \"recv\"], direction = [\"backward\"] }\n";
    for (const char* schedule : {"1f1b", "newest"}) {
        const PipelineOutcome found = run_stages(policy, {schedule, "2", "5", "3000"});
        const uint64_t ends = 2 * 2;
        EXPECT_EQ(found.calls("forward", "int8"), ends * (10 - kFirst));
        EXPECT_EQ(found.calls("backward", "bf16"), ends * (10 - kFirst));
        EXPECT_EQ(found.calls("", "native"), 2 * ends * kFirst);
    }
    const PipelineOutcome shadow = run_stages(policy, {"1f1b", "2", "5", "3000"}, 2, "shadow");
    EXPECT_EQ(sum_keys(shadow.records, "calls",
                       [](const nlohmann::json& key) {
                           return key.value("direction", "") == "forward" &&
                                  key.value("shadow_codec", "") == "int8";
                       }),
              2 * (10 - kFirst));
}

// Both ways through every stage, to the bit.
TEST(Pipeline, GradientsAreThoseOfTheMaskedNetwork) {
    const struct {
        const char* schedule;
        const char* codec;
        const char* more;
    } kCases[] = {
        {"1f1b", "topk:fraction=0.05,pair=mask", ""},
        {"1f1b", "threshold:fraction=0.05,refresh=1000,pair=mask", "pairing = \"fifo\"\n"},
        {"gpipe", "topk:fraction=0.05,pair=mask", ""},
        {"newest", "topk:fraction=0.05,pair=mask", "pairing = \"lifo\"\n"},
        {"eval", "topk:fraction=0.05,pair=mask", ""},
    };
    for (const auto& one : kCases) {
        SCOPED_TRACE(std::string(one.schedule) + " " + one.codec);
        const PipelineOutcome found =
            run_stages(masked(one.codec, one.more), {one.schedule, "4", "6", "3000", "150"});
        const int extra = std::string(one.schedule) == "eval" ? 20 : 0;
        expect_right(found, {24, 48 + extra, 24 + extra});
        EXPECT_EQ(missed(found), 0u);
        const auto sent = [&](const char* direction, const char* member) {
            return sum_keys(found.records, member, [&](const nlohmann::json& key) {
                return key.value("direction", "") == direction && key.at("op") == "send";
            });
        };
        // 150 values of 4 bytes and a trailer of 16; forward a header of 16, tables and positions.
        ASSERT_EQ(sent("backward", "calls"), 2u * 20u);
        EXPECT_EQ(sent("backward", "wire_bytes"), 40u * 624u);
        EXPECT_EQ(sent("forward", "wire_bytes"), sent("forward", "calls") * (624u + 160u));
    }
}

// Of 80 activations that wait the first 16 masks are not held any more. The first frames that say
// that some were missed are those of the second step, and 32 answers later each has positions.
TEST(Pipeline, MasksThatAreNotHeldComeAsZerosUntilBothEndsSendPositions) {
    const PipelineOutcome found = run_stages(masked("topk:fraction=0.05,pair=mask"),
                                             {"gpipe", "3", "80", "600", "30", "64", "112"}, 2);
    expect_right(found, {240, 240});
    EXPECT_EQ(missed(found), 12u + 16u);
    const std::string& log = found.ranks[0].err;
    const size_t warned = log.find("gradients came as zeros, their masks were not held: ");
    EXPECT_NE(warned, std::string::npos) << log;
    EXPECT_EQ(log.find("gradients came as zeros", warned + 1), std::string::npos) << log;
    EXPECT_EQ(found.calls("backward", "topk:fraction=0.05,pair=mask"), 2u * (112u - kFirst));
}

// Memory of masks that are too small is that of larger ones from then on.
TEST(Pipeline, MessagesThatGrowKeepTheirMasks) {
    const PipelineOutcome found =
        run_stages(masked("topk:fraction=0.05,pair=mask"), {"grows", "100", "1", "600", "30"}, 2);
    expect_right(found, {100, 100});
    EXPECT_EQ(missed(found), 0u);
}

// Messages of a test that nobody answers put off no positions: the second step begins with forward
// message 380, frame 384 is the first that says that masks were missed, and the answers of both
// ends are counted from 380 on.
TEST(Pipeline, AnswersCatchUpWithATestAtTheMark) {
    const PipelineOutcome found = run_stages(masked("topk:fraction=0.05,pair=mask"),
                                             {"tested", "3", "80", "600", "30", "64", "116"}, 2);
    expect_right(found, {240, 240 + 300});
    EXPECT_EQ(missed(found), 16u + 16u);
}

// All that the wrong order of answers costs is what the masks of others lose.
TEST(Pipeline, AWrongOrderHangsNothing) {
    const PipelineOutcome found = run_stages(
        masked("topk:fraction=0.05,pair=mask", "pairing = \"lifo\"\n"), {"1f1b", "3", "6", "3000"});
    expect_right(found, {18, 36, 18});
    const PipelineOutcome shadow =
        run_stages(masked("topk:fraction=0.05,pair=mask"), {"1f1b", "2", "5", "3000"}, 2, "shadow");
    expect_right(shadow, {10, 10});
}

// Where the first message was no activation, answers may be far ahead of what they answer; both
// ends begin with positions at the same one, however they group.
TEST(Pipeline, AWrongFirstMessageHangsNothing) {
    const PipelineOutcome found =
        run_stages(masked("topk:fraction=0.05,pair=mask"), {"against", "80", "60", "3000"}, 2, "on",
                   "", SLIMWIRE_TEST_PIPELINE, "more answers are ahead than the device may lag");
    EXPECT_EQ(found.ranks[0].out, "81\n");
    EXPECT_EQ(found.ranks[1].out, "140\n");
    EXPECT_GT(missed(found), 0u);
    EXPECT_GT(found.calls("", "topk:fraction=0.05,pair=mask"), 2u * 2u * kFirst);
}

// Two stages whose chunks take turns go native, and say so.
TEST(Pipeline, ChunksBetweenTwoRanksAreNative) {
    const PipelineOutcome found = run_stages(
        masked("topk:fraction=0.05,pair=mask", "pairing = 2\n"), {"1f1b", "2", "5", "3000"}, 2);
    expect_right(found, {10, 10});
    EXPECT_EQ(found.calls("", "native"), 2u * 2u * 10u);
    EXPECT_HAS(found.ranks[0].err, "between two stages alone nothing tells");
}

// One of the allocations of a rank fails: that of its counter, of a mask, or another one.
TEST(Pipeline, NoRoomForMasksEndsNothing) {
    const std::string call = std::to_string(1 + test_seed() % 9);
    SCOPED_TRACE("allocation " + call);
    const PipelineOutcome found =
        run_stages(masked("topk:fraction=0.05,pair=mask"), {"1f1b", "3", "6", "3000"}, 3, "on",
                   "cudaGetDriverEntryPointByVersion:1+,cudaMallocFromPoolAsync:" + call);
    expect_right(found, {18, 36, 18});
}

// Frames of both ways are 60 rows of 2 numbers and a trailer (what is in them:
// plugin/learned_code_test.cpp), on all schedules; rows that are not held are counted.
TEST(Pipeline, AnAutoencoderLearnsFromAnswers) {
    const std::string policy = masked("linear_ae:width=2,row=50");
    for (const char* schedule : {"1f1b", "gpipe", "newest", "eval"}) {
        SCOPED_TRACE(schedule);
        const PipelineOutcome found = run_stages(policy, {schedule, "4", "6", "3000"});
        const uint64_t extra = std::string(schedule) == "eval" ? 20 : 0;
        for (const nlohmann::json& record : found.records) {
            EXPECT_EQ(record.value("host_waits", 0u), 0u) << record.dump();
        }
        EXPECT_EQ(missed(found), 0u);
        EXPECT_EQ(found.calls("forward", "linear_ae:width=2,row=50"),
                  2u * 2u * (24 + extra - kFirst));
        EXPECT_EQ(found.calls("backward", "linear_ae:width=2,row=50"), 2u * 2u * (24 - kFirst));
        EXPECT_EQ(sum_keys(found.records, "wire_bytes",
                           [](const nlohmann::json& key) {
                               return key.at("op") == "send" && key.at("codec") != "native";
                           }),
                  2u * (48 + extra - 2 * kFirst) * (60 * 2 * 4 + 16));
    }
    EXPECT_GT(missed(run_stages(policy, {"gpipe", "3", "80", "3000"}, 2)), 0u);
    const std::string call = std::to_string(1 + test_seed() % 9);
    SCOPED_TRACE("allocation " + call);
    const PipelineOutcome without =
        run_stages(policy, {"1f1b", "3", "6", "3000"}, 3, "on",
                   "cudaGetDriverEntryPointByVersion:1+,cudaMallocFromPoolAsync:" + call);
    EXPECT_EQ(without.calls("forward", "linear_ae:width=2,row=50"), 2u * 2u * (18 - kFirst));
}

// Rows that headers tell of, from a number on that both ends of each message know; nothing then
// goes by an activation that was native. As the rule's own they are then, on the wire, too.
TEST(Pipeline, ShapesInFrontOfMessagesTellRows) {
    constexpr uint64_t kFrom = 2 * MessageRows::kLag, kAnswers = kFrom + MessageRows::kAnswersLater;
    constexpr uint64_t kBatches = 26 * 4;
    const struct {
        const char *codec, *told, *schedule;
        uint64_t forward, answer;  // bytes of a message
    } kCases[] = {
        {"linear_ae:width=2", "linear_ae:width=2,row=50", "1f1b+megatron", 60 * 8 + 16,
         60 * 8 + 16},
        {"linear_ae:width=2", "linear_ae:width=2,row=50", "newest+deepspeed", 60 * 8 + 16,
         60 * 8 + 16},
        {"powersgd:rank=2", "powersgd:rank=2,row=50", "1f1b+deepspeed", 1024 + 16, 560},
        {"powersgd:rank=2", "powersgd:rank=2,row=50", "1f1b+older", 1024 + 16, 560},
        {"powersgd:rank=2", "powersgd:rank=2,row=50", "gpipe+megatron", 1024 + 16, 560},
    };
    for (const auto& one : kCases) {
        SCOPED_TRACE(std::string(one.codec) + " " + one.schedule);
        const PipelineOutcome found =
            run_stages(masked(one.codec), {one.schedule, "26", "4", "3000"});
        expect_right(found, {104, 208, 104});
        EXPECT_EQ(missed(found), 0u);
        EXPECT_EQ(found.calls("forward", one.told), 2 * 2 * (kBatches - kFrom));
        EXPECT_EQ(found.calls("backward", one.told), 2 * 2 * (kBatches - kAnswers));
        const auto sent = [&](const char* direction) {
            return sum_keys(found.records, "wire_bytes", [&](const nlohmann::json& key) {
                return key.value("direction", "") == direction && key.at("op") == "send" &&
                       key.at("codec") == one.told;
            });
        };
        EXPECT_EQ(sent("forward"), 2 * (kBatches - kFrom) * one.forward);
        EXPECT_EQ(sent("backward"), 2 * (kBatches - kAnswers) * one.answer);
    }
}

// Without headers, and where they tell of several rows, all is native, and the report says how not.
TEST(Pipeline, NoShapesOrSeveralLeaveMessagesNative) {
    for (const char* schedule : {"1f1b", "1f1b+differing"}) {
        SCOPED_TRACE(schedule);
        const PipelineOutcome found = run_stages(
            "[[rule]]\nname = \"stages\"\ncodec = \"powersgd:rank=2\"\n"
            "match = { op = [\"send\", \"recv\"], dtype = \"f32\" }\n",
            {schedule, "26", "4", "3000"}, 2);
        expect_right(found, {104, 104});
        EXPECT_EQ(found.calls("forward", "native"), 2 * (104 - kFirst));
        EXPECT_EQ(found.calls("backward", "native"), 2 * (104 - kFirst));
        EXPECT_HAS(found.ranks[0].err, "row= in the codec, or shapes in front of messages");
    }
}

TEST(Pipeline, AnAverageThatIsNeverMadeIsSaid) {
    for (const char* average : {"none", "dp"}) {
        const PipelineOutcome found =
            run_stages(masked(std::string("linear_ae:width=2,row=50,average=") + average),
                       {"1f1b", "40", "1", "600"}, 2);
        EXPECT_EQ(found.ranks[0].err.find("do not average an autoencoder") == std::string::npos,
                  std::string(average) == "none")
            << found.ranks[0].err;
    }
}

// Where one rank has no scratch none averages; where it has none for weights they are the host's.
TEST(Pipeline, NoRoomForWhatCopiesAverageEndsNothing) {
    const std::string policy = masked("linear_ae:width=2,row=50,average=dp");
    const auto said = [&](const std::string& function, const std::string& call) {
        SCOPED_TRACE(function + " from " + call);
        return run_stages(policy, {"0", "12", "-", "-", "staged"}, 4, "on",
                          "cudaGetDriverEntryPointByVersion:1+," + function + ":" + call,
                          SLIMWIRE_TEST_RESUMED)
            .ranks[1]
            .err;
    };
    std::string all;
    for (int call = 3; call <= 12; ++call) {
        all += said("cudaMallocFromPoolAsync", std::to_string(call) + "+");
    }
    const std::string event = "cudaEventCreateWithFlags", made = said(event, "1+=1us");
    int events = 0;
    for (size_t at = 0; (at = made.find(event + " call ", at) + 1) != 0;) {
        ++events;
    }
    for (int call = events; call > events - 2; --call) {  // of weights
        all += said(event, std::to_string(call) + "+");
    }
    EXPECT_HAS(all, "copies of a model do not average");
    EXPECT_HAS(all, "has no events here");
    EXPECT_HAS(all, "bytes that other ranks count on");
}

// A device that is full once the communicator is made keeps nothing of messages: that is counted
// and said, and gradients come from the 32nd message on.
TEST(Pipeline, NoRoomForMasksIsCountedAndGradientsComeLater) {
    for (const std::string codec : {"topk:fraction=0.05,pair=mask", "powersgd:rank=2,row=50"}) {
        SCOPED_TRACE(codec);
        const PipelineOutcome found =
            run_stages(masked(codec), {"1f1b", "20", "6", "3000"}, 2, "on",
                       "cudaGetDriverEntryPointByVersion:1+,cudaMallocFromPoolAsync:2+",
                       SLIMWIRE_TEST_PIPELINE, "pinned memory in the place of the device's waits");
        EXPECT_GT(missed(found), 0u);
        EXPECT_LE(missed(found), 48u);
        EXPECT_GE(found.calls("", codec), 2u * 2u * kFirst + 2u * (120 - 48));
        EXPECT_HAS(found.ranks[1].err, "until its answer comes");
        EXPECT_HAS(found.ranks[0].err, "says that it has no room");
    }
}

// Factors of 60 and of 50 rows, up to 1024 bytes, and a trailer; backward the latter alone.
TEST(Pipeline, AnswersOfLowRankHaveOneFactor) {
    const std::string codec = "powersgd:rank=2,row=50";
    for (const char* schedule : {"1f1b", "newest", "eval"}) {
        SCOPED_TRACE(schedule);
        const PipelineOutcome found = run_stages(masked(codec), {schedule, "4", "6", "3000"});
        EXPECT_EQ(missed(found), 0u);
        const auto sent = [&](const char* direction, const char* member) {
            return sum_keys(found.records, member, [&](const nlohmann::json& key) {
                return key.value("direction", "") == direction && key.at("op") == "send";
            });
        };
        ASSERT_EQ(sent("backward", "calls"), 2u * (24 - kFirst));
        EXPECT_EQ(sent("backward", "wire_bytes"), sent("backward", "calls") * (1040 - 480));
        EXPECT_EQ(sent("forward", "wire_bytes"), sent("forward", "calls") * 1040);
        EXPECT_EQ(found.calls("", "native"), 0u);
    }
    // Those that are not held come as zeros, until both ends send both factors.
    const PipelineOutcome found = run_stages(masked(codec), {"gpipe", "3", "80", "3000"}, 2);
    EXPECT_GT(missed(found), 0u);
    EXPECT_LT(found.calls("backward", codec), 2u * (240 - kFirst));
}

}  // namespace
}  // namespace slimwire::test
