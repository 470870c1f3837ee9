#include "collectives/lifecycle.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "codecs/base/emulator_abi.h"
#include "collectives/dispatch.h"
#include "collectives/log.h"
#include "topology/comm_shape.h"

namespace slimwire {
namespace {

// A communicator whose real creation was called, until slimwire's part is done.
struct Creation {
    enum class Kind { kUniqueId, kInitAll, kSplit, kNative };
    Kind kind = Kind::kUniqueId;
    ncclComm_t* out = nullptr;
    int ranks = 0;
    int rank = 0;
    ncclUniqueId id{};
    bool non_blocking = false;
    std::string reason;  // kNative: why
    uint64_t parent_key = 0;

    // Filled on the way.
    std::unique_ptr<CommState> state;
    AgreementClient client;
    Agreement agreement;
};

std::vector<Creation>& group_creations() noexcept {
    static thread_local std::vector<Creation>* creations = new std::vector<Creation>;
    return *creations;
}

uint64_t mix(uint64_t hash, uint64_t value) noexcept {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 32;
}

uint64_t hash_text(const std::string& text) noexcept {
    uint64_t hash = 14695981039346656037ull;  // FNV-1a
    for (const char c : text) {
        hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
    }
    return hash;
}

std::string hex(uint64_t value) {
    char text[17];
    for (int i = 15; i >= 0; --i, value >>= 4) {
        text[i] = "0123456789abcdef"[value & 15];
    }
    text[16] = 0;
    return text;
}

int launcher_rank() noexcept {
    for (const char* name :
         {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
        if (const char* value = getenv(name); value != nullptr && *value != 0) {
            return std::atoi(value);
        }
    }
    return -1;
}

// What makes ranks neighbours: NCCL_HOSTID as NCCL itself uses it, else host name and boot id; on
// the emulator the emulated node.
uint64_t host_id(const DeviceApi& api, int device) {
    if (api.emulator != nullptr) {
        return mix(hash_text("emulated node"),
                   static_cast<uint64_t>(api.emulator->node_of_device(device)) + 1);
    }
    if (const char* given = getenv("NCCL_HOSTID"); given != nullptr && *given != 0) {
        return hash_text(given);
    }
    char name[256] = {};
    (void)gethostname(name, sizeof(name) - 1);
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    return hash_text(name + boot);
}

Member member_of(Runtime& runtime, int device) {
    Member member;
    member.place.host_id = runtime.device().ok() ? host_id(runtime.api(), device) : 0;
    member.place.device = device;
    member.place.launcher_rank = launcher_rank();
    member.process = mix(member.place.host_id, static_cast<uint64_t>(getpid()));
    return member;
}

// The communicator's key: its members and how many were made of them before.
Status adopt_members(Runtime& runtime, CommState* state, uint64_t parent_key) {
    uint64_t members = parent_key;
    std::vector<RankIdentity> places;
    for (const Member& member : state->members) {
        members = mix(mix(members, member.place.host_id), member.process);
        members = mix(members, static_cast<uint64_t>(member.place.device));
        places.push_back(member.place);
    }
    SLIMWIRE_TRY_ASSIGN(const CommShape shape, make_comm_shape(places));
    state->shape.scope = shape.scope;
    state->shape.max_ranks_per_node = shape.max_ranks_per_node;
    state->stats->nodes = shape.nodes;
    // Ranks of one process count their communicators of these members apart.
    const uint64_t ordinal =
        runtime.comms.next_ordinal(mix(members, static_cast<uint64_t>(state->rank)));
    state->comm_key = mix(members, ordinal);
    state->state_key = mix(state->comm_key, static_cast<uint64_t>(state->rank) + 1);
    state->stats->comm = hex(state->comm_key);
    return {};
}

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

// Members of communicators made by a split: all-gathered over the new communicators themselves.
Status gather_members(Runtime& runtime, std::vector<Creation*>& creations) {
    if (creations.empty()) {
        return {};
    }
    const DeviceApi& api = runtime.api();
    const RealNccl& nccl = runtime.nccl;
    struct Exchange {
        char* buffer = nullptr;
        cudaStream_t stream = nullptr;
    };
    std::vector<Exchange> exchanges(creations.size());
    const auto run = [&]() -> Status {
        for (size_t i = 0; i < creations.size(); ++i) {
            const CommState& state = *creations[i]->state;
            const DeviceScope device(api, state.device);
            const auto ranks = static_cast<size_t>(state.shape.ranks);
            SLIMWIRE_TRY(cuda_status(
                api,
                api.malloc(reinterpret_cast<void**>(&exchanges[i].buffer), ranks * sizeof(Member)),
                "identity buffer"));
            SLIMWIRE_TRY(cuda_status(
                api, api.stream_create_with_flags(&exchanges[i].stream, cudaStreamNonBlocking),
                "identity stream"));
            const Member mine = member_of(runtime, state.device);
            SLIMWIRE_TRY(cuda_status(
                api,
                api.memcpy_async(
                    exchanges[i].buffer + static_cast<size_t>(state.rank) * sizeof(Member), &mine,
                    sizeof(mine), cudaMemcpyHostToDevice, exchanges[i].stream),
                "identity copy"));
            SLIMWIRE_TRY(
                cuda_status(api, api.stream_synchronize(exchanges[i].stream), "identity copy"));
        }
        SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
        for (size_t i = 0; i < creations.size(); ++i) {
            const CommState& state = *creations[i]->state;
            const ncclResult_t result = nccl.AllGather(
                exchanges[i].buffer + static_cast<size_t>(state.rank) * sizeof(Member),
                exchanges[i].buffer, sizeof(Member), ncclUint8, state.comm, exchanges[i].stream);
            if (result != ncclSuccess) {
                (void)nccl.GroupEnd();
                return nccl_status(nccl, result, "ncclAllGather of identities");
            }
        }
        SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupEnd(), "ncclGroupEnd"));
        for (size_t i = 0; i < creations.size(); ++i) {
            CommState& state = *creations[i]->state;
            const DeviceScope device(api, state.device);
            state.members.resize(static_cast<size_t>(state.shape.ranks));
            SLIMWIRE_TRY(cuda_status(api,
                                     api.memcpy_async(state.members.data(), exchanges[i].buffer,
                                                      state.members.size() * sizeof(Member),
                                                      cudaMemcpyDeviceToHost, exchanges[i].stream),
                                     "identity copy"));
            SLIMWIRE_TRY(
                cuda_status(api, api.stream_synchronize(exchanges[i].stream), "identity copy"));
        }
        return {};
    };
    Status status = run();
    for (size_t i = 0; i < creations.size(); ++i) {
        const DeviceScope device(api, creations[i]->state->device);
        if (exchanges[i].stream != nullptr) {
            (void)api.stream_destroy(exchanges[i].stream);
        }
        if (exchanges[i].buffer != nullptr) {
            (void)api.free(exchanges[i].buffer);
        }
    }
    return status;
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
    std::vector<Creation*> splits;
    for (Creation& creation : creations) {
        SLIMWIRE_TRY(greet(runtime, &creation));
    }
    for (Creation& creation : creations) {
        SLIMWIRE_TRY(hear(runtime, &creation));
        if (creation.agreement.verdict == Verdict::kGo && creation.state->members.empty()) {
            if (creation.kind == Creation::Kind::kSplit) {
                splits.push_back(&creation);
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
            state.stats->comm =
                hex(mix(reinterpret_cast<uintptr_t>(state.comm), static_cast<uint64_t>(getpid())));
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

// Completes, or undoes all of them and returns the error.
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

// A rank without a policy changes nothing; where the others have one, they learn it from its hello.
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
