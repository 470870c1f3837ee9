// What compressed calls of one communicator run with on its device: streams, events and scratch.
// Made at the creation, before ranks tell each other what they have. One thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "codecs/base/device.h"
#include "collectives/communicator/device_memory.h"
#include "collectives/communicator/host_copies.h"

namespace slimwire {

struct Communicator;

// What its communicator's report said before it was suspended.
struct Suspended {
    bool now = false;  // NCCL answers every call
    uint64_t scratch_bytes = 0;
    uint64_t residual_bytes = 0;
};

struct DeviceObjects {
    uint64_t home = 0;  // of all memory that goes when the program suspends the communicator
    Suspended suspended;
    // Reserved at the creation, at one address until the end: every call that runs alone has room
    // there. Counters of the room above are behind that.
    static constexpr uint64_t kCounterBytes = 256;
    void* reserve = nullptr;
    uint64_t reserve_bytes = 0;
    std::shared_ptr<void> reserve_owner;  // with graphs (graph_memory.h); null: this alone
    // For messages of a group that have no room there together.
    void* scratch = nullptr;
    uint64_t scratch_bytes = 0;
    // Of one of both, by the calls of the batch that is being begun.
    void* claimed = nullptr;
    uint64_t claimed_bytes = 0;
    cudaStream_t exchange_stream = nullptr;  // null: nothing is made yet
    cudaStream_t work_stream = nullptr;      // for compressed calls grouped with native ones
    cudaStream_t before_stream = nullptr;    // never captured: BeforeCall's, and of chain_all()
    cudaEvent_t ready[2] = {};               // codec work of a phase is enqueued
    cudaEvent_t done[2] = {};                // exchange of a phase is enqueued
    cudaEvent_t chain = nullptr;             // end of the last compressed call
    bool chained = false;                    // there was one
    cudaEvent_t fork = nullptr;
    cudaEvent_t timing[2] = {};
    // The last capture that a call of this communicator took part in, and the end of that call.
    unsigned long long capture_id = 0;
    cudaEvent_t capture_chain = nullptr;
    HostCopies copies;  // where rules keep something of tensors

    // Nothing is to be made for calls that want so much scratch beside the reserve.
    [[nodiscard]] bool prepared(uint64_t wanted_bytes) const noexcept {
        return exchange_stream != nullptr && wanted_bytes <= scratch_bytes;
    }
    // Of the reserve, for scratch.
    [[nodiscard]] uint64_t room() const noexcept {
        return reserve_bytes - std::min(reserve_bytes, kCounterBytes);
    }
    [[nodiscard]] void* counters() const noexcept { return static_cast<char*>(reserve) + room(); }
};

// Where work goes that a call needs done before its own, without a wait: onto the call's stream, or
// of a captured one onto the end of the chain, for which its graph waits.
struct BeforeCall {
    const DeviceApi& api;
    DeviceObjects* objects;
    cudaStream_t stream;  // of the call's work
    bool captured = false;

    // Enqueues work(stream), which returns a Status. On the current device.
    template <class Work>
    Status enqueue(const Work& work) const {
        if (!captured) {
            return work(stream);
        }
        const cudaStream_t own = objects->before_stream;
        SLIMWIRE_TRY(begin(own));
        return end(own, work(own));
    }
    // Of memory that only such work uses, some of which failed.
    void retire(DeviceMemory* memory, int device, void* buffer) const noexcept;

  private:
    Status begin(cudaStream_t own) const;
    Status end(cudaStream_t own, Status status) const;
};

// A stream for work that calls or creations wait for: of the highest priority, so that no kernel of
// the program is let in before it. On the current device.
cudaError_t make_internal_stream(const DeviceApi& api, cudaStream_t* stream);

// At a creation, on any thread: reserves `wanted` bytes of scratch, or as many as the budget and
// the device have.
void reserve_scratch(const DeviceApi& api, Communicator* state, uint64_t wanted) noexcept;
// Gives them back, and what else was made of a communicator that no call uses.
void drop_reserve(const DeviceApi& api, Communicator* state) noexcept;

// Takes residuals and the like off the device, if the calls have ended, and the scratch of groups,
// which no graph knows. Calls are NCCL's until the program resumes the communicator. `drop`: the
// host gets only what other ranks count on.
void suspend_memory(const DeviceApi& api, Communicator* state, bool drop) noexcept;
// Puts it back at the same addresses, what was dropped as zeros.
Status resume_memory(const DeviceApi& api, Communicator* state) noexcept;

// Makes streams, events and at least `scratch_bytes` of scratch. One that it has outgrown is
// retired behind the calls that use it, which nothing waits for. Not under stream capture.
Status prepare_device_objects(const DeviceApi& api, Communicator* state, uint64_t scratch_bytes);
// The chain comes to be behind what a call that failed halfway has enqueued, which uses the
// communicator's memory. The program's stream waits for nothing more.
void chain_all(const DeviceApi& api, Communicator* state, cudaStream_t work) noexcept;
// Frees the device objects, on their device; `left` gets their memory and its last use.
void release_device_objects(const DeviceApi& api, Communicator* state, Retirement* left) noexcept;

}  // namespace slimwire
