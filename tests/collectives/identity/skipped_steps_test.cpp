// Skipped steps are counted by their flags, on a device that does what it is told when the test
// says so.
#include "collectives/identity/skipped_steps.h"

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
    int allocations = 0, events = 0, waits = 0;
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
        alignas(64) static char pinned[DeviceMemory::kPinnedPiece];
        ++g_device.allocations;
        *memory = pinned;
        return bytes <= sizeof pinned ? cudaSuccess : cudaErrorMemoryAllocation;
    };
    api.pointer_get_attributes = [](cudaPointerAttributes* attributes, const void*) {
        attributes->type = cudaMemoryTypeHost;
        return cudaSuccess;
    };
    api.device_get_attribute = [](int* value, cudaDeviceAttr, int) {
        return *value = 0, cudaSuccess;  // no pools
    };
    api.stream_create_with_flags = [](cudaStream_t* stream, unsigned) {
        return *stream = reinterpret_cast<cudaStream_t>(uintptr_t{16}), cudaSuccess;
    };
    api.stream_create_with_priority = [](cudaStream_t* stream, unsigned, int) {
        return *stream = reinterpret_cast<cudaStream_t>(uintptr_t{16}), cudaSuccess;
    };
    api.stream_wait_event = [](cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; };
    api.stream_destroy = [](cudaStream_t) { return cudaSuccess; };
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
    call.signature = {Op::kAllReduce, dtype, RedOp::kMax, 0, 1};
    call.recv = const_cast<void*>(result);
    return call;
}

struct SkippedStepsJob {
    DeviceApi api = fake_api();
    DeviceMemory memory;
    const Pinned values = memory.pin(api, SkippedSteps::kBytes);
    SkippedSteps skipped{values};
    CommStats stats;
    template <class T>
    void step(const T& result, DType dtype = DType::kFloat32) {
        skipped.made(api, 0, flag_at(&result, dtype), &stats);
        skipped.launched(api, 0);
    }
    void end(bool abort = false) { skipped.end(api, 0, abort, &memory, &stats); }
    // Whether the next communicator would read by the same memory.
    bool given_back() {
        memory.collect(api);
        return memory.pin(api, SkippedSteps::kBytes).memory == values.memory;
    }
    [[nodiscard]] std::string shown() const {
        return std::to_string(stats.step_flags) + " " + std::to_string(stats.skipped_steps) + " " +
               std::to_string(stats.other_flags);
    }
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
    g_device.run();
    job.step(clear);
    EXPECT_EQ(job.shown(), "3 1 0");
    g_device.run();
    job.end();
    EXPECT_EQ(g_device.waits, 0);
    EXPECT_EQ(g_device.events, 0);
    EXPECT_TRUE(job.given_back());
    EXPECT_EQ(g_device.allocations, 1);
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
    g_device.run();
    job.end();
    EXPECT_EQ(job.shown(), "5 4 1");
}

TEST(SkippedSteps, ManyThatAreNotReadAreNotCounted) {
    SkippedStepsJob job;
    const float set = 1;
    for (size_t i = 0; i < SkippedSteps::kMostUnread + 3; ++i) {
        job.step(set);
    }
    g_device.run();
    job.step(set);
    EXPECT_EQ(job.shown(), "12 8 0");
    g_device.run();
    job.end();
    EXPECT_EQ(job.shown(), "12 9 0");
}

TEST(SkippedSteps, OfCapturedAndDroppedCallsNothingIsRead) {
    SkippedStepsJob job;
    const float set = 1;
    g_device.capturing = true;
    job.step(set);
    g_device.capturing = false;
    job.skipped.made(job.api, 0, flag_at(&set, DType::kFloat32), &job.stats);
    EXPECT_TRUE(job.skipped.waits_for_launch());
    job.skipped.dropped();
    job.skipped.launched(job.api, 0);
    EXPECT_TRUE(g_device.queue.empty());
    job.end();
    EXPECT_EQ(job.shown(), "2 0 0");
}

TEST(SkippedSteps, AnEndWaitsForNothing) {
    for (const bool abort : {false, true}) {
        SkippedStepsJob job;
        const float set = 1;
        job.step(set);
        job.end(abort);
        EXPECT_EQ(g_device.waits, 0);
        EXPECT_FALSE(job.given_back()) << "the copy may still write there";
        job.step(set);  // by a thread that does not know yet
        g_device.run();
        EXPECT_TRUE(job.given_back());
        EXPECT_EQ(g_device.events, 0);
        EXPECT_EQ(g_device.allocations, 1);
        EXPECT_EQ(job.shown(), "1 0 0");
    }
}

}  // namespace
}  // namespace slimwire
