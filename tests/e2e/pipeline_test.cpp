// Pipelines of stages: rules by direction, on both ends of every message alike, and activations and
// gradients that share masks (programs/pipeline.cpp).
#include <gtest/gtest.h>

#include <fstream>

#include "collectives/identity/message_pairing.h"
#include "collectives/identity/message_rows.h"
#include "tests/support/job.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

constexpr uint64_t kFirst = MessagePairing::kUndirected;

struct PipelineOutcome {
    std::vector<Ended> ranks;
    std::vector<nlohmann::json> records;

    [[nodiscard]] uint64_t calls(const std::string& direction, const std::string& codec) const {
        return sum_keys(records, "calls", [&](const nlohmann::json& key) {
            return key.value("direction", "") == direction && key.at("codec") == codec;
        });
    }
};

PipelineOutcome run(const std::string& policy,
                    const std::vector<std::string>& arguments,
                    int ranks = 3,
                    const std::string& mode = "on",
                    const std::string& fault = "",
                    const std::string& program = SLIMWIRE_TEST_PIPELINE,
                    const char* why_calls_wait = nullptr) {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml")) << "version = 1\n" << policy;
    std::vector<std::string> command = {program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Job job = slimwire_job(command, ranks, reports.path());
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    job.environment["SLIMWIRE_MODE"] = mode;
    if (!fault.empty()) {
        job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = fault;
    }
    if (why_calls_wait != nullptr) {
        let_calls_wait(&job, why_calls_wait);
    }
    PipelineOutcome out{run_ranks(job), {}};
    EXPECT_EQ(unless_all_exit(out.ranks), "");
    out.records = read_reports(reports.path());
    return out;
}

TEST(Pipeline, RulesByDirection) {
    const std::string policy =
        "[[rule]]\nname = \"activations\"\ncodec = \"int8\"\n"
        "match = { op = [\"send\", \"recv\"], direction = \"forward\" }\n"
        "[[rule]]\nname = \"gradients\"\ncodec = \"bf16\"\n"
        "match = { op = [\"send\", \"recv\"], direction = [\"backward\"] }\n";
    for (const char* schedule : {"1f1b", "newest"}) {
        const PipelineOutcome found = run(policy, {schedule, "2", "5", "3000"});
        const uint64_t ends = 2 * 2;
        EXPECT_EQ(found.calls("forward", "int8"), ends * (10 - kFirst));
        EXPECT_EQ(found.calls("backward", "bf16"), ends * (10 - kFirst));
        EXPECT_EQ(found.calls("", "native"), 2 * ends * kFirst);
    }
    const PipelineOutcome shadow = run(policy, {"1f1b", "2", "5", "3000"}, 2, "shadow");
    EXPECT_EQ(sum_keys(shadow.records, "calls",
                       [](const nlohmann::json& key) {
                           return key.value("direction", "") == "forward" &&
                                  key.value("shadow_codec", "") == "int8";
                       }),
              2 * (10 - kFirst));
}

std::string masked(const std::string& codec, const std::string& more = "") {
    return "[[rule]]\nname = \"stages\"\nmatch = { op = [\"send\", \"recv\"] }\ncodec = \"" +
           codec + "\"\n" + more;
}

void expect_right(const PipelineOutcome& found, const std::vector<int>& right) {
    for (size_t rank = 0; rank < found.ranks.size(); ++rank) {
        EXPECT_EQ(found.ranks[rank].out, std::to_string(right[rank]) + "\n");
    }
    for (const nlohmann::json& record : found.records) {
        EXPECT_EQ(record.value("host_waits", 0u), 0u) << record.dump();
    }
}

uint64_t missed(const PipelineOutcome& found) {
    uint64_t sum = 0;
    for (const nlohmann::json& record : found.records) {
        sum += record.value("missed_masks", uint64_t{0});
    }
    return sum;
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
            run(masked(one.codec, one.more), {one.schedule, "4", "6", "3000", "150"});
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
    const PipelineOutcome found = run(masked("topk:fraction=0.05,pair=mask"),
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
        run(masked("topk:fraction=0.05,pair=mask"), {"grows", "100", "1", "600", "30"}, 2);
    expect_right(found, {100, 100});
    EXPECT_EQ(missed(found), 0u);
}

// Messages of a test that nobody answers put off no positions: the second step begins with forward
// message 380, frame 384 is the first that says that masks were missed, and the answers of both
// ends are counted from 380 on.
TEST(Pipeline, AnswersCatchUpWithATestAtTheMark) {
    const PipelineOutcome found = run(masked("topk:fraction=0.05,pair=mask"),
                                      {"tested", "3", "80", "600", "30", "64", "116"}, 2);
    expect_right(found, {240, 240 + 300});
    EXPECT_EQ(missed(found), 16u + 16u);
}

// All that the wrong order of answers costs is what the masks of others lose.
TEST(Pipeline, AWrongOrderHangsNothing) {
    const PipelineOutcome found = run(
        masked("topk:fraction=0.05,pair=mask", "pairing = \"lifo\"\n"), {"1f1b", "3", "6", "3000"});
    expect_right(found, {18, 36, 18});
    const PipelineOutcome shadow =
        run(masked("topk:fraction=0.05,pair=mask"), {"1f1b", "2", "5", "3000"}, 2, "shadow");
    expect_right(shadow, {10, 10});
}

// Where the first message was no activation, answers may be far ahead of what they answer; both
// ends begin with positions at the same one, however they group.
TEST(Pipeline, AWrongFirstMessageHangsNothing) {
    const PipelineOutcome found =
        run(masked("topk:fraction=0.05,pair=mask"), {"against", "80", "60", "3000"}, 2, "on", "",
            SLIMWIRE_TEST_PIPELINE, "more answers are ahead than the device may lag");
    EXPECT_EQ(found.ranks[0].out, "81\n");
    EXPECT_EQ(found.ranks[1].out, "140\n");
    EXPECT_GT(missed(found), 0u);
    EXPECT_GT(found.calls("", "topk:fraction=0.05,pair=mask"), 2u * 2u * kFirst);
}

// Two stages whose chunks take turns go native, and say so.
TEST(Pipeline, ChunksBetweenTwoRanksAreNative) {
    const PipelineOutcome found =
        run(masked("topk:fraction=0.05,pair=mask", "pairing = 2\n"), {"1f1b", "2", "5", "3000"}, 2);
    expect_right(found, {10, 10});
    EXPECT_EQ(found.calls("", "native"), 2u * 2u * 10u);
    EXPECT_NE(found.ranks[0].err.find("between two stages alone nothing tells"), std::string::npos)
        << found.ranks[0].err;
}

// One of the allocations of a rank fails: that of its counter, of a mask, or another one.
TEST(Pipeline, NoRoomForMasksEndsNothing) {
    const std::string call = std::to_string(1 + test_seed() % 9);
    SCOPED_TRACE("allocation " + call);
    const PipelineOutcome found =
        run(masked("topk:fraction=0.05,pair=mask"), {"1f1b", "3", "6", "3000"}, 3, "on",
            "cudaGetDriverEntryPointByVersion:1+,cudaMallocFromPoolAsync:" + call);
    expect_right(found, {18, 36, 18});
}

// Frames of both ways are 60 rows of 2 numbers and a trailer (what is in them:
// plugin/learned_code_test.cpp), on all schedules; rows that are not held are counted.
TEST(Pipeline, AnAutoencoderLearnsFromAnswers) {
    const std::string policy = masked("linear_ae:width=2,row=50");
    for (const char* schedule : {"1f1b", "gpipe", "newest", "eval"}) {
        SCOPED_TRACE(schedule);
        const PipelineOutcome found = run(policy, {schedule, "4", "6", "3000"});
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
    EXPECT_GT(missed(run(policy, {"gpipe", "3", "80", "3000"}, 2)), 0u);
    const std::string call = std::to_string(1 + test_seed() % 9);
    SCOPED_TRACE("allocation " + call);
    const PipelineOutcome without =
        run(policy, {"1f1b", "3", "6", "3000"}, 3, "on",
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
        const PipelineOutcome found = run(masked(one.codec), {one.schedule, "26", "4", "3000"});
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
        const PipelineOutcome found =
            run("[[rule]]\nname = \"stages\"\ncodec = \"powersgd:rank=2\"\n"
                "match = { op = [\"send\", \"recv\"], dtype = \"f32\" }\n",
                {schedule, "26", "4", "3000"}, 2);
        expect_right(found, {104, 104});
        EXPECT_EQ(found.calls("forward", "native"), 2 * (104 - kFirst));
        EXPECT_EQ(found.calls("backward", "native"), 2 * (104 - kFirst));
        EXPECT_NE(found.ranks[0].err.find("row= in the codec, or shapes in front of messages"),
                  std::string::npos)
            << found.ranks[0].err;
    }
}

TEST(Pipeline, AnAverageThatIsNeverMadeIsSaid) {
    for (const char* average : {"none", "dp"}) {
        const PipelineOutcome found =
            run(masked(std::string("linear_ae:width=2,row=50,average=") + average),
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
        return run(policy, {"0", "12", "-", "-", "staged"}, 4, "on",
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
    EXPECT_NE(all.find("copies of a model do not average"), std::string::npos) << all;
    EXPECT_NE(all.find("has no events here"), std::string::npos) << all;
    EXPECT_NE(all.find("bytes that other ranks count on"), std::string::npos) << all;
}

// Factors of 60 and of 50 rows, up to 1024 bytes, and a trailer; backward the latter alone.
TEST(Pipeline, AnswersOfLowRankHaveOneFactor) {
    const std::string codec = "powersgd:rank=2,row=50";
    for (const char* schedule : {"1f1b", "newest", "eval"}) {
        SCOPED_TRACE(schedule);
        const PipelineOutcome found = run(masked(codec), {schedule, "4", "6", "3000"});
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
    const PipelineOutcome found = run(masked(codec), {"gpipe", "3", "80", "3000"}, 2);
    EXPECT_GT(missed(found), 0u);
    EXPECT_LT(found.calls("backward", codec), 2u * (240 - kFirst));
}

std::string exchanging(const std::string& ops,
                       int calls,
                       const std::string& codec = "topk:fraction=0.05,pair=mask") {
    return "[[rule]]\nname = \"exchanges\"\nmatch = { op = [" + ops +
           "], redop = [\"sum\", \"none\"] }\ncodec = \"" + codec +
           "\"\nforward_calls = " + std::to_string(calls) +
           // Steps are asked for.
           "\n[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\ncodec = \"int8\"\n"
           "error_feedback = \"ef14\"\n";
}

PipelineOutcome exchanges(const std::string& policy,
                          const std::vector<std::string>& arguments,
                          const std::string& mode = "on",
                          const std::string& fault = "") {
    return run(policy, arguments, 3, mode, fault, SLIMWIRE_TEST_EXCHANGES);
}

// Exchanges of the program, and their operations.
constexpr std::pair<const char*, const char*> kForms[] = {
    {"alltoall", "\"alltoall\""},
    {"messages", "\"send\", \"recv\""},
    {"sequence", "\"allgather\", \"reducescatter\""}};

// A rank's blocks, to the bit, by masks that every pair of ranks has for itself.
TEST(Exchanges, GradientsAreThoseOfTheMaskedNetwork) {
    const struct {
        const char* form;
        const char* ops;
        const char* calls;
    } kCases[] = {
        {"alltoall", "\"alltoall\"", "1"},
        {"alltoall", "\"alltoall\"", "3"},
        {"messages", "\"send\", \"recv\"", "2"},
        {"sequence", "\"allgather\", \"reducescatter\"", "2"},
    };
    for (const auto& one : kCases) {
        SCOPED_TRACE(std::string(one.form) + " " + one.calls);
        const int calls = std::stoi(one.calls), steps = 4;
        const PipelineOutcome found =
            exchanges(exchanging(one.ops, calls),
                      {one.form, std::to_string(steps), one.calls, "2000", "1", "1"});
        const int blocks = steps * (2 * calls + 1);
        expect_right(found, {blocks, blocks, blocks});
        EXPECT_EQ(missed(found), 0u);
        const bool messages = std::string(one.form) == "messages";
        const auto ends = static_cast<uint64_t>(messages ? 2 * 3 * 2 : 3);
        EXPECT_EQ(found.calls("backward", "topk:fraction=0.05,pair=mask"),
                  ends * static_cast<uint64_t>(steps * calls));
        if (!messages) {  // 100 values of 4 bytes and a trailer, to each of two ranks
            EXPECT_EQ(sum_keys(found.records, "wire_bytes",
                               [](const nlohmann::json& key) {
                                   return key.value("direction", "") == "backward";
                               }),
                      3u * static_cast<uint64_t>(steps * calls) * 2 * 416);
        }
    }
}

// Forward a header and no positions; 63 runs of 32 have 3 chosen, which a step's calls share.
TEST(Exchanges, GradientsOfRunsThatAreDrawn) {
    const std::string codec = "randomk:fraction=0.05,pair=mask";
    const int steps = 4, calls = 2, blocks = steps * (2 * calls + 1);
    for (const auto& [form, ops] : kForms) {
        SCOPED_TRACE(form);
        const PipelineOutcome found =
            exchanges(exchanging(ops, calls, codec), {form, "4", "2", "2000", "101", "1"});
        expect_right(found, {blocks, blocks, blocks});
        EXPECT_EQ(missed(found), 0u);
        const bool messages = std::string(form) == "messages";
        EXPECT_EQ(found.calls("backward", codec),
                  static_cast<uint64_t>((messages ? 2 * 3 * 2 : 3) * steps * calls));
        for (const bool back : {false, true}) {
            const auto sum = [&](const char* member) {
                return sum_keys(found.records, member, [&](const nlohmann::json& key) {
                    return key.value("codec", "") == codec &&
                           (key.value("direction", "") == "backward") == back;
                });
            };
            if (!messages) {
                EXPECT_EQ(sum("wire_bytes"), sum("calls") * 2 * (3 * 32 * 4 + (back ? 16 : 32)));
            }
        }
    }
    const PipelineOutcome stages = run(masked(codec), {"1f1b", "4", "6", "3000"});
    expect_right(stages, {24, 48, 24});
    EXPECT_EQ(missed(stages), 0u);
    EXPECT_EQ(stages.calls("backward", codec), 2u * 2u * (24 - kFirst));
}

// 8300 bytes are 2075 elements, which some messages have and their answers have not.
TEST(Exchanges, MessagesTooSmallToCompressCountAsWell) {
    std::string policy = exchanging("\"send\", \"recv\"", 2);
    policy.insert(policy.find("forward_calls"), "min_bytes = 8300\n");
    for (const char* least : {"2075", "-2075"}) {
        const PipelineOutcome found =
            exchanges(policy, {"messages", "4", "2", "2000", "1", "1", least});
        expect_right(found, {20, 20, 20});
        EXPECT_EQ(missed(found), 0u);
        EXPECT_GT(found.calls("backward", "native"), 0u);
    }
}

uint64_t coded(const PipelineOutcome& found, const std::string& direction) {
    return sum_keys(found.records, "calls", [&](const nlohmann::json& key) {
        return key.value("direction", "") == direction && key.at("codec") != "native";
    });
}

// Of three layers the first is native both ways.
TEST(Exchanges, AnswersAreOfTheLayersOfTheirActivations) {
    for (const auto& [form, ops] : kForms) {
        SCOPED_TRACE(form);
        const bool sequence = std::string(form) == "sequence";
        const int steps = 3, calls = sequence ? 6 : 3, blocks = steps * (2 * calls + 1);
        for (const char* codec :
             {"topk:fraction=0.05,pair=mask", "int8", "linear_ae:width=2,row=50"}) {
            std::string policy = exchanging(ops, calls, codec);
            const std::string ordinals = ", ordinal = \"1-\"";
            policy.insert(policy.find(", redop"), ordinals);
            const bool masks = std::string(codec).starts_with("topk");
            const PipelineOutcome found =
                exchanges(policy, {form, std::to_string(steps), std::to_string(calls), "2000",
                                   masks ? "1" : "0", "1", "0", "1"});
            expect_right(found, {blocks, blocks, blocks});
            EXPECT_EQ(missed(found), 0u);
            const uint64_t ends = std::string(form) == "messages" ? 2 * 3 * 2 : 3;
            for (const char* direction : {"forward", "backward"}) {
                EXPECT_EQ(coded(found, direction),
                          ends * static_cast<uint64_t>(steps * calls / 3 * 2))
                    << direction << ' ' << codec;
            }
        }
    }
}

// Layers are made again two at a time: with the same masks, and gradients are exact once a step
// was as the rule says.
TEST(Exchanges, MadeAgainBeforeTheirAnswers) {
    const int steps = 3, calls = 4, blocks = steps * (3 * calls + 1);
    const std::pair<const char*, const char*> codecs[] = {
        {"topk:fraction=0.05,pair=mask", "1"},
        {"randomk:fraction=0.05,pair=mask", "101"},
        {"linear_ae:width=2,row=50", "0"}};
    for (const auto& [form, ops] : kForms) {
        for (const auto& [codec, twentieths] : codecs) {
            SCOPED_TRACE(std::string(form) + ' ' + codec);
            std::string policy = exchanging(ops, calls, codec);
            policy.insert(policy.find("forward_calls"), "recomputed = 2\n");
            const PipelineOutcome found =
                exchanges(policy, {form, "3", "4", "2000", twentieths, "1", "0", "0", "2"});
            expect_right(found, {blocks, blocks, blocks});
            EXPECT_EQ(missed(found), 0u);
            const uint64_t ends = std::string(form) == "messages" ? 2 * 3 * 2 : 3;
            EXPECT_EQ(coded(found, "backward"), ends * (steps - 1) * calls);
        }
    }
}

// The second of two that are made again is left out: which it is shows of operations in turn, and
// of counts that differ; elsewhere the rule says it, or gradients have positions of their own.
TEST(Exchanges, MadeAgainUntilTheyStopEarly) {
    const int steps = 3, calls = 4, blocks = steps * (2 * calls + calls / 2 + 1);
    for (const auto& [form, ops] : kForms) {
        for (const bool said : {false, true}) {
            SCOPED_TRACE(std::string(form) + (said ? " said" : ""));
            std::string policy = exchanging(ops, calls);
            policy.insert(policy.find("forward_calls"),
                          said ? "recomputed = 2\nearly_stop = 1\n" : "recomputed = 2\n");
            const bool shows = said || form != std::string("alltoall");
            const PipelineOutcome found = exchanges(
                policy, {form, "3", "4", "2000", "1", "1", "0", "0", "2", "1", shows ? "1" : "3"});
            expect_right(found, {blocks, blocks, blocks});
            EXPECT_EQ(missed(found), 0u);
            const uint64_t ends = std::string(form) == "messages" ? 2 * 3 * 2 : 3;
            EXPECT_EQ(coded(found, "backward"), shows ? ends * (steps - 1) * calls : 0u);
            EXPECT_EQ(found.ranks[0].err.find("should say how many calls it leaves out") ==
                          std::string::npos,
                      shows)
                << found.ranks[0].err;
        }
    }
}

// What is missing in six micro-batches is a whole one: nothing shows it, unless the rule does.
TEST(Exchanges, EarlyStopsThatAddUpToWholePasses) {
    for (const bool said : {false, true}) {
        std::string policy = exchanging("\"alltoall\"", 4);
        policy.insert(policy.find("forward_calls"),
                      said ? "recomputed = 2\nearly_stop = 1\n" : "recomputed = 2\n");
        const PipelineOutcome found = exchanges(
            policy,
            {"alltoall", "12", "4", "500", "1", "1", "0", "0", "2", "1", said ? "6" : "12", "6"});
        expect_right(found, {132, 132, 132});
        EXPECT_EQ(coded(found, "backward"), said ? 3u * 6 * 4 : 0u);
    }
}

// Both count from 0, and the messages have counts of their own.
TEST(Exchanges, MessagesAndCollectivesHaveMasksOfTheirOwn) {
    const int steps = 4;
    const PipelineOutcome found =
        exchanges(exchanging("\"alltoall\", \"send\", \"recv\"", 1),
                  {"mixed", std::to_string(steps), "2", "2000", "1", "1"});
    expect_right(found, {5 * steps, 5 * steps, 5 * steps});
    EXPECT_EQ(missed(found), 0u);
    EXPECT_EQ(found.calls("backward", "topk:fraction=0.05,pair=mask"), (3u + 2 * 3 * 2) * steps);
}

// Without marks nothing tells gradients from activations, and each has positions of its own.
TEST(Exchanges, WithoutStepsAllHavePositions) {
    const PipelineOutcome found =
        exchanges(exchanging("\"alltoall\"", 2), {"alltoall", "3", "2", "2000", "1", "0"});
    expect_right(found, {15, 15, 15});
    EXPECT_EQ(found.calls("backward", "topk:fraction=0.05,pair=mask"), 0u);
    expect_right(exchanges(exchanging("\"alltoall\"", 2), {"alltoall", "3", "2", "2000", "0", "1"},
                           "shadow"),
                 {15, 15, 15});
}

// Gradients dense, or by a codec of their own, beside activations of which the largest go.
TEST(Exchanges, RulesByDirection) {
    for (const auto& [form, ops] : kForms) {
        SCOPED_TRACE(form);
        const uint64_t ends = form == std::string("messages") ? 2 * 3 * 2 : 3;
        const std::string match = std::string("match = { op = [") + ops + "]";
        const std::string forward = "[[rule]]\nname = \"activations\"\n" + match +
                                    ", direction = \"forward\" }\nforward_calls = 2\n"
                                    "codec = \"topk:fraction=0.05\"\n";
        const PipelineOutcome dense = exchanges(forward, {form, "3", "2", "2000", "1", "2"});
        expect_right(dense, {15, 15, 15});
        EXPECT_EQ(dense.calls("forward", "topk:fraction=0.05"), ends * 9);
        EXPECT_EQ(dense.calls("backward", "native"), ends * 6);
        const std::string backward = "[[rule]]\nname = \"gradients\"\n" + match +
                                     ", direction = \"backward\" }\nforward_calls = 2\n"
                                     "codec = \"int8\"\n";
        const PipelineOutcome exact = exchanges(backward, {form, "3", "2", "2000", "0", "1"});
        EXPECT_EQ(exact.calls("forward", "native"), ends * 9);
        EXPECT_EQ(exact.calls("backward", "int8"), ends * 6);
        const PipelineOutcome coded =
            exchanges(backward + exchanging(ops, 2), {form, "3", "2", "2000", "0", "1"});
        EXPECT_EQ(coded.calls("forward", "topk:fraction=0.05,pair=mask"), ends * 9);
        EXPECT_EQ(coded.calls("backward", "int8"), ends * 6);
        EXPECT_EQ(missed(coded), 0u);
    }
}

// Rows that are multiples of one another come as they were from their factors, with what is left
// over behind them.
TEST(Exchanges, OfLowRankComeFromTheirFactors) {
    for (const auto& [form, ops] : kForms) {
        SCOPED_TRACE(form);
        const PipelineOutcome found =
            exchanges(std::string("[[rule]]\nname = \"factors\"\nmatch = { op = [") + ops +
                          "] }\ncodec = \"powersgd:rank=2,row=50\"\n",
                      {form, "2", "2", "2010", "-1", "0"});
        expect_right(found, {10, 10, 10});
        uint64_t wire = 0, native = 0;
        for (const nlohmann::json& record : found.records) {
            if (record.value("codec", "").starts_with("powersgd")) {
                wire += record.at("wire_bytes").get<uint64_t>();
                native += record.at("native_wire_bytes").get<uint64_t>();
            }
        }
        EXPECT_GT(wire, 0u);
        EXPECT_LT(5 * wire, native);
        EXPECT_EQ(found.calls("", "native"),
                  form == std::string("messages") ? 3u * 10u * 2u : 0u);  // to itself
    }
}

// Of columns of one number each 2 bits say all, where blocks go along them.
TEST(Exchanges, ByColumnsComeWithAScaleEach) {
    const std::string codec = "int2:block=16,scale=fp32,row=50";
    for (const auto& [form, ops] : kForms) {
        SCOPED_TRACE(form);
        const PipelineOutcome found =
            exchanges(std::string("[[rule]]\nname = \"columns\"\nmatch = { op = [") + ops +
                          "] }\ncodec = \"" + codec + "\"\n",
                      {form, "2", "2", "2010", "-2", "0"});
        expect_right(found, {10, 10, 10});
        EXPECT_GT(found.calls("", codec), 0u);
        if (form == std::string("alltoall")) {  // 50 columns of 48 rows, to each of two ranks
            EXPECT_EQ(
                sum_keys(found.records, "wire_bytes", [](const nlohmann::json&) { return true; }),
                3u * 10u * 2u * (50 * 48 / 4 + 50 * 3 * 4));
        }
    }
}

// One of every eight has masks, of which rank 1 has no room for some. Frames 1 and 9 are the first
// that are read, and from number 41 on, in the sixth step, the answers of such a pair have
// positions.
TEST(Exchanges, MissesOfOneLayerAreReadAsWell) {
    std::string policy = exchanging("\"alltoall\"", 8);
    policy.insert(policy.find(", redop"), ", ordinal = 1");
    const std::string call = std::to_string(2 + test_seed() % 11);
    SCOPED_TRACE("allocations from " + call);
    const PipelineOutcome found =
        exchanges(policy, {"alltoall", "12", "8", "2000", "0", "1"}, "on",
                  "cudaGetDriverEntryPointByVersion:1+,cudaMallocFromPoolAsync:" + call + "+");
    EXPECT_GT(missed(found), 0u);
    EXPECT_EQ(missed(found) % 5, 0u);
    EXPECT_EQ(coded(found, "backward"), 3u * 12u);
}

TEST(Exchanges, NoRoomForMasksEndsNothing) {
    const std::string call = std::to_string(1 + test_seed() % 12);
    SCOPED_TRACE("allocation " + call);
    expect_right(exchanges(exchanging("\"allgather\", \"reducescatter\"", 2),
                           {"sequence", "3", "2", "2000", "0", "1"}, "on",
                           "cudaGetDriverEntryPointByVersion:1+,cudaMallocFromPoolAsync:" + call),
                 {15, 15, 15});
}

}  // namespace
}  // namespace slimwire::test
