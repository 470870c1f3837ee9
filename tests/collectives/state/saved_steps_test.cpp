// The folder of SLIMWIRE_STATE: whatever byte a job is killed at, what was complete stays and
// loads.
#include "collectives/state/saved_steps.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "collectives/state/state_file.h"
#include "collectives/state/weights.h"
#include "tests/support/ranks.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

constexpr int kRanks = 2;
constexpr uint64_t kBytes = 1000;

std::byte byte_of(const Saving& saving, int rank) {
    return static_cast<std::byte>(16 * saving.run + 4 * saving.step + static_cast<uint64_t>(rank));
}

Status save(const std::string& folder, const Saving& saving, int rank) {
    SLIMWIRE_TRY(make_room(folder, saving, rank));
    StateIndex index;
    index.launcher_rank = rank;
    index.launcher_size = kRanks;
    index.step = saving.step;
    index.comms.push_back({11, rank, kRanks, {}, 0, 0, 1});
    index.tensors.push_back(
        {{11, {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, kBytes / 4}, 21, 0}, 31, kBytes});
    return write_state(saving.path(folder, rank), index,
                       [&](size_t, uint64_t, std::span<std::byte> out) {
                           std::fill(out.begin(), out.end(), byte_of(saving, rank));
                           return Status();
                       });
}

class SavedSteps : public testing::Test {
  protected:
    // Every complete one is whole; the newest.
    Saving newest() {
        Saving found;
        for (const Saving& one : savings_in(folder_.path())) {
            for (int rank = 0; rank < kRanks && one.complete(folder_.path()); ++rank) {
                const Result<StateContent> read = read_state(one.path(folder_.path(), rank));
                EXPECT_TRUE(read.ok()) << read.status().message();
                if (read.ok()) {
                    EXPECT_EQ(read.value().held[0][kBytes - 1], byte_of(one, rank));
                    found = std::max(found, one);
                }
            }
        }
        return found;
    }
    const TemporaryFolder folder_;
};

// 10 points; 200 others: --gtest_filter=SavedSteps.AJobKilled* --gtest_repeat=20 under
// SLIMWIRE_TEST_SEED=0. The limit on a file's size ends the process at that byte as SIGKILL does.
TEST_F(SavedSteps, AJobKilledAtAnyByteLeavesTheOneBeforeOrTheNewOneWhole) {
    std::mt19937 random(test_seed());
    Saving before;
    for (uint64_t run = 1; run <= 10; ++run) {
        const uint64_t last = 1 + random() % 4;
        const int rank_of_last = static_cast<int>(random() % kRanks);
        const rlim_t at = random() % 1400;  // the file has 1200 bytes, and a bit: behind it
        SCOPED_TRACE("run " + std::to_string(run) + " killed at step " + std::to_string(last) +
                     " rank " + std::to_string(rank_of_last) + " byte " + std::to_string(at));
        const pid_t child = ::fork();
        if (child == 0) {
            ::signal(SIGXFSZ, SIG_DFL);
            for (uint64_t step = 1;; ++step) {
                for (int rank = 0; rank < kRanks; ++rank) {
                    const bool here = step == last && rank == rank_of_last;
                    if (here) {
                        const rlimit none{0, 0}, limit{at, at};
                        ::setrlimit(RLIMIT_CORE, &none);
                        ::setrlimit(RLIMIT_FSIZE, &limit);
                    }
                    if (!save(folder_.path(), {run, step, kRanks}, rank).ok()) {
                        ::_exit(1);
                    }
                    if (here) {
                        ::raise(SIGKILL);
                    }
                }
            }
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFSIGNALED(status)) << status;
        const Saving now = newest();
        const Saving whole = last > 1 ? Saving{run, last - 1, kRanks} : before;
        EXPECT_TRUE(now == whole || now == (Saving{run, last, kRanks})) << now.name();
        before = now;
    }
    // What killed processes left goes as the next job saves.
    for (uint64_t step = 1; step <= 3; ++step) {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_TRUE(save(folder_.path(), {11, step, kRanks}, rank).ok());
        }
    }
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
        files += entry.is_regular_file() ? 1 : 0;
    }
    EXPECT_EQ(files, 2u * kRanks);
    EXPECT_EQ(newest(), (Saving{11, 3, kRanks}));
}

// One rank's disk is slower: what the others have written ahead takes nothing away, neither of the
// old one nor of what it still writes.
TEST_F(SavedSteps, ARankThatLagsBehindKeepsTheOldOneWhole) {
    const auto at = [&](uint64_t step, int rank) {
        ASSERT_TRUE(save(folder_.path(), {1, step, kRanks}, rank).ok());
    };
    at(2, 0);
    at(2, 1);
    for (const uint64_t step : {4, 6, 8}) {
        at(step, 0);
        EXPECT_EQ(newest().step, 2u);
    }
    at(4, 1);
    EXPECT_EQ(newest().step, 4u);
    at(8, 1);
    EXPECT_EQ(newest().step, 8u);
    at(10, 0);
    at(10, 1);
    EXPECT_EQ(savings_in(folder_.path()).size(), 2u);
    size_t waiting = 0;
    for (const uint64_t step : {12, 14, 16}) {
        at(step, 0);
    }
    ASSERT_TRUE(make_room(folder_.path(), {1, 18, kRanks}, 0, &waiting).ok());
    EXPECT_EQ(waiting, 3u);
}

// A job that went back to step 2 of {2, 4} may be asked to do so once more.
TEST_F(SavedSteps, WhatARunBeganWithStaysUntilItHasOneOfItsOwn) {
    const std::optional<Saving> from = Saving{1, 2, 1};
    const auto save_of_second = [&](uint64_t step) {
        ASSERT_TRUE(make_room(folder_.path(), {2, step, 1}, 0, nullptr, from).ok());
        ASSERT_TRUE(save(folder_.path(), {2, step, 1}, 0).ok());
    };
    for (const uint64_t step : {2, 4}) {
        ASSERT_TRUE(save(folder_.path(), {1, step, 1}, 0).ok());
    }
    ASSERT_TRUE(make_room(folder_.path(), {2, 4, 1}, 0, nullptr, from).ok());
    EXPECT_TRUE(from->complete(folder_.path()));
    save_of_second(4);
    save_of_second(6);
    EXPECT_EQ(savings_in(folder_.path()), (std::vector<Saving>{{2, 6, 1}, {2, 4, 1}}));
}

TEST_F(SavedSteps, WhatALaterRunSavedStays) {
    for (const Saving& saving : {Saving{1, 2, 1}, {2, 4, 1}, {1, 6, 1}, {1, 8, 1}}) {
        ASSERT_TRUE(save(folder_.path(), saving, 0).ok());
    }
    EXPECT_EQ(savings_in(folder_.path()), (std::vector<Saving>{{2, 4, 1}, {1, 8, 1}, {1, 6, 1}}));
}

TEST_F(SavedSteps, OtherThingsInTheFolderAreLeftAlone) {
    namespace fs = std::filesystem;
    const fs::path folder = folder_.path();
    std::ofstream(folder / "notes") << "x";
    for (const char* name : {"step-1.run-1.of-2x", "step-01.run-1.of-2", "step-1", "other"}) {
        fs::create_directory(folder / name);
        std::ofstream(folder / name / "state.0") << "x";
    }
    EXPECT_TRUE(savings_in(folder_.path()).empty());
    for (uint64_t step = 1; step <= 3; ++step) {
        ASSERT_TRUE(save(folder_.path(), {1, step, 1}, 0).ok());
    }
    for (const char* name : {"step-1.run-1.of-2x", "step-01.run-1.of-2", "step-1", "other"}) {
        EXPECT_TRUE(fs::exists(folder / name / "state.0"));
    }
    EXPECT_TRUE(savings_in(folder_.file("nowhere")).empty());
}

TEST_F(SavedSteps, AFolderThatCannotBeMadeIsSaid) {
    std::ofstream(folder_.file("file")) << "x";
    const Status status = make_room(folder_.file("file"), {1, 2, 1}, 0);
    EXPECT_NE(status.message().find("of SLIMWIRE_STATE: "), std::string::npos) << status.message();
}

Measured measured(const std::vector<float>& values) {
    Measured found{};
    MeasureWork work{};
    MeasureArgs args{};
    args.input = values.data();
    args.work = &work;
    args.result = &found;
    args.count = static_cast<int64_t>(values.size());
    args.scale = 1;
    args.dtype = DType::kFloat32;
    args.mark = 1;
    measure_on_host(args);
    return found;
}

// Of other ranks shards have other padding and other places.
TEST(Weights, AreTheSameInAnyOrderWithAnyPaddingAndNotAfterAStep) {
    std::mt19937 random(test_seed());
    std::normal_distribution<float> normal;
    std::vector<float> values(70'001);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    const WeightsPrint print(measured(values));
    std::vector<float> shards = values;
    std::shuffle(shards.begin(), shards.end(), random);
    shards.resize(shards.size() + 7);
    EXPECT_TRUE(WeightsPrint(measured(shards)).same(print));
    for (float& value : shards) {
        value *= 1 + 1e-6f;
    }
    EXPECT_FALSE(WeightsPrint(measured(shards)).same(print));
    std::vector<float> one = values;
    one[5] += 1e-3f;
    EXPECT_FALSE(WeightsPrint(measured(one)).same(print));

    const TemporaryFolder folder;
    const std::string path = weights_path(folder.path(), std::nullopt);
    ASSERT_TRUE(write_weights(path, {print, 7, 9}).ok());
    const std::optional<SavedWeights> back = read_weights(path);
    ASSERT_TRUE(back.has_value());
    EXPECT_TRUE(back->print.same(print));
    EXPECT_EQ(back->step_calls, 7u);
    EXPECT_EQ(back->path, 9u);
    EXPECT_FALSE(read_weights(folder.path()).has_value());
    EXPECT_FALSE(write_weights(folder.path(), {print, 7, 9}).ok());
}

}  // namespace
}  // namespace slimwire::test
