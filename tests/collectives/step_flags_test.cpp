// The flags of skipped steps, on a device that does what it is told when the test says so.
#include "collectives/step_flags.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <vector>

namespace slimwire {
namespace {

// Work that was enqueued and not run, and what is held.
struct Device {
    std::vector<std::function<void()>> queue;
    std::map<cudaEvent_t, bool> done;
    int allocations = 0, events = 0, waits = 0, stream_waits = 0;
    bool capturing = false;
    void run() {
        for (const auto& work : queue) {
            work();
        }
        queue.clear();
    }
} g_device;

DeviceApi fake_api() {
    g_device = {};
    DeviceApi api;
    api.get_device = [](int* device) { return *device = 0, cudaSuccess; };
    api.set_device = [](int) { return cudaSuccess; };
    api.exchange_capture_mode = [](cudaStreamCaptureMode*) { return cudaSuccess; };
    api.get_last_error = [] { return cudaSuccess; };
    api.stream_is_capturing = [](cudaStream_t, cudaStreamCaptureStatus* status) {
        *status = g_device.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
        return cudaSuccess;
    };
    api.host_alloc = [](void** memory, size_t bytes, unsigned) {
        ++g_device.allocations;
        *memory = ::operator new(bytes);
        return cudaSuccess;
    };
    api.free_host = [](void* memory) {
        --g_device.allocations;
        ::operator delete(memory);
        return cudaSuccess;
    };
    api.malloc = [](void** memory, size_t bytes) {
        ++g_device.allocations;
        *memory = ::operator new(bytes);
        std::memset(*memory, 0xFF, bytes);
        return cudaSuccess;
    };
    api.free = [](void* memory) {
        --g_device.allocations;
        ::operator delete(memory);
        return cudaSuccess;
    };
    api.memset_async = [](void* to, int value, size_t bytes, cudaStream_t) {
        g_device.queue.push_back([=] { std::memset(to, value, bytes); });
        return cudaSuccess;
    };
    api.stream_wait_event = [](cudaStream_t, cudaEvent_t, unsigned) {
        ++g_device.stream_waits;
        return cudaSuccess;
    };
    api.event_create_with_flags = [](cudaEvent_t* event, unsigned) {
        ++g_device.events;
        *event = reinterpret_cast<cudaEvent_t>(uintptr_t{16} * (g_device.done.size() + 1));
        g_device.done[*event] = true;
        return cudaSuccess;
    };
    api.event_destroy = [](cudaEvent_t) {
        --g_device.events;
        return cudaSuccess;
    };
    api.event_record = [](cudaEvent_t event, cudaStream_t) {
        g_device.done[event] = false;
        g_device.queue.push_back([event] { g_device.done[event] = true; });
        return cudaSuccess;
    };
    api.event_query = [](cudaEvent_t event) {
        return g_device.done[event] ? cudaSuccess : cudaErrorNotReady;
    };
    api.event_synchronize = [](cudaEvent_t) {
        ++g_device.waits;
        g_device.run();
        return cudaSuccess;
    };
    api.memcpy_async = [](void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
        g_device.queue.push_back([=] { std::memcpy(to, from, bytes); });
        return cudaSuccess;
    };
    return api;
}

CollectiveCall flag_at(const void* result, DType dtype) {
    CollectiveCall call;
    call.facts = {Op::kAllReduce, dtype, RedOp::kMax, 0, 1};
    call.recv = const_cast<void*>(result);
    return call;
}

struct Job {
    DeviceApi api = fake_api();
    StepFlags flags;
    CommStats stats;
    template <class T>
    void step(const T& result, DType dtype = DType::kFloat32) {
        flags.made(api, 0, flag_at(&result, dtype), &stats);
        flags.launched(api, 0);
    }
    void end(bool wait = true) { flags.end(api, 0, wait, &stats); }
    [[nodiscard]] std::string shown() const {
        return std::to_string(stats.step_flags) + " " + std::to_string(stats.skipped_steps) + " " +
               std::to_string(stats.other_flags);
    }
};

TEST(StepFlags, AreAllReducesOfOneNumberByItsMaximum) {
    CallFacts facts{Op::kAllReduce, DType::kFloat32, RedOp::kMax, 0, 1};
    EXPECT_TRUE(StepFlags::may_be(facts));
    facts.count = 2;
    EXPECT_FALSE(StepFlags::may_be(facts));
    facts.count = 1;
    facts.redop = RedOp::kSum;
    EXPECT_FALSE(StepFlags::may_be(facts));
    facts.redop = RedOp::kMax;
    facts.dtype = DType::kInt64;
    EXPECT_FALSE(StepFlags::may_be(facts)) << "a length";
    facts.dtype = DType::kUint8;
    EXPECT_TRUE(StepFlags::may_be(facts));
    facts.op = Op::kReduce;
    EXPECT_FALSE(StepFlags::may_be(facts));
}

TEST(StepFlags, AreReadOnceTheyAreThereAndNobodyWaits) {
    Job job;
    const float clear = 0, set = 1;
    job.step(clear);
    job.step(set);
    EXPECT_EQ(job.flags.of(1), StepFlag::kUnknown);
    EXPECT_EQ(job.flags.of(2), StepFlag::kUnknown);
    g_device.run();
    job.step(clear);
    EXPECT_EQ(job.flags.of(1), StepFlag::kClear);
    EXPECT_EQ(job.flags.of(2), StepFlag::kSet);
    EXPECT_EQ(job.flags.of(3), StepFlag::kUnknown);
    EXPECT_EQ(job.shown(), "3 1 0");
    EXPECT_EQ(g_device.waits, 0);
    EXPECT_EQ(job.flags.of(0), StepFlag::kUnknown);
    EXPECT_EQ(job.flags.of(4), StepFlag::kUnknown);
    job.end();
    EXPECT_EQ(g_device.allocations + g_device.events, 0);
}

TEST(StepFlags, AreWaitedForWhereSomethingHangsOnThem) {
    Job job;
    const float set = 1;
    job.step(set);
    EXPECT_EQ(job.flags.wait_for(job.api, 1, &job.stats), StepFlag::kSet);
    EXPECT_EQ(job.flags.wait_for(job.api, 1, &job.stats), StepFlag::kSet);
    EXPECT_EQ(g_device.waits, 1);
    EXPECT_EQ(job.shown(), "1 1 0");
    EXPECT_EQ(job.flags.wait_for(job.api, 2, &job.stats), StepFlag::kUnknown);
    job.end();
}

TEST(StepFlags, OfEveryType) {
    Job job;
    const uint8_t byte = 1;
    const uint16_t half = 0x3C00, bfloat = 0x3F80;
    const int32_t word = 1;
    const float length = 17;
    job.step(byte, DType::kUint8);
    job.step(half, DType::kFloat16);
    job.step(bfloat, DType::kBfloat16);
    job.step(word, DType::kInt32);
    job.step(length);
    g_device.run();
    job.end();
    EXPECT_EQ(job.shown(), "5 4 1");
    EXPECT_EQ(job.flags.of(5), StepFlag::kOther);
}

TEST(StepFlags, ManyThatAreNotReadAreUnknown) {
    Job job;
    const float set = 1;
    for (size_t i = 0; i < StepFlags::kMostUnread + 3; ++i) {
        job.step(set);
    }
    g_device.run();
    job.step(set);
    EXPECT_EQ(job.flags.of(StepFlags::kMostUnread), StepFlag::kSet);
    EXPECT_EQ(job.flags.of(StepFlags::kMostUnread + 1), StepFlag::kUnknown);
    // What was long ago is forgotten, and is not the one that took its place.
    for (size_t i = 0; i < StepFlags::kRemembered; ++i) {
        job.step(set);
        g_device.run();
    }
    EXPECT_EQ(job.flags.of(1), StepFlag::kUnknown);
    EXPECT_EQ(job.flags.of(job.flags.count() - 1), StepFlag::kSet);
    job.end();
}

TEST(StepFlags, OfCapturedAndDroppedCallsNothingIsRead) {
    Job job;
    const float set = 1;
    g_device.capturing = true;
    job.step(set);
    g_device.capturing = false;
    job.flags.made(job.api, 0, flag_at(&set, DType::kFloat32), &job.stats);
    EXPECT_TRUE(job.flags.waits_for_launch());
    job.flags.dropped();
    job.flags.launched(job.api, 0);
    EXPECT_TRUE(g_device.queue.empty());
    EXPECT_EQ(job.flags.wait_for(job.api, 1, &job.stats), StepFlag::kUnknown);
    EXPECT_EQ(job.flags.wait_for(job.api, 2, &job.stats), StepFlag::kUnknown);
    job.end();
}

TEST(StepFlags, OnTheDeviceTheyAreByNumber) {
    Job job;
    const uint16_t half = 0x3C00;
    const float clear = 0, other = 2;
    job.step(clear);  // nobody asked yet
    job.flags.keep_on_device();
    job.step(half, DType::kFloat16);
    job.step(clear);
    job.step(other);
    g_device.capturing = true;
    job.step(half, DType::kFloat16);
    g_device.capturing = false;
    EXPECT_TRUE(job.flags.order_behind(job.api, nullptr).ok());
    EXPECT_EQ(g_device.stream_waits, 3) << "two copies after others, and what asked";
    EXPECT_EQ(job.flags.on_device(0).word, nullptr);
    EXPECT_EQ(job.flags.on_device(1).word, nullptr);
    EXPECT_EQ(job.flags.on_device(5).word, nullptr) << "captured";
    EXPECT_EQ(job.flags.on_device(6).word, nullptr) << "not made";
    g_device.run();
    EXPECT_EQ(*job.flags.on_device(2).word, job.flags.on_device(2).set) << "of two bytes";
    EXPECT_EQ(job.flags.on_device(3).set, 0x3F800000u);
    EXPECT_EQ(*job.flags.on_device(3).word, 0u);
    EXPECT_NE(*job.flags.on_device(4).word, job.flags.on_device(4).set);
    for (size_t i = 0; i < StepFlags::kRemembered; ++i) {
        job.step(clear);
        g_device.run();
    }
    EXPECT_EQ(job.flags.on_device(4).word, nullptr) << "another's now";
    job.end();
    EXPECT_EQ(g_device.allocations + g_device.events, 0);
}

TEST(StepFlags, AnAbortWaitsForNothing) {
    Job job;
    const float set = 1;
    job.step(set);
    job.end(false);
    EXPECT_EQ(g_device.waits, 0);
    EXPECT_EQ(g_device.allocations, 1) << "the copy may still write there";
    job.step(set);  // by a thread that does not know yet
    EXPECT_EQ(job.flags.count(), 1u);
    g_device.run();
    job.end(false);
    EXPECT_EQ(g_device.allocations + g_device.events, 0);
    EXPECT_EQ(job.shown(), "1 1 0");
}

}  // namespace
}  // namespace slimwire
