#include "collectives/creation.h"

#include <unistd.h>

#include "collectives/log.h"
#include "collectives/members.h"

namespace slimwire {
namespace {

std::string why_not_here(Runtime& runtime, const Creation& creation) {
    if (creation.non_blocking) {
        return "the communicator is non-blocking";
    }
    if (!runtime.config.active) {
        return runtime.config.settings.mode == Mode::kOff ? "SLIMWIRE_MODE is off"
                                                          : "no policy and no codec";
    }
    if (runtime.nccl.CommSplit == nullptr) {
        return "this NCCL has no ncclCommSplit (2.18 or later is needed)";
    }
    return {};
}

// First half: everything up to the hello.
Status greet(Runtime& runtime, Creation* creation) {
    const RealNccl& nccl = runtime.nccl;
    auto state = std::make_unique<CommState>();
    state->comm = *creation->out;
    (void)runtime.device();
    state->stats = runtime.reporter().add_comm();
    if (!creation->non_blocking) {
        if (creation->ranks == 0) {
            SLIMWIRE_TRY(
                nccl_status(nccl, nccl.CommCount(state->comm, &creation->ranks), "ncclCommCount"));
            SLIMWIRE_TRY(nccl_status(nccl, nccl.CommUserRank(state->comm, &creation->rank),
                                     "ncclCommUserRank"));
        }
        SLIMWIRE_TRY(
            nccl_status(nccl, nccl.CommCuDevice(state->comm, &state->device), "ncclCommCuDevice"));
    }
    state->rank = creation->rank;
    state->shape.ranks = creation->ranks;
    state->stats->rank = creation->rank;
    state->stats->ranks = creation->ranks;
    state->stats->device = state->device;
    creation->state = std::move(state);

    const std::string not_here = why_not_here(runtime, *creation);
    creation->agreement.verdict = Verdict::kNative;
    switch (creation->kind) {
        case Creation::Kind::kNative:
            creation->agreement.text = creation->reason;
            return {};
        case Creation::Kind::kInitAll:
        case Creation::Kind::kSplit:
            // One process, or a parent whose ranks agreed: nothing can differ.
            creation->agreement.text = not_here;
            if (not_here.empty()) {
                SLIMWIRE_TRY(runtime.device().status());
                creation->agreement.verdict = Verdict::kGo;
            }
            return {};
        case Creation::Kind::kUniqueId:
            break;
    }
    AgreementAddress address;
    const TailState tail = read_id_tail(creation->id, &address);
    if (tail == TailState::kTorn) {
        log_line(LogLevel::kWarn,
                 "rank " + std::to_string(creation->rank) +
                     ": the unique id's tail is damaged; the communicator is native");
    }
    if (tail != TailState::kPresent) {
        creation->agreement.text =
            tail == TailState::kTorn ? "the unique id's tail is damaged"
            : runtime.engaged() ? "the process that made the unique id runs without slimwire or "
                                  "without a policy"
                                : not_here;
        if (runtime.engaged()) {
            log_once(LogLevel::kWarn, "no tail",
                     "rank " + std::to_string(creation->rank) + ": " + creation->agreement.text +
                         "; communicators stay native");
        }
        return {};
    }
    Hello hello;
    hello.ranks = creation->ranks;
    hello.rank = creation->rank;
    hello.config_hash = runtime.config.hash;
    hello.native_reason = not_here;
    if (!runtime.config_status.ok()) {
        hello.error = runtime.config_status.message();
    } else if (runtime.config.active && !runtime.device().ok()) {
        hello.error = runtime.device().status().message();
    }
    hello.identity = member_of(runtime, creation->state->device);
    Status sent = creation->client.send(address, hello, runtime.config.settings.agree_timeout_us);
    if (!sent.ok()) {
        // The server never counts us in, so the others go native as well.
        creation->agreement.text = sent.message();
        log_line(LogLevel::kWarn, "rank " + std::to_string(creation->rank) + ": " + sent.message() +
                                      "; the communicator is native");
        creation->kind = Creation::Kind::kNative;
    } else if (creation->non_blocking) {
        creation->agreement.text = not_here;  // said; the others need not be waited for
        creation->kind = Creation::Kind::kNative;
    }
    return {};
}

// Second half for communicators that agree by hello.
Status hear(Runtime& runtime, Creation* creation) {
    if (creation->kind != Creation::Kind::kUniqueId || !creation->agreement.text.empty()) {
        return {};
    }
    AgreementAddress address;
    if (read_id_tail(creation->id, &address) != TailState::kPresent) {
        return {};
    }
    // The server answers one timeout after the first hello; twice that covers the slowest sender.
    SLIMWIRE_TRY_ASSIGN(
        creation->agreement,
        creation->client.wait(2 * runtime.config.settings.agree_timeout_us + 1000000, nullptr));
    if (creation->agreement.verdict == Verdict::kError) {
        return {Code::kInvalidArgument, creation->agreement.text};
    }
    if (creation->agreement.verdict == Verdict::kGo) {
        creation->state->members = creation->agreement.members;
    } else if (creation->rank == 0 && runtime.engaged()) {
        log_line(LogLevel::kWarn, "communicator of " + std::to_string(creation->ranks) +
                                      " ranks stays native: " + creation->agreement.text);
    }
    return {};
}

// Private communicators for the exchanges, only where a rule can match.
Status make_exchange_comms(Runtime& runtime, std::vector<Creation>& creations) {
    const RealNccl& nccl = runtime.nccl;
    std::vector<CommState*> states;
    for (Creation& creation : creations) {
        PlanShape& shape = creation.state->shape;
        if (shape.go && shape.ranks > 1 &&
            runtime.config.policy.can_compress(shape.ranks, shape.scope)) {
            states.push_back(creation.state.get());
        }
    }
    if (states.empty()) {
        return {};
    }
    SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
    Status split;
    for (CommState* state : states) {
        if (split.ok()) {
            split = nccl_status(
                nccl, nccl.CommSplit(state->comm, 0, state->rank, &state->exchange_comm, nullptr),
                "ncclCommSplit for the private communicator");
        }
    }
    Status ended = nccl_status(nccl, nccl.GroupEnd(), "ncclCommSplit for the private communicator");
    SLIMWIRE_TRY(std::move(split));
    return ended;
}

Status complete(Runtime& runtime, std::vector<Creation>& creations) {
    std::vector<CommState*> splits;
    for (Creation& creation : creations) {
        SLIMWIRE_TRY(greet(runtime, &creation));
    }
    for (Creation& creation : creations) {
        SLIMWIRE_TRY(hear(runtime, &creation));
        if (creation.agreement.verdict == Verdict::kGo && creation.state->members.empty()) {
            if (creation.kind == Creation::Kind::kSplit) {
                splits.push_back(creation.state.get());
            } else {
                for (Creation& member : creations) {
                    creation.state->members.push_back(member_of(runtime, member.state->device));
                }
            }
        }
    }
    SLIMWIRE_TRY(gather_members(runtime, splits));
    for (Creation& creation : creations) {
        CommState& state = *creation.state;
        state.shape.go = creation.agreement.verdict == Verdict::kGo;
        if (state.shape.go) {
            SLIMWIRE_TRY(adopt_members(runtime, &state, creation.parent_key));
            state.stats->agreement = "go";
        } else {
            state.shape.native_reason = creation.agreement.text;
            state.stats->agreement = "native: " + creation.agreement.text;
            state.stats->comm = hex_key(
                mix_key(reinterpret_cast<uintptr_t>(state.comm), static_cast<uint64_t>(getpid())));
        }
    }
    SLIMWIRE_TRY(make_exchange_comms(runtime, creations));
    for (Creation& creation : creations) {
        const CommState& state = *creation.state;
        if (log_enabled(LogLevel::kInfo)) {
            log_line(LogLevel::kInfo,
                     "rank " + std::to_string(state.rank) + " comm " + state.stats->comm + ": " +
                         std::to_string(state.shape.ranks) + " ranks on " +
                         std::to_string(state.stats->nodes) + " nodes: " + state.stats->agreement);
        }
        state.stats->update([](CommStats&) {});  // shown from now on
        runtime.comms.add(std::move(creation.state));
    }
    return {};
}

}  // namespace

ncclResult_t complete_or_undo(Runtime& runtime, std::vector<Creation>& creations) noexcept {
    const ReentryGuard guard;
    Status status;
    try {
        status = complete(runtime, creations);
    } catch (const std::exception& error) {
        status =
            Status(Code::kInternalError, std::string("communicator creation: ") + error.what());
    }
    if (status.ok()) {
        return ncclSuccess;
    }
    for (Creation& creation : creations) {
        const ncclComm_t comm = *creation.out;
        if (creation.state && creation.state->exchange_comm != nullptr) {
            (void)runtime.nccl.CommAbort(creation.state->exchange_comm);
        }
        if (creation.state && creation.state->stats) {
            creation.state->stats->agreement = "error: " + status.message();
            runtime.reporter().retire(creation.state->stats);
        }
        if (comm != nullptr) {
            (void)runtime.nccl.CommAbort(comm);
            *creation.out = nullptr;
        }
    }
    return runtime.fail(status);
}

void decline(Runtime& runtime, const Creation& creation) noexcept {
    AgreementAddress address;
    if (creation.kind != Creation::Kind::kUniqueId ||
        read_id_tail(creation.id, &address) != TailState::kPresent) {
        return;
    }
    try {
        Hello hello;
        hello.ranks = creation.ranks;
        hello.rank = creation.rank;
        hello.native_reason = why_not_here(runtime, creation);
        AgreementClient client;
        if (Status sent = client.send(address, hello, runtime.config.settings.agree_timeout_us);
            !sent.ok()) {
            log_line(LogLevel::kWarn, sent.message());
        }
    } catch (const std::exception& error) {
        log_line(LogLevel::kWarn, std::string("agreement: ") + error.what());
    }
}

}  // namespace slimwire
