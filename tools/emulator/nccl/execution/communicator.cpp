// State, operators, jobs and registrations of a communicator, and how it runs its jobs. How it
// comes to be is in membership.cpp.
#include "tools/emulator/nccl/execution/communicator.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/execution/p2p.h"
#include "tools/emulator/nccl/execution/ring.h"
#include "tools/emulator/nccl/transport/device.h"
#include "tools/emulator/nccl/transport/shaper.h"

namespace slimwire::emu {
namespace {

// A peer's last messages may still be on their way when its end is seen; within this time they are
// taken as if it lived.
constexpr uint64_t kGraceNs = 300'000'000;
// Waiting in vain this long since a peer has left in good order means that nothing of it is under
// way any more, in a plugin's hands or a network's.
constexpr uint64_t kLeftPatienceNs = 5'000'000'000;

}  // namespace

Communicator::Communicator(Members members,
                           int device,
                           CommSettings settings,
                           std::shared_ptr<std::atomic<bool>> stop)
    : transport_(std::move(members)),
      device_(device),
      settings_(std::move(settings)),
      stop_(stop != nullptr ? std::move(stop) : std::make_shared<std::atomic<bool>>(false)) {}

Communicator::~Communicator() {
    transport_.close();
    if (last_work_ != nullptr) {
        (void)cuda_check(cudaEventDestroy(last_work_), "cudaEventDestroy").ok();
    }
}

std::string Communicator::describe() const {
    char text[96];
    snprintf(text, sizeof text, "comm %016lx rank %d nranks %d cudaDev %d",
             static_cast<unsigned long>(id()), rank(), size(), device_);
    return text;
}

Status Communicator::open() {
    // All ranks cut messages alike: the smallest wish holds.
    chunk_bytes_ = SIZE_MAX;
    for (int rank = 0; rank < size(); ++rank) {
        const auto wish = static_cast<size_t>(transport_.members().info(rank).chunk_bytes);
        chunk_bytes_ = std::min(chunk_bytes_, wish);
    }
    SLIMWIRE_TRY(transport_.open(device_, settings_));
    log_info("%s node %d ready", describe().c_str(), transport_.members().info(rank()).node);
    return {};
}

// --- State

Status Communicator::check_peers() {
    const Members& members = transport_.members();
    if (members.mesh->changes() == 0) {
        return {};
    }
    const uint64_t now = now_ns();
    for (int rank = 0; rank < members.size(); ++rank) {
        const int peer = members.mesh_rank(rank);
        const std::string name = "rank " + std::to_string(rank);
        const uint64_t dead = members.mesh->dead_since_ns(peer);
        if (dead != 0 && now > dead + kGraceNs) {  // it may have died since
            return {Code::kRemoteError, name + ": the process ended (" + describe() + ")"};
        }
        const uint64_t aborted = members.mesh->ended_since_ns(peer, members.comm, true);
        if (aborted != 0 && now > aborted + kGraceNs) {
            return {Code::kRemoteError, name + " aborted the communicator (" + describe() + ")"};
        }
    }
    return {};
}

// Others may wait for a third rank, which is only late, when one has done its part and left.
template <class Machine>
Status Communicator::check_awaited(const Machine& machine) {
    const Members& members = transport_.members();
    const uint64_t now = now_ns();
    for (int rank = 0; members.mesh->changes() != 0 && rank < members.size(); ++rank) {
        const uint64_t left =
            members.mesh->ended_since_ns(members.mesh_rank(rank), members.comm, false);
        if (machine.waits_for(rank) && left != 0 && now > left + kLeftPatienceNs) {
            return {Code::kRemoteError, "rank " + std::to_string(rank) +
                                            " has destroyed the communicator that this rank waits "
                                            "on (" +
                                            describe() + ")"};
        }
    }
    return {};
}

Status Communicator::error() {
    if (!failed_) {
        const Status status =
            *stop_ ? Status(Code::kInvalidUsage, "the communicator was aborted") : check_peers();
        if (!status.ok()) {
            fail(status);
        }
    }
    if (!failed_) {
        return {};
    }
    const std::lock_guard lock(mutex_);
    return error_;
}

void Communicator::fail(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (error_.ok()) {
        error_ = status;
        failed_ = true;
        log_warn("%s: %s", describe().c_str(), status.message().c_str());
        set_last_error(status.message());
    }
}

void Communicator::abort() {
    *stop_ = true;
    fail({Code::kInvalidUsage, "the communicator was aborted"});
    {
        std::unique_lock lock(mutex_);
        idle_.wait(lock, [this] { return pending_ == 0; });
    }
    if (!finalized_.exchange(true)) {
        const std::lock_guard running(run_mutex_);
        transport_.members().mesh->announce_end(id(), true);
        transport_.close();
    }
}

void Communicator::revoke() {
    revoked_ = true;
}

Status Communicator::suspend() {
    if (stop_.use_count() > 1) {
        return {Code::kInvalidUsage, "ncclCommSuspend: the communicator shares its memory"};
    }
    if (suspended_.exchange(true)) {
        return {Code::kInvalidUsage, "ncclCommSuspend: the communicator is suspended already"};
    }
    const DeviceScope scope(device_);
    return cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Status Communicator::resume() {
    return suspended_.exchange(false)
               ? Status()
               : Status(Code::kInvalidUsage, "ncclCommResume: the communicator is not suspended");
}

void Communicator::finalize() {
    {
        std::unique_lock lock(mutex_);
        idle_.wait(lock, [this] { return pending_ == 0; });
    }
    if (!finalized_.exchange(true)) {
        const std::lock_guard running(run_mutex_);
        transport_.members().mesh->announce_end(id(), false);
        transport_.close();
    }
}

// --- Jobs

void Communicator::job_enqueued() {
    const std::lock_guard lock(mutex_);
    ++pending_;
}

void Communicator::job_dropped() {
    const std::lock_guard lock(mutex_);
    --pending_;
    idle_.notify_all();
}

void Communicator::run_job(const std::vector<Task>& tasks, bool enqueued) noexcept {
    {
        const std::lock_guard running(run_mutex_);
        Status status = error();
        if (status.ok() && finalized_) {
            status = {Code::kInvalidUsage, "the communicator was destroyed"};
        }
        if (status.ok() && !revoked_) {
            status = execute(tasks);
        }
        // One that was revoked keeps its links, for others may not be yet and still use theirs.
        if (!revoked_ && !status.ok()) {
            fail(status);
            // Nothing may arrive in the client's buffers after this job, and nobody should wait
            // for messages that will not come.
            if (!finalized_) {
                transport_.members().mesh->announce_end(id(), true);
            }
            transport_.close();
        }
    }
    if (enqueued) {
        job_dropped();
    }
}

// Under capture both become event nodes: at each launch of the graph they wait for, and become, the
// communicator's latest work.
Status Communicator::order_before(cudaStream_t stream, bool captured) {
    if (last_work_ == nullptr) {
        SLIMWIRE_TRY(cuda_check(cudaEventCreate(&last_work_), "cudaEventCreate"));
        last_stream_ = stream;
    }
    if (!captured && !was_captured_ && stream == last_stream_) {
        return {};
    }
    return cuda_check(cudaStreamWaitEvent(stream, last_work_,
                                          captured ? cudaEventWaitExternal : cudaEventWaitDefault),
                      "cudaStreamWaitEvent");
}

Status Communicator::order_after(cudaStream_t stream, bool captured) {
    last_stream_ = stream;
    was_captured_ = was_captured_ || captured;
    return cuda_check(
        cudaEventRecordWithFlags(last_work_, stream,
                                 captured ? cudaEventRecordExternal : cudaEventRecordDefault),
        "cudaEventRecordWithFlags");
}

// --- Memory

Result<void*> Communicator::register_memory(void* buffer, size_t bytes) {
    cudaPointerAttributes attributes{};
    if (buffer == nullptr || bytes == 0 ||
        cudaPointerGetAttributes(&attributes, buffer) != cudaSuccess ||
        attributes.devicePointer == nullptr) {
        (void)cudaGetLastError();
        return Status(Code::kInvalidArgument,
                      "registering memory: the buffer is not device memory of at least one byte");
    }
    const std::lock_guard lock(mutex_);
    auto* const handle = reinterpret_cast<void*>(0x1000 + 16 * ++last_registration_);
    registrations_.insert(handle);
    return handle;
}

Status Communicator::deregister_memory(void* handle) {
    const std::lock_guard lock(mutex_);
    if (handle != nullptr && registrations_.erase(handle) == 0) {
        return {Code::kInvalidArgument,
                "deregistering memory: this is not a living registration of the communicator"};
    }
    return {};
}

// The reduction operators of a communicator: NCCL's own, and those that a client made.

Result<ncclRedOp_t> Communicator::make_operator(const void* scalar, DType type, bool on_device) {
    UserOperator made{type, {}};
    if (on_device) {
        made.reduction.scale_pointer = scalar;
    } else {
        memcpy(made.reduction.scale.element, scalar, dtype_bytes(type));
    }
    made.reduction.scale.enabled = true;
    const std::lock_guard lock(mutex_);
    // The first that is free, alike on all ranks as in NCCL, behind a number of the communicator's
    // own, so that those of another one are recognised.
    auto op = static_cast<ncclRedOp_t>(ncclNumOps + id() % 0x3fffffff);
    while (operators_.contains(op)) {
        op = static_cast<ncclRedOp_t>(op + 1);
    }
    operators_.emplace(op, made);
    return op;
}

Status Communicator::destroy_operator(ncclRedOp_t op) {
    const std::lock_guard lock(mutex_);
    if (op >= 0 && op < ncclNumOps) {
        return {Code::kInvalidArgument, "ncclRedOpDestroy: operator " + std::to_string(op) +
                                            " is built in and cannot be destroyed"};
    }
    if (operators_.erase(op) == 0) {
        return {Code::kInvalidArgument,
                "ncclRedOpDestroy: not a living operator of this communicator"};
    }
    return {};
}

Result<Reduction> Communicator::resolve(ncclRedOp_t op, DType type) const {
    Reduction reduction;
    switch (op) {
        case ncclSum:
            return reduction;
        case ncclProd:
            reduction.op = ReduceOp::kProd;
            return reduction;
        case ncclMax:
            reduction.op = ReduceOp::kMax;
            return reduction;
        case ncclMin:
            reduction.op = ReduceOp::kMin;
            return reduction;
        case ncclAvg:
            reduction.scale = one_over(type, size());
            reduction.divisor = size();
            return reduction;
        default:
            break;
    }
    const std::lock_guard lock(mutex_);
    const auto found = operators_.find(op);
    if (found == operators_.end()) {
        return Status(Code::kInvalidArgument, "invalid reduction operation " +
                                                  std::to_string(static_cast<int>(op)) +
                                                  " for this communicator");
    }
    const UserOperator& user = found->second;
    if (user.type != type) {
        return Status(Code::kInvalidArgument, std::string("the reduction operation was made for ") +
                                                  dtype_name(user.type) + ", the data is " +
                                                  dtype_name(type));
    }
    return user.reduction;
}

// How a communicator runs a job: collectives one after the other, then all sends and receives
// together. Runs on the worker of a stream; waiting gives the core away.

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
        // Asked before the look for what has come, which is all that a peer sent before its end:
        // this thread may have got no processor since it looked last.
        Status peers = waiter.idle_ns() > kSuspiciousIdleNs ? check_peers() : Status();
        if (peers.ok() && waiter.idle_ns() > kLeftPatienceNs) {
            peers = check_awaited(machine);
        }
        bool moved = false;
        SLIMWIRE_TRY(machine.advance(&moved));
        if (moved) {
            waiter.progressed();
            continue;
        }
        SLIMWIRE_TRY(peers);
        waiter.idle();
    }
    return {};
}

Status Communicator::run_collective(const Task& task) {
    const Task local = viewed(task);
    if (size() == 1) {
        run_alone(local);
        return {};
    }
    Ring ring(transport_, scratch_, local,
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
