// The handles behind ncclComm_t. A non-blocking communicator's handle exists before the
// communicator does. Callers: the files with exported functions. Thread contract: any thread.
#pragma once

#include <memory>
#include <vector>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/api/api.h"

struct ncclComm {
    std::shared_ptr<slimwire::emu::Communicator> impl;  // null until it is initialised
    slimwire::emu::AsyncRef async;                      // null for blocking communicators
};

namespace slimwire::emu {

ncclComm_t make_handle(std::shared_ptr<Communicator> comm, AsyncRef async = nullptr);
void forget_handle(ncclComm_t handle);

// What a living handle holds, also while it is busy.
Result<ncclComm> look_at(ncclComm_t handle, const char* what);

// Whether what was seen of a handle is busy. A communicator that was delivered after the look is
// not in it, though its step is over by now.
bool busy(const ncclComm& seen);

// The error of a call on a busy handle; `what` names the function.
Status refusal(const char* what);

// Gives a handle its communicator; ends the communicator if the handle was aborted meanwhile.
void fill_handle(ncclComm_t handle, const std::shared_ptr<Communicator>& comm);

// Where a communicator to be made will appear: a handle for a non-blocking one, made at once and
// busy from then on, or the place for a handle.
class Target {
  public:
    Target(ncclComm_t* out, bool blocking) : out_(out) {
        *out = nullptr;
        if (!blocking) {
            async_ = std::make_shared<AsyncState>();
            async_->start();
            *out = handle_ = make_handle(nullptr, async_);
        }
    }
    void deliver(const std::shared_ptr<Communicator>& comm) const {
        if (handle_ == nullptr) {
            // Another thread may be waiting for it to appear, to abort it.
            __atomic_store_n(out_, make_handle(comm), __ATOMIC_RELEASE);
            return;
        }
        comm->set_async(async_);
        fill_handle(handle_, comm);
    }
    [[nodiscard]] std::vector<AsyncRef> busy() const {
        return async_ != nullptr ? std::vector{async_} : std::vector<AsyncRef>{};
    }

  private:
    ncclComm_t* out_;
    ncclComm_t handle_ = nullptr;
    AsyncRef async_;
};

}  // namespace slimwire::emu
