#include "tools/emulator/nccl/bootstrap/comm_handle.h"

#include <mutex>
#include <set>
#include <string>

namespace slimwire::emu {
namespace {

struct Handles {
    std::mutex mutex;  // guards what the handles hold, too
    std::set<ncclComm_t> living;
};

Handles& handles() {
    static Handles* const all = new Handles;  // workers of streams may outlive static destructors
    return *all;
}

}  // namespace

ncclComm_t make_handle(std::shared_ptr<Communicator> comm, AsyncRef async) {
    auto* handle = new ncclComm{std::move(comm), std::move(async)};
    const std::lock_guard lock(handles().mutex);
    handles().living.insert(handle);
    return handle;
}

void forget_handle(ncclComm_t handle) {
    {
        const std::lock_guard lock(handles().mutex);
        handles().living.erase(handle);
    }
    delete handle;
}

Result<ncclComm> look_at(ncclComm_t handle, const char* what) {
    if (handle == nullptr) {
        return Status(Code::kInvalidArgument, std::string(what) + ": communicator is NULL");
    }
    const std::lock_guard lock(handles().mutex);
    if (!handles().living.contains(handle)) {
        return Status(Code::kInvalidArgument,
                      std::string(what) + ": this is not a living communicator");
    }
    return *handle;
}

bool busy(const ncclComm& seen) {
    return seen.async != nullptr &&
           (seen.async->busy() || (seen.impl == nullptr && seen.async->outcome().ok()));
}

Status refusal(const char* what) {
    return {Code::kInvalidArgument, std::string(what) +
                                        ": the communicator's previous operation is still in "
                                        "progress (ask ncclCommGetAsyncError)"};
}

void fill_handle(ncclComm_t handle, const std::shared_ptr<Communicator>& comm) {
    {
        const std::lock_guard lock(handles().mutex);
        // Its place may be another handle's by now.
        if (handles().living.contains(handle) && handle->async == comm->async()) {
            handle->impl = comm;
            return;
        }
    }
    comm->abort();
}

Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle, const char* what) {
    SLIMWIRE_TRY_ASSIGN(const ncclComm found, look_at(handle, what));
    if (busy(found)) {
        return refusal(what);
    }
    if (found.async != nullptr) {
        SLIMWIRE_TRY(found.async->outcome());
    }
    return found.impl;
}

}  // namespace slimwire::emu
