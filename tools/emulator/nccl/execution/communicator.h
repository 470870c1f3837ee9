// A communicator: its members, transport, state and operators. What an ncclComm_t points to holds a
// shared pointer to one, and so does every enqueued job: destroying the handle while a captured
// graph still knows the communicator is harmless.
//
// Thread contract: creation, enqueueing and destruction by one client thread at a time; jobs run on
// workers of streams, one at a time; fail(), abort(), error() from any thread.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/execution/async_state.h"
#include "tools/emulator/nccl/execution/ring.h"
#include "tools/emulator/nccl/transport/transport.h"

namespace slimwire::emu {

class Communicator {
  public:
    // Joins the communicator of `id` as `rank`; blocks until all have come. `device` is this
    // process's device of the rank.
    static Result<std::shared_ptr<Communicator>> create(
        const ncclUniqueId& id, int nranks, int rank, int device, const CommSettings& settings);
    // The number of a call that makes a part of this communicator, by which ranks know it: drawn by
    // the call, as those of one group run side by side. Not all ranks call every shrink.
    enum class Part : uint8_t { kSplit, kShrunk, kGrown };
    uint64_t next_number(Part part) noexcept { return ++parts_[static_cast<size_t>(part)]; }
    // The part of `parent` with this rank's color; null for NCCL_SPLIT_NOCOLOR. Collective.
    static Result<std::shared_ptr<Communicator>> split(
        Communicator& parent, uint64_t number, int color, int key, const CommSettings& settings);
    // The members of `parent` that are not in `excluded` (sorted), in the same order; only they
    // call. With `abort`, running jobs of the parent end first and it cannot be used any more.
    static Result<std::shared_ptr<Communicator>> shrink(Communicator& parent,
                                                        uint64_t number,
                                                        const std::vector<int>& excluded,
                                                        bool abort,
                                                        const CommSettings& settings);
    // The id that one member passes, to all of them; the others pass an empty one. Collective.
    Result<ncclUniqueId> share_id(uint64_t number, const ncclUniqueId& id);
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    [[nodiscard]] int rank() const noexcept { return transport_.members().rank; }
    [[nodiscard]] int size() const noexcept { return transport_.members().size(); }
    [[nodiscard]] int device() const noexcept { return device_; }
    [[nodiscard]] uint64_t id() const noexcept { return transport_.members().comm; }
    [[nodiscard]] std::string describe() const;
    [[nodiscard]] const CommSettings& settings() const noexcept { return settings_; }

    // Set for non-blocking communicators, before anybody else knows the communicator.
    void set_async(AsyncRef async) { async_ = std::move(async); }
    [[nodiscard]] const AsyncRef& async() const noexcept { return async_; }

    // --- State
    // The first failure stays; ok while all is well. Looks for peers that have gone.
    Status error();
    void fail(const Status& status);
    // Ends running jobs at their next look; later ones end at once. As NCCL, it waits for those
    // that are behind other work on their streams.
    void abort();
    // Waits for enqueued work, tells the peers, frees what it can.
    void finalize();
    // Ends running jobs and refuses later ones; the members can still be split and shrunk.
    void revoke();
    [[nodiscard]] bool revoked() const noexcept { return revoked_; }
    // Between ncclCommSuspend and ncclCommResume it has no memory, and calls are refused. As NCCL,
    // suspend() waits for the device first; it does not wait for the other ranks.
    Status suspend();
    Status resume();
    [[nodiscard]] bool suspended() const noexcept { return suspended_; }
    [[nodiscard]] bool finalized() const noexcept { return finalized_; }

    // --- Jobs
    // Decides what is left open in tasks that are about to be enqueued.
    Status tune(std::vector<Task>* tasks);
    // An uncaptured job was enqueued / could not be.
    void job_enqueued();
    void job_dropped();
    // Runs the tasks on the calling thread, after any job that runs already.
    void run_job(const std::vector<Task>& tasks, bool enqueued) noexcept;
    // Orders work that is enqueued on several streams: `stream` waits for what was enqueued before,
    // and what is enqueued next waits for it. Captured work takes its place when its graph is
    // launched.
    Status order_before(cudaStream_t stream, bool captured);
    Status order_after(cudaStream_t stream, bool captured);

    // --- Operators
    Result<ncclRedOp_t> make_operator(const void* scalar, DType type, bool on_device);
    Status destroy_operator(ncclRedOp_t op);
    // How `op` reduces elements of `type`; fails for an operator of another communicator or type.
    Result<Reduction> resolve(ncclRedOp_t op, DType type) const;

    // --- Memory
    // A handle for a registered range, or window, of device memory; registering it again gives
    // another.
    Result<void*> register_memory(void* buffer, size_t bytes);
    Status deregister_memory(void* handle);

  private:
    struct UserOperator {
        DType type;
        Reduction reduction;
    };
    // `stop`: of a parent that shares it; null: its own.
    Communicator(Members members,
                 int device,
                 CommSettings settings,
                 std::shared_ptr<std::atomic<bool>> stop = nullptr);
    Status open();
    Status execute(const std::vector<Task>& tasks);
    Status run_collective(const Task& task);
    Status run_point_to_point(const std::vector<Task>& tasks);
    template <class Machine>
    Status drive(Machine& machine);
    Status check_peers();
    template <class Machine>
    Status check_awaited(const Machine& machine);

    Transport transport_;
    AsyncRef async_;
    int device_;
    CommSettings settings_;
    size_t chunk_bytes_ = 0;
    ScratchPool scratch_;
    std::array<uint64_t, 3> parts_{};  // made so far, by Part

    const std::shared_ptr<std::atomic<bool>> stop_;  // an abort of any that share it
    std::atomic<bool> failed_{false};
    std::atomic<bool> finalized_{false};
    std::atomic<bool> revoked_{false};
    std::atomic<bool> suspended_{false};
    mutable std::mutex mutex_;  // error_, pending_, operators_
    Status error_;
    std::condition_variable idle_;
    int pending_ = 0;
    std::mutex run_mutex_;

    cudaEvent_t last_work_ = nullptr;
    cudaStream_t last_stream_ = nullptr;
    bool was_captured_ = false;  // launches of graphs enqueue work unseen
    std::map<ncclRedOp_t, UserOperator> operators_;
    std::set<void*> registrations_;  // handles; guarded by mutex_
    uintptr_t last_registration_ = 0;
};

}  // namespace slimwire::emu
