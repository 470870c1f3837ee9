// Communicators' lives in whole jobs: ranks of several processes that poll late, give up, differ or
// die while communicators are made, split and shrunk. The situations are functions of
// programs/lives.cpp, which make the checks; nobody may hang.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/e2e/shipped_policies.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr int kKilled = 128 + 9;

// A job of the situation that has the test's own name.
Job lives_job(int ranks, const std::string& reports = {}) {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    Job job = slimwire_job({SLIMWIRE_TEST_LIVES, name}, ranks, reports);
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_MIN_BYTES"] = "4KiB";
    // Only the rank's own, the last, may have a context.
    job.environment["SLIMWIRE_EMU_DEVICES"] = "2";
    // Longer than anything may take here: what ends sooner did not end by this limit.
    job.environment["runtime.agree_timeout"] = "30s";
    job.limit_s = 50;
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

TEST(Lives, non_blocking_polled_late) {
    const TemporaryFolder reports;
    expect_ends(lives_job(2, reports.path()));
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 2u * 2 * 3);
}

// The second rank comes late to the private split of the part, so the first one's call on the
// parent is there before.
TEST(Lives, a_call_on_the_parent_while_a_part_is_made) {
    Job job = lives_job(2);
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:3=800ms";
    expect_ends(job);
}

// Nothing is sent over the device to make it: the world's creation has the first two all-gathers,
// or three where ranks tell how far counted calls are.
void expect_made_without_gathers(int ranks, bool counts = false) {
    const TemporaryFolder reports;
    Job job = lives_job(ranks, reports.path());
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

TEST(Lives, a_part_of_all_ranks) {
    expect_made_without_gathers(3);
}

TEST(Lives, parts_of_some_ranks) {
    for (const bool counts : {false, true}) {
        expect_made_without_gathers(4, counts);
    }
}

// The last rank alone heard of the others when the world was made, which is native; the part is as
// if it was made of strangers.
TEST(Lives, a_part_of_one_whose_ranks_did_not_hear_of_each_other) {
    Job job = lives_job(3);
    job.command.back() = "a_part_of_all_ranks";
    job.environment["runtime.agree_timeout"] = "800ms";
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclAllGather:1=1500ms";
    for (const Ended& rank : expect_ends(job)) {
        const size_t world = rank.err.find("stays native");
        EXPECT_NE(world, std::string::npos) << rank.err;
        EXPECT_EQ(rank.err.find("stays native", world + 1), std::string::npos) << rank.err;
    }
}

TEST(Lives, a_part_that_shares) {
    Job job = lives_job(3);
    job.environment["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = "1";
    expect_ends(job);
}

TEST(Lives, a_part_whose_private_one_fails_on_one_rank) {
    Job job = lives_job(3);
    job.environment["runtime.agree_timeout"] = "1s";
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:3";
    for (const Ended& rank : expect_ends(job)) {
        EXPECT_NE(rank.err.find("no private communicator"), std::string::npos) << rank.err;
    }
}

// What slimwire adds to a communicator is in the report: its time, its connections; nothing where
// no rule can match.
TEST(Lives, parts_of_parts_and_their_cost) {
    for (const bool matching : {true, false}) {
        const TemporaryFolder reports, folder;
        Job job = lives_job(4, reports.path());
        job.command.back() = matching ? "parts_of_parts" : "parts_of_parts_natively";
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

TEST(Lives, creations_that_fail) {
    Job job = lives_job(1);
    job.environment["SLIMWIRE_CODEC"] = "none-such";
    EXPECT_LT(std::stol(expect_ends(job)[0].out), 2000) << "bytes each";
}

TEST(Lives, non_blocking_with_a_stranger) {
    Job job = lives_job(3);
    job.environment["runtime.agree_timeout"] = "800ms";
    job.without_preload = {1};
    expect_ends(job);
}

TEST(Lives, non_blocking_with_different_policies) {
    Job job = lives_job(3);
    job.of_rank[1]["SLIMWIRE_CODEC"] = "int4:block=64";
    const auto ended = expect_ends(job);
    EXPECT_NE(ended[0].out.find("different policies"), std::string::npos) << ended[0].out;
    EXPECT_EQ(ended[1].out, ended[0].out);
    EXPECT_EQ(ended[2].out, ended[0].out);
}

TEST(Lives, abort_during_agreement) {
    Job job = lives_job(3);
    job.without_preload = {2};
    expect_ends(job);
}

TEST(Lives, abort_during_blocking_agreement) {
    Job job = lives_job(3);
    job.without_preload = {2};
    expect_ends(job);
}

// The creating thread is in a call on the communicator, which the abort must not free.
TEST(Lives, abort_during_a_call_of_a_blocking_creation) {
    Job job = lives_job(3);
    job.command.back() = "abort_during_blocking_agreement";
    job.without_preload = {2};
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommCuDevice:1=1s";
    expect_ends(job);
}

TEST(Lives, killed_during_agreement) {
    Job job = lives_job(3);
    job.without_preload = {2};
    expect_ends(job, true);
}

TEST(Lives, killed_during_agreement_non_blocking) {
    Job job = lives_job(3);
    job.without_preload = {2};
    expect_ends(job, true);
}

TEST(Lives, killed_in_the_private_split) {
    Job job = lives_job(3);
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:1=40s";
    expect_ends(job, true);
}

TEST(Lives, killed_in_the_private_split_non_blocking) {
    Job job = lives_job(3);
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:1=40s";
    expect_ends(job, true);
}

// The victim is held up in a call that is timed. The others hear of its end before they end the
// private communicator, which takes NCCL a while here.
TEST(Lives, killed_while_calls_are_timed_non_blocking) {
    Job job = lives_job(3);
    job.command.back() = "killed_in_the_private_split_non_blocking";
    job.environment["SLIMWIRE_MIN_BYTES"] = "auto";
    job.environment["SLIMWIRE_EMU_FAULT"] = "ncclCommAbort:1=40s";
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclReduceScatter:1=40s";
    expect_ends(job, true);
}

TEST(Lives, a_private_one_that_never_comes_non_blocking) {
    Job job = lives_job(2);
    job.environment["runtime.agree_timeout"] = "1s";
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:1";
    expect_ends(job);
}

// The same where it is made of an id, for which the program's own need not be busy: all are native.
TEST(Lives, a_private_one_by_an_id_that_never_comes_non_blocking) {
    Job job = lives_job(2);
    job.command.back() = "non_blocking_with_a_stranger";
    job.environment["runtime.agree_timeout"] = "1s";
    job.environment["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = "1";
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommInitRankConfig:2";
    for (const Ended& rank : expect_ends(job)) {
        EXPECT_NE(rank.err.find("private communicator"), std::string::npos) << rank.err;
    }
}

// The victim's splits before are the world's private one and the program's.
TEST(Lives, killed_in_a_split) {
    Job job = lives_job(3);
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:3=40s";
    expect_ends(job, true);
}

TEST(Lives, the_survivors_shrink) {
    expect_ends(lives_job(4), true);
}

TEST(Lives, the_survivors_shrink_non_blocking) {
    expect_ends(lives_job(4), true);
}

// Whatever slimwire keeps of tensors: an end waits neither for another communicator's work nor for
// its own.
TEST(Lives, ends_while_work_waits) {
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
        Job job = lives_job(3, reports.path());
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

// Communicators that grow: programs/growing.cpp has these situations.
class Growing : public testing::Test {
  protected:
    static Job growing_job() {
        Job job = lives_job(3);
        job.command[0] = SLIMWIRE_TEST_GROWING;
        return job;
    }
};

TEST_F(Growing, all_compress) {
    expect_ends(growing_job());
}

TEST_F(Growing, a_new_rank_is_a_stranger) {
    Job job = growing_job();
    job.environment["runtime.agree_timeout"] = "800ms";
    job.without_preload = {2};
    expect_ends(job);
}

TEST_F(Growing, an_old_rank_is_a_stranger) {
    Job job = growing_job();
    job.environment["runtime.agree_timeout"] = "800ms";
    job.without_preload = {1};
    expect_ends(job);
}

TEST_F(Growing, calls_on_the_old_one_while_it_grows) {
    expect_ends(growing_job());
}

// Rank 1 alone does not learn the part's device.
TEST(Lives, one_rank_fails_its_part) {
    Job job = lives_job(3);
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommCuDevice:2";
    expect_ends(job);
}

}  // namespace
}  // namespace slimwire::test
