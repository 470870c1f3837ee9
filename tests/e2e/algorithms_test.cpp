// Every algorithm by its name: random all-reduces of the conformance program on the emulator, with
// the algorithm that the policy asks for, and what crosses the slow link.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/e2e/wire_job.h"

namespace slimwire::test {
namespace {

struct AlgorithmsCase {
    const char* name;
    const char* algorithm;
    const char* codec;
    int ranks;
    const char* nodes;
    int slice_bytes;
    const char* operations = "allreduce";
    const char* percent = "60";  // of all-reduces
};
constexpr int kCalls = 200;
constexpr const char* kReductions = "allreduce\", \"reduce\", \"reducescatter";

// Calls of at least 2048 bytes of these operations go by this action.
std::string by_action(const std::string& action, const std::string& operations = "allreduce") {
    return "[[rule]]\nname = \"r\"\nmatch = { op = [\"" + operations + "\"] }\nmin_bytes = 2048\n" +
           action + "\n";
}

class Algorithms : public testing::TestWithParam<AlgorithmsCase> {};

TEST_P(Algorithms, EveryResultIsWithinTheBoundAndEqualOnAllRanks) {
    const AlgorithmsCase& of = GetParam();
    const TemporaryFolder reports;
    Job job =
        slimwire_job({SLIMWIRE_TEST_CONFORMANCE, "--seed", "20", "--calls", std::to_string(kCalls),
                      "--codec", of.codec, "--min-bytes", "2048", "--all-reduces", of.percent},
                     of.ranks, reports.path());
    job.environment["SLIMWIRE_POLICY"] =
        by_action("codec = \"" + std::string(of.codec) + "\"\nalgorithm = \"" + of.algorithm + "\"",
                  of.operations);
    job.environment["runtime.slice_bytes"] = std::to_string(of.slice_bytes);
    if (of.nodes[0] != 0) {
        job.environment["SLIMWIRE_EMU_NODES"] = of.nodes;
    }
    job.limit_s = 200;
    const std::vector<Ended> ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_GT(sum_keys(read_reports(reports.path()), "calls",
                       [&](const auto& key) { return key.at("algorithm") == of.algorithm; }),
              static_cast<uint64_t>(kCalls) / 20);
}

constexpr AlgorithmsCase kAlgorithms[] = {
    {"hierarchical", "hierarchical", "int8:block=64", 4, "2x2", 0},
    {"hierarchical_sliced", "hierarchical", "int4:block=64", 4, "2x2", 16384},
    {"hierarchical_uneven", "hierarchical", "int4:block=32", 5, "2x3", 32768},
    {"gather", "gather", "int8:block=64", 3, "", 0},
    {"gather_sliced", "gather", "int4:block=64", 2, "", 16384},
    {"hierarchical_three_nodes", "hierarchical", "int8:block=64", 5, "3x2", 0},
    {"hierarchical_reductions", "hierarchical", "int8:block=64", 4, "2x2", 0, kReductions, "10"},
    {"hierarchical_reductions_sliced_uneven", "hierarchical", "int4:block=64", 5, "2x3", 16384,
     kReductions, "10"},
};
INSTANTIATE_TEST_SUITE_P(Words, Algorithms, testing::ValuesIn(kAlgorithms), name_of);

std::vector<SentBytes> run_algorithm(int ranks,
                                     const std::string& nodes,
                                     const std::string& action,
                                     const std::string& operation = "allreduce") {
    return run_wire_job(
        ranks, {{"SLIMWIRE_EMU_NODES", nodes}, {"SLIMWIRE_POLICY", by_action(action, operation)}},
        {operation, "65537", "1048576"});
}

// SLIMWIRE_CODEC alone, whatever the operation: no node and no rank sends more than natively.
TEST(SlowLink, TheShorthandNeverSendsMoreThanNative) {
    const std::vector<std::string> operations = {"allreduce", "reducescatter", "reduce",
                                                 "allgather", "broadcast",     "alltoall",
                                                 "gather",    "scatter",       "sendrecv"};
    for (const auto& [nodes, ranks] : {std::pair("2x4", 8), std::pair("2x3", 5)}) {
        const auto run = [ranks = ranks, nodes = nodes, &operations](const char* codec) {
            Job job = slimwire_job({SLIMWIRE_TEST_WIRE_BYTES}, ranks, "");
            for (const std::string& operation : operations) {
                job.command.insert(job.command.end(), {operation, "4001", "300000"});
            }
            job.environment["SLIMWIRE_EMU_NODES"] = nodes;
            job.environment["SLIMWIRE_CODEC"] = codec;
            job.environment["SLIMWIRE_OPS"] = "all";
            job.environment["SLIMWIRE_MIN_BYTES"] = "1";
            const auto ended = run_ranks(job);
            EXPECT_EQ(unless_all_exit(ended), "");
            std::vector<std::vector<SentBytes>> sent;
            for (const Ended& rank : ended) {
                sent.push_back(parse_sent(rank.out));
                sent.back().resize(operations.size());
            }
            return sent;
        };
        const auto native = run("native");
        const auto shape = std::string(nodes);
        const size_t of_first_node = shape == "2x4" ? 4 : 3;
        for (const char* codec : {"int8", "bf16"}) {
            const auto compressed = run(codec);
            for (size_t op = 0; op < operations.size(); ++op) {
                SCOPED_TRACE(shape + " " + codec + " " + operations[op]);
                uint64_t out[2] = {}, out_native[2] = {}, most = 0, most_native = 0;
                for (size_t rank = 0; rank < compressed.size(); ++rank) {
                    const size_t node = rank < of_first_node ? 0 : 1;
                    out[node] += compressed[rank][op].between_nodes;
                    out_native[node] += native[rank][op].between_nodes;
                    most = std::max(most, compressed[rank][op].counted);
                    most_native = std::max(most_native, native[rank][op].counted);
                }
                EXPECT_GT(most, 0u);
                EXPECT_LT(most, most_native);
                EXPECT_LE(std::max(out[0], out[1]), std::max(out_native[0], out_native[1]));
            }
        }
    }
}

TEST(WireBytes, OfEveryAlgorithmAreWhatTheTransportCounted) {
    for (const char* action : {"codec = \"int4:block=64\"\nalgorithm = \"gather\"",
                               "codec = \"topk:fraction=0.05\"\nalgorithm = \"sparse\"",
                               "codec = \"randomk:fraction=0.1\"\nalgorithm = \"summable\""}) {
        SCOPED_TRACE(action);
        for (const SentBytes& rank : run_algorithm(3, "3x1", action)) {
            // NCCL's own sums are a ring's up to its rounding.
            const bool native_sums = std::string(action).find("summable") != std::string::npos;
            EXPECT_NEAR(static_cast<double>(rank.counted), static_cast<double>(rank.reported),
                        native_sums ? 1e-3 * static_cast<double>(rank.reported) : 0);
            EXPECT_GT(rank.counted, 0u);
            EXPECT_LT(rank.counted, uint64_t{7} << 20);
        }
    }
}

TEST(SlowLink, UnevenNodesSendWhatIsReported) {
    for (const char* action : {"codec = \"int4:block=64\"\nalgorithm = \"hierarchical\"",
                               "codec = \"int4:block=64\"\nintra_codec = \"int8:block=64\"\n"
                               "algorithm = \"hierarchical\""}) {
        for (const char* operation : {"allreduce", "reduce", "reducescatter"}) {
            for (const SentBytes& rank : run_algorithm(5, "2x3", action, operation)) {
                EXPECT_EQ(rank.counted, rank.reported);
                EXPECT_GT(rank.counted, 0u);
            }
        }
    }
}

// What e2e_sparse_sum prints.
struct Sums {
    uint64_t partial = 0, changing = 0;
};

Sums run_sums(const char* type,
              const char* operation,
              const std::string& action,
              const std::string& algorithm,
              const char* slice_bytes = "0") {
    constexpr int kRanks = 3;
    const TemporaryFolder reports;
    Job job =
        slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, "64", type, operation}, kRanks, reports.path());
    job.environment["SLIMWIRE_POLICY"] =
        by_action(action + "\nalgorithm = \"" + algorithm + "\"", operation);
    job.environment["runtime.slice_bytes"] = slice_bytes;
    const auto ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ended), "");
    if (std::string(operation) == "allreduce") {
        EXPECT_EQ(ended[1].out, ended[0].out);
    }
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls",
                       [&](const auto& key) { return key.at("algorithm") == algorithm; }),
              64u * kRanks);
    Sums sums;
    EXPECT_EQ(
        std::sscanf(ended[0].out.c_str(), "error %*f %*f partial %" SCNu64 " changing %" SCNu64,
                    &sums.partial, &sums.changing),
        2)
        << ended[0].out;
    return sums;
}

// Elements are sent by all ranks or by none, and by others in other steps.
TEST(Summable, EveryRankSendsTheSameElementsAtEveryCall) {
    for (const char* operation : {"allreduce", "reducescatter", "reduce"}) {
        for (const char* type : {"f32", "bf16"}) {
            SCOPED_TRACE(std::string(operation) + " " + type);
            const Sums sums =
                run_sums(type, operation, "codec = \"randomk:fraction=0.3\"", "summable");
            EXPECT_EQ(sums.partial, 0u);
            EXPECT_GT(sums.changing, 10000u);
        }
    }
    EXPECT_EQ(run_sums("f32", "allreduce", "codec = \"randomk:fraction=0.3\"", "summable", "16384")
                  .partial,
              0u);
}

TEST(RandomElements, AreOthersInEveryCallHoweverTheirValuesTravel) {
    for (const char* values : {"native", "int8", "int4"}) {
        SCOPED_TRACE(values);
        const std::string codec = std::string("codec = \"randomk:fraction=0.3,values=") + values;
        EXPECT_GT(run_sums("f32", "allreduce", codec + "\"", "two_shot").changing, 10000u);
    }
}

}  // namespace
}  // namespace slimwire::test
