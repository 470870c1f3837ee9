// Communicators' lives in whole jobs: ranks of several processes that poll late, give up, differ or
// die while communicators are made, split and shrunk. The situations are functions of
// programs/lives.cpp, which make the checks; nobody may hang.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/e2e/shipped_policies.h"
#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr int kKilled = 128 + 9;

Job lives_job(int ranks, const std::string& situation, const std::string& reports = {}) {
    Job job = slimwire_job({SLIMWIRE_TEST_LIVES, situation}, ranks, reports);
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_MIN_BYTES"] = "4KiB";
    // Only the rank's own, the last, may have a context.
    job.environment["SLIMWIRE_EMU_DEVICES"] = "2";
    // Longer than anything may take here: what ends sooner did not end by this limit.
    job.environment["runtime.agree_timeout"] = "30s";
    job.limit_s = 100;
    let_calls_wait(&job, "exchanges of non-blocking communicators are launched later");
    return job;
}

// All ranks end with 0 but the last one when it is the victim.
std::vector<Ended> expect_ends(const Job& job, bool has_victim = false) {
    std::vector<Ended> ended = run_ranks(job);
    for (int rank = 0; rank < job.ranks; ++rank) {
        const Ended& end = ended[static_cast<size_t>(rank)];
        EXPECT_EQ(end.exit_code, has_victim && rank == job.ranks - 1 ? kKilled : 0)
            << "rank " << rank << (end.expired ? " (time was up)" : "") << "\n"
            << end.err;
    }
    return ended;
}

// What is said to ranks of a situation, all of whose checks the program makes.
struct Situation {
    const char* name;  // of the test; the program's too where that is not told
    int ranks = 3;
    bool has_victim = false;
    std::vector<int> strangers = {};                       // ranks without slimwire
    std::vector<std::pair<int, const char*>> faults = {};  // a rank's, or all ranks' by -1
    std::map<std::string, std::string> environment = {};
    const char* program = nullptr;
    bool grows = false;  // programs/growing.cpp has it
};

class Lives : public testing::TestWithParam<Situation> {};

TEST_P(Lives, end_well) {
    const Situation& it = GetParam();
    Job job = lives_job(it.ranks, it.program != nullptr ? it.program : it.name);
    job.command[0] = it.grows ? SLIMWIRE_TEST_GROWING : SLIMWIRE_TEST_LIVES;
    job.without_preload = it.strangers;
    for (const auto& [name, value] : it.environment) {
        job.environment[name] = value;
    }
    for (const auto& [rank, fault] : it.faults) {
        (rank < 0 ? job.environment : job.of_rank[rank])["SLIMWIRE_EMU_FAULT"] = fault;
    }
    expect_ends(job, it.has_victim);
}

const Situation kSituations[] = {
    // The second rank comes late to the private split of the part, so the first one's call on the
    // parent is there before.
    {.name = "a_call_on_the_parent_while_a_part_is_made",
     .ranks = 2,
     .faults = {{1, "ncclCommSplit:3=800ms"}}},
    {.name = "a_part_that_shares", .environment = {{"NCCL_COMM_SPLIT_SHARE_RESOURCES", "1"}}},
    {.name = "non_blocking_with_a_stranger",
     .strangers = {1},
     .environment = {{"runtime.agree_timeout", "800ms"}}},
    {.name = "abort_during_agreement", .strangers = {2}},
    {.name = "abort_during_blocking_agreement", .strangers = {2}},
    // The creating thread is in a call on the communicator, which the abort must not free.
    {.name = "abort_during_a_call_of_a_blocking_creation",
     .strangers = {2},
     .faults = {{1, "ncclCommCuDevice:1=1s"}},
     .program = "abort_during_blocking_agreement"},
    {.name = "killed_during_agreement", .has_victim = true, .strangers = {2}},
    {.name = "killed_during_agreement_non_blocking", .has_victim = true, .strangers = {2}},
    {.name = "killed_in_the_private_split",
     .has_victim = true,
     .faults = {{2, "ncclCommSplit:1=40s"}}},
    {.name = "killed_in_the_private_split_non_blocking",
     .has_victim = true,
     .faults = {{2, "ncclCommSplit:1=40s"}}},
    // The victim is held up in a call that is timed. The others hear of its end before they end the
    // private communicator, which takes NCCL a while here.
    {.name = "killed_while_calls_are_timed_non_blocking",
     .has_victim = true,
     .faults = {{-1, "ncclCommAbort:1=40s"}, {2, "ncclReduceScatter:1=40s"}},
     .environment = {{"SLIMWIRE_MIN_BYTES", "auto"}},
     .program = "killed_in_the_private_split_non_blocking"},
    {.name = "a_private_one_that_never_comes_non_blocking",
     .ranks = 2,
     .faults = {{1, "ncclCommSplit:1"}},
     .environment = {{"runtime.agree_timeout", "2s"}}},
    // The victim's splits before are the world's private one and the program's.
    {.name = "killed_in_a_split", .has_victim = true, .faults = {{2, "ncclCommSplit:3=40s"}}},
    {.name = "the_survivors_shrink", .ranks = 4, .has_victim = true},
    {.name = "the_survivors_shrink_non_blocking", .ranks = 4, .has_victim = true},
    // Rank 1 alone does not learn the part's device.
    {.name = "one_rank_fails_its_part", .faults = {{1, "ncclCommCuDevice:2"}}},
    {.name = "all_compress", .grows = true},
    {.name = "a_new_rank_is_a_stranger",
     .strangers = {2},
     .environment = {{"runtime.agree_timeout", "2s"}},
     .grows = true},
    {.name = "an_old_rank_is_a_stranger",
     .strangers = {1},
     .environment = {{"runtime.agree_timeout", "800ms"}},
     .grows = true},
    {.name = "calls_on_the_old_one_while_it_grows", .grows = true},
};
INSTANTIATE_TEST_SUITE_P(All, Lives, testing::ValuesIn(kSituations), [](const auto& info) {
    return info.param.name;
});

TEST(LivesOf, non_blocking_polled_late) {
    const TemporaryFolder reports;
    expect_ends(lives_job(2, "non_blocking_polled_late", reports.path()));
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 2u * 2 * 3);
}

// Nothing is sent over the device to make it: the world's creation has the first two all-gathers,
// or three where ranks tell how far counted calls are.
void expect_made_without_gathers(int ranks, const std::string& situation, bool counts = false) {
    const TemporaryFolder reports;
    Job job = lives_job(ranks, situation, reports.path());
    job.environment["SLIMWIRE_EMU_FAULT"] = counts ? "ncclAllGather:4+" : "ncclAllGather:3+";
    if (counts) {
        job.environment["SLIMWIRE_CODEC"] = "powersgd:rank=4,row=48";
    }
    expect_ends(job);
    for (const auto& record : read_reports(reports.path())) {
        EXPECT_TRUE(record.at("record") != "comm" ||
                    record.at("private_connections") == 2 * (record.at("ranks").get<int>() - 1))
            << record;
    }
}

TEST(LivesOf, a_part_of_all_ranks) {
    expect_made_without_gathers(3, "a_part_of_all_ranks");
}

TEST(LivesOf, parts_of_some_ranks) {
    for (const bool counts : {false, true}) {
        expect_made_without_gathers(4, "parts_of_some_ranks", counts);
    }
}

// The last rank alone heard of the others when the world was made, which is native; the part is as
// if it was made of strangers.
TEST(LivesOf, a_part_of_one_whose_ranks_did_not_hear_of_each_other) {
    Job job = lives_job(3, "a_part_of_all_ranks");
    job.environment["runtime.agree_timeout"] = "2s";
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclAllGather:1=4s";
    for (const Ended& rank : expect_ends(job)) {
        const size_t world = rank.err.find("stays native");
        EXPECT_NE(world, std::string::npos) << rank.err;
        EXPECT_EQ(rank.err.find("stays native", world + 1), std::string::npos) << rank.err;
    }
}

TEST(LivesOf, a_part_whose_private_one_fails_on_one_rank) {
    Job job = lives_job(3, "a_part_whose_private_one_fails_on_one_rank");
    job.environment["runtime.agree_timeout"] = "2s";
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:3";
    for (const Ended& rank : expect_ends(job)) {
        EXPECT_HAS(rank.err, "no private communicator");
    }
}

// What slimwire adds to a communicator is in the report: its time, its connections; nothing where
// no rule can match.
TEST(LivesOf, parts_of_parts_and_their_cost) {
    for (const bool matching : {true, false}) {
        const TemporaryFolder reports, folder;
        Job job =
            lives_job(4, matching ? "parts_of_parts" : "parts_of_parts_natively", reports.path());
        if (!matching) {
            std::ofstream(folder.file("policy.toml"))
                << "version = 1\n[[rule]]\nname = \"large\"\nmatch = { op = \"allreduce\", "
                   "ranks = \"100..\" }\ncodec = \"int8\"\n";
            job.environment.erase("SLIMWIRE_CODEC");
            job.environment.erase("SLIMWIRE_MIN_BYTES");
            job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
        }
        expect_ends(job);
        const auto records = read_reports(reports.path());
        // World and half on four ranks, the rest on three; blocking and not.
        EXPECT_EQ(sum_keys(records, "calls", compressed), matching ? 2u * (4 + 4 + 3) * 3 : 0u);
        int communicators = 0;
        for (const auto& record : records) {
            if (record.at("record") != "comm") {
                continue;
            }
            ++communicators;
            EXPECT_GT(record.at("setup_us").get<uint64_t>(), 0u) << record;
            EXPECT_LT(record.at("setup_us").get<uint64_t>(), 10000000u) << record;
            EXPECT_GE(record.at("setup_us"), record.at("private_setup_us")) << record;
            EXPECT_EQ(record.at("private_setup_us") > 0, matching) << record;
            EXPECT_EQ(record.at("private_connections"),
                      matching ? 2 * (record.at("ranks").get<int>() - 1) : 0)
                << record;
            EXPECT_EQ(record.at("first_call_us") > 0, matching) << record;
        }
        EXPECT_EQ(communicators, 2 * (4 + 4 + 3));
    }
}

TEST(LivesOf, creations_that_fail) {
    Job job = lives_job(1, "creations_that_fail");
    job.environment["SLIMWIRE_CODEC"] = "none-such";
    EXPECT_LT(std::stol(expect_ends(job)[0].out), 2000) << "bytes each";
}

TEST(LivesOf, non_blocking_with_different_policies) {
    Job job = lives_job(3, "non_blocking_with_different_policies");
    job.of_rank[1]["SLIMWIRE_CODEC"] = "int4:block=64";
    const auto ended = expect_ends(job);
    EXPECT_HAS(ended[0].out, "different policies");
    EXPECT_EQ(ended[1].out, ended[0].out);
    EXPECT_EQ(ended[2].out, ended[0].out);
}

// The same where it is made of an id, for which the program's own need not be busy: all are native.
TEST(LivesOf, a_private_one_by_an_id_that_never_comes_non_blocking) {
    Job job = lives_job(2, "non_blocking_with_a_stranger");
    job.environment["runtime.agree_timeout"] = "2s";
    job.environment["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = "1";
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommInitRankConfig:2";
    for (const Ended& rank : expect_ends(job)) {
        EXPECT_HAS(rank.err, "private communicator");
    }
}

// Whatever slimwire keeps of tensors: an end waits neither for another communicator's work nor for
// its own.
TEST(LivesOf, ends_while_work_waits) {
    const std::string estimates =
        "version = 1\n[[rule]]\nname = \"r\"\ncodec = \"int4\"\nerror_feedback = \"ef21\"\n"
        "match = { op = [\"allreduce\", \"reducescatter\"] }\n";
    std::vector<std::pair<std::string, const char*>> all = {{estimates, "on"}};
    for (const char* policy : {"int4-ef14", "dct", "powersgd", "accordion", "dct-pipeline",
                               "step-ahead", "sharded-weights"}) {
        all.emplace_back(shortened_policy(policy), "on");
    }
    all.emplace_back(shortened_policy("int4-ef14"), "shadow");
    for (const auto& [policy, mode] : all) {
        SCOPED_TRACE(policy + "mode " + mode);
        const TemporaryFolder reports;
        Job job = lives_job(3, "ends_while_work_waits", reports.path());
        job.environment.erase("SLIMWIRE_CODEC");
        job.environment.erase("SLIMWIRE_MIN_BYTES");
        job.environment["SLIMWIRE_POLICY"] = policy;
        job.environment["SLIMWIRE_MODE"] = mode;
        job.environment["SLIMWIRE_EMU_NODES"] = "3x1";
        expect_ends(job);
        const auto kept = [&](const auto& key) {
            return mode == std::string("on") ? compressed(key) : key.contains("shadow_codec");
        };
        EXPECT_GT(sum_keys(read_reports(reports.path()), "calls", kept), 0u);
    }
}

}  // namespace
}  // namespace slimwire::test
