// What the files with exported functions share: the export macro, the boundary that turns a Status
// or an exception into ncclResult_t, and the handles behind ncclComm_t.
#pragma once

#include <nccl.h>

#include <exception>
#include <memory>
#include <new>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/communicator.h"
#include "tools/emulator/nccl/log.h"

// Defines the global pncclX and its weak alias ncclX, as in the real library.
#define SLIMWIRE_NCCL_EXPORT(result, name, parameters)                           \
    extern "C" __attribute__((visibility("default"))) result p##name parameters; \
    extern "C" __attribute__((visibility("default"), weak, alias("p" #name)))    \
    result name parameters;                                                      \
    extern "C" result p##name parameters

namespace slimwire::emu {

// Runs the body of an exported function: `body` returns a Status.
template <class Body>
ncclResult_t guarded(Body&& body) noexcept {
    try {
        return to_nccl(body());
    } catch (const std::bad_alloc&) {
        return to_nccl({Code::kOutOfMemory, "out of host memory"});
    } catch (const std::exception& error) {
        return to_nccl({Code::kInternalError, error.what()});
    }
}

// Handles. find: kInvalidArgument for null and for what is not a living handle; `what` names the
// function.
ncclComm_t make_handle(std::shared_ptr<Communicator> comm);
Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle, const char* what);
void forget_handle(ncclComm_t handle);

Status require(const void* pointer, const char* what, const char* name);
// For functions that exist in NCCL and not here.
Status unsupported(const char* function);

}  // namespace slimwire::emu
