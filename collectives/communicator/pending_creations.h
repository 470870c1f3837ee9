// Communicators whose creation is not finished: NCCL's own part goes on in the background (a
// non-blocking communicator) or slimwire's part does. Until then the program hears "in progress",
// from the parent too where there is one, and nothing else touches the handle: NCCL itself does not
// expect two threads in ncclCommGetAsyncError of one communicator. Used by creation.cpp, which
// makes progress, and lifecycle.cpp, which hears what the program does meanwhile. Any thread.
#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/call/real_nccl.h"

namespace slimwire {

struct PendingCreation {
    ncclComm_t* out = nullptr;  // where NCCL puts the handle; not read any more once `comm` is set
    std::atomic<ncclComm_t> comm{nullptr};
    ncclComm_t parent = nullptr;           // what it is split off; null without, or once done with
    std::atomic<bool> native_done{false};  // NCCL's part is done
    std::atomic<bool> cancelled{false};    // the program ended the communicator: give up
    std::mutex touching;                   // held for a look at `comm` that an abort must not meet
    bool finished = false;                 // this and below: guarded by the table
    Status failure;                        // of slimwire's part, told until the program ends it
};
using PendingCreationRef = std::shared_ptr<PendingCreation>;

// Whether NCCL goes on with `comm` in the background, as a call itself need not say. A blocking
// communicator, and none, never is.
[[nodiscard]] bool busy(const RealNccl& nccl, ncclComm_t comm) noexcept;

class PendingCreationTable {
  public:
    // The process's; never destroyed, because creations may outlive main.
    static PendingCreationTable& instance();

    void add(const PendingCreationRef& creation);
    // Slimwire's part is over. A failure is kept under the handle for whoever asks; success, and a
    // creation that NCCL itself failed or that was cancelled, is forgotten.
    void finish(const PendingCreationRef& creation, const Status& failure);
    // The creation that `comm` comes from or is the parent of; null for any other. Costs one load
    // while nothing is under way.
    [[nodiscard]] PendingCreationRef find(ncclComm_t comm);
    // Waits until finish(); false when `timeout_us` passed before.
    bool wait(const PendingCreationRef& creation, uint64_t timeout_us);
    // The same for all of which NCCL's part is done.
    void wait_for_all(uint64_t timeout_us);
    [[nodiscard]] bool finished(const PendingCreationRef& creation, Status* failure);
    // The program ends `creation`: whoever makes progress gives up. Waits until that thread has let
    // go of the handle.
    void cancel(const PendingCreationRef& creation);

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<size_t> count_{0};
    std::vector<PendingCreationRef> all_;
};

// Sleeps a little longer each time, from nothing to a millisecond: for what is usually done soon.
class Backoff {
  public:
    void pause();

  private:
    int looks_ = 0;
};

// What slimwire's part of some creations looks at while it waits: did the program end one of them,
// does NCCL say that one is broken (a rank died), is NCCL still busy. One thread.
class AbortWatch {
  public:
    explicit AbortWatch(const RealNccl& nccl) : nccl_(nccl) {}
    // `exchange` is where the private communicator will be.
    void add(PendingCreationRef creation, const ncclComm_t* exchange);
    // An error when the program ended one of them, or NCCL says that one is broken. `busy`: NCCL
    // goes on in the background for one of them.
    Status look(bool* busy);
    // Waits until NCCL is not busy with any of them; an error at `deadline_us` of steady_us().
    Status settle(uint64_t deadline_us);
    // For waits that take a function: true when look() fails, which why() then tells.
    bool stop();
    [[nodiscard]] const Status& why() const noexcept { return why_; }

  private:
    struct Watched {
        PendingCreationRef creation;
        const ncclComm_t* exchange;
    };
    const RealNccl& nccl_;
    std::vector<Watched> watched_;
    Status why_;
};

}  // namespace slimwire
