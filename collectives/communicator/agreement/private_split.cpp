#include "collectives/communicator/agreement/private_split.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "codecs/base/blocked_signals.h"
#include "codecs/base/device_scope.h"

namespace slimwire {

Status start_detached(const std::function<void()>& work) {
    const BlockedSignals blocked;
    try {
        std::thread(work).detach();
    } catch (const std::exception& error) {
        return {Code::kSystemError,
                std::string("no thread for the creation of a communicator: ") + error.what()};
    }
    return {};
}

void Leavable::run() {
    const ReentryGuard guard;
    Status worked;
    try {
        worked = work();
    } catch (const std::exception& error) {
        worked = Status(Code::kInternalError, error.what());
    }
    const std::lock_guard lock(mutex);
    done = true;
    ended.notify_one();
    if (left) {
        clean_up();
    } else {
        status = std::move(worked);
    }
}

Status run_leavable(const std::shared_ptr<Leavable>& one, uint64_t deadline_us, AbortWatch* watch) {
    one->done = false;
    one->status = {};  // before the thread, which may end at once
    if (Status started = start_detached([one] { one->run(); }); !started.ok()) {
        one->status = std::move(started);
        return {};
    }
    constexpr std::chrono::milliseconds kLook(20);
    std::unique_lock lock(one->mutex);
    while (!one->ended.wait_for(lock, kLook, [&] { return one->done; })) {
        bool busy = false;
        Status aborted = watch->look(&busy);  // a rank that is gone, too
        if (!aborted.ok() || steady_us() >= deadline_us) {
            one->left = true;
            one->status = Status(Code::kSystemError, "NCCL did not end it in time");
            return aborted;
        }
    }
    return {};
}

// In a group NCCL asks both at its end.
Beside ask_beside(Runtime& runtime,
                  const Communicator& state,
                  const std::function<ncclResult_t()>& ask) noexcept {
    std::packaged_task<void()> asked([&api = runtime.api(), device = state.device, ask] {
        tolerate(api, api.set_device(device));  // with which NCCL leaves the thread
        const ReentryGuard guard;
        (void)ask();
    });
    Beside ended = asked.get_future();
    const auto own = std::make_shared<std::packaged_task<void()>>(std::move(asked));
    if (!runtime.listener->in_group() && start_detached([own] { (*own)(); }).ok()) {
        return ended;
    }
    const ReentryGuard guard;
    (void)ask();
    return {};
}

void await(const Beside& beside) noexcept {
    constexpr std::chrono::seconds kBound(2);
    if (beside.valid()) {
        (void)beside.wait_for(kBound);
    }
}

namespace {

Status make_of_id(const RealNccl& nccl, const DeviceApi& api, Split::Part* part) {
    if (part->color == NCCL_SPLIT_NOCOLOR) {
        return {};  // on all ranks
    }
    if (!part->id.has_value()) {
        return {Code::kSystemError, "no unique id for it"};
    }
    ncclConfig_t config = part->configured.of_private();
    tolerate(api, api.set_device(part->device));
    return nccl_status(
        nccl,
        nccl.CommInitRankConfig(&part->made, part->sharing_ranks, *part->id, part->rank, &config),
        "ncclCommInitRankConfig for the private communicator");
}

}  // namespace

Status Split::work() {
    constexpr char kWhat[] = "ncclCommSplit for the private communicator";
    tolerate(api, api.set_device(device));
    SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
    Status split;
    for (Part& part : parts) {
        if (split.ok() && part.sharing_ranks > 0) {
            split = make_of_id(nccl, api, &part);
        } else if (split.ok()) {
            ncclConfig_t config = part.configured.of_private();
            split = nccl_status(
                nccl, nccl.CommSplit(part.parent, part.color, part.rank, &part.made, &config),
                kWhat);
        }
    }
    const ncclResult_t result = nccl.GroupEnd();
    unsettled = result == ncclInProgress;
    Status ended = nccl_status(nccl, result, kWhat);
    return split.ok() ? ended : split;
}

Split::~Split() {
    if (unsettled) {
        static std::mutex mutex;
        static auto* const kept = new std::vector<std::vector<Part>>;
        const std::lock_guard lock(mutex);
        kept->push_back(std::move(parts));
    }
}

void Split::clean_up() {
    for (const Part& part : parts) {
        if (part.made != nullptr) {
            (void)nccl.CommAbort(part.made);
        }
    }
}

Status run_split(const std::shared_ptr<Split>& split, uint64_t deadline_us, AbortWatch* watch) {
    SLIMWIRE_TRY(run_leavable(split, deadline_us, watch));
    return split->status.ok() ? watch->settle(deadline_us) : Status();
}

uint64_t split_timeout_us(const Runtime& runtime) {
    return 3 * runtime.config.settings.agree_timeout_us;
}

void abort_private(Communicator* state) {
    if (state->exchange_comm != nullptr) {
        (void)state->nccl->CommAbort(std::exchange(state->exchange_comm, nullptr));
    }
}

void note_private(const DeviceApi& api,
                  Communicator* state,
                  uint64_t began_us,
                  uint64_t free_before) {
    const DeviceScope device(api, state->device);
    CommStats& stats = *state->stats;
    stats.private_setup_us = steady_us() - began_us;
    stats.private_connections = 2 * static_cast<uint32_t>(state->shape.ranks - 1);
    stats.private_bytes = free_before - std::min(free_before, free_device_bytes(api));
}

}  // namespace slimwire
