// What the modes record and shadow do around a call that stays native. Called by plugin/preload
// with every payload call; by lifecycle.cpp and dispatch.cpp when communicators and groups come and
// go. One object a process, there only in these modes.
//
// Nothing here makes a call fail, waits for the device, or exchanges anything with other ranks: who
// the ranks are is asked of this rank's NCCL alone, keys of communicators come from what all ranks
// passed to NCCL, and device work (events, samples) goes to the stream of the program's call, under
// capture none at all.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "collectives/communicator/process.h"
#include "collectives/dispatch/fallback.h"
#include "collectives/dispatch/shadow/shadow_encoder.h"
#include "collectives/observe/call_times.h"
#include "collectives/observe/samples.h"
#include "collectives/observe/trace.h"

namespace slimwire {

// One tensor of a communicator: a kind of call and a buffer. Buffers are numbered as they come, so
// that the key is the same in every run of a program.
struct ObservedTensor {
    uint64_t key = 0;
    uint64_t calls = 0;
    uint32_t timed = 0;
};

// What an observing mode keeps of a communicator, as part of its Session. One thread at a time.
struct ObservedComm {
    struct Kind {
        uint64_t signature;
        const void* buffer;
        bool operator==(const Kind&) const = default;
    };
    struct Hash {
        size_t operator()(const Kind& kind) const noexcept {
            return kind.signature ^ reinterpret_cast<uintptr_t>(kind.buffer) * 0x9e3779b97f4a7c15u;
        }
    };
    uint64_t key = 0;
    uint32_t ordinal = 0;            // in this process
    uint64_t children = 0;           // splits and the like so far, which give keys
    std::atomic<bool> known{false};  // NCCL told rank, ranks and device
    bool deaf = false;               // what calls carry is not heard any more, after an error
    std::unordered_map<Kind, ObservedTensor, Hash> tensors;
    std::unordered_map<uint64_t, uint32_t> buffers;  // of a signature, so far
    ObservedTensor others;                           // beyond kMaxTensors
    CallTimes times;
    std::unique_ptr<ShadowEncoder> shadow_encoder;  // in mode shadow
    static constexpr size_t kMaxTensors = 4096;
};

class Observer {
  public:
    explicit Observer(Runtime& runtime);

    // `nccl` made a communicator, with this name or none; `key` is equal on its ranks, or 0 where
    // nothing tells that. What its calls would wait for (kernels that are not loaded, pinned
    // memory) is gotten here; of one that is not ready yet at the next time, which changes nothing
    // else.
    void adopt(const RealNccl& nccl,
               ncclComm_t comm,
               uint64_t key,
               const std::string& name) noexcept;
    // The key of a part of `parent` that is about to be made, of those with the same `color`. To be
    // called by all ranks of the parent, also those that get no part.
    [[nodiscard]] uint64_t key_of_part(ncclComm_t parent, int color) noexcept;
    // The communicator ends: gives back its events.
    void ending(Session* state) noexcept;
    // Frees what communicators that ended left and nothing uses any more.
    void collect_memory() noexcept;

    // What calls of the communicator carry is not heard any more; a line in the log says so.
    static void stop_hearing(Session* state, const Status& why) noexcept;
    // The program told of its training (training.h): a line of the trace. Any thread.
    void told() noexcept;

    // The thread's outermost group ended, or was dropped. `group`: its number; 0: none of its calls
    // were observed.
    // Before NCCL's end of that group, which launches it.
    void group_ending() noexcept;
    void group_ended(uint64_t group, uint64_t began_ns, ncclResult_t result) noexcept;
    void group_dropped() noexcept;

  private:
    friend class Observation;

    TraceOptions trace_options();
    // The state of a communicator, known or not; null when memory is short. `in_call`: nothing may
    // wait, and what is not there is done without.
    Session* state_of(ncclComm_t comm);
    Session* see(
        const RealNccl& nccl, ncclComm_t comm, uint64_t key, const std::string& name, bool in_call);
    Session* add(
        const RealNccl& nccl, ncclComm_t comm, uint64_t key, const std::string& name, bool in_call);
    void ask(Session* state, bool in_call);
    ObservedTensor& tensor_of(const CollectiveCall& call, Session* state);
    // Gives plans what mode on would know, as far as this rank can tell.
    void ask_shape(Session* state);
    void show_decision(const Session& state, const PlanEntry& entry, uint64_t tensor);
    // Loads the kernels on the device, and makes room there for what they find.
    void prepare(int device);
    void make_room(Samples* samples, int device);

    Runtime& runtime_;
    const DeviceApi* api_ = nullptr;  // null without a device
    Samples samples_{1, "samples of the data"};
    Samples errors_{ShadowEncoder::kParts, "errors of rehearsals"};
    std::mutex decisions_mutex_;
    std::string decisions_;  // lines for the trace
    Trace trace_;            // reads all of these
    std::atomic<uint64_t> calls_{0};
    std::atomic<uint32_t> comms_{0};
    std::mutex mutex_;      // of see()
    std::set<int> loaded_;  // devices on which the kernels are
};

// Takes the calls of a communicator that ends out of the thread's group.
void forget_observed(const Session& state) noexcept;

// One call: made before NCCL's function, ended after it.
class Observation {
  public:
    Observation(Runtime& runtime, const CollectiveCall& call) noexcept;
    // Takes what NCCL returned, and returns it.
    ncclResult_t end(ncclResult_t result) noexcept;

  private:
    void begin(const CollectiveCall& made);
    // What the call carries, where a rule asks; 0 where it is not known.
    uint32_t hear(const CollectiveCall& call, Session* state);
    // Asks the plan, counts the call, and finds its place. True where mode on would compress it.
    bool ask_plan(const CollectiveCall& call, PlanEntry* entry, AskedPlace* place);
    void rehearse(const CollectiveCall& call, const PlanEntry& entry);
    // On the call's device and stream, in front of it.
    void sample(const CollectiveCall& call);
    void start_timing(CallStats* stats, ObservedTensor* tensor);

    Observer& observer_;
    Session* state_ = nullptr;  // null: not observed
    Session* heard_ = nullptr;  // whose contents heard of the call, outside groups
    CallTimes::Timing* timing_ = nullptr;
    cudaStream_t stream_;
    TraceItem item_;
};

}  // namespace slimwire
