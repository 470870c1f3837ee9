// Skipped steps are counted by their flags.
#include "collectives/identity/skipped_steps.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/pending_device.h"

namespace slimwire {
namespace {

struct SkippedStepsJob {
    SkippedStepsJob() {
        test::g_machine = &machine;
        api.host_alloc = [](void** memory, size_t, unsigned) {
            static std::vector<char> pinned(DeviceMemory::kPinnedPiece);
            return *memory = pinned.data(), cudaSuccess;
        };
        api.pointer_get_attributes = [](cudaPointerAttributes* attributes, const void*) {
            return attributes->type = cudaMemoryTypeHost, cudaSuccess;
        };
        EXPECT_EQ(api.stream_create_with_flags(&stream, 0), cudaSuccess);
        values = memory.pin(api, SkippedSteps::kBytes);
        skipped = std::make_unique<SkippedSteps>(values);
    }
    ~SkippedStepsJob() {
        EXPECT_EQ(machine.waits, 0);
        EXPECT_EQ(machine.events, 0);
    }
    CollectiveCall flag_at(const void* result, DType dtype = DType::kFloat32) const {
        CollectiveCall call;
        call.signature = {Op::kAllReduce, dtype, RedOp::kMax, 0, 1};
        call.recv = const_cast<void*>(result);
        call.stream = stream;
        return call;
    }
    template <class T>
    void step(const T& result, DType dtype = DType::kFloat32) {
        pending.push_back(test::enqueue(stream));
        skipped->made(api, 0, flag_at(&result, dtype), &stats);
        skipped->launched(api, 0);
    }
    void run() {
        for (const auto& work : pending) {
            work->ended = true;
        }
    }
    void end(bool abort = false) { skipped->end(api, 0, abort, &memory, &stats); }
    // Whether the next communicator would read by the same memory.
    bool given_back() {
        memory.collect(api);
        return memory.pin(api, SkippedSteps::kBytes).memory == values.memory;
    }
    [[nodiscard]] std::string shown() const {
        return std::to_string(stats.step_flags) + " " + std::to_string(stats.skipped_steps) + " " +
               std::to_string(stats.other_flags);
    }

    test::Machine machine;
    DeviceApi api = test::pending_device();
    cudaStream_t stream = nullptr;
    std::vector<std::shared_ptr<test::Point>> pending;
    DeviceMemory memory;
    Pinned values;
    std::unique_ptr<SkippedSteps> skipped;
    CommStats stats;
};

TEST(SkippedSteps, AreAllReducesOfOneNumberByItsMaximum) {
    CallSignature signature{Op::kAllReduce, DType::kFloat32, RedOp::kMax, 0, 1};
    EXPECT_TRUE(SkippedSteps::may_tell(signature));
    signature.count = 2;
    EXPECT_FALSE(SkippedSteps::may_tell(signature));
    signature.count = 1;
    signature.redop = RedOp::kSum;
    EXPECT_FALSE(SkippedSteps::may_tell(signature));
    signature.redop = RedOp::kMax;
    signature.dtype = DType::kInt64;
    EXPECT_FALSE(SkippedSteps::may_tell(signature)) << "a length";
    signature.dtype = DType::kUint8;
    EXPECT_TRUE(SkippedSteps::may_tell(signature));
    signature.op = Op::kReduce;
    EXPECT_FALSE(SkippedSteps::may_tell(signature));
}

TEST(SkippedSteps, AreReadOnceTheyAreThereAndNobodyWaits) {
    SkippedStepsJob job;
    const float clear = 0, set = 1;
    job.step(clear);
    job.step(set);
    job.run();
    job.step(clear);
    EXPECT_EQ(job.shown(), "3 1 0");
    job.run();
    job.end();
    EXPECT_TRUE(job.given_back());
}

TEST(SkippedSteps, OfEveryType) {
    SkippedStepsJob job;
    const uint8_t byte = 1;
    const uint16_t half = 0x3C00, bfloat = 0x3F80;
    const int32_t word = 1;
    const float length = 17;
    job.step(byte, DType::kUint8);
    job.step(half, DType::kFloat16);
    job.step(bfloat, DType::kBfloat16);
    job.step(word, DType::kInt32);
    job.step(length);
    job.run();
    job.end();
    EXPECT_EQ(job.shown(), "5 4 1");
}

TEST(SkippedSteps, ManyThatAreNotReadAreNotCounted) {
    SkippedStepsJob job;
    const float set = 1;
    for (size_t i = 0; i < SkippedSteps::kMostUnread + 3; ++i) {
        job.step(set);
    }
    job.run();
    job.step(set);
    EXPECT_EQ(job.shown(), "12 8 0");
    job.run();
    job.end();
    EXPECT_EQ(job.shown(), "12 9 0");
}

TEST(SkippedSteps, OfCapturedAndDroppedCallsNothingIsRead) {
    SkippedStepsJob job;
    const float set = 1;
    job.machine.capturing = true;
    job.step(set);
    job.machine.capturing = false;
    job.skipped->made(job.api, 0, job.flag_at(&set), &job.stats);
    EXPECT_TRUE(job.skipped->waits_for_launch());
    job.skipped->dropped();
    job.skipped->launched(job.api, 0);
    job.run();
    job.end();
    EXPECT_EQ(job.shown(), "2 0 0");
}

TEST(SkippedSteps, AnEndWaitsForNothing) {
    for (const bool abort : {false, true}) {
        SkippedStepsJob job;
        const float set = 1;
        job.step(set);
        job.end(abort);
        EXPECT_FALSE(job.given_back()) << "the copy may still write there";
        job.step(set);  // by a thread that does not know yet
        job.run();
        EXPECT_TRUE(job.given_back());
        EXPECT_EQ(job.shown(), "1 0 0");
    }
}

}  // namespace
}  // namespace slimwire
