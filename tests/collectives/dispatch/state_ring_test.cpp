// SLIMWIRE_STATE on a device that is plain memory: what is saved when, what comes back to which
// step, and that nothing waits.
#include "collectives/dispatch/ring/state_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

#include "collectives/call/training.h"
#include "collectives/communicator/pending_creations.h"
#include "collectives/dispatch/save_state.h"
#include "collectives/plan/layout.h"
#include "collectives/state/loaded_state.h"
#include "collectives/state/residual_map.h"
#include "tests/collectives/dispatch/saved_process.h"
#include "tests/collectives/state/saved_jobs.h"
#include "tests/support/ranks.h"

namespace slimwire::test {
namespace {

std::vector<std::string> g_work;  // what was enqueued

class Ring : public testing::Test {
  protected:
    void SetUp() override {
        ::setenv("RANK", "0", 1);
        ::setenv("WORLD_SIZE", "1", 1);
        g_event = cudaSuccess;
        g_pinned_bytes = 0;
        begin_process();
    }
    void TearDown() override {
        ::unsetenv("RANK");
        ::unsetenv("WORLD_SIZE");
        begin_process();
    }
    static void begin_process() {
        PendingState::instance().replace({});
        training_state().marks = 0;
    }
    // A process that begins, under SLIMWIRE_STATE=folder,every=2.
    struct Job {
        explicit Job(const std::string& folder, const std::string& load = "") {
            begin_process();
            process.runtime()->config.settings.state_ring = {folder, 2, load, false};
            ring = std::make_unique<StateRing>(*process.runtime());
            ring->begin();
        }
        void mark(uint64_t step) {
            training_state().mark_step(step);
            ring->marked(step);
        }
        // Steps `from` to `to`, at the end of which the tensor is filled with their number; each
        // saving is written before the next step.
        void train(uint64_t from, uint64_t to) {
            for (uint64_t step = from; step <= to; ++step) {
                mark(step);
                while (ring->writing()) {
                    std::this_thread::yield();
                }
                std::memset(process.residual(0), static_cast<int>('a' + step), kBytes);
            }
        }
        Process process;
        std::unique_ptr<StateRing> ring;
    };
    // A process of a job that marks no steps: they begin by gathers of weights that have this norm,
    // and end by a reduction. The ring hears of those from number 9 on.
    struct Unmarked : Job {
        explicit Unmarked(const std::string& folder) : Job(folder) {
            process.comm().group.number = 1;
            process.comm().places = std::make_unique<TensorSlots>();
            ring->created(&process.comm());
        }
        // Steps up to where it is known what counts; how many reductions were native. -1: a call
        // failed.
        int recall() {
            int held = 0;
            while (process.comm().recalls) {
                if (!ring->recall(&process.comm()).ok()) {
                    return -1;
                }
                (void)call(Op::kReduceScatter, RedOp::kSum);
                held += process.comm().recalls && ring->holds(&process.comm(), Op::kReduceScatter)
                            ? 1
                            : 0;
                (void)call(Op::kAllGather, RedOp::kNone);
            }
            return held;
        }
        static std::shared_ptr<GatheredValue> weights(double norm) {
            auto value = std::make_shared<GatheredValue>();
            Measured found{};
            found.square_sum = norm;
            std::memcpy(value->measured.bytes.data(), &found, sizeof found);
            value->measured.there = norm > 0;  // else its group has yet to launch it
            return value;
        }
        CommStats stats;
        StepPosition call(Op op, RedOp redop) {
            const CallSignature signature{op, DType::kFloat32, redop, 0, 10};
            return process.comm().places->next(signature, nullptr, 0, &stats);
        }
        bool gather(double norm) {
            const StepPosition place = call(Op::kAllGather, RedOp::kNone);
            return ring->gathers(&process.comm(), place, weights(norm));
        }
        void train(const std::vector<double>& norms) {
            while (process.comm().places->calls() < 17) {
                (void)call(Op::kReduceScatter, RedOp::kSum);
                (void)call(Op::kAllGather, RedOp::kNone);
            }
            char filled = 'a';
            (void)process.residual(0);
            for (const double norm : norms) {
                (void)call(Op::kReduceScatter, RedOp::kSum);
                (void)gather(norm);
                while (ring->writing()) {
                    std::this_thread::yield();
                }
                std::memset(process.residual(0), filled++, kBytes);
            }
        }
    };
    // What the tensor is filled with in a process that begins with `step`, '0' of zeros.
    char comes_back(uint64_t step, const std::string& load = "") {
        testing::internal::CaptureStderr();
        Job job(folder_.path(), load);
        job.mark(step);
        const std::string got = held(job.process.residual(0));
        said_ = testing::internal::GetCapturedStderr();
        EXPECT_EQ(got, std::string(kBytes, got[0]));
        return got[0] == '\0' ? '0' : got[0];
    }
    std::string said_;
    const TemporaryFolder folder_;
};

TEST_F(Ring, TheTwoNewestStayAndAreOfTheirSteps) {
    Job(folder_.path()).train(0, 7);
    const std::vector<Saving> there = savings_in(folder_.path());
    ASSERT_EQ(there.size(), 2u);
    EXPECT_EQ(there[0], (Saving{1, 6, 1}));
    EXPECT_EQ(there[1], (Saving{1, 4, 1}));
    EXPECT_EQ(comes_back(6), 'a' + 5) << "as the step before left it";
    EXPECT_EQ(said_, "");
    EXPECT_EQ(comes_back(4), 'a' + 3);
    EXPECT_EQ(said_, "");
    EXPECT_EQ(g_pinned_bytes, 256u) << "the state once, whatever was saved how often";
}

TEST_F(Ring, OfAnotherStepNothingComesBackAndItIsSaid) {
    Job(folder_.path()).train(0, 7);
    EXPECT_EQ(comes_back(5), '0');
    EXPECT_NE(said_.find("the job begins at step 5, of which '" + folder_.path() +
                         "' has no complete saving; its newest is of step 6; nothing is loaded"),
              std::string::npos)
        << said_;
    EXPECT_EQ(comes_back(5, "newest"), 'a' + 5);
    EXPECT_EQ(comes_back(5, "4"), 'a' + 3);
    EXPECT_EQ(comes_back(5, "2"), '0');
    EXPECT_NE(said_.find("no complete saving for load=2"), std::string::npos) << said_;
    EXPECT_EQ(comes_back(6, "none"), '0');
    EXPECT_EQ(said_, "");
}

TEST_F(Ring, WithoutMarksNothingCounts) {
    Job(folder_.path()).train(0, 7);
    testing::internal::CaptureStderr();
    Job job(folder_.path());
    job.ring->created(&job.process.comm());
    EXPECT_TRUE(job.ring->undecided());
    EXPECT_FALSE(job.ring->holds(&job.process.comm(), Op::kAllReduce));
    EXPECT_FALSE(job.ring->undecided());
    EXPECT_EQ(held(job.process.residual(0)), kZero);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("the saving of step 6 in '" + folder_.path() +
                        "' is of these weights is not known: it is not loaded (load=6 does)"),
              std::string::npos)
        << said;
}

// What ranks agreed on before the step was known counts with it, and not without.
TEST_F(Ring, ProgressIsHeldUntilTheStepIsKnown) {
    Job(folder_.path()).train(0, 4);
    for (const uint64_t step : {4, 5}) {
        Job job(folder_.path());
        Session& comm = job.process.comm();
        const LastingTensor tensor{comm.checkpoint_key, kSum, kPath, 0};
        comm.progress.drawn = 7;
        comm.progress.waiting[{tensor, StateKind{4}}] = {std::byte{1}};
        comm.random.before[0] = 3;
        job.ring->created(&comm);
        EXPECT_TRUE(comm.progress.take(tensor, StateKind{4}).empty());
        testing::internal::CaptureStderr();
        job.mark(step);
        (void)testing::internal::GetCapturedStderr();
        EXPECT_EQ(comm.progress.drawn, step == 4 ? 7u : 0u);
        EXPECT_EQ(comm.progress.take(tensor, StateKind{4}).size(), step == 4 ? 1u : 0u);
        EXPECT_EQ(comm.random.before[0], step == 4 ? 3u : 0u);
    }
}

// It would be decided without one that slimwire's own thread is about to make known.
TEST_F(Ring, TheStepIsKnownOnceCommunicatorsAreMade) {
    Job(folder_.path()).train(0, 4);
    Job job(folder_.path());
    job.process.runtime()->config.settings.agree_timeout_us = 10'000'000;
    auto made = std::make_unique<Session>();
    Session& comm = *made;
    comm.comm = reinterpret_cast<ncclComm_t>(&comm);
    comm.state_key = 1;
    comm.progress.drawn = 7;
    const auto creation = std::make_shared<PendingCreation>();
    creation->native_done = true;
    PendingCreationTable::instance().add(creation);
    job.ring->created(&comm);
    EXPECT_EQ(comm.progress.drawn, 0u);
    std::thread background([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        job.process.runtime()->comms.add(std::move(made));
        PendingCreationTable::instance().finish(creation, {});
    });
    job.mark(4);
    EXPECT_FALSE(job.ring->undecided());
    background.join();
    EXPECT_FALSE(comm.recalls);
    EXPECT_EQ(comm.progress.drawn, 7u);
}

// By atoms of all ranks; what cannot be taken apart is said, and begins anew.
TEST_F(Ring, OnAnotherNumberOfRanksAtomsComeBack) {
    Job(folder_.path()).train(0, 4);
    ::setenv("WORLD_SIZE", "3", 1);
    EXPECT_EQ(comes_back(4), '0');
    EXPECT_NE(said_.find("begins anew on 3 ranks: allreduce f32 sum count 10 ordinal 0 residuals: "
                         "of a communicator of some of the ranks only"),
              std::string::npos)
        << said_;
    const Saving saving{7, 8, 2};
    const CallSignature sum{Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 16};
    const ResidualMap map{
        .contributors = 2, .stored_elems = 16, .elems = 16, .runs = {{0, 16, 0, 0, 0}}};
    for (int rank = 0; rank < 2; ++rank) {
        HandWritten state = state_of(rank, 2);
        state.index.step = 8;
        state.add({state.index.comms[0].key, sum, 6, 0},
                  std::vector<float>(16, rank == 0 ? 1.0f : 2.5f), bytes_of(map));
        ASSERT_TRUE(make_room(folder_.path(), saving, rank).ok());
        ASSERT_TRUE(state.write(saving.path(folder_.path(), rank)).ok());
    }
    EXPECT_EQ(comes_back(8), '0') << "no tensor of all ranks";
    EXPECT_EQ(said_, "");
    const PendingState::Atoms atoms =
        PendingState::instance().take_atoms({atoms_key({1}), sum, 6, 0}, 3);
    ASSERT_EQ(atoms.owed.bytes, 64u);
    float owed = 0;
    ASSERT_TRUE(atoms.owed.read(60, std::as_writable_bytes(std::span(&owed, 1))).ok());
    EXPECT_EQ(owed, 3.5f);
}

TEST_F(Ring, AFileOfAnotherStepOrJobIsRefused) {
    Job(folder_.path()).train(0, 4);
    const std::filesystem::path folder = folder_.path();
    std::filesystem::copy_file(folder / "step-2.run-1.of-1" / "state.0",
                               folder / "step-4.run-1.of-1" / "state.0",
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(comes_back(4), '0');
    EXPECT_NE(said_.find("is of step 2, not of that of its folder"), std::string::npos) << said_;
    std::ofstream(folder / "step-4.run-1.of-1" / "state.0") << "cut";
    EXPECT_EQ(comes_back(4), '0');
    EXPECT_NE(said_.find("is no saved state"), std::string::npos) << said_;
}

// A job that went back is newer than what it went back behind.
TEST_F(Ring, WhatAJobSavesThatWentBackIsTheNewest) {
    Job(folder_.path()).train(0, 6);
    Job(folder_.path()).train(4, 6);
    const std::vector<Saving> there = savings_in(folder_.path());
    ASSERT_EQ(there.size(), 2u);
    EXPECT_EQ(there[0], (Saving{2, 6, 1}));
    EXPECT_EQ(there[1], (Saving{1, 4, 1})) << "what it came back from";
    Job(folder_.path()).train(6, 8);
    EXPECT_EQ(savings_in(folder_.path())[1], (Saving{2, 6, 1}));
}

// Copies are behind the calls so far, and the calls to come behind the copies; the host waits for
// neither, and where the disk is late it saves less often.
TEST_F(Ring, NothingWaitsAndCallsAreBehindTheCopies) {
    Job job(folder_.path());
    DeviceApi api = plain_memory();
    api.stream_wait_event = [](cudaStream_t, cudaEvent_t event, unsigned) {
        return g_work.emplace_back(event != nullptr ? "wait for calls" : "wait"), cudaSuccess;
    };
    api.event_record = [](cudaEvent_t event, cudaStream_t) {
        return g_work.emplace_back(event != nullptr ? "calls wait" : "record"), cudaSuccess;
    };
    api.memcpy_async = [](void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
        g_work.emplace_back("copy");
        return std::memcpy(to, from, bytes), cudaSuccess;
    };
    const auto no_wait = [](cudaStream_t) { return cudaErrorUnknown; };
    api.stream_synchronize = no_wait;
    job.process.runtime()->use_device(api);
    job.process.comm().objects.chain = reinterpret_cast<cudaEvent_t>(&job);
    job.mark(1);
    std::memset(job.process.residual(0), 'a', kBytes);
    g_work.clear();
    g_event = cudaErrorNotReady;
    testing::internal::CaptureStderr();
    job.mark(2);
    EXPECT_EQ(g_work, (std::vector<std::string>{"wait for calls", "copy", "calls wait", "record"}));
    std::memset(job.process.residual(0), 'b', kBytes);
    EXPECT_TRUE(job.ring->writing());
    job.mark(4);  // not saved, and from here on every fourth
    g_event = cudaSuccess;
    while (job.ring->writing()) {
        std::this_thread::yield();
    }
    job.mark(6);
    job.mark(8);
    job.ring->finish();
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("the state of step 2 is still being written at step 4; this rank saves "
                        "every 4 steps from here on"),
              std::string::npos)
        << said;
    const std::vector<Saving> there = savings_in(folder_.path());
    ASSERT_EQ(there.size(), 2u);
    EXPECT_EQ(there[0].step, 8u);
    EXPECT_EQ(there[1].step, 2u);
    const StateContent first = read_state(there[1].path(folder_.path(), 0)).value();
    EXPECT_EQ(static_cast<char>(first.held.at(0)[0]), 'a');
    job.process.comm().objects.chain = nullptr;
}

TEST_F(Ring, WithoutMarksStepsThatGatherAreSavedAndFoundByTheirWeights) {
    testing::internal::CaptureStderr();
    {
        Unmarked job(folder_.path());
        EXPECT_FALSE(job.gather(0.5)) << "nothing to find";
        (void)job.recall();
        job.train({1, 2, 3, 4, 5, 6, 7});
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    const std::vector<Saving> there = savings_in(folder_.path());
    ASSERT_EQ(there.size(), 2u);
    EXPECT_EQ(there[0], (Saving{1, 14, 1}));
    EXPECT_EQ(there[1], (Saving{1, 12, 1}));
    const auto comes_back = [&](double first, double second) {
        testing::internal::CaptureStderr();
        Unmarked job(folder_.path());
        (void)job.gather(first);
        (void)job.gather(second);
        (void)job.recall();
        EXPECT_FALSE(job.ring->undecided());
        const std::string got = held(job.process.residual(0));
        said_ = testing::internal::GetCapturedStderr();
        return got[0] == '\0' ? '0' : got[0];
    };
    EXPECT_EQ(comes_back(6 * (1 + 1e-13), 9), 'a' + 4) << "as the step before left it";
    EXPECT_EQ(said_, "");
    EXPECT_EQ(comes_back(9, 4), 'a' + 2);
    EXPECT_EQ(said_, "");
    g_event = cudaErrorNotReady;  // calls of the process are running
    EXPECT_EQ(comes_back(9, 4), 'a' + 2);
    EXPECT_EQ(said_, "");
    g_event = cudaSuccess;
    EXPECT_EQ(comes_back(5, 6 * (1 + 1e-9)), '0');
    EXPECT_NE(said_.find("no saving in '" + folder_.path() +
                         "' is of the weights that this job gathers first, so nothing is loaded "
                         "(load=14 takes the newest all the same)"),
              std::string::npos)
        << said_;
    std::filesystem::resize_file(weights_path(folder_.path() + "/" + there[0].name(), std::nullopt),
                                 40);
    EXPECT_EQ(comes_back(6, 9), '0') << "that is damaged";
}

// What other ranks know, and go by, is not left out on this one.
TEST_F(Ring, WithoutMarksACallFailsForWhatItsFirstGathersNeverBring) {
    testing::internal::CaptureStderr();
    {
        Unmarked job(folder_.path());
        (void)job.gather(0.5);
        (void)job.recall();
        job.train({1, 2, 3, 4});
    }
    Unmarked job(folder_.path());
    (void)job.gather(0);
    (void)job.gather(4);
    EXPECT_EQ(job.recall(), -1);
    EXPECT_EQ(job.process.comm().stats->host_waits, 1u);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(Ring, WithoutMarksWhatNoCallTakesIsSaidAfterAFewStepsThatGather) {
    testing::internal::CaptureStderr();
    {
        Unmarked job(folder_.path());
        (void)job.gather(0.5);
        (void)job.recall();
        (void)job.process.residual(1);
        job.train({1, 2, 3, 4});
    }
    Unmarked job(folder_.path());
    (void)job.gather(4);
    (void)job.recall();
    (void)job.process.residual(7);
    job.train({5});
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    testing::internal::CaptureStderr();
    job.train({6, 7, 8, 9, 10});
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("1 tensors, 40 bytes, are not added, first allreduce f32 sum count 10 "
                        "ordinal 1 residuals: no call took them in 3 steps, and 1 other"),
              std::string::npos)
        << said;
}

// All of its ranks do what follows from its own calls and what they told when it was made.
TEST_F(Ring, WithoutMarksWhatHasStateIsNativeForThreeStepsWhereAllRanksFoundTheSame) {
    testing::internal::CaptureStderr();
    {
        Unmarked job(folder_.path());
        (void)job.gather(0.5);
        EXPECT_EQ(job.recall(), 0) << "there is no saving";
        job.train({1, 2, 3, 4});
    }
    {
        Unmarked job(folder_.path());
        (void)job.gather(4);
        EXPECT_FALSE(job.ring->holds(&job.process.comm(), Op::kSend));
        EXPECT_EQ(job.recall(), 3);
        EXPECT_EQ(held(job.process.residual(0))[0], 'a' + 2);
    }
    {
        Unmarked job(folder_.path());
        (void)job.call(Op::kReduceScatter, RedOp::kSum);
        EXPECT_FALSE(job.ring->holds(&job.process.comm(), Op::kReduceScatter)) << "it gathers not";
        EXPECT_FALSE(job.process.comm().recalls);
        EXPECT_FALSE(job.gather(4));
    }
    {
        Unmarked job(folder_.path());
        (void)job.gather(4);
        PendingState::instance().replace({});
        job.ring->overruled();
        EXPECT_EQ(job.recall(), 3) << "others may not have loaded yet";
        EXPECT_EQ(held(job.process.residual(0)), kZero);
    }
    EXPECT_NE(testing::internal::GetCapturedStderr().find("a compressed call came before any"),
              std::string::npos);
    Unmarked job(folder_.path());
    Session& comm = job.process.comm();
    comm.members.resize(2);
    comm.members[0].saved_run = job.ring->told();
    comm.members[1].saved_run = job.ring->told() ^ uint64_t { 1 } << 40;
    testing::internal::CaptureStderr();
    job.ring->created(&comm);
    EXPECT_FALSE(job.gather(4));
    EXPECT_EQ(job.recall(), 0);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("do not find the same savings"),
              std::string::npos);
}

TEST_F(Ring, WithoutMarksNothingIsSavedInTheMiddleOfAnAccumulation) {
    testing::internal::CaptureStderr();
    {
        Unmarked job(folder_.path());
        (void)job.gather(1);
        (void)job.recall();
        job.train({1, 1, 1, 4, 4, 4});
    }
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("the state of step 10 is not saved: the parameters that it gathers first "
                        "are those of the step before"),
              std::string::npos)
        << said;
    const std::vector<Saving> there = savings_in(folder_.path());
    ASSERT_EQ(there.size(), 1u);
    EXPECT_EQ(there[0].step, 12u);
}

// Of tensors that came while memory for those before was on its way.
TEST_F(Ring, MemoryThatIsWantedMeanwhileIsGotToo) {
    Process process;
    StateWriter writer(*process.runtime(), 0);
    g_pinned_waits = true;
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
        (void)process.residual(tensor);
        const std::lock_guard lock(state_in_use());
        writer.prepare();
    }
    g_pinned_waits = false;
    while (writer.writing()) {
        std::this_thread::yield();
    }
    EXPECT_GE(g_pinned_bytes, 2 * aligned(kBytes));
}

// What is got for a saving may wait for the device, and that for a call of another thread.
TEST_F(Ring, CallsOfOtherThreadsWaitForNoMemoryOfASaving) {
    Job job(folder_.path());
    job.mark(1);
    (void)job.process.residual(0);
    g_pinned_asked = false;
    g_pinned_waits = true;
    std::thread marks([&] { job.mark(2); });
    while (!g_pinned_asked) {
        std::this_thread::yield();
    }
    std::future<char*> call = std::async([&] {
        (void)job.ring->told();  // as a creation, or a gather, asks the ring
        return job.process.residual(0);
    });
    EXPECT_EQ(call.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    g_pinned_waits = false;
    marks.join();
    job.ring->finish();
    EXPECT_EQ(savings_in(folder_.path()).size(), 1u);
}

TEST_F(Ring, ACallInAnotherThreadIsSaidAndNotSaved) {
    Job job(folder_.path());
    job.mark(1);
    job.process.comm().users = 1;
    testing::internal::CaptureStderr();
    job.mark(2);
    EXPECT_NE(testing::internal::GetCapturedStderr().find(
                  "the state of step 2 is not saved: a step is marked while another thread"),
              std::string::npos);
    job.process.comm().users = 0;
    EXPECT_TRUE(savings_in(folder_.path()).empty());
}

TEST_F(Ring, MoreMemoryIsGottenBehindASavingOnItsWay) {
    Process process;
    process.runtime()->config.settings.state_ring = {folder_.path(), 1, "", false};
    for (uint32_t step = 1; step <= 20; ++step) {  // whether or not the thread was quick
        StateWriter writer(*process.runtime(), 0);
        std::memset(process.residual(2 * step), 'a', kBytes);
        const std::lock_guard saving(state_in_use());
        const Saving one{1, step, 1};
        writer.save(one, std::nullopt, std::nullopt);
        std::memset(process.residual(2 * step + 1), 'a', kBytes);
        writer.prepare();
        writer.finish();
        const StateContent content = read_state(one.path(folder_.path(), 0)).value();
        for (const auto& held : content.held) {
            ASSERT_EQ(static_cast<char>(held[0]), 'a') << "step " << step;
        }
    }
}

}  // namespace
}  // namespace slimwire::test
