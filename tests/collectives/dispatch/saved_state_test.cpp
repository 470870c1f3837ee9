// Saving and loading the residuals of a process, on a device that is plain memory: what waits and
// when it is taken, what is refused, and that nothing waits for ever.
#include "collectives/dispatch/save_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "collectives/call/launcher_names.h"
#include "collectives/call/training.h"
#include "collectives/feedback/ef21_sync.h"
#include "collectives/state/atoms.h"
#include "collectives/state/loaded_state.h"
#include "tests/collectives/dispatch/saved_process.h"
#include "tests/collectives/state/saved_jobs.h"
#include "tests/support/ranks.h"

namespace slimwire::test {
namespace {

class SavedState : public testing::Test {
  protected:
    void SetUp() override {
        std::for_each(std::begin(kRankNames), std::end(kRankNames), ::unsetenv);
        std::for_each(std::begin(kSizeNames), std::end(kSizeNames), ::unsetenv);
        g_event = cudaSuccess;
        PendingState::instance().replace({});
        training_state().step = 0;
    }
    void TearDown() override { training_state().step = 0; }
    // What is said of the loaded state at the end of a job.
    static std::string missed() {
        testing::internal::CaptureStderr();
        PendingState::instance().tell_missed(true);
        return testing::internal::GetCapturedStderr();
    }
    // Saves two tensors of a process, 'a' and 'b'.
    void save_two() {
        Process process;
        std::memset(process.residual(0), 'a', kBytes);
        std::memset(process.residual(1), 'b', kBytes);
        process.comm().random.here[0] = 30;
        process.comm().random.here[1] = 4;
        const auto saved = save_state(process.runtime(), path_.c_str());
        ASSERT_TRUE(saved.ok()) << saved.status().message();
        EXPECT_EQ(saved.value().kind, StateOutcome::Kind::kDone);
    }
    Status load(Process* process) {
        return load_state(process == nullptr ? nullptr : process->runtime(), path_.c_str(), 1000)
            .status();
    }
    TemporaryFolder folder_;
    const std::string path_ = folder_.file("state");
};

TEST_F(SavedState, ANewProcessTakesEachTensorAtItsFirstCall) {
    save_two();
    Process next;
    ASSERT_TRUE(load(&next).ok());
    EXPECT_EQ(held(next.residual(1)), filled('b'));
    EXPECT_EQ(held(next.residual(0)), filled('a'));
    EXPECT_EQ(held(next.residual(2)), kZero);
    std::memset(next.residual(0), 'c', kBytes);
    EXPECT_EQ(held(next.residual(0)), filled('c')) << "taken once";
    // Drawn so far: what was saved, and what this process adds.
    EXPECT_EQ(next.comm().random.before[0], 30u);
    EXPECT_EQ(next.comm().random.before[1], 4u);
}

// Copies may wait for the device, and that for what another thread ends or calls.
TEST_F(SavedState, NoLockIsHeldWhileItCopies) {
    static Process* process;
    static std::vector<std::future<uint64_t>> others;  // end behind the copies at the latest
    Process own;
    process = &own;
    (void)own.residual(0);
    alignas(4) static uint32_t drawn[3] = {7, 8, 9};
    own.comm().random.on_device = drawn;
    DeviceApi api = plain_memory();
    api.stream_synchronize = [](cudaStream_t) {
        others.push_back(std::async([] {
            for_each_session(*process->runtime(), [](Session& state) {
                EXPECT_GT(state.users, 0) << "it stays, if it is ended now";
            });
            return dispatch_state(*process->runtime())
                .residuals.held(process->comm().state_key)
                .tensors;
        }));
        const bool came =
            others.back().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
        return came ? cudaSuccess : cudaErrorUnknown;
    };
    own.runtime()->use_device(api);
    const auto saved = save_state(own.runtime(), path_.c_str());
    EXPECT_TRUE(saved.ok()) << saved.status().message();
    EXPECT_EQ(others.size(), 2u) << "what was drawn, and the residual";
    others.clear();
    EXPECT_EQ(own.comm().users, 0);
    own.comm().random.on_device = nullptr;
}

// Else the file would hold a tensor twice, and loading it would be refused.
TEST_F(SavedState, ATensorThatARuleForOrdinalsTookOverIsSavedOnce) {
    {
        Process process;
        std::memset(process.residual(0), 'a', kBytes);
        std::memset(process.residual_of_ordinal(0), 'b', kBytes);
        ASSERT_TRUE(save_state(process.runtime(), path_.c_str()).ok());
    }
    Process next;
    const Status loaded = load(&next);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    EXPECT_EQ(held(next.residual(0)), filled('b'));
}

TEST_F(SavedState, WhatWaitsIsSavedAgain) {
    save_two();
    {
        Process between;
        ASSERT_TRUE(load(&between).ok());
        std::memset(between.residual(1), 'c', kBytes);
        between.comm().random.here[0] = 2;
        ASSERT_TRUE(save_state(between.runtime(), path_.c_str()).ok());
    }
    PendingState::instance().replace({});
    Process next;
    ASSERT_TRUE(load(&next).ok());
    EXPECT_EQ(held(next.residual(0)), filled('a'));
    EXPECT_EQ(held(next.residual(1)), filled('c'));
    EXPECT_EQ(next.comm().random.before[0], 32u);
}

// A job between reduces other buckets: what the first one's owed at step 3 is not of its steps.
TEST_F(SavedState, WhatWaitsIsNotLoadedAtAnotherStepOnceOthersBeganAtZero) {
    struct Case {
        bool others;
        uint64_t step;
        char comes_back;
    };
    for (const auto& [others, step, comes_back] :
         {Case{false, 6, 'a'}, Case{true, 3, 'a'}, Case{true, 6, '\0'}, Case{true, 0, '\0'}}) {
        training_state().step = step == 0 ? 0 : 3;
        save_two();
        {
            Process between;
            ASSERT_TRUE(load(&between).ok());
            if (others) {
                std::memset(between.residual(7), 'c', kBytes);
            }
            training_state().step = step;
            ASSERT_TRUE(save_state(between.runtime(), path_.c_str()).ok());
        }
        PendingState::instance().replace({});
        Process next;
        ASSERT_TRUE(load(&next).ok());
        if (others) {
            EXPECT_EQ(held(next.residual(7)), filled('c'));
        }
        EXPECT_EQ(held(next.residual(0)), filled(comes_back)) << others << step;
        const std::string said = missed();
        EXPECT_EQ(said.find("loaded state: 2 tensors, 80 bytes, are not added, first allreduce f32 "
                            "sum count 10 ordinal 0 residuals: they were owed at step " +
                            std::to_string(step == 0 ? 0 : 3)) != std::string::npos,
                  comes_back == '\0')
            << said;
    }
}

// A few steps after it was loaded, or where the job ends; not of calls that come rarely.
TEST_F(SavedState, WhatNoCallTakesIsSaidWhereOthersBeginAtZero) {
    save_two();
    for (const bool others : {false, true}) {
        for (const bool ends : {false, true}) {
            Process next;
            ASSERT_TRUE(load(&next).ok());
            (void)next.residual(1);
            if (others) {
                (void)next.residual(7);
                (void)next.residual(8);
            }
            testing::internal::CaptureStderr();
            for (int step = 0; step < 3; ++step) {
                PendingState::instance().tell_missed(false);
            }
            EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
            testing::internal::CaptureStderr();
            PendingState::instance().tell_missed(ends);
            const std::string said = testing::internal::GetCapturedStderr();
            EXPECT_EQ(said.find("loaded state: 1 tensors, 40 bytes, are not added, first allreduce "
                                "f32 sum count 10 ordinal 0 residuals: no call took them in 3 "
                                "steps, and 2 other tensors began at zero") != std::string::npos,
                      others)
                << said;
            EXPECT_EQ(missed(), "") << "once";
        }
    }
}

// By its name a tensor is found at another slot. One without a name is that of its slot, which had
// none, as is one whose name the state does not have.
TEST_F(SavedState, TensorsAreFoundByTheirNamesWhereverTheyAre) {
    {
        Process process;
        std::memset(process.named("a", 0), 'a', kBytes);
        std::memset(process.named("b", 1), 'b', kBytes);
        std::memset(process.named(nullptr, 2), 'n', kBytes);
        ASSERT_TRUE(save_state(process.runtime(), path_.c_str()).ok());
    }
    {
        Process between;  // what waits keeps its name
        ASSERT_TRUE(load(&between).ok());
        EXPECT_EQ(held(between.named("b", 5)), filled('b'));
        ASSERT_TRUE(save_state(between.runtime(), path_.c_str()).ok());
    }
    EXPECT_EQ(SavedJob::open(path_).value().atoms()[0].key.text(),
              "allreduce f32 sum count 10 'b' residuals");
    Process next;
    ASSERT_TRUE(load(&next).ok());
    EXPECT_EQ(held(next.named("b", 0)), filled('b'));
    EXPECT_EQ(held(next.named(nullptr, 1)), kZero) << "which had a name";
    EXPECT_EQ(held(next.named("c", 2)), filled('n')) << "which had none";
    EXPECT_EQ(held(next.named("a", 3)), filled('a'));
    EXPECT_EQ(missed(), "");
}

// What waits by a name that a tensor got behind its first call does not take its place.
TEST_F(SavedState, ANameThatComesLateIsTheTensorsThatIsSaved) {
    for (const char first : {'a', 'z'}) {
        Process process;
        if (first == 'z') {
            ASSERT_TRUE(load(&process).ok());
            EXPECT_EQ(held(process.named(nullptr, 0)), kZero);
        }
        std::memset(process.named("late", 0), first, kBytes);
        ASSERT_TRUE(save_state(process.runtime(), path_.c_str()).ok());
    }
    EXPECT_EQ(read_state(path_).value().index.tensors.size(), 2u) << "and the name";
    Process next;
    ASSERT_TRUE(load(&next).ok());
    EXPECT_EQ(held(next.named("late", 4)), filled('z'));
}

// Nothing is added in silence where a name does not say which tensor it is.
TEST_F(SavedState, NamesOfSeveralTensorsAreNoKeys) {
    const auto save = [&](const char* first, const char* second) {
        Process process;
        std::memset(process.named(first, 0), 'a', kBytes);
        std::memset(process.named(second, 1), 'b', kBytes);
        testing::internal::CaptureStderr();
        EXPECT_TRUE(save_state(process.runtime(), path_.c_str()).ok());
        return testing::internal::GetCapturedStderr();
    };
    EXPECT_NE(save("two", "two")
                  .find("calls of several tensors that are alike carry the name "
                        "'two': what they are owed is saved by their places"),
              std::string::npos);
    {
        Process next;
        ASSERT_TRUE(load(&next).ok());
        EXPECT_EQ(held(next.named("two", 1)), filled('b'));
        EXPECT_EQ(held(next.named(nullptr, 0)), filled('a'));
        EXPECT_EQ(missed(), "");
    }
    EXPECT_EQ(save("one", nullptr), "");
    {
        Process next;  // the second call of the name cannot be known at the first
        ASSERT_TRUE(load(&next).ok());
        EXPECT_EQ(held(next.named("one", 3)), filled('a'));
        EXPECT_EQ(held(next.named("one", 0)), kZero);
        EXPECT_NE(missed().find("first allreduce f32 sum count 10 'one' residuals: another tensor "
                                "of this name came first and took what there was"),
                  std::string::npos);
    }
    Process next;
    ASSERT_TRUE(load(&next).ok());
    next.count = 20;
    EXPECT_EQ(held(next.named("one", 0)), kZero);
    EXPECT_NE(missed().find("40 bytes, are not added, first allreduce f32 sum count 10 'one' "
                            "residuals: the tensor of this name is of another kind, size or "),
              std::string::npos);
    next.count = 10;
    (void)next.named("one", 8, 1);
    ASSERT_TRUE(load(&next).ok());
    EXPECT_EQ(held(next.named("one", 0)), kZero);
    EXPECT_NE(missed().find("'one' residuals: several pieces of memory have this name now"),
              std::string::npos);
    Process without;
    ASSERT_TRUE(load(&without).ok());
    EXPECT_EQ(held(without.named(nullptr, 1)), filled('b'));
    EXPECT_EQ(held(without.named(nullptr, 0)), kZero) << "not by the slot of a name";
    EXPECT_NE(missed().find("'one' residuals: no call took them in"), std::string::npos);
}

TEST_F(SavedState, LoadingReplacesWhatTheProcessHad) {
    save_two();
    Process process;
    std::memset(process.residual(0), 'x', kBytes);
    std::memset(process.residual(7), 'x', kBytes);
    int address = 0;
    std::memset(process.residual_at(&address), 'x', kBytes);
    process.comm().random.here[0] = 50;
    ASSERT_TRUE(load(&process).ok());
    EXPECT_EQ(held(process.residual(0)), filled('a'));
    EXPECT_EQ(held(process.residual(7)), kZero) << "the file has none";
    EXPECT_EQ(held(process.residual_at(&address)), filled('x'));
    EXPECT_EQ(process.comm().random.before[0] + process.comm().random.here[0], 30u);
}

// As when the nodes of a communicator lie otherwise than before.
TEST_F(SavedState, AnotherShapePathOrCommunicatorTakesNothing) {
    save_two();
    Process next;
    ASSERT_TRUE(load(&next).ok());
    EXPECT_EQ(held(next.residual(0, kPath, kShape + 1)), kZero);
    EXPECT_EQ(held(next.residual(1, kPath, kShape + 1)), kZero);
    EXPECT_EQ(held(next.residual(2, kPath + 1)), kZero);
    const std::string said = missed();
    EXPECT_NE(said.find("2 tensors, 80 bytes, are not added, first allreduce f32 sum count 10 "
                        "ordinal 0 residuals: they lie otherwise now (other nodes"),
              std::string::npos)
        << said;
}

TEST_F(SavedState, TensorsByAddressAreLeftOutAndSaid) {
    Process process;
    int address = 0;
    (void)process.residual_at(&address);
    std::memset(process.residual(0), 'a', kBytes);
    const auto saved = save_state(process.runtime(), path_.c_str());
    ASSERT_TRUE(saved.ok());
    EXPECT_EQ(saved.value().kind, StateOutcome::Kind::kPartial);
    EXPECT_NE(saved.value().text.find("the residuals of 1 tensors that are told apart by"),
              std::string::npos);
    EXPECT_EQ(read_state(path_).value().index.tensors.size(), 1u);
    EXPECT_EQ(read_state(path_).value().index.left_out, 1u);
}

// EF21's: saved with the moment, by which ranks then compare them.
TEST_F(SavedState, EstimatesOfAllRanksAreOfAMoment) {
    uint64_t moments[2] = {};
    for (uint64_t calls : {3, 4}) {
        Process process;
        process.comm().comm_key = 55;
        std::memset(process.shared(0, calls), 'a', kBytes);
        EXPECT_EQ(process.origin(), ResidualOrigin::kMade);
        const auto saved = save_state(process.runtime(), path_.c_str());
        ASSERT_TRUE(saved.ok()) << saved.status().message();
        EXPECT_EQ(saved.value().kind, StateOutcome::Kind::kDone) << saved.value().text;
        const StateIndex index = read_state(path_).value().index;
        ASSERT_EQ(index.tensors.size(), 1u);
        EXPECT_EQ(index.tensors[0].kind, StateKind::kShared);
        moments[calls - 3] = index.comms.at(0).snapshot_id;
        EXPECT_EQ(moments[calls - 3], moment_of(process.comm(), process.comm().progress));
    }
    EXPECT_NE(moments[0], moments[1]);
    Process process;
    ASSERT_TRUE(load(&process).ok());
    // Before the first call of them the moment is still the one that was loaded.
    ASSERT_TRUE(save_state(process.runtime(), folder_.file("early").c_str()).ok());
    const StateIndex early = read_state(folder_.file("early")).value().index;
    ASSERT_EQ(early.tensors.size(), 1u);
    EXPECT_EQ(early.comms.at(0).snapshot_id, moments[1]);
    EXPECT_EQ(held(process.shared(0, 1)), filled('a'));
    EXPECT_EQ(process.origin(), ResidualOrigin::kRestored);
    EXPECT_EQ(PendingState::instance().comm(process.comm().checkpoint_key).snapshot_id, moments[1]);
    // Ranks may load at different moments: what is in use stays.
    std::memset(process.shared(0, 2), 'n', kBytes);
    EXPECT_EQ(process.origin(), ResidualOrigin::kKept);
    ASSERT_TRUE(load(&process).ok());
    EXPECT_EQ(held(process.shared(0, 3)), filled('n'));
    // What still waits is of the moment that was loaded, and saved without another.
    ASSERT_TRUE(save_state(process.runtime(), folder_.file("again").c_str()).ok());
    const StateContent again = read_state(folder_.file("again")).value();
    ASSERT_EQ(again.index.tensors.size(), 1u);
    EXPECT_EQ(static_cast<char>(again.held[0][0]), 'n');
    EXPECT_EQ(again.index.comms.at(0).snapshot_id,
              moment_of(process.comm(), process.comm().progress));
}

// What is damaged is found where it is read, and the next state is saved without it.
TEST_F(SavedState, WhatCannotBeReadIsNotSavedAgain) {
    StateContent content;
    content.index.comms.push_back({1000, 0, 2, {}, 0, 0, {}});
    for (uint32_t ordinal = 0; ordinal < 2; ++ordinal) {
        content.index.tensors.push_back(
            {{1000, kSum, kPath, ordinal}, 0, kBytes, StateKind::kOwed});
        content.held.emplace_back();
    }
    content.read = [](size_t tensor, uint64_t, std::span<std::byte> out) {
        std::fill(out.begin(), out.end(), std::byte{'w'});
        return tensor == 1 ? Status() : Status(Code::kInvalidUsage, "'a file' is damaged");
    };
    PendingState::instance().replace(std::move(content));
    testing::internal::CaptureStderr();
    Process process;
    ASSERT_TRUE(save_state(process.runtime(), path_.c_str()).ok());
    EXPECT_NE(testing::internal::GetCapturedStderr().find(
                  "what waits is not saved again: 'a file' is damaged"),
              std::string::npos);
    const StateContent saved = read_state(path_).value();
    ASSERT_EQ(saved.index.tensors.size(), 1u);
    EXPECT_EQ(saved.index.tensors[0].tensor.ordinal, 1u);
    EXPECT_EQ(static_cast<char>(saved.held[0][0]), 'w');
    PendingState::instance().replace({});
}

// What waits for a communicator to be made is saved again with the moment it is of, and what a
// communicator took over with its own.
TEST_F(SavedState, ProgressIsOfTheMomentThatAllRanksLoaded) {
    const LastingTensor tensor{1000, kSum, kPath, 0};
    HandWritten state;
    state.index.config_hash = 99;
    state.index.comms.push_back({1000, 0, 2, {}, 7, 5, {}});
    state.add(tensor, StateKind{4}, std::vector(8, std::byte{6}));
    ASSERT_TRUE(state.write(path_).ok());
    Process process;
    Session& comm = process.comm();
    ASSERT_TRUE(load(&process).ok());
    const auto save = [&] {
        EXPECT_TRUE(save_state(process.runtime(), folder_.file("again").c_str()).ok());
        return read_state(folder_.file("again")).value();
    };
    PendingState& pending = PendingState::instance();
    EXPECT_EQ(save().index.tensors.size(), 1u);
    comm.progress.drawn = 5;
    comm.progress.waiting = pending.take_progress(1000);
    EXPECT_TRUE(pending.take_progress(1000).empty()) << "taken once";
    EXPECT_EQ(pending.comm(1000).drawn_alike, 5u);
    const StateContent again = save();
    ASSERT_EQ(again.index.tensors.size(), 1u);
    EXPECT_EQ(again.index.tensors[0].kind, StateKind{4});
    EXPECT_EQ(static_cast<char>(again.held[0][7]), 6);
    EXPECT_EQ(again.index.comms.at(0).snapshot_id, 7u);
    EXPECT_EQ(again.index.comms.at(0).drawn_alike, 5u);
    EXPECT_TRUE(comm.progress.take({1000, kSum, kPath, 1}, StateKind{4}).empty());
    EXPECT_TRUE(comm.progress.take(tensor, StateKind{5}).empty());
    EXPECT_EQ(comm.progress.take(tensor, StateKind{4}).size(), 8u);
    EXPECT_EQ(save().index.tensors.size(), 0u);
}

// Ranks agree only where they loaded the same of all that they must have alike.
TEST_F(SavedState, WhatRanksTellOfTheirProgressFollowsFromMomentAndDraws) {
    const StateComm none, snapshot_id{1, 0, 2, {}, 7, 0, {}}, drawn{1, 0, 2, {}, 7, 1, {}};
    const StateComm other_rank{2, 1, 2, {3, 4}, 7, 1, {}};
    EXPECT_EQ(told_progress(none), 0u);
    EXPECT_NE(told_progress(snapshot_id), 0u);
    EXPECT_NE(told_progress(snapshot_id), told_progress(drawn));
    EXPECT_EQ(told_progress(drawn), told_progress(other_rank));
}

TEST_F(SavedState, WhatIsRefusedChangesNothing) {
    save_two();
    const std::string good = read_file(path_);
    Process process;
    std::memset(process.residual(0), 'x', kBytes);
    const auto refused = [&](const char* why) {
        const Status status = load(&process);
        EXPECT_EQ(status.code(), Code::kInvalidUsage);
        EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
        EXPECT_EQ(held(process.residual(0)), filled('x'));
        EXPECT_EQ(process.comm().random.before[0], 0u);
        EXPECT_TRUE(PendingState::instance().comms().empty());
    };
    std::ofstream(path_, std::ios::binary) << good.substr(0, good.size() - 30);
    refused("state file");
    std::ofstream(path_, std::ios::binary) << good;
    process.runtime()->config.hash = 98;
    refused("another policy");
    refused("slimwire state convert lays it out for any, also for as many ranks");
    process.runtime()->config.hash = 99;
    ::setenv("RANK", "1", 1);
    ::setenv("WORLD_SIZE", "4", 1);
    refused("saved by a process without a launcher's rank; this is rank 1 of 4");
    ::unsetenv("RANK");
    ::unsetenv("WORLD_SIZE");
    process.comm().checkpoint_key = 77;
    refused(
        "knows none of this process's communicators: it is of rank 0 of 2, here is rank 0 of 2");
    process.comm().checkpoint_key = 1000;
    g_event = cudaErrorNotReady;
    refused("have not ended");
    g_event = cudaSuccess;
    EXPECT_TRUE(load(&process).ok());
    EXPECT_EQ(held(process.residual(0)), filled('a'));
}

TEST_F(SavedState, CallsThatDoNotEndAreNotWaitedForForEver) {
    Process process;
    std::memset(process.residual(0), 'a', kBytes);
    g_event = cudaErrorNotReady;
    auto saved = save_state(process.runtime(), path_.c_str(), 20000);
    EXPECT_EQ(saved.status().code(), Code::kInvalidUsage);
    EXPECT_FALSE(std::filesystem::exists(path_));
    g_event = cudaErrorIllegalAddress;
    saved = save_state(process.runtime(), path_.c_str(), 20000);
    EXPECT_EQ(saved.status().code(), Code::kCudaError);
    g_event = cudaSuccess;
    process.comm().users = 1;
    saved = save_state(process.runtime(), path_.c_str(), 20000);
    EXPECT_EQ(saved.status().code(), Code::kInvalidUsage);
    process.comm().users = 0;
    EXPECT_TRUE(save_state(process.runtime(), path_.c_str(), 20000).ok());
}

TEST_F(SavedState, ThePathSaysTheRank) {
    Process process(1);
    ASSERT_TRUE(save_state(process.runtime(), folder_.file("of.%r").c_str()).ok());
    EXPECT_TRUE(std::filesystem::exists(folder_.file("of.1")));
    ::setenv("RANK", "6", 1);
    ASSERT_TRUE(save_state(process.runtime(), folder_.file("of.%r").c_str()).ok());
    EXPECT_TRUE(std::filesystem::exists(folder_.file("of.6")));
    EXPECT_EQ(save_state(process.runtime(), "").status().code(), Code::kInvalidArgument);
    EXPECT_EQ(save_state(process.runtime(), nullptr).status().code(), Code::kInvalidArgument);
}

TEST_F(SavedState, AProcessThatCompressesNothingHasNoState) {
    Process process;
    process.runtime()->config.active = false;
    EXPECT_EQ(save_state(process.runtime(), path_.c_str()).value().kind,
              StateOutcome::Kind::kNothing);
    EXPECT_EQ(load_state(process.runtime(), path_.c_str()).value().kind,
              StateOutcome::Kind::kNothing);
    EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SavedState, BeforeTheRuntimeIsThereThePathNeedsALauncher) {
    ::setenv("SLIMWIRE_CODEC", "int4", 1);
    const auto saved = save_state(nullptr, folder_.file("of.%r").c_str());
    EXPECT_EQ(saved.status().code(), Code::kInvalidArgument);
    ASSERT_TRUE(save_state(nullptr, path_.c_str()).ok());
    EXPECT_TRUE(load(nullptr).ok());
    ::unsetenv("SLIMWIRE_CODEC");
}

}  // namespace
}  // namespace slimwire::test
