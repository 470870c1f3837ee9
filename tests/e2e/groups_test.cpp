// Calls whose sides are built differently, beside what the conformance program draws: groups, and
// the types of elements (programs/differing.cpp).
#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

TEST(Groups, scratch_grows_without_waiting_for_the_group_itself) {
    const TemporaryFolder reports;
    Job job = slimwire_job({SLIMWIRE_TEST_GROWING_GROUP}, 2, reports.path());
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "2KiB";
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    const auto records = read_reports(reports.path());
    EXPECT_EQ(sum_keys(records, "calls", compressed), 6u);
    EXPECT_EQ(sum_keys(records, "calls", [](const auto& key) { return !compressed(key); }), 6u);
}

TEST(Groups, collectives_come_before_the_messages_of_their_group) {
    const TemporaryFolder reports;
    Job job = slimwire_job({SLIMWIRE_TEST_MIXED_GROUP}, 2, reports.path());
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 4u);
}

// A graph goes on with what its calls were: those before the start of their rule stay native.
TEST(Groups, captured_before_their_rule_starts_are_native_for_ever_and_said_to_be) {
    const TemporaryFolder reports;
    Job job = slimwire_job({SLIMWIRE_TEST_DIFFERING, "fine", "graphs"}, 2, reports.path());
    job.environment["SLIMWIRE_POLICY"] =
        "[[rule]]\nname = \"r\"\ncodec = \"int8\"\nmin_bytes = 2048\nstart_step = 10\n";
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    for (const Ended& rank : ranks) {
        EXPECT_NE(rank.err.find("is native in a graph"), std::string::npos) << rank.err;
    }
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls",
                       [](const auto& key) { return key.at("reason") == "under stream capture"; }),
              2u);
}

Job job_of_all_ops(const std::vector<std::string>& command, int ranks) {
    Job job = slimwire_job(command, ranks);
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "2KiB";
    return job;
}

std::vector<Ended> run_differing(const std::string& expected, const std::string& what, int ranks) {
    Job job = job_of_all_ops({SLIMWIRE_TEST_DIFFERING, expected, what}, ranks);
    job.environment["runtime.agree_timeout"] = "60s";
    job.limit_s = 120;
    return run_ranks(job);
}

TEST(Types, that_differ_are_an_error_on_both_ends) {
    for (const auto& [what, one, other] : {std::tuple{"f32-u8", "f32", "u8"},
                                           {"u8-f32", "u8", "f32"},
                                           {"f32-bf16", "f32", "bf16"},
                                           {"bf16-f32", "bf16", "f32"},
                                           {"f16-bf16", "f16", "bf16"},
                                           {"group", "f32", "bf16"},
                                           {"split", "f32", "bf16"},
                                           {"after-turns", "f16", "bf16"}}) {
        SCOPED_TRACE(what);
        const auto ranks = run_differing("error", what, 2);
        ASSERT_EQ(unless_all_exit(ranks), "");
        for (const Ended& rank : ranks) {
            EXPECT_NE(rank.out.find(" of 400000 bytes"), std::string::npos) << rank.out;
            EXPECT_NE(rank.out.find(std::string(one) + " on rank 0 and " + other + " on rank 1"),
                      std::string::npos)
                << rank.out;
            // Once a rank.
            EXPECT_NE(rank.err.find("bytes"), std::string::npos) << rank.err;
            EXPECT_EQ(rank.err.find("bytes"), rank.err.rfind("bytes")) << rank.err;
        }
    }
}

// Programs that never ask for asynchronous errors get it from what they call next.
TEST(Types, that_differ_are_an_error_of_the_next_call) {
    const auto ranks = run_differing("error-of-calls", "f32-bf16", 2);
    ASSERT_EQ(unless_all_exit(ranks), "");
    for (const Ended& rank : ranks) {
        EXPECT_NE(rank.out.find("f32 on rank 0 and bf16 on rank 1"), std::string::npos) << rank.out;
        EXPECT_EQ(rank.err.find("bytes"), rank.err.rfind("bytes")) << rank.err;
    }
}

TEST(Types, that_differ_in_one_process_are_an_error_on_both_ends) {
    Job job = job_of_all_ops({SLIMWIRE_TEST_ONE_PROCESS, "types"}, 1);
    job.environment["SLIMWIRE_EMU_DEVICES"] = "2";
    const auto ended = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ended), "");
    for (const char* end : {"send of 131072 bytes to rank 1", "recv of 131072 bytes from rank 0"}) {
        EXPECT_NE(ended[0].out.find(std::string(end) + " is f32 on rank 0 and bf16 on rank 1"),
                  std::string::npos)
            << ended[0].out;
    }
}

TEST(Types, that_one_rank_of_many_has_are_an_error_on_all) {
    for (const char* what : {"broadcast", "broadcast-both", "all-gather"}) {
        SCOPED_TRACE(what);
        const auto ranks = run_differing("error", what, 3);
        ASSERT_EQ(unless_all_exit(ranks), "");
        for (const Ended& rank : ranks) {
            EXPECT_NE(rank.out.find(" on rank 2; "), std::string::npos) << rank.out;
        }
    }
}

const char* const kCounted =
    "[[rule]]\nname = \"r\"\nmatch = { op = \"allreduce\" }\n"
    "codec = \"int8\"\nmin_bytes = 2048\nef = \"ef14\"\naverage_every = 3\n";

// Rules that count or pair a tensor's calls are native in graphs, which ranks outside of them do
// not see.
TEST(Types, of_rules_that_count_calls_a_graph_of_one_rank_is_an_error_on_all) {
    const std::vector<std::string> kinds = {"graph",           "graphs",       "graph-messages",
                                            "graphs-messages", "graph-header", "graphs-header"};
    const auto alone = [](const std::string& what) { return what.rfind("graphs", 0) != 0; };
    std::vector<Job> jobs;
    for (const std::string& what : kinds) {
        const bool told = what.find("header") != std::string::npos;
        const bool messages = told || what.find("messages") != std::string::npos;
        Job job = slimwire_job({SLIMWIRE_TEST_DIFFERING, alone(what) ? "error" : "fine", what},
                               messages ? 2 : 3);
        job.environment["SLIMWIRE_POLICY"] =
            messages ? "[[rule]]\nname = \"r\"\nmatch = { op = [\"send\", \"recv\"] }\n"
                       "min_bytes = 2048\ncodec = " +
                           std::string(told ? "\"powersgd:rank=2\"\n"
                                            : "\"topk:fraction=0.1,pair=mask\"\n")
                     : kCounted;
        job.limit_s = 120;
        jobs.push_back(job);
    }
    const auto ended = run_at_once(jobs);
    for (size_t i = 0; i < kinds.size(); ++i) {
        SCOPED_TRACE(kinds[i]);
        EXPECT_EQ(unless_all_exit(ended[i]), "");
        for (const Ended& rank : ended[i]) {
            // What is behind a header may be told of first.
            const bool behind = kinds[i] == "graph-header" &&
                                rank.out.find("in the step on rank 0") != std::string::npos;
            EXPECT_EQ(behind || rank.out.find("in a graph of rank 0 and compressed outside of "
                                              "graphs on") != std::string::npos,
                      alone(kinds[i]))
                << rank.out;
        }
    }
}

// Programs that never ask for asynchronous errors get that, too, from what they call next.
TEST(Types, that_a_graph_of_one_rank_has_are_an_error_of_the_next_call) {
    Job job = slimwire_job({SLIMWIRE_TEST_DIFFERING, "error-of-calls", "graph"}, 3);
    job.environment["SLIMWIRE_POLICY"] = kCounted;
    job.limit_s = 120;
    const auto ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ranks), "");
    for (const Ended& rank : ranks) {
        EXPECT_NE(rank.out.find("in a graph of rank 0 and compressed outside of graphs on"),
                  std::string::npos)
            << rank.out;
    }
}

// A graph keeps a call as it was when it was captured, which those outside of graphs are no more.
TEST(Types, that_a_graph_of_one_rank_keeps_from_the_begin_of_a_rule_are_an_error_on_all) {
    const std::string match = "op = \"allreduce\"", messages = "op = [\"send\", \"recv\"]";
    const std::string start = "start_step = 4\n";
    const std::string late = "ramp = [{ until = 4, codec = \"native\" }]\n";
    const std::string ramp =
        "ramp = [{ until = 2, codec = \"fp16\" }, { until = 4, codec = \"int4\" }]\n";
    const std::string placed = "ef = \"ef21\"\n";
    const std::string in_graph = "in a graph of rank 0 as it was captured ";
    const std::string early = in_graph + "before its rule's start_step, or in its ramp";
    const std::string unplaced = in_graph + "while its place in the step was not known";
    const std::string first = in_graph + "at its tensor's first call";
    const std::tuple<const char*, std::string, std::string, std::string> kCases[] = {
        {"early", match, start, early},
        {"early", match, late, early},
        {"early-stages", match, ramp, early},
        {"early-messages", messages, start, early},
        {"early", match, placed, unplaced},
        {"early", match + ", ordinal = 0", "", unplaced},
        {"early-first", match, placed, first},
        {"part", match, placed, "without a place in the step on rank 0"}};
    std::vector<Job> jobs;
    for (const auto& [what, matched, action, text] : kCases) {
        Job job =
            slimwire_job({SLIMWIRE_TEST_DIFFERING, "error", what}, matched == messages ? 2 : 3);
        job.environment["SLIMWIRE_POLICY"] = "[[rule]]\nname = \"r\"\nmatch = { " + matched +
                                             " }\nmin_bytes = 2048\ncodec = \"int8\"\n" + action;
        job.limit_s = 120;
        jobs.push_back(job);
    }
    const auto ended = run_at_once(jobs);
    for (size_t i = 0; i < ended.size(); ++i) {
        const auto& [what, matched, action, text] = kCases[i];
        SCOPED_TRACE(std::string(what) + " " + matched + " " + action);
        EXPECT_EQ(unless_all_exit(ended[i]), "");
        for (const Ended& rank : ended[i]) {
            EXPECT_NE(rank.out.find(" of 400000 bytes "), std::string::npos) << rank.out;
            EXPECT_NE(rank.out.find(" is " + text), std::string::npos) << rank.out;
        }
    }
}

TEST(Types, that_a_graph_of_one_rank_kept_but_not_too_long_arrive) {
    Job job = slimwire_job({SLIMWIRE_TEST_DIFFERING, "fine", "passing"}, 3);
    job.environment["SLIMWIRE_POLICY"] =
        "[[rule]]\nname = \"r\"\nmatch = { op = \"allreduce\" }\nmin_bytes = 2048\n"
        "codec = \"int8\"\nstart_step = 3\n";
    job.limit_s = 120;
    const auto ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ranks), "");
}

TEST(Types, used_in_turn_or_never_compressed_arrive) {
    for (const char* what : {"in-turn", "i32-u8", "dropped", "late", "many"}) {
        SCOPED_TRACE(what);
        const auto ranks = run_differing("fine", what, 2);
        EXPECT_EQ(unless_all_exit(ranks), "");
        for (const Ended& rank : ranks) {
            EXPECT_EQ(rank.out, "fine\n") << rank.err;
            EXPECT_LT(rank.seconds, 50) << "a stream waited as long as for a rank that is gone";
        }
    }
}

}  // namespace
}  // namespace slimwire::test
