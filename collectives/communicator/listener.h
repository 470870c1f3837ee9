// What a room above does when communicators come and go. creation.cpp and lifecycle.cpp call it;
// one object a process, installed with the runtime (Runtime::get).
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire {

struct Communicator;
struct RealNccl;
class AbortWatch;
class Retirement;

class CommunicatorListener {
  public:
    CommunicatorListener() = default;
    CommunicatorListener(const CommunicatorListener&) = delete;
    CommunicatorListener& operator=(const CommunicatorListener&) = delete;
    virtual ~CommunicatorListener() = default;

    // The process has its configuration and its NCCL.
    virtual void started() = 0;
    // A communicator whose creation begins, with room for what the listener keeps of it.
    virtual std::unique_ptr<Communicator> make() = 0;
    // Bytes of scratch that calls of a communicator want whose ranks are not known yet.
    [[nodiscard]] virtual uint64_t scratch_wanted(const Communicator& made) = 0;
    // What the ring of saved states tells other ranks (StateRing::told).
    [[nodiscard]] virtual uint64_t saved_run() { return 0; }
    // Of communicators that one thread makes together, and on which a rule may compress, all ranks
    // are known, but where `missed.others` says. Ranks may tell each other something over the
    // `strangers` among them, in the same order on all, before the private communicators are made;
    // the ranks of the others have nothing to tell.
    virtual Status agree(const std::vector<Communicator*>& made,
                         const std::vector<Communicator*>& strangers,
                         AbortWatch* watch) = 0;
    // Whether this rank has something to tell there.
    [[nodiscard]] virtual bool tells() const { return false; }
    // The private ones are made, of communicators that are no parts of others: ranks may time calls
    // on them. Whoever loses its private communicator here is native on all ranks.
    virtual Status time_calls(const std::vector<Communicator*>& made, AbortWatch* watch) = 0;
    // Slimwire's part of the creation is done; calls come next.
    virtual void created(Communicator* communicator) = 0;

    // The handle is about to go; no call finds the communicator any more, but in an abort one may
    // still be enqueuing.
    virtual void ending(Communicator* communicator, bool abort) noexcept = 0;
    // No call enqueues: gives `left` what calls used on the device, which is the current one, and
    // the events of last uses that are not behind the communicator's chain.
    virtual void release(Communicator* communicator, Retirement* left) noexcept = 0;
    // After either, before NCCL destroys the private communicator.
    virtual void ended(Communicator* communicator, bool abort) noexcept = 0;

    // Whether calls are only observed. Then communicators made are adopted instead, again once NCCL
    // is done with them: `key` is equal on their ranks, or 0 where nothing tells that.
    [[nodiscard]] virtual bool observes() const noexcept = 0;
    virtual void adopt(const RealNccl& nccl,
                       ncclComm_t comm,
                       uint64_t key,
                       const std::string& name) noexcept = 0;
    // The key of a part of `parent` that is about to be made, of those with the same `color`.
    virtual uint64_t key_of_part(ncclComm_t parent, int color) noexcept = 0;

    // Whether the calling thread has an NCCL group open.
    [[nodiscard]] virtual bool in_group() const noexcept = 0;
};

}  // namespace slimwire
