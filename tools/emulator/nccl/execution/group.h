// Group semantics. State is thread-local: calls between ncclGroupStart and the outermost
// ncclGroupEnd are collected, errors are kept, and everything is launched at that end:
// initialisations run concurrently, each communicator gets one job on its stream; for non-blocking
// communicators a thread in the background does that. A call outside a group is a group of its own.
// Thread contract: everything acts on the calling thread's group.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <vector>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/execution/async_state.h"
#include "tools/emulator/nccl/execution/communicator.h"
#include "tools/emulator/nccl/execution/task.h"

namespace slimwire::emu {

void group_start() noexcept;
// ok, or the first error of the group. kInvalidUsage when there is no group.
Status group_end();
// Drops what the group collected instead of launching it; `*microseconds` is an estimate for it.
Status group_simulate_end(float* microseconds);

// Makes the group fail with `status` at its end. Returns it.
Status group_error(const Status& status);

// Adds a communication; launched at once outside a group. `name` is the function's, static.
Status enqueue(const std::shared_ptr<Communicator>& comm,
               const Task& task,
               cudaStream_t stream,
               const char* name);

// Runs `work` at the group's end beside the group's other initialisations, on a thread of its own;
// at once outside a group. `busy`: the non-blocking communicators concerned, started by the caller;
// with any, the work runs in the background.
Status run_or_defer(std::function<Status()> work, std::vector<AsyncRef> busy = {});

}  // namespace slimwire::emu
