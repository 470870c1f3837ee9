// A device whose work ends when the test says so, with a pool of memory: calls are counted where
// CUDA's would wait for that work. Copies are made when they are enqueued.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/plain_device.h"

namespace slimwire::test {

// What a stream has done when it gets here.
struct Point {
    bool ended = true;
    std::vector<std::shared_ptr<Point>> before = {};

    [[nodiscard]] bool reached() const {
        return ended && std::all_of(before.begin(), before.end(),
                                    [](const auto& one) { return one->reached(); });
    }
};
struct At {  // of a stream its end, of an event where it was recorded
    std::shared_ptr<Point> point = std::make_shared<Point>();
};

struct Machine {
    std::vector<std::unique_ptr<At>> made;
    std::set<void*> live;  // memory of the pool
    int waits = 0;         // calls that wait for the device, or for work that is pending
    int events = 0;        // that were made and not destroyed
    bool capturing = false;
    int depends = 1, peers = 0, pools = 0;
    bool lost = false;           // a reset took the pool
    uint64_t room = UINT64_MAX;  // of one allocation
    uint64_t kept = 0;           // room that trimming the pool brings
    struct UserObject {
        void* pointer = nullptr;
        cudaHostFn_t end = nullptr;
        unsigned references = 0;
    };
    std::vector<std::unique_ptr<UserObject>> user_objects;

    At* make() { return made.emplace_back(std::make_unique<At>()).get(); }
};
inline Machine* g_machine = nullptr;

inline At* at(void* handle) {
    return static_cast<At*>(handle);
}

inline void add_streams(DeviceApi* api) {
    api->stream_create_with_flags = [](cudaStream_t* out, unsigned) {
        return *out = reinterpret_cast<cudaStream_t>(g_machine->make()), cudaSuccess;
    };
    api->stream_create_with_priority = [](cudaStream_t* out, unsigned, int) {
        return *out = reinterpret_cast<cudaStream_t>(g_machine->make()), cudaSuccess;
    };
    api->event_create_with_flags = [](cudaEvent_t* out, unsigned) {
        ++g_machine->events;
        return *out = reinterpret_cast<cudaEvent_t>(g_machine->make()), cudaSuccess;
    };
    api->event_destroy = [](cudaEvent_t) { return --g_machine->events, cudaSuccess; };
    api->stream_is_capturing = [](cudaStream_t, cudaStreamCaptureStatus* status) {
        *status =
            g_machine->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
        return cudaSuccess;
    };
    api->event_record = [](cudaEvent_t event, cudaStream_t stream) {
        return at(event)->point = at(stream)->point, cudaSuccess;
    };
    api->stream_wait_event = [](cudaStream_t stream, cudaEvent_t event, unsigned) {
        at(stream)->point =
            std::make_shared<Point>(Point{true, {at(stream)->point, at(event)->point}});
        return cudaSuccess;
    };
    api->event_query = [](cudaEvent_t event) {
        return at(event)->point->reached() ? cudaSuccess : cudaErrorNotReady;
    };
    api->event_synchronize = [](cudaEvent_t) { return ++g_machine->waits, cudaSuccess; };
    api->stream_synchronize = [](cudaStream_t stream) {
        g_machine->waits += at(stream)->point->reached() ? 0 : 1;
        return cudaSuccess;
    };
}

inline void give_up(void* handle, unsigned count) {
    auto* const object = static_cast<Machine::UserObject*>(handle);
    object->references -= count;
    if (object->references == 0) {
        object->end(object->pointer);
    }
}

inline void add_user_objects(DeviceApi* api) {
    api->user_object_create = [](cudaUserObject_t* out, void* pointer, cudaHostFn_t end,
                                 unsigned references, unsigned) {
        const auto& made = g_machine->user_objects.emplace_back(
            std::make_unique<Machine::UserObject>(Machine::UserObject{pointer, end, references}));
        return *out = reinterpret_cast<cudaUserObject_t>(made.get()), cudaSuccess;
    };
    api->graph_retain_user_object = [](cudaGraph_t, cudaUserObject_t, unsigned, unsigned flags) {
        EXPECT_EQ(flags, static_cast<unsigned>(cudaGraphUserObjectMove));
        return cudaSuccess;
    };
    api->user_object_release = [](cudaUserObject_t object, unsigned count) {
        return give_up(object, count), cudaSuccess;
    };
}

// For `g_machine`, which the test has.
inline DeviceApi pending_device() {
    DeviceApi api = plain_device();
    add_streams(&api);
    api.device_get_attribute = [](int* value, cudaDeviceAttr asked, int) {
        return *value = asked == cudaDevAttrMemoryPoolsSupported ? 1 : 0, cudaSuccess;
    };
    api.get_device_count = [](int* devices) { return *devices = 4, cudaSuccess; };
    api.device_can_access_peer = [](int* reaches, int device, int) {
        return *reaches = device < 3 ? 1 : 0, cudaSuccess;
    };
    api.mem_pool_create = [](cudaMemPool_t* out, const cudaMemPoolProps*) {
        ++g_machine->pools;
        return *out = reinterpret_cast<cudaMemPool_t>(g_machine->make()), cudaSuccess;
    };
    api.mem_pool_set_attribute = [](cudaMemPool_t, auto which, void* value) {
        if (which == cudaMemPoolReuseAllowInternalDependencies) {
            g_machine->depends = *static_cast<int*>(value);
        }
        return cudaSuccess;
    };
    api.mem_pool_set_access = [](cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
        return ++g_machine->peers, cudaSuccess;
    };
    api.mem_pool_trim_to = [](cudaMemPool_t, size_t) {
        g_machine->room = std::max(g_machine->room, g_machine->kept);
        return cudaSuccess;
    };
    api.malloc_from_pool_async = [](void** out, size_t bytes, cudaMemPool_t, cudaStream_t) {
        if (std::exchange(g_machine->lost, false)) {
            return cudaErrorInvalidResourceHandle;
        }
        if (bytes > g_machine->room) {
            return cudaErrorMemoryAllocation;
        }
        g_machine->live.insert(*out = std::malloc(bytes));
        return cudaSuccess;
    };
    api.mem_get_info = [](size_t* free, size_t* total) {
        return *free = *total = 200000, cudaSuccess;
    };
    add_user_objects(&api);
    api.free_async = [](void* memory, cudaStream_t) {
        EXPECT_EQ(g_machine->live.erase(memory), 1u);
        return std::free(memory), cudaSuccess;
    };
    api.malloc = [](void** out, size_t bytes) {
        ++g_machine->waits;
        return *out = std::malloc(bytes), cudaSuccess;
    };
    api.free = [](void* memory) {
        ++g_machine->waits;
        return std::free(memory), cudaSuccess;
    };
    return api;
}

// Work on the stream that does not end by itself.
inline std::shared_ptr<Point> enqueue(cudaStream_t stream) {
    auto work = std::make_shared<Point>(Point{false, {at(stream)->point}});
    return at(stream)->point = work;
}

}  // namespace slimwire::test
