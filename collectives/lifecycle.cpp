#include "collectives/lifecycle.h"

#include <cstdlib>

#include "collectives/creation.h"
#include "collectives/dispatch.h"
#include "collectives/log.h"

namespace slimwire {
namespace {

std::vector<Creation>& group_creations() noexcept {
    static thread_local std::vector<Creation> creations;
    return creations;
}

ncclResult_t created(Runtime& runtime, ncclResult_t result, Creation creation) noexcept {
    if (result != ncclSuccess && result != ncclInProgress) {
        return result;
    }
    if (!runtime.engaged()) {
        decline(runtime, creation);
        return result;
    }
    creation.non_blocking |= result == ncclInProgress;
    if (in_group()) {
        group_creations().push_back(std::move(creation));
        return result;
    }
    if (*creation.out == nullptr) {  // a split without color
        return result;
    }
    std::vector<Creation> one;
    one.push_back(std::move(creation));
    const ncclResult_t completed = complete_or_undo(runtime, one);
    return completed == ncclSuccess ? result : completed;
}

}  // namespace

void unique_id_made(Runtime& runtime, ncclUniqueId* id) noexcept {
    // With NCCL_COMM_ID every rank makes the id by itself, so it cannot carry one server's address:
    // such communicators stay native.
    const char* fixed = getenv("NCCL_COMM_ID");
    if (!runtime.engaged() || (fixed != nullptr && *fixed != 0)) {
        return;
    }
    const auto open = [&]() -> Status {
        SLIMWIRE_TRY_ASSIGN(AgreementServer * server,
                            AgreementServer::instance(runtime.config.settings.agree_timeout_us));
        SLIMWIRE_TRY_ASSIGN(const AgreementAddress address,
                            server->open(*id, runtime.config.settings.socket_ifname));
        if (!write_id_tail(address, id)) {
            return {Code::kUnsupported,
                    "the tail of the unique id is in use by this NCCL; communicators stay native"};
        }
        return {};
    };
    try {
        if (Status status = open(); !status.ok()) {
            log_line(LogLevel::kWarn, status.message());
        }
    } catch (const std::exception& error) {
        log_line(LogLevel::kWarn, std::string("agreement: ") + error.what());
    }
}

ncclResult_t rank_created(Runtime& runtime,
                          ncclResult_t result,
                          ncclComm_t* comm,
                          int ranks,
                          int rank,
                          const ncclUniqueId& id,
                          bool non_blocking) noexcept {
    Creation creation;
    creation.kind = Creation::Kind::kUniqueId;
    creation.out = comm;
    creation.ranks = ranks;
    creation.rank = rank;
    creation.id = id;
    creation.non_blocking = non_blocking;
    return created(runtime, result, std::move(creation));
}

ncclResult_t all_created(Runtime& runtime,
                         ncclResult_t result,
                         ncclComm_t* comms,
                         int ranks) noexcept {
    if (result != ncclSuccess || !runtime.engaged()) {
        return result;
    }
    if (!runtime.config_status.ok()) {
        for (int rank = 0; rank < ranks; ++rank) {
            (void)runtime.nccl.CommAbort(comms[rank]);
            comms[rank] = nullptr;
        }
        return runtime.fail(runtime.config_status);
    }
    std::vector<Creation> creations;
    for (int rank = 0; rank < ranks; ++rank) {
        Creation& creation = creations.emplace_back();
        creation.kind = Creation::Kind::kInitAll;
        creation.out = comms + rank;
        creation.ranks = ranks;
        creation.rank = rank;
    }
    return complete_or_undo(runtime, creations);
}

ncclResult_t split_created(Runtime& runtime,
                           ncclResult_t result,
                           ncclComm_t parent,
                           ncclComm_t* comm,
                           bool non_blocking) noexcept {
    const CommState* from = runtime.comms.find(parent);
    Creation creation;
    creation.out = comm;
    creation.non_blocking = non_blocking;
    if (from != nullptr && from->shape.go && !non_blocking) {
        creation.kind = Creation::Kind::kSplit;
        creation.parent_key = from->comm_key;
    } else {
        creation.kind = Creation::Kind::kNative;
        creation.reason = non_blocking ? "the communicator is non-blocking"
                          : from == nullptr
                              ? "split from a communicator slimwire does not know"
                              : "split from a native communicator: " + from->shape.native_reason;
    }
    return created(runtime, result, std::move(creation));
}

ncclResult_t native_created(Runtime& runtime,
                            ncclResult_t result,
                            ncclComm_t* comm,
                            const char* reason) noexcept {
    Creation creation;
    creation.kind = Creation::Kind::kNative;
    creation.out = comm;
    creation.reason = reason;
    creation.non_blocking = result == ncclInProgress;
    return created(runtime, result, std::move(creation));
}

ncclResult_t finish_group_creations(Runtime& runtime, ncclResult_t result) noexcept {
    std::vector<Creation> creations = std::move(group_creations());
    group_creations().clear();
    if (creations.empty() || (result != ncclSuccess && result != ncclInProgress)) {
        return ncclSuccess;
    }
    std::erase_if(creations, [](const Creation& creation) { return *creation.out == nullptr; });
    for (Creation& creation : creations) {
        creation.non_blocking |= result == ncclInProgress;
    }
    if (creations.empty()) {
        return ncclSuccess;
    }
    return complete_or_undo(runtime, creations);
}

void drop_group_creations() noexcept {
    group_creations().clear();
}

void comm_finalizing(Runtime& runtime, ncclComm_t comm) noexcept {
    CommState* state = runtime.comms.find(comm);
    if (state != nullptr && state->exchange_comm != nullptr &&
        runtime.nccl.CommFinalize != nullptr) {
        const ReentryGuard guard;
        (void)runtime.nccl.CommFinalize(state->exchange_comm);
    }
}

void comm_ending(Runtime& runtime, ncclComm_t comm, bool abort) noexcept {
    std::unique_ptr<CommState> state = runtime.comms.remove(comm);
    if (!state) {
        return;
    }
    const ReentryGuard guard;
    state->ended = true;
    if (state->exchange_comm != nullptr && abort) {
        (void)runtime.nccl.CommAbort(state->exchange_comm);
    }
    if (runtime.device().ok() && state->exchange_stream != nullptr && state->users == 0 &&
        release_device_objects(runtime.api(), state.get(), !abort)) {
        (void)runtime.residuals.forget(runtime.api(), state->state_key);
    }
    if (state->exchange_comm != nullptr && !abort) {
        (void)runtime.nccl.CommDestroy(state->exchange_comm);
    }
    runtime.reporter().retire(state->stats);
    if (abort) {
        runtime.comms.bury(std::move(state));
    } else {
        forget_queued(*state);
    }
}

}  // namespace slimwire
