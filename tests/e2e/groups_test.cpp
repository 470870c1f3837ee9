// Calls whose sides are built differently, beside what the conformance program draws: groups, and
// the types of elements (programs/differing.cpp).
#include <gtest/gtest.h>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

Job job_of_all_ops(const std::vector<std::string>& command,
                   int ranks,
                   const std::string& reports = "") {
    Job job = slimwire_job(command, ranks, reports);
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "2KiB";
    return job;
}

TEST(Groups, whose_sides_are_built_differently_wait_for_nothing_of_their_own) {
    for (const auto& [what, calls] : {std::pair{"growing", 6u}, {"mixed", 4u}}) {
        SCOPED_TRACE(what);
        const TemporaryFolder reports;
        const auto ranks =
            run_ranks(job_of_all_ops({SLIMWIRE_TEST_DIFFERING, "fine", what}, 2, reports.path()));
        ASSERT_EQ(unless_all_exit(ranks), "");
        EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), calls);
    }
}

// Each rank begins anew, and both compress.
TEST(Groups, of_ranks_forked_after_the_id_compress) {
    for (const char* what : {"forked", "forked-too"}) {
        SCOPED_TRACE(what);
        const TemporaryFolder reports;
        Job job = job_of_all_ops({SLIMWIRE_TEST_DIFFERING, "fine", what}, 1, reports.path());
        job.environment["SLIMWIRE_EMU_DEVICES"] = "2";
        ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
        EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 2u);
    }
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
        EXPECT_HAS(rank.err, "is native in a graph");
    }
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls",
                       [](const auto& key) { return key.at("reason") == "under stream capture"; }),
              2u);
}

std::vector<Ended> run_differing(const std::string& expected, const std::string& what, int ranks) {
    Job job = job_of_all_ops({SLIMWIRE_TEST_DIFFERING, expected, what}, ranks);
    job.environment["runtime.agree_timeout"] = "60s";
    job.limit_s = 120;
    return run_ranks(job);
}

TEST(Types, that_differ_are_an_error_on_both_ends) {
    const struct {
        const char *expected, *what, *one, *other;
    } kCases[] = {
        {"error", "f32-u8", "f32", "u8"},
        {"error", "u8-f32", "u8", "f32"},
        {"error", "f32-bf16", "f32", "bf16"},
        {"error", "bf16-f32", "bf16", "f32"},
        {"error", "f16-bf16", "f16", "bf16"},
        {"error", "group", "f32", "bf16"},
        {"error", "split", "f32", "bf16"},
        {"error", "after-turns", "f16", "bf16"},
        // Programs that never ask for asynchronous errors get it from what they call next.
        {"error-of-calls", "f32-bf16", "f32", "bf16"},
    };
    for (const auto& of : kCases) {
        SCOPED_TRACE(std::string(of.expected) + " " + of.what);
        const auto ranks = run_differing(of.expected, of.what, 2);
        ASSERT_EQ(unless_all_exit(ranks), "");
        for (const Ended& rank : ranks) {
            EXPECT_HAS(rank.out, " of 400000 bytes");
            EXPECT_HAS(rank.out, std::string(of.one) + " on rank 0 and " + of.other + " on rank 1");
            // Once a rank.
            EXPECT_HAS(rank.err, "bytes");
            EXPECT_EQ(rank.err.find("bytes"), rank.err.rfind("bytes")) << rank.err;
        }
    }
}

TEST(Types, that_differ_in_one_process_are_an_error_on_both_ends) {
    Job job = job_of_all_ops({SLIMWIRE_TEST_DIFFERING, "error", "one-process"}, 1);
    job.environment["SLIMWIRE_EMU_DEVICES"] = "2";
    const auto ended = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ended), "");
    for (const char* end : {"send of 400000 bytes to rank 1", "recv of 400000 bytes from rank 0"}) {
        EXPECT_HAS(ended[0].out, std::string(end) + " is f32 on rank 0 and bf16 on rank 1");
    }
}

TEST(Types, that_one_rank_of_many_has_are_an_error_on_all) {
    for (const char* what : {"broadcast", "broadcast-both", "all-gather"}) {
        SCOPED_TRACE(what);
        const auto ranks = run_differing("error", what, 3);
        ASSERT_EQ(unless_all_exit(ranks), "");
        for (const Ended& rank : ranks) {
            EXPECT_HAS(rank.out, " on rank 2; ");
        }
    }
}

struct GraphCase {
    const char* what;
    bool messages;
    std::string rule;   // all but its name and the operations it matches
    std::string error;  // of all ranks; empty: none
    const char* how = "error";
};

void expect_of_graphs(const std::vector<GraphCase>& cases) {
    std::vector<Job> jobs;
    for (const GraphCase& of : cases) {
        Job job =
            slimwire_job({SLIMWIRE_TEST_DIFFERING, of.error.empty() ? "fine" : of.how, of.what},
                         of.messages ? 2 : 3);
        job.environment["SLIMWIRE_POLICY"] =
            std::string("[[rule]]\nname = \"r\"\nmin_bytes = 2048\nmatch.op = ") +
            (of.messages ? "[\"send\", \"recv\"]\n" : "\"allreduce\"\n") + of.rule;
        job.limit_s = 120;
        jobs.push_back(job);
    }
    const auto ended = run_at_once(jobs);
    for (size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(std::string(cases[i].what) + " " + cases[i].rule);
        EXPECT_EQ(unless_all_exit(ended[i]), "");
        for (const Ended& rank : ended[i]) {
            // Of a header, or of what is behind it, which may be told of first.
            const bool header = cases[i].what == std::string("graph-header");
            const bool behind =
                header && rank.out.find("in the step on rank 0") != std::string::npos;
            if (!behind && !cases[i].error.empty()) {
                EXPECT_HAS(rank.out, header ? "" : " of 400000 bytes ");
                EXPECT_HAS(rank.out, cases[i].error);
            }
        }
    }
}

// Rules that count or pair a tensor's calls are native in graphs, which ranks outside of them do
// not see.
TEST(Types, of_rules_that_count_calls_a_graph_of_one_rank_is_an_error_on_all) {
    const std::string counted = "codec = \"int8\"\nef = \"ef14\"\naverage_every = 3\n",
                      paired = "codec = \"topk:fraction=0.1,pair=mask\"\n",
                      told = "codec = \"powersgd:rank=2\"\n",
                      error = "in a graph of rank 0 and compressed outside of graphs on";
    expect_of_graphs({{"graph", false, counted, error},
                      {"graph", false, counted, error, "error-of-calls"},
                      {"graphs", false, counted, ""},
                      {"graph-messages", true, paired, error},
                      {"graphs-messages", true, paired, ""},
                      {"graph-header", true, told, error},
                      {"graphs-header", true, told, ""}});
}

// A graph keeps a call as it was when it was captured, which those outside of graphs are no more.
TEST(Types, that_a_graph_of_one_rank_keeps_from_the_begin_of_a_rule_are_an_error_on_all) {
    const std::string codec = "codec = \"int8\"\n", start = codec + "start_step = 4\n",
                      late = codec + "ramp = [{ until = 4, codec = \"native\" }]\n",
                      ramp = codec +
                             "ramp = [{ until = 2, codec = \"fp16\" }, { until = 4, codec = "
                             "\"int4\" }]\n",
                      placed = codec + "ef = \"ef21\"\n";
    const std::string in_graph = " is in a graph of rank 0 as it was captured ";
    const std::string early = in_graph + "before its rule's start_step, or in its ramp";
    const std::string unplaced = in_graph + "while its place in the step was not known";
    expect_of_graphs({{"early", false, start, early},
                      {"early", false, late, early},
                      {"early-stages", false, ramp, early},
                      {"early-messages", true, start, early},
                      {"early", false, placed, unplaced},
                      {"early", false, "match.ordinal = 0\n" + codec, unplaced},
                      {"early-first", false, placed, in_graph + "at its tensor's first call"},
                      {"part", false, placed, " is without a place in the step on rank 0"},
                      {"passing", false, codec + "start_step = 3\n", ""}});
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
