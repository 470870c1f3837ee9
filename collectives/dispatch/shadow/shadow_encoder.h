// Mode shadow: what a call would lose and cost if the policy's plan for it were run. On the stream
// of the call, before NCCL's own work of it (which may overwrite the buffer), this rank's part is
// encoded as the plan's exchange would do it first, with the tensor's own residual, decoded beside,
// and compared with what was given. Nothing is sent and nothing is written but memory of
// slimwire's own.
//
// Every call of a tensor with error feedback is encoded, because its residual follows from all of
// them; decoded and compared is one in trace_sample, and timed are the first eight and one
// in sixteen of those that have nothing else between the events. Where the plan encodes sums that
// only its exchange makes (hierarchical) or differences from an estimate
// (EF21), the rank's own part stands in for them, without residual.
//
// Thread contract: that of the communicator, one thread at a time. A call waits for the rehearsal
// of the communicator's call before, as NCCL's calls on one communicator wait for each other;
// nothing waits on the host, and nothing here makes a call fail: the first failure ends all
// rehearsals of the communicator, with a line in the log. Calls that SLIMWIRE_MAX_MEMORY has no
// room for are not rehearsed, and those for whose residual there is none go without it, as in mode
// on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/dispatch/executor.h"
#include "collectives/observe/call_times.h"
#include "collectives/observe/samples.h"
#include "collectives/observe/trace.h"

namespace slimwire {

class ShadowTrial;

class ShadowEncoder {
  public:
    // Parts of a call that are compared, at most; of more, some.
    static constexpr int kParts = 16;
    // One of those that mode on would compress; not under capture.
    struct Call {
        QueuedCall item;
        uint64_t call = 0, comm = 0, tensor = 0;  // as in the trace
        uint64_t occurrence = 0;                  // calls of the tensor before
    };

    // All outlive it; `errors` takes kParts, `state` its rank and device.
    ShadowEncoder(Runtime& runtime, Session* state, Samples* errors, Trace* trace);
    // Whether the plan's own encoding is rehearsed, or a stand-in for it.
    [[nodiscard]] static bool stands_in(const Plan& plan) noexcept;

    void run(const Call& call) noexcept;
    // No more rehearsals, as the log says.
    void refuse(const std::string& why) noexcept;
    // The communicator ends: hands over all memory, to be freed once the last rehearsal has ended.
    void end() noexcept;

  private:
    struct Wish;
    Status rehearse(const Call& call);
    Status enqueue_all(const Call& call, const Wish& wish);
    Status encode_stand_in(const Call& call, ShadowTrial* trial);
    // Null where there is no room.
    Result<void*> residual_of(const Call& call);
    Result<bool> make_room(uint64_t bytes);
    void say_no_room(const Call& call, const char* what, uint64_t bytes);

    Runtime& runtime_;
    Session* state_;
    Samples* errors_;
    Trace* trace_;
    CallTimes times_;
    char* scratch_ = nullptr;
    uint64_t scratch_bytes_ = 0;
    uint64_t held_bytes_ = 0;      // of it and of those before
    std::vector<void*> outgrown_;  // which calls under way may use
    cudaEvent_t chain_ = nullptr;  // end of the last rehearsal
    bool chained_ = false;
    bool refused_ = false;
};

}  // namespace slimwire
