// A job that saves its state, ends and goes on in new processes gives the bits of one that does not
// end (slimwire_save_state, slimwire_load_state), and a file that does not fit is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/collectives/trace_reader.h"
#include "tests/e2e/shipped_policies.h"
#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr int kResumeRanks = 2, kSteps = 8;

constexpr const char* kStaged = "staged";

struct Setting {
    const char* name;
    const char* rule;
    const char* form = nullptr;  // argument of the program
};
constexpr Setting kSettings[] = {
    {"int4", "codec = \"int4\"\nerror_feedback = \"ef14\"\n"},
    // Draws random numbers, in encoding and in storing what is left.
    {"drawn",
     "codec = \"int4:rounding=stochastic\"\nerror_feedback = \"ema\"\nresidual = \"int8\"\n"},
    {"topk", "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n"},
    // The scale grows between the two processes.
    {"told_scale", "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n", "told"},
};

class Resume : public testing::TestWithParam<Setting> {
  protected:
    // The ranks of steps `from` to `to` - 1; "%r" in a path is the rank.
    std::vector<Ended> run(
        int from, int to, const std::string& load, const std::string& save, bool late = false) {
        const std::string policy = folder_.file("policy.toml");
        std::ofstream(policy) << "version = 1\n[[rule]]\nname = \"sums\"\n"
                              << "match = { op = "
                              << (GetParam().form == kStaged ? "[\"send\", \"recv\"]"
                                                             : "\"allreduce\"")
                              << " }\n"
                              << rule_;
        std::vector<std::string> command = {SLIMWIRE_TEST_RESUMED, std::to_string(from),
                                            std::to_string(to), load, save};
        if (late) {
            command.emplace_back("late");
        }
        if (GetParam().form != nullptr) {
            command.emplace_back(GetParam().form);
        }
        Job job = slimwire_job(command,
                               GetParam().form == kStaged ? copies_ * kResumeRanks : kResumeRanks);
        job.environment["SLIMWIRE_POLICY"] = policy;
        job.environment["runtime.summary"] = "0";
        job.environment.insert(more_.begin(), more_.end());
        job.of_rank = of_rank_;
        std::vector<Ended> ranks = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ranks), "");
        // Of jobs so short it is said that their rule compressed nothing.
        for (Ended& rank : ranks) {
            rank.err = std::regex_replace(rank.err, std::regex(".*: rule 'sums' .*\n"), "");
        }
        return ranks;
    }
    static std::string out(const std::vector<Ended>& ranks) {
        std::string all;
        for (const Ended& rank : ranks) {
            EXPECT_EQ(rank.err, "");
            all += rank.out;
        }
        return all;
    }
    // Of two runs of each rank, one after the other.
    static std::string out(const std::vector<Ended>& first, const std::vector<Ended>& then) {
        std::string all;
        for (size_t rank = 0; rank < first.size(); ++rank) {
            EXPECT_EQ(first[rank].err + then[rank].err, "");
            all += first[rank].out + then[rank].out;
        }
        return all;
    }
    // That a job which ends behind step `split` - 1 and goes on prints `whole`: in the next
    // process, in one after a process that made no call, and in a third.
    void expect_resumed(int split, const std::string& whole) {
        const std::vector<Ended> first = run(0, split, "-", state_);
        EXPECT_EQ(out(first, run(split, 2 * kSteps, state_, "-")), whole);
        const std::string again = folder_.file("again.%r"), third = folder_.file("third.%r");
        (void)out(run(split, split, state_, again));
        EXPECT_EQ(out(first, run(split, 2 * kSteps, again, "-")), whole);
        const std::vector<Ended> then = run(split, split + 3, state_, third);
        const std::vector<Ended> last = run(split + 3, 2 * kSteps, third, "-");
        std::string parts;
        for (size_t rank = 0; rank < first.size(); ++rank) {
            EXPECT_EQ(then[rank].err + last[rank].err, "");
            parts += first[rank].out + then[rank].out + last[rank].out;
        }
        EXPECT_EQ(parts, whole);
    }
    const TemporaryFolder folder_;
    const std::string state_ = folder_.file("state.%r");
    int copies_ = 2;  // of stages
    Environment more_;
    std::map<int, Environment> of_rank_;
    std::string rule_ = GetParam().rule;
};

TEST_P(Resume, TheBitsAreThoseOfAJobThatDidNotEnd) {
    const std::string whole = out(run(0, 2 * kSteps, "-", "-"));
    const std::vector<Ended> first = run(0, kSteps, "-", state_);
    EXPECT_EQ(out(first, run(kSteps, 2 * kSteps, state_, "-")), whole);
    // Into processes that made calls before, and over a process that made none of its own.
    EXPECT_EQ(out(first, run(kSteps, 2 * kSteps, state_, "-", true)), whole);
    (void)out(run(kSteps, kSteps, state_, folder_.file("again.%r")));
    EXPECT_EQ(out(first, run(kSteps, 2 * kSteps, folder_.file("again.%r"), "-")), whole);
    // It matters: without the state the bits are others.
    EXPECT_NE(out(first, run(kSteps, 2 * kSteps, "-", "-")), whole);
}

TEST_P(Resume, OnARankAloneItChangesNothingThatOthersExpect) {
    const std::vector<Ended> first = run(0, kSteps, "-", state_);
    ASSERT_EQ(std::remove(folder_.file("state.1").c_str()), 0);
    const std::vector<Ended> then = run(kSteps, 2 * kSteps, state_, "-");
    EXPECT_EQ(then[0].err, "");
    EXPECT_HAS(then[1].err, "load -3: state file");
    EXPECT_EQ(then[0].out, then[1].out) << "replicas are equal";
}

INSTANTIATE_TEST_SUITE_P(Jobs, Resume, testing::ValuesIn(kSettings), name_of);

using Refusals = Resume;

TEST_P(Refusals, AFileOfAnotherRankPolicyOrPlaceIsRefusedAndSaid) {
    (void)out(run(0, kSteps, "-", state_));
    const std::string fresh = out(run(kSteps, 2 * kSteps, "-", "-"));
    // All ranks read what rank 0 saved.
    std::vector<Ended> ranks = run(kSteps, 2 * kSteps, folder_.file("state.0"), "-");
    EXPECT_EQ(ranks[0].err, "");
    EXPECT_HAS(ranks[1].err, "load -4: ");
    EXPECT_HAS(ranks[1].err, "was saved by rank 0 of 2; this is rank 1 of 2");
    more_["runtime.slice_bytes"] = "4096";
    ranks = run(kSteps, 2 * kSteps, state_, "-");
    EXPECT_HAS(ranks[0].err, "load -4: ");
    EXPECT_HAS(ranks[0].err, "another policy");
    more_.clear();
    for (const char* rank : {"state.0", "state.1"}) {
        std::fstream file(folder_.file(rank), std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(1000);
        file.put('!');
    }
    ranks = run(kSteps, 2 * kSteps, state_, "-");
    EXPECT_HAS(ranks[1].err, "load -4: ");
    EXPECT_HAS(ranks[1].err, "its checksum is wrong");
    EXPECT_EQ(ranks[0].out + ranks[1].out, fresh);
}

// SLIMWIRE_STATE, where the listing that one rank has of the folder is older.
TEST_P(Refusals, RanksThatFindOtherSavingsSaveAsOneRun) {
    std::filesystem::create_directories(folder_.file("ring.1/step-4.run-6.of-2"));
    for (const int rank : {0, 1}) {
        of_rank_[rank]["SLIMWIRE_STATE"] =
            folder_.file("ring." + std::to_string(rank)) + ",every=8";
    }
    (void)run(0, kSteps + 1, "-", "-");
    for (const char* const rank : {"0", "1"}) {
        const std::string saving = std::string("ring.") + rank + "/step-8.run-7.of-2/state." + rank;
        EXPECT_TRUE(std::filesystem::exists(folder_.file(saving)));
    }
}

TEST_P(Refusals, WhatCannotBeSavedIsSaid) {
    std::vector<Ended> ranks;
    for (const char* mode : {"off", "record"}) {
        more_["SLIMWIRE_MODE"] = mode;
        more_["SLIMWIRE_TRACE"] = folder_.file("trace.%r");
        ranks = run(0, kSteps, state_, folder_.file("none.%r"));
        EXPECT_HAS(ranks[0].err, "load 1: nothing is compressed");
        EXPECT_HAS(ranks[0].err, "save 1: nothing is compressed");
        EXPECT_EQ(read_file(folder_.file("none.0")), "");
    }
    // The last one was recorded, with its marks.
    const ReadTrace trace = read_trace(folder_.file("trace.1"));
    ASSERT_EQ(trace.calls.size(), 3u * kSteps);
    EXPECT_EQ(trace.trainings.size(), static_cast<size_t>(kSteps));
    for (size_t i = 0; i < trace.calls.size(); ++i) {
        EXPECT_EQ(trace.calls[i].path, trace.calls[0].path);
        EXPECT_NE(trace.calls[i].path, "");
        EXPECT_EQ(trace.calls[i].place, i % 3);
        EXPECT_EQ(trace.calls[i].step, i / 3);
    }
}

// EF21: estimates that do not fit each other would part the replicas, so they are those of one
// moment on all ranks, or zero on all.
using Estimates = Resume;

TEST_P(Estimates, BeginAtZeroOnAllRanksWhereTheyAreNotThoseOfOneMoment) {
    const std::string fresh = out(run(kSteps, 2 * kSteps, "-", "-"));
    (void)out(run(0, kSteps, "-", state_));
    const std::string mine = read_file(folder_.file("state.1"));
    EXPECT_NE(out(run(kSteps, 2 * kSteps, state_, "-")), fresh) << "it matters";
    // One rank lacks its file.
    ASSERT_EQ(std::remove(folder_.file("state.1").c_str()), 0);
    std::vector<Ended> ranks = run(kSteps, 2 * kSteps, state_, "-");
    EXPECT_HAS(ranks[1].err, "load -3: state file");
    const auto expect_zero = [&] {
        EXPECT_EQ(ranks[0].out, ranks[1].out) << "replicas are equal";
        // Draws are a rank's own, and go on.
        if (std::string(GetParam().name) != "drawn") {
            EXPECT_EQ(ranks[0].out + ranks[1].out, fresh);
        }
    };
    expect_zero();
    // One is of another job, or of another step of it.
    (void)out(run(0, kSteps, "-", folder_.file("other.%r")));
    const auto with = [&](const std::string& bytes) {
        std::ofstream(folder_.file("state.1"), std::ios::binary) << bytes;
        ranks = run(kSteps, 2 * kSteps, state_, "-");
        return ranks[0].out + ranks[1].out;
    };
    EXPECT_NE(with(mine), fresh);
    (void)with(read_file(folder_.file("other.1")));
    expect_zero();
    // Estimates in use stay as they are, also where only one rank loads.
    ASSERT_EQ(std::remove(folder_.file("state.1").c_str()), 0);
    ranks = run(0, kSteps, state_, "-", true);
    EXPECT_EQ(ranks[0].err, "");
    EXPECT_EQ(ranks[0].out, ranks[1].out) << "replicas are equal";
}

// The elements that are sent are those that all ranks draw alike, so a rank that goes on with its
// residuals must not draw by what it drew before. Factors begin anew beside what a rank owes.
using DrawnAlike = Resume;

TEST_P(DrawnAlike, GoOnWithWhatIsOwedAndDrawAsTheOthersDo) {
    const std::string fresh = out(run(kSteps, 2 * kSteps, "-", "-"));
    (void)out(run(0, kSteps, "-", state_));
    std::vector<Ended> ranks = run(kSteps, 2 * kSteps, state_, "-");
    EXPECT_NE(out(ranks), fresh) << "it matters";
    EXPECT_EQ(ranks[0].out, ranks[1].out) << "replicas are equal";
    ASSERT_EQ(std::remove(folder_.file("state.1").c_str()), 0);
    ranks = run(kSteps, 2 * kSteps, state_, "-");
    EXPECT_NE(ranks[0].out + ranks[1].out, fresh) << "one rank still owes";
    EXPECT_EQ(ranks[0].out, ranks[1].out) << "replicas are equal";
}

// Controllers, counts and what all ranks draw alike: of one moment on all ranks, or anew on all.
using Progress = Resume;

TEST_P(Progress, BeginsAnewOnAllRanksWhereOneLacksIt) {
    (void)out(run(0, kSteps, "-", state_));
    const std::string lost = read_file(folder_.file("state.1"));
    const std::string third = folder_.file("third.%r");
    ASSERT_EQ(std::remove(folder_.file("state.1").c_str()), 0);
    std::vector<Ended> ranks = run(kSteps, kSteps + 4, state_, third);
    EXPECT_EQ(ranks[0].out, ranks[1].out) << "replicas are equal";
    EXPECT_HAS(ranks[0].err,
               "rank 1 loaded another state, or none; controllers and counts "
               "begin anew");
    // What is saved then is of one moment again.
    const std::vector<Ended> on = run(kSteps + 4, 2 * kSteps, third, "-");
    const std::vector<Ended> straight = run(kSteps, 2 * kSteps, state_, "-");
    for (size_t rank = 0; rank < on.size(); ++rank) {
        EXPECT_EQ(on[rank].err, "");
        EXPECT_EQ(ranks[rank].out + on[rank].out, straight[rank].out);
    }
    // One of another step of the same job.
    (void)out(run(0, kSteps - 1, "-", folder_.file("other.%r")));
    std::ofstream(folder_.file("state.1"), std::ios::binary) << read_file(folder_.file("other.1"));
    ranks = run(kSteps, 2 * kSteps, state_, "-");
    EXPECT_EQ(ranks[0].out, ranks[1].out) << "replicas are equal";
    EXPECT_HAS(ranks[0].err, "begin anew");
    // Loaded when the communicator was there already: by one rank alone, too.
    std::ofstream(folder_.file("state.1"), std::ios::binary) << lost;
    ranks = run(kSteps, 2 * kSteps, state_, "-", true);
    EXPECT_EQ(ranks[0].out, ranks[1].out) << "replicas are equal";
    ASSERT_EQ(std::remove(folder_.file("state.1").c_str()), 0);
    ranks = run(kSteps, 2 * kSteps, state_, "-", true);
    EXPECT_EQ(ranks[0].out, ranks[1].out) << "replicas are equal";
}

// SLIMWIRE_STATE: the job neither saves nor loads.
using Ring = Resume;

TEST_P(Ring, TheBitsAreThoseOfAJobThatDidNotEnd) {
    const std::vector<Ended> whole = run(0, 2 * kSteps, "-", "-");
    // One saving a job: how long the disk takes changes nothing.
    more_["SLIMWIRE_STATE"] = folder_.file("ring") + ",every=8";
    (void)out(run(0, kSteps + 1, "-", "-"));
    const std::vector<Ended> then = run(kSteps, kSteps + 3, "-", "-");
    const auto of = [](int step) { return "\n" + std::to_string(step) + " 0 "; };
    for (size_t rank = 0; rank < whole.size(); ++rank) {
        const std::string& all = whole[rank].out;
        const size_t begin = all.find(of(kSteps)) + 1, end = all.find(of(kSteps + 3)) + 1;
        EXPECT_EQ(then[rank].err, "");
        EXPECT_EQ(then[rank].out, all.substr(begin, end - begin));
    }
    // With the weights of a step that was not saved.
    const std::vector<Ended> other = run(kSteps + 1, kSteps + 2, "-", "-");
    EXPECT_HAS(other[1].err, "the job begins at step 9, of which");
    more_.clear();
    const std::vector<Ended> fresh = run(kSteps + 1, kSteps + 2, "-", "-");
    EXPECT_EQ(other[1].out, fresh[1].out);
}

// Weights of both ends of messages, and which message is the first that has a direction.
using Messages = Resume;

TEST_P(Messages, BeginAnewOnBothEndsWhereOneHasNone) {
    const std::string fresh = out(run(kSteps, 2 * kSteps, "-", "-"));
    (void)out(run(0, kSteps, "-", state_));
    ASSERT_EQ(std::remove(folder_.file("state.1").c_str()), 0);
    const std::vector<Ended> ranks = run(kSteps, 2 * kSteps, state_, "-");
    if (std::string(GetParam().name) != "copies") {  // those have an average with others
        EXPECT_EQ(fresh.find(ranks[0].out + ranks[1].out), 0u);
    }
    EXPECT_EQ(fresh.find(ranks[2].out), std::string::npos) << "these loaded theirs";
}

// SLIMWIRE_STATE, with more copies of the stages: the first copies go on to the bit, those that
// are new with what these learned, and later fewer again.
using Learned = Resume;

TEST_P(Learned, GoesOnInOtherNumbersOfCopies) {
    const std::vector<Ended> whole = run(0, 3 * kSteps, "-", "-");
    const auto lines = [](const std::string& all, int from, int to) {
        const size_t begin = all.find("\n" + std::to_string(from) + " 0 ") + 1;
        return all.substr(begin, all.find("\n" + std::to_string(to) + " 0 ") + 1 - begin);
    };
    copies_ = 4;
    const std::vector<Ended> anew = run(kSteps, kSteps + 3, "-", "-");
    copies_ = 2;
    more_["SLIMWIRE_STATE"] = folder_.file("ring") + ",every=8";  // one saving a job
    (void)out(run(0, kSteps + 1, "-", "-"));
    copies_ = 4;
    const std::vector<Ended> more = run(kSteps, 2 * kSteps + 1, "-", "-");
    for (size_t rank = 0; rank < more.size(); ++rank) {
        EXPECT_EQ(more[rank].err, "");
        const std::string three = "\n" + more[rank].out;
        EXPECT_NE(lines(three, kSteps, kSteps + 3), anew[rank].out) << rank << ": it matters";
        if (rank < static_cast<size_t>(kResumeRanks)) {
            EXPECT_EQ(more[rank].out, lines(whole[rank].out, kSteps, 2 * kSteps + 1));
        }
    }
    copies_ = 2;
    const std::vector<Ended> fewer = run(2 * kSteps, 2 * kSteps + 2, "-", "-");
    for (size_t rank = 0; rank < static_cast<size_t>(kResumeRanks); ++rank) {
        EXPECT_EQ(fewer[rank].err, "");
        EXPECT_EQ(fewer[rank].out, lines(whole[rank].out, 2 * kSteps, 2 * kSteps + 2));
    }
}

// What has state of one moment on all ranks: estimates, controllers and counts, weights of both
// ends of messages; also in the middle of a window, and where one has ended and nothing is decided
// by it yet.
using GoesOn = Resume;

TEST_P(GoesOn, WhereAllRanksHaveTheStateOfOneMoment) {
    const std::string whole = out(run(0, 2 * kSteps, "-", "-"));
    for (const int split : {kSteps, kSteps + 1}) {
        SCOPED_TRACE(split);
        expect_resumed(split, whole);
    }
    EXPECT_NE(out(run(0, kSteps, "-", "-"), run(kSteps, 2 * kSteps, "-", "-")), whole)
        << "it matters";
}

constexpr Setting kEstimates[] = {
    {"int4", "codec = \"int4\"\nerror_feedback = \"ef21\"\n"},
    {"drawn", "codec = \"int4:rounding=stochastic\"\nerror_feedback = \"ef21\"\n"},
    {"topk", "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef21\"\n"},
    {"gather", "codec = \"int4\"\nerror_feedback = \"ef21\"\nalgorithm = \"gather\"\n"},
    {"factors", "codec = \"powersgd:rank=2,row=50\"\n"},
};
// The state of factors with what each rank owes beside it, which is its own.
constexpr Setting kFed[] = {
    {"fp32", "codec = \"powersgd:rank=2,row=50\"\nerror_feedback = \"ef14\"\n"},
    {"int8", "codec = \"powersgd:rank=2,row=50\"\nerror_feedback = \"ema\"\n"},
    {"codes", "codec = \"linear_ae:width=2,row=50\"\nerror_feedback = \"ef14\"\n"},
};
constexpr Setting kDrawn[] = {
    {"fp32",
     "codec = \"randomk:fraction=0.1\"\nalgorithm = \"summable\"\nerror_feedback = \"ef14\"\n"},
    {"int8",
     "codec = \"randomk:fraction=0.1\"\nalgorithm = \"summable\"\nerror_feedback = \"ema\"\n"},
};
INSTANTIATE_TEST_SUITE_P(Jobs, DrawnAlike, testing::ValuesIn(kDrawn), name_of);
constexpr Setting kMessages[] = {
    {"codes", "codec = \"linear_ae:width=2,row=50,rate=0.01\"\n", kStaged},
    {"copies", "codec = \"linear_ae:width=2,row=50,rate=0.01,average=dp\"\n", kStaged},
    {"masks", "codec = \"topk:fraction=0.05,pair=mask\"\n", kStaged},
    {"runs", "codec = \"randomk:fraction=0.05,pair=mask\"\n", kStaged},
};
INSTANTIATE_TEST_SUITE_P(Jobs, Messages, testing::ValuesIn(kMessages), name_of);
constexpr Setting kRing[] = {
    {"codes", kMessages[0].rule, kStaged},
    {"topk", "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n"},
    {"ef21", "codec = \"int4:rounding=stochastic\"\nerror_feedback = \"ef21\"\n"},
};
INSTANTIATE_TEST_SUITE_P(Jobs, Ring, testing::ValuesIn(kRing), name_of);
INSTANTIATE_TEST_SUITE_P(Jobs, Estimates, testing::ValuesIn(kEstimates), name_of);

INSTANTIATE_TEST_SUITE_P(Jobs, Learned, testing::Values(kMessages[0]), name_of);

INSTANTIATE_TEST_SUITE_P(Fed, DrawnAlike, testing::ValuesIn(kFed), name_of);
INSTANTIATE_TEST_SUITE_P(Fed, GoesOn, testing::ValuesIn(kFed), name_of);
INSTANTIATE_TEST_SUITE_P(Estimates, GoesOn, testing::ValuesIn(kEstimates), name_of);
INSTANTIATE_TEST_SUITE_P(Messages, GoesOn, testing::ValuesIn(kMessages), name_of);

constexpr Setting kProgress[] = {
    {"accordion",
     "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n"
     "accordion = { low = \"topk:fraction=0.2\", window = 3, ratio = 0.9, hysteresis = 1 }\n"},
    {"accordion_factors",
     "codec = \"powersgd:rank=1,row=50\"\nerror_feedback = \"ef14\"\n"
     "accordion = { low = \"powersgd:rank=3,row=50\", window = 3, ratio = 0.9, hysteresis = 1 }\n"},
    {"averaging", "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\naverage_every = 5\n"},
    {"start_step", "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\nstart_step = 34\n"},
    {"ramp",
     "codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n"
     "ramp = [{ until = 34, codec = \"topk:fraction=0.3\" }]\n"},
    {"packed_randomk", "codec = \"randomk:fraction=0.1,values=int8\"\nerror_feedback = \"ef14\"\n"},
    {"randomk",
     "codec = \"randomk:fraction=0.1\"\nalgorithm = \"summable\"\nerror_feedback = \"ef14\"\n"},
};
INSTANTIATE_TEST_SUITE_P(Jobs, Progress, testing::ValuesIn(kProgress), name_of);
INSTANTIATE_TEST_SUITE_P(Progress, GoesOn, testing::ValuesIn(kProgress), name_of);

class Shipped : public testing::TestWithParam<std::string> {
  protected:
    std::vector<Ended> run(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), SLIMWIRE_TEST_CHECKPOINTED);
        Job job = slimwire_job(arguments, kResumeRanks);
        job.environment["SLIMWIRE_POLICY"] = policy_;
        job.environment["runtime.summary"] = "0";
        std::vector<Ended> ranks = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ranks), "");
        return ranks;
    }
    const TemporaryFolder folder_;
    const std::string policy_ = folder_.file("policy.toml"), state_ = folder_.file("state.%r");
};

// A job under a shipped policy goes on with the bits of one that did not end: one saves in the
// middle and goes on, another one comes back from there.
TEST_P(Shipped, GoesOnWithTheBitsOfAJobThatDidNotEnd) {
    std::ofstream(policy_) << shortened_policy(GetParam());
    const std::vector<Ended> whole = run({"0", "16", "-", state_, "7"});
    const std::vector<Ended> then = run({"7", "16", state_, "-", "16"});
    const std::string bytes = read_file(folder_.file("state.0"));
    const bool off = GetParam() == "off";
    EXPECT_EQ(whole[0].err.find("save 1: nothing is compressed") != std::string::npos, off);
    for (size_t rank = 0; rank < whole.size(); ++rank) {
        if (!off) {
            EXPECT_HAS_NOT(then[rank].err, "load ");
            EXPECT_HAS_NOT(whole[rank].err, "save ");
        }
        EXPECT_EQ(whole[rank].out.substr(whole[rank].out.find("\n7 ") + 1), then[rank].out);
    }
    // Codecs without feedback keep nothing that a later call needs but how often they drew.
    const bool keeps = !off && read_file(policy_).find("error_feedback") != std::string::npos;
    EXPECT_EQ(bytes.size() > 128, keeps);
    EXPECT_EQ(bytes.empty(), off);
}

INSTANTIATE_TEST_SUITE_P(Files, Shipped, testing::ValuesIn(shipped_policies()), [](const auto& of) {
    return std::regex_replace(of.param, std::regex("-"), "_");
});

INSTANTIATE_TEST_SUITE_P(Jobs, Refusals, testing::Values(kSettings[0]), name_of);

}  // namespace
}  // namespace slimwire::test
