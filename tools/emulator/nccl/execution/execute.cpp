// How a communicator runs a job: collectives one after the other, then all sends and receives
// together. Runs on the worker of a stream; waiting gives the core away.
#include <cstring>
#include <string>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/execution/communicator.h"
#include "tools/emulator/nccl/execution/p2p.h"
#include "tools/emulator/nccl/execution/ring.h"
#include "tools/emulator/nccl/transport/device.h"

namespace slimwire::emu {
namespace {

// Only a job that has been waiting this long asks whether its peers still live.
constexpr uint64_t kSuspiciousIdleNs = 50'000'000;

void* view(const void* pointer) {
    return pointer != nullptr ? emulator_api().device_view(pointer) : nullptr;
}

// The task with pointers that this process may touch, and the factor read from device memory.
Task viewed(const Task& task) {
    Task result = task;
    result.send = view(task.send);
    result.recv = view(task.recv);
    Reduction& reduction = result.reduction;
    if (reduction.scale_pointer != nullptr) {
        memcpy(reduction.scale.element, view(reduction.scale_pointer), task.element_bytes());
    }
    return result;
}

// One rank alone: a copy, scaled where the operator scales.
void run_alone(const Task& task) {
    if (task.count == 0) {
        return;
    }
    if (task.reduction.scale.enabled) {
        scale_elements(task.type, task.recv, task.send, task.count, task.reduction.scale);
    } else if (task.recv != task.send) {
        memmove(task.recv, task.send, task.count * task.element_bytes());
    }
}

}  // namespace

template <class Machine>
Status Communicator::drive(Machine& machine) {
    Waiter waiter;
    while (!machine.done()) {
        if (*stop_) {
            return {Code::kInvalidUsage, "the communicator was aborted"};
        }
        if (revoked_) {
            return {Code::kInvalidUsage, "the communicator was revoked"};
        }
        bool moved = false;
        SLIMWIRE_TRY(machine.advance(&moved));
        if (moved) {
            waiter.progressed();
            continue;
        }
        waiter.idle();
        if (waiter.idle_ns() > kSuspiciousIdleNs) {
            SLIMWIRE_TRY(error(waiter.idle_ns()));
        }
    }
    return {};
}

Status Communicator::run_collective(const Task& task) {
    const Task local = viewed(task);
    if (size() == 1) {
        run_alone(local);
        return {};
    }
    Ring ring(transport_, slots_, local,
              transport_.collective_message(local.protocol, chunk_bytes_));
    return drive(ring);
}

Status Communicator::run_point_to_point(const std::vector<Task>& tasks) {
    std::vector<Task> local;
    for (const Task& task : tasks) {
        if (is_point_to_point(task.kind)) {
            local.push_back(viewed(task));
        }
    }
    if (local.empty()) {
        return {};
    }
    SLIMWIRE_TRY_ASSIGN(PointToPoint flows, PointToPoint::make(transport_, local, chunk_bytes_));
    return drive(flows);
}

Status Communicator::tune(std::vector<Task>* tasks) {
    for (Task& task : *tasks) {
        SLIMWIRE_TRY(transport_.tune(&task));
    }
    return {};
}

Status Communicator::execute(const std::vector<Task>& tasks) {
    for (const Task& task : tasks) {
        if (!is_point_to_point(task.kind)) {
            SLIMWIRE_TRY(run_collective(task));
        }
    }
    return run_point_to_point(tasks);
}

}  // namespace slimwire::emu
