// Exchanges of several ranks, as all-to-alls, messages, or all-gathers that reduce-scatters answer:
// activations and gradients that share masks (programs/exchanges.cpp).
#include "tests/e2e/stages.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

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
    return run_stages(policy, arguments, 3, mode, fault, SLIMWIRE_TEST_EXCHANGES);
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
    const PipelineOutcome stages = run_stages(masked(codec), {"1f1b", "4", "6", "3000"});
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
