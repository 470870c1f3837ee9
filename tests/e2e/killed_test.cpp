// A job that is killed while it saves its state (SLIMWIRE_STATE), all ranks of it, at any call of
// the file system: what is complete is whole, no older than before, and the job that comes back
// goes on with the bits of one that was never killed. Points are drawn by the seed, until 4 jobs
// were killed; TEST_FAULTS=all: 200, TEST_FAULTS=N: N.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "collectives/state/atoms.h"
#include "collectives/state/saved_steps.h"
#include "tests/support/has.h"
#include "tests/support/job.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

// A saving of the job has 40 points and more, a later one those of removing an older one, too.
constexpr int kRanks = 2, kSteps = 6, kPointsOfOne = 40, kPoints = 2 * kPointsOfOne;

class Killed : public testing::Test {
  protected:
    std::vector<Ended> run(int from, int to, int rank = 0, int point = 0) {
        Job job = slimwire_job(
            {SLIMWIRE_TEST_RESUMED, std::to_string(from), std::to_string(to), "-", "-"}, kRanks);
        const std::string policy = folder_.file("policy.toml");
        std::ofstream(policy) << "version = 1\n[[rule]]\nname = \"sums\"\n"
                              << "match = { op = \"allreduce\" }\ncodec = \"topk:fraction=0.05\"\n"
                              << "error_feedback = \"ef14\"\n";
        job.environment["SLIMWIRE_POLICY"] = policy;
        job.environment["runtime.summary"] = "0";
        if (!ring_.empty()) {
            job.environment["SLIMWIRE_STATE"] = ring_ + ",every=1";
        }
        if (point > 0) {
            job.of_rank[rank]["TEST_DIES_AT"] = std::to_string(point);
        }
        return run_ranks(job);
    }
    // The newest complete saving; every one has the files of one moment, whole.
    Saving newest() {
        Saving found;
        for (const Saving& one : savings_in(ring_)) {
            if (!one.complete(ring_)) {
                continue;
            }
            const Result<SavedJob> job = SavedJob::open(ring_ + "/" + one.name());
            EXPECT_TRUE(job.ok()) << job.status().message();
            if (job.ok()) {
                EXPECT_EQ(job.value().findings(), std::vector<std::string>());
                EXPECT_EQ(job.value().files().front().index().step, one.step);
            }
            found = std::max(found, one);
        }
        return found;
    }
    // Lines of steps `from` to `to` - 1.
    static std::string lines(const std::string& all, int from, int to) {
        const auto begin = [&](int step) {
            return ("\n" + all).find("\n" + std::to_string(step) + " 0 ");
        };
        return all.substr(begin(from), begin(to) - begin(from));
    }
    const TemporaryFolder folder_;
    std::string ring_;  // its folder; empty: none
};

TEST_F(Killed, AtAnyPointOfSavingTheJobGoesOnAsIfItWereNot) {
    const char* const wanted = std::getenv("TEST_FAULTS");
    const int points = wanted == nullptr              ? 4
                       : std::string(wanted) == "all" ? 200
                                                      : std::atoi(wanted);
    constexpr int kLast = 40;
    const std::vector<Ended> whole = run(0, kLast + kSteps);
    ASSERT_EQ(unless_all_exit(whole), "");
    std::mt19937 random(test_seed());
    Saving before;
    int killed = 0;
    for (int job = 0; killed < points && job < 10 * points; ++job) {
        if (job == 0 || before.step + kSteps > kLast) {
            ring_ = folder_.file("ring." + std::to_string(job));
            before = {};
        }
        const int rank = static_cast<int>(random() % kRanks);
        const int point = 1 + static_cast<int>(random() % (job == 0 ? kPointsOfOne : kPoints));
        const int from = static_cast<int>(before.step);
        SCOPED_TRACE("job " + std::to_string(job) + " from step " + std::to_string(from) +
                     " rank " + std::to_string(rank) + " point " + std::to_string(point));
        const std::vector<Ended> ended = run(from, from + kSteps, rank, point);
        for (const Ended& one : ended) {
            EXPECT_TRUE(one.exit_code == 0 || one.exit_code == 128 + 9) << one.exit_code << one.err;
        }
        killed += ended[static_cast<size_t>(rank)].exit_code != 0 ? 1 : 0;
        const Saving now = newest();
        EXPECT_GE(now, before);
        const int then = static_cast<int>(now.step);
        const std::vector<Ended> back = run(then, then + 3);
        for (int one = 0; one < kRanks; ++one) {
            const Ended &is = back[static_cast<size_t>(one)],
                        &was = whole[static_cast<size_t>(one)];
            EXPECT_EQ(is.exit_code, 0);
            if (now.ranks > 0) {
                EXPECT_HAS_NOT(is.err, "nothing is loaded");
            }
            EXPECT_EQ(is.out, lines(was.out, then, then + 3)) << is.err;
        }
        before = newest();
        EXPECT_GE(before, now);
    }
    EXPECT_GT(killed, 0) << "of the first job the point lies in its first saving";
    RecordProperty("killed", killed);
}

}  // namespace
}  // namespace slimwire::test
