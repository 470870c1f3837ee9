// What the files with exported functions share: the export macro, the boundary that turns a Status
// or an exception into ncclResult_t, and the handles behind ncclComm_t.
#pragma once

#include <nccl.h>

#include <memory>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/execution/async_state.h"
#include "tools/emulator/nccl/execution/communicator.h"

// Defines the global pncclX and its weak alias ncclX, as in the real library.
#define SLIMWIRE_NCCL_EXPORT(result, name, parameters)                           \
    extern "C" __attribute__((visibility("default"))) result p##name parameters; \
    extern "C" __attribute__((visibility("default"), weak, alias("p" #name)))    \
    result name parameters;                                                      \
    extern "C" result p##name parameters

namespace slimwire::emu {

// What SLIMWIRE_EMU_FAULT wants of a call of `function` (the twin's name, or another one): an
// error, or success after a delay. The error of a call in a group is the group's, too.
ncclResult_t injected_fault(const char* function);

// Runs the body of an exported function: `body` returns a Status. A success that left something
// running in the background is ncclInProgress.
template <class Body>
ncclResult_t guarded(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
    (void)take_in_progress();
    if (const ncclResult_t fault = injected_fault(function); fault != ncclSuccess) {
        return fault;
    }
    const ncclResult_t result = to_nccl(caught(body));
    return take_in_progress() && result == ncclSuccess ? ncclInProgress : result;
}

// A living handle's communicator. kInvalidArgument for null, for what is not a living handle, and
// while a non-blocking communicator is busy; `what` names the function.
Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle, const char* what);

Status require(const void* pointer, const char* what, const char* name);
// For functions that exist in NCCL and not here.
Status unsupported(const char* function);

}  // namespace slimwire::emu
