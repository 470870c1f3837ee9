// Which residual a call adds as its tensor's slot becomes known, is lost and comes again, on a
// device that is plain memory. The residual of a tensor is told by what the test wrote into it.
#include "collectives/feedback/residual_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iterator>
#include <random>

#include "tests/support/plain_device.h"

namespace slimwire {
namespace {

constexpr uint64_t kComm = 7, kBytes = 8;

class Residuals : public testing::Test {
  protected:
    ~Residuals() override {
        Retirement left(&memory_, api_, 0);
        store_.take(kComm, &left);
    }

    // The byte that the tensor's residual is filled with, and `next` from now on.
    int use(size_t buffer,
            const StepPosition& place,
            char next,
            bool needs_slot = false,
            uint64_t count = 64) {
        CollectiveCall call;
        call.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, count};
        call.recv = buffers_ + buffer;
        const TensorUse use = identify(kComm, call, needs_slot, place, models_);
        const Result<Residual> got =
            store_.get({api_, &objects_, nullptr}, 0, use, kBytes, {1, 2, needs_slot});
        EXPECT_TRUE(got.ok());
        char* const residual = static_cast<char*>(got.value().buffer);
        const int found = residual[kBytes - 1];
        std::memset(residual, next, kBytes);
        return found;
    }
    static StepPosition at(uint32_t ordinal, uint32_t equals, uint64_t path = 5) {
        return {path, 0, ordinal, 0, ordinal, equals};
    }
    [[nodiscard]] uint64_t held() const { return store_.held(kComm).tensors; }

    const DeviceApi api_ = test::plain_device();
    MemoryBudget budget_;
    DeviceMemory memory_;
    DeviceObjects objects_;
    ResidualStore store_{&budget_, &memory_};
    char buffers_[600] = {};
    char many_[100] = {};
    uint32_t models_ = 0;
};

constexpr StepPosition kUnknown;

TEST_F(Residuals, MoveToTheirSlotsAndAreFoundWithoutThem) {
    EXPECT_EQ(use(0, kUnknown, 'a'), 0);
    EXPECT_EQ(use(1, kUnknown, 'b'), 0);
    EXPECT_EQ(use(0, at(0, 2), 'c'), 'a') << "of the buffer that it had";
    EXPECT_EQ(use(1, at(1, 2), 'd'), 'b');
    EXPECT_EQ(held(), 2u) << "moved, not copied";
    EXPECT_EQ(use(1, at(0, 2), 'e'), 'c') << "the slot counts, whatever the buffer is now";
    EXPECT_EQ(use(0, at(1, 2), 'f'), 'd');
    EXPECT_EQ(use(1, kUnknown, 'g'), 'e') << "an evaluation came: the buffer tells it";
    EXPECT_EQ(use(0, kUnknown, 'h'), 'f');
    EXPECT_EQ(use(1, at(0, 2), 'i'), 'g');
    EXPECT_EQ(use(1, at(0, 2, 6), 'j'), 'i') << "in another step, too";
    EXPECT_EQ(held(), 2u);
}

// Three tensors of one slot, as a step of equal calls is taken for a step each; and one tensor
// whose buffer is a new one now and then.
TEST_F(Residuals, BuffersInTurnAreSaidOnce) {
    const auto times = [&](bool needs_slot, bool single, size_t buffers, bool in_turn) {
        StepPosition place = at(needs_slot ? 1 : 2, 1, 5 + buffers);
        place.single = single;
        int said = 0;
        for (size_t call = 0; call < 200; ++call) {
            CollectiveCall one;
            one.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 64 + buffers};
            one.recv = in_turn ? many_ + call % buffers : many_ + call / 10;
            const Result<Residual> got =
                store_.get({api_, &objects_, nullptr}, 0,
                           identify(kComm, one, needs_slot, place, models_), kBytes, {1, 2});
            said += got.value().in_turn ? 1 : 0;
        }
        return said;
    };
    EXPECT_EQ(times(true, true, 3, true), 1);
    EXPECT_EQ(times(true, true, 2, true), 1);
    EXPECT_EQ(times(true, true, 1, true), 0);
    EXPECT_EQ(times(true, true, 4, false), 0);
    EXPECT_EQ(times(true, false, 5, true), 0) << "a step that is known";
    EXPECT_EQ(times(false, true, 6, true), 0) << "by address";
}

TEST_F(Residuals, OfTensorsThatTakeTurnsInOneBufferNoneTakesAnothers) {
    for (char turn = 'a'; turn < 'd'; ++turn) {
        (void)use(0, kUnknown, turn);
    }
    for (uint32_t ordinal = 0; ordinal < 3; ++ordinal) {
        EXPECT_EQ(use(0, at(ordinal, 3), static_cast<char>('x' + ordinal)), 0);
    }
    EXPECT_EQ(held(), 3u) << "what was nobody's is one of them";
    EXPECT_EQ(use(0, kUnknown, 'd'), 0);
    for (uint32_t ordinal = 0; ordinal < 3; ++ordinal) {
        EXPECT_EQ(use(0, at(ordinal, 3), '-'), 'x' + static_cast<int>(ordinal));
    }
}

// A step of one call may be several tensors of equal signature.
TEST_F(Residuals, OfAStepOfOneCallGoByTheBuffer) {
    StepPosition single = at(0, 1);
    single.single = true;
    EXPECT_EQ(use(0, single, 'a'), 0);
    EXPECT_EQ(use(1, single, 'b'), 0);
    EXPECT_EQ(use(0, single, 'c'), 'a');
    EXPECT_EQ(use(2, single, 'd', true), 0) << "what ranks share has its slot";
    EXPECT_EQ(use(0, single, 'e', true), 'd');
}

TEST_F(Residuals, OfAnotherModelBeginAtZero) {
    (void)use(0, kUnknown, 'a');
    (void)use(1, at(0, 1), 'b');
    ++models_;
    EXPECT_EQ(use(0, kUnknown, 'c'), 0);
    EXPECT_EQ(use(1, kUnknown, 'd'), 0);
    EXPECT_EQ(use(1, at(0, 1), 'e'), 'd') << "kept since for its buffer";
    ++models_;
    EXPECT_EQ(use(1, at(0, 1), 'f'), 0);
}

TEST_F(Residuals, OfEarlierModelsAreFreedAsThoseOfALaterOneAreMade) {
    for (int model = 0; model < 15; ++model, ++models_) {
        for (size_t buffer = 0; buffer < 4; ++buffer) {
            (void)use(buffer + static_cast<size_t>(model % 2) * 4, kUnknown, 'a');
        }
        EXPECT_LE(held(), 4u) << model;
    }
    EXPECT_EQ(budget_.held(0), 4 * kBytes);
}

TEST_F(Residuals, OfBuffersThatDoNotComeAgainAreFreed) {
    for (int step = 0; step < 100; ++step) {
        for (size_t buffer = 0; buffer < 4; ++buffer) {
            EXPECT_EQ(use(buffer, kUnknown, 'a'), step == 0 ? 0 : 'a') << step;
        }
        if (step % 10 == 0) {  // of a buffer of its own
            CollectiveCall call;
            call.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 64};
            call.recv = &many_[step];
            EXPECT_TRUE(store_
                            .get({api_, &objects_, nullptr, step == 50}, 0,
                                 identify(kComm, call, false, kUnknown, models_), kBytes, {1, 2})
                            .ok());
        }
        EXPECT_LE(held(), 8u) << step;
    }
    for (size_t buffer = 0; buffer < 4; ++buffer) {
        EXPECT_EQ(use(buffer, kUnknown, 'a'), 'a');
    }
}

// Of three tensors, whose buffers are new ones in each step, as those of FSDP on an allocator that
// gives none again.
TEST_F(Residuals, OfBuffersBeforeSlotsWereKnownAreFreed) {
    size_t buffer = 0;
    for (int step = 0; step < 20; ++step) {
        for (uint32_t tensor = 0; tensor < 3; ++tensor, ++buffer) {
            const bool known = step >= 6;
            const int found = use(buffer, known ? at(tensor, 3) : kUnknown, 'a');
            EXPECT_TRUE(step <= 6 || found == 'a') << step;
        }
        for (size_t other = 100; other < 110 && step % 5 == 0; ++other) {  // never have slots
            EXPECT_EQ(use(other, kUnknown, 'b', false, 128), step == 0 ? 0 : 'b') << step;
        }
    }
    EXPECT_EQ(held(), 3u + 10u);
}

// The same while no call has a slot: of two of those steps, and of the one that is being made.
TEST_F(Residuals, OfBuffersThatNeverComeAgainAreOfFewSteps) {
    StepDetector detector({.young_times = 100});
    size_t buffer = 0;
    for (uint32_t step = 0; step < 30; ++step) {
        for (uint32_t tensor = 0; tensor < 3; ++tensor, ++buffer) {
            (void)detector.next(tensor, StreamCall::kAllGather);
            const StepPosition place = detector.next(tensor + 3, StreamCall::kReduceScatter);
            EXPECT_EQ(place.repeats, step + (step == 0 || tensor == 2 ? 1 : 0));
            EXPECT_EQ(use(buffer, place, 'a'), 0);
        }
        EXPECT_LE(held(), 4u * 3u) << step;
    }
}

// The same where steps are never alike, as those of experts that get other numbers of tokens.
TEST_F(Residuals, OfBuffersThatNeverComeAgainAreFew) {
    for (size_t buffer = 0; buffer < 600; ++buffer) {
        EXPECT_EQ(use(buffer, kUnknown, 'a'), 0);
        EXPECT_LE(held(), 257u);
    }
    EXPECT_GE(held(), 256u);
}

// As on a rank that runs out of batches first under join(): three steps from the bucket, four of
// zeros from where memory was free, which are addresses of long ago again.
TEST_F(Residuals, OfBuffersThatComeAgainAfterLongAreFreed) {
    constexpr size_t kEvery[] = {1, 2, 3, 2, 4, 5, 2, 6, 1, 7, 4, 8, 9, 3, 10, 7, 11, 5, 12, 8};
    for (size_t epoch = 0; epoch < 48; ++epoch) {
        for (int step = 0; step < 3; ++step) {
            EXPECT_EQ(use(0, kUnknown, 'a'), epoch + step == 0 ? 0 : 'a') << epoch;
        }
        for (int step = 0; step < 4; ++step) {
            (void)use(kEvery[epoch * 3 % std::size(kEvery)], kUnknown, 'b');
        }
        EXPECT_LE(held(), 4u) << epoch;
    }
}

// One tensor whose buffer is any of a hundred, mostly the last ones again.
TEST_F(Residuals, OfOneTensorInManyBuffersAreFew) {
    std::minstd_rand random(7);
    for (int step = 0; step < 2000; ++step) {
        const size_t recent = step / 20 + random() % 3;
        (void)use(random() % 4 != 0 ? recent % 100 : random() % 100, kUnknown, 'a');
        EXPECT_LE(held(), 30u) << step;
    }
}

TEST_F(Residuals, OfBuffersThatComeInTurnStay) {
    for (int step = 0; step < 60; ++step) {
        for (size_t buffer = 0; buffer < 50; ++buffer) {  // layers of equal size
            EXPECT_EQ(use(buffer, kUnknown, 'a'), step == 0 ? 0 : 'a') << step;
        }
        for (size_t buffer = 50; buffer < 53 && step % 3 == 0; ++buffer) {  // every third step
            EXPECT_EQ(use(buffer, kUnknown, 'b'), step == 0 ? 0 : 'b') << step;
        }
        if (step % 20 == 19) {  // an evaluation, each time of other buffers
            for (size_t call = 0; call < 40; ++call) {
                (void)use(60 + call + static_cast<size_t>(step), kUnknown, 'c', false, 128);
            }
        }
        (void)use(200 + static_cast<size_t>(step) % 50, kUnknown, 'd');
    }
}

// What one pause makes of the gaps of all tensors is not awaited again.
TEST_F(Residuals, OfBucketsMadeAnewBehindAPauseAreFreed) {
    const auto train = [&](size_t first, uint64_t count) {
        for (int step = 0; step < 100; ++step) {
            for (size_t buffer = first; buffer < first + 4; ++buffer) {
                (void)use(buffer, kUnknown, 'a', false, count);
            }
        }
    };
    train(0, 64);
    for (int call = 0; call < 1000; ++call) {
        (void)use(20, kUnknown, 'e', false, 32);
    }
    train(0, 64);
    train(8, 80);
    (void)use(12, kUnknown, 'a', false, 80);
    EXPECT_EQ(held(), 5u);
}

// What ranks keep alike follows slots alone.
TEST_F(Residuals, ThatRanksShareNeverMove) {
    (void)use(0, kUnknown, 'a');
    EXPECT_EQ(use(0, at(0, 1), 'b', true), 0);
    EXPECT_EQ(use(0, at(0, 1, 6), 'c', true), 0);
    ++models_;
    EXPECT_EQ(use(0, at(0, 1, 6), 'd', true), 'c');
}

TEST(ResidualsWithoutMemory, AreLeftOutAndComeLater) {
    static bool full;
    full = true;
    DeviceApi api = test::plain_device();
    api.malloc = [](void** out, size_t bytes) {
        return full ? cudaErrorMemoryAllocation : (*out = std::malloc(bytes), cudaSuccess);
    };
    MemoryBudget budget;
    DeviceMemory memory;
    DeviceObjects objects;
    ResidualStore residuals(&budget, &memory);
    CollectiveCall call;
    call.recv = &call;
    const TensorUse use = identify(kComm, call, false, {});
    const BeforeCall before{api, &objects, nullptr};
    const Result<Residual> none = residuals.get(before, 0, use, kBytes, {1, 2});
    ASSERT_TRUE(none.ok()) << none.status().message();
    EXPECT_EQ(none.value().buffer, nullptr);
    EXPECT_EQ(budget.held(0), 0u);
    full = false;
    const Result<Residual> made = residuals.get(before, 0, use, kBytes, {1, 2});
    ASSERT_TRUE(made.ok());
    EXPECT_NE(made.value().buffer, nullptr);
    Retirement left(&memory, api, 0);
    residuals.take(kComm, &left);
}

// An allocation may take as long as a device likes, and another device's thread comes meanwhile.
TEST(ResidualsOfTwoThreads, DoNotWaitForEachOthersMemory) {
    static ResidualStore* store;
    static std::future<void> other;
    static bool waited;
    waited = false;
    DeviceApi api = test::plain_device();
    api.malloc = [](void** out, size_t bytes) {
        other = std::async(std::launch::async, [] { (void)store->held(kComm); });
        waited = other.wait_for(std::chrono::seconds(5)) != std::future_status::ready;
        return *out = std::malloc(bytes), cudaSuccess;
    };
    MemoryBudget budget;
    DeviceMemory memory;
    DeviceObjects objects;
    ResidualStore residuals(&budget, &memory);
    store = &residuals;
    CollectiveCall call;
    call.recv = &call;
    ASSERT_TRUE(
        residuals.get({api, &objects, nullptr}, 0, identify(kComm, call, false, {}), kBytes, {1, 2})
            .ok());
    EXPECT_FALSE(waited);
    Retirement left(&memory, api, 0);
    residuals.take(kComm, &left);
}

}  // namespace
}  // namespace slimwire
