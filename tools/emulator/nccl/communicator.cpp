// Creation, state and operators of a communicator; execution of its jobs is in execute.cpp.
#include "tools/emulator/nccl/communicator.h"

#include <algorithm>
#include <cstring>

#include "tools/emulator/nccl/clock.h"
#include "tools/emulator/nccl/device.h"
#include "tools/emulator/nccl/log.h"
#include "tools/emulator/nccl/shaper.h"

namespace slimwire::emu {
namespace {

constexpr uint64_t kSplitTag = 2ull << 56;
constexpr uint64_t kShrinkTag = 3ull << 56;
constexpr uint64_t kGrowTag = 4ull << 56;
// Keeps names made by shrinking apart from those made by splitting.
constexpr uint64_t kShrinkMark = 1ull << 63;
// A peer's last messages may still be on their way when its end is seen; within this time they are
// taken as if it lived.
constexpr uint64_t kGraceNs = 300'000'000;
// Waiting this long for a peer that has left in good order means that it will not come.
constexpr uint64_t kLeftPatienceNs = 1'000'000'000;

uint64_t mix(uint64_t value) noexcept {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

uint64_t process_number() {
    static const uint64_t number = random_u64();
    return number;
}

// Two ranks on one device of one process would be two GPUs that are one.
Status check_devices(const Mesh& mesh) {
    for (int a = 0; a < mesh.size(); ++a) {
        for (int b = a + 1; b < mesh.size(); ++b) {
            if (mesh.info(a).process == mesh.info(b).process &&
                mesh.info(a).device == mesh.info(b).device) {
                return {Code::kInvalidUsage,
                        "duplicate GPU: rank " + std::to_string(a) + " and rank " +
                            std::to_string(b) + " both on device " +
                            std::to_string(mesh.info(a).device) + " of one process"};
            }
        }
    }
    return {};
}

Result<uint64_t> wanted_chunk_bytes() {
    const char* text = getenv("SLIMWIRE_EMU_LINK");
    SLIMWIRE_TRY_ASSIGN(const LinkSpec spec, parse_link_spec(text != nullptr ? text : ""));
    return spec.chunk_bytes();
}

}  // namespace

Communicator::Communicator(Members members, int device)
    : transport_(std::move(members)), device_(device) {}

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
    const char* timeout = getenv("SLIMWIRE_EMU_TIMEOUT");
    SLIMWIRE_TRY_ASSIGN(timeout_ns_, parse_timeout(timeout != nullptr ? timeout : ""));
    SLIMWIRE_TRY(transport_.open(device_));
    log_info("%s node %d ready", describe().c_str(), transport_.members().info(rank()).node);
    return {};
}

Result<std::shared_ptr<Communicator>> Communicator::create(const ncclUniqueId& id,
                                                           int nranks,
                                                           int rank,
                                                           int device) {
    // The first id names the job's shared network cards where nothing else does.
    SLIMWIRE_TRY(job_shaper("id:" + std::to_string(unique_id_token(id))).status());
    SLIMWIRE_TRY_ASSIGN(const uint64_t chunk_bytes, wanted_chunk_bytes());
    RankInfo self{};
    self.node = emulator_api().node_of_device(device);
    self.device = device;
    self.chunk_bytes = static_cast<int32_t>(chunk_bytes);
    self.process = process_number();
    Members members;
    SLIMWIRE_TRY_ASSIGN(members.mesh, Mesh::join(id, nranks, rank, self));
    SLIMWIRE_TRY(check_devices(*members.mesh));
    members.rank = rank;
    members.comm = members.mesh->token();
    for (int i = 0; i < nranks; ++i) {
        members.mesh_ranks.push_back(i);
    }
    std::shared_ptr<Communicator> result(new Communicator(std::move(members), device));
    SLIMWIRE_TRY(result->open());
    return result;
}

Result<std::shared_ptr<Communicator>> Communicator::split(Communicator& parent,
                                                          int color,
                                                          int key) {
    struct Wish {
        int32_t color;
        int32_t key;
    };
    const Members& from = parent.transport_.members();
    const uint64_t tag = kSplitTag | ++parent.splits_;
    const Wish own{color, key};
    for (int rank = 0; rank < from.size(); ++rank) {
        from.mesh->send(from.mesh_rank(rank), from.comm, tag, &own, sizeof own);
    }
    std::vector<std::pair<int, int>> chosen;  // key, parent's rank: the new order
    for (int rank = 0; rank < from.size(); ++rank) {
        std::vector<char> message;
        SLIMWIRE_TRY(
            from.mesh->receive(from.mesh_rank(rank), from.comm, tag, parent.stop_, &message));
        Wish wish{};
        memcpy(&wish, message.data(), std::min(message.size(), sizeof wish));
        if (wish.color == color) {
            chosen.emplace_back(wish.key, rank);
        }
    }
    if (color == NCCL_SPLIT_NOCOLOR) {
        return std::shared_ptr<Communicator>();
    }
    std::sort(chosen.begin(), chosen.end());
    Members members;
    members.mesh = from.mesh;
    members.comm = mix(from.comm ^ mix(parent.splits_ << 32 ^ static_cast<uint32_t>(color)));
    for (const auto& [order, rank] : chosen) {
        if (rank == from.rank) {
            members.rank = members.size();
        }
        members.mesh_ranks.push_back(from.mesh_rank(rank));
    }
    std::shared_ptr<Communicator> result(new Communicator(std::move(members), parent.device_));
    SLIMWIRE_TRY(result->open());
    return result;
}

Result<std::shared_ptr<Communicator>> Communicator::shrink(Communicator& parent,
                                                           const std::vector<int>& excluded,
                                                           bool abort) {
    if (abort) {
        parent.revoke();
        const std::lock_guard running(parent.run_mutex_);  // the job that ran is over
    }
    const Members& from = parent.transport_.members();
    Members members;
    members.mesh = from.mesh;
    members.comm = mix(from.comm ^ mix(++parent.shrinks_ | kShrinkMark));
    for (int rank = 0; rank < from.size(); ++rank) {
        if (std::binary_search(excluded.begin(), excluded.end(), rank)) {
            members.comm = mix(members.comm ^ static_cast<uint64_t>(rank + 1));
            continue;
        }
        if (rank == from.rank) {
            members.rank = members.size();
        }
        members.mesh_ranks.push_back(from.mesh_rank(rank));
    }
    // All survivors come; one that excludes others than this rank does waits under another name.
    const char here = 1;
    for (const int peer : members.mesh_ranks) {
        members.mesh->send(peer, members.comm, kShrinkTag, &here, sizeof here);
    }
    for (const int peer : members.mesh_ranks) {
        std::vector<char> message;
        SLIMWIRE_TRY(members.mesh->receive(peer, members.comm, kShrinkTag, parent.stop_, &message));
    }
    std::shared_ptr<Communicator> result(new Communicator(std::move(members), parent.device_));
    SLIMWIRE_TRY(result->open());
    return result;
}

Result<ncclUniqueId> Communicator::share_id(const ncclUniqueId& id) {
    const Members& from = transport_.members();
    const uint64_t tag = kGrowTag | ++grows_;
    for (int rank = 0; rank < from.size(); ++rank) {
        from.mesh->send(from.mesh_rank(rank), from.comm, tag, &id, sizeof id);
    }
    ncclUniqueId shared{};
    int makers = 0;
    for (int rank = 0; rank < from.size(); ++rank) {
        std::vector<char> message;
        SLIMWIRE_TRY(from.mesh->receive(from.mesh_rank(rank), from.comm, tag, stop_, &message));
        ncclUniqueId theirs{};
        memcpy(&theirs, message.data(), std::min(message.size(), sizeof theirs));
        if (unique_id_token(theirs) != 0) {
            shared = theirs;
            ++makers;
        }
    }
    if (makers != 1) {
        return Status(Code::kInvalidArgument,
                      "ncclCommGrow: " + std::to_string(makers) +
                          " ranks of the communicator pass an id: expected one");
    }
    return shared;
}

// --- State

Status Communicator::check_peers(uint64_t idle_ns) {
    const Members& members = transport_.members();
    if (members.mesh->changes() == 0) {
        return {};
    }
    const uint64_t now = now_ns();
    for (int rank = 0; rank < members.size(); ++rank) {
        const int peer = members.mesh_rank(rank);
        const std::string name = "rank " + std::to_string(rank);
        const uint64_t dead = members.mesh->dead_since_ns(peer);
        if (dead != 0 && now - dead > kGraceNs) {
            return {Code::kRemoteError, name + ": the process ended (" + describe() + ")"};
        }
        const uint64_t aborted = members.mesh->aborted_since_ns(peer, members.comm);
        if (aborted != 0 && now - aborted > kGraceNs) {
            return {Code::kRemoteError, name + " aborted the communicator (" + describe() + ")"};
        }
        if (idle_ns > kLeftPatienceNs && members.mesh->left_since_ns(peer, members.comm) != 0) {
            return {Code::kRemoteError,
                    name + " has destroyed the communicator that this rank waits on (" +
                        describe() + ")"};
        }
    }
    return {};
}

Status Communicator::error(uint64_t idle_ns) {
    if (!failed_) {
        const Status status = check_peers(idle_ns);
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
    stop_ = true;
    fail({Code::kInvalidUsage, "the communicator was aborted"});
    if (!finalized_.exchange(true)) {
        const std::lock_guard running(run_mutex_);
        transport_.members().mesh->announce_end(id(), true);
        transport_.close();
    }
}

void Communicator::revoke() {
    revoked_ = true;
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
        if (revoked_) {
            transport_.close();  // what was in flight may have left messages behind
        } else if (!status.ok()) {
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
        SLIMWIRE_TRY(cuda_check(cudaEventCreateWithFlags(&last_work_, cudaEventDisableTiming),
                                "cudaEventCreateWithFlags"));
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

// --- Operators

// Handles are shifted by a number of the communicator's own, so that those of another communicator
// are recognised.
constexpr uint32_t kOperatorRange = 0x7fffffffu - ncclNumOps;

int Communicator::operator_index(ncclRedOp_t op) const noexcept {
    const auto shift = static_cast<uint32_t>(id() % kOperatorRange);
    const uint32_t value = static_cast<uint32_t>(op) - ncclNumOps;
    const uint32_t index = (value + kOperatorRange - shift) % kOperatorRange;
    return index < operators_.size() && operators_[index].alive ? static_cast<int>(index) : -1;
}

Result<ncclRedOp_t> Communicator::make_operator(const void* scalar, DType type, bool on_device) {
    UserOperator made{true, type, {}};
    if (on_device) {
        made.reduction.scale_pointer = scalar;
    } else {
        memcpy(made.reduction.scale.element, scalar, dtype_bytes(type));
    }
    made.reduction.scale.enabled = true;
    const std::lock_guard lock(mutex_);
    const auto free = std::find_if(operators_.begin(), operators_.end(),
                                   [](const UserOperator& op) { return !op.alive; });
    const auto index = static_cast<uint32_t>(free - operators_.begin());
    if (free == operators_.end()) {
        operators_.push_back(made);
    } else {
        *free = made;
    }
    const auto shift = static_cast<uint32_t>(id() % kOperatorRange);
    return static_cast<ncclRedOp_t>(ncclNumOps + (index + shift) % kOperatorRange);
}

Status Communicator::destroy_operator(ncclRedOp_t op) {
    const std::lock_guard lock(mutex_);
    if (op >= 0 && op < ncclNumOps) {
        return {Code::kInvalidArgument, "ncclRedOpDestroy: operator " + std::to_string(op) +
                                            " is built in and cannot be destroyed"};
    }
    const int index = operator_index(op);
    if (index < 0) {
        return {Code::kInvalidArgument,
                "ncclRedOpDestroy: not a living operator of this communicator"};
    }
    operators_[static_cast<size_t>(index)].alive = false;
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
    const int index = op < 0 ? -1 : operator_index(op);
    if (index < 0) {
        return Status(Code::kInvalidArgument, "invalid reduction operation " +
                                                  std::to_string(static_cast<int>(op)) +
                                                  " for this communicator");
    }
    const UserOperator& user = operators_[static_cast<size_t>(index)];
    if (user.type != type) {
        return Status(Code::kInvalidArgument, std::string("the reduction operation was made for ") +
                                                  dtype_name(user.type) + ", the data is " +
                                                  dtype_name(type));
    }
    return user.reduction;
}

}  // namespace slimwire::emu
