#include "collectives/communicator/agreement/handshake.h"

#include <optional>

#include "codecs/base/device_scope.h"
#include "codecs/codec.h"
#include "collectives/call/log.h"
#include "collectives/policy/config.h"

namespace slimwire {

std::string why_not_here(const Runtime& runtime, const RealNccl& nccl) {
    if (!runtime.config.active) {
        const Mode mode = runtime.config.settings.mode;
        return mode == Mode::kOn ? "no policy and no codec"
                                 : std::string("SLIMWIRE_MODE is ") + mode_name(mode);
    }
    if (nccl.CommSplit == nullptr) {
        return "this NCCL has no ncclCommSplit (2.18 or later is needed)";
    }
    return {};
}

namespace {

static_assert(sizeof(Member) <= kMostTold);

// Why this process compresses nothing on such a communicator's device; empty when it may. Loads the
// kernels there: at a first call that would wait for the program's own work.
std::string why_not_on(Runtime& runtime, const Communicator& state) {
    const int device = state.device;
    std::string why = why_not_here(runtime, *state.nccl);
    if (!why.empty() || runtime.config.settings.mode == Mode::kRecord) {
        return why;
    }
    if (!runtime.device().ok()) {
        why = runtime.device().status().message();
    } else {
        const DeviceScope scope(runtime.api(), device);
        why = load_cuda_kernels(runtime.api()).message();
    }
    if (!why.empty()) {
        log_once(LogLevel::kWarn, "kernels",
                 "device " + std::to_string(device) + ": " + why + "; communicators stay native");
    }
    return why;
}

// Scratch is there before a rank tells the others how much it has, and so are streams, events and
// what copies to the host go through: at its first call the others would wait for a rank that does
// not get them.
void reserve(Runtime& runtime, Communicator* state) {
    const DeviceApi& api = runtime.api();
    const Policy& policy = runtime.config.policy;
    const bool copies = policy.wants_steps() || policy.wants_pairs();
    if (state->shape.ranks > 1) {
        reserve_scratch(api, state, runtime.listener->scratch_wanted(*state));
    }
    const DeviceScope device(api, state->device);
    if (state->objects.room() > 0 &&
        (!prepare_device_objects(api, state, 0).ok() ||
         (copies && !state->objects.copies.prepare(api, &runtime.device_memory)))) {
        drop_reserve(api, state);
    }
}

// What NCCL knows of the new communicator.
Status ask_nccl(Runtime& runtime, Creation* creation) {
    Communicator& state = *creation->state;
    const RealNccl& nccl = *state.nccl;
    state.comm = creation->pending->comm;
    (void)runtime.device();
    state.stats = runtime.reporter().add_comm();
    state.stats->name = state.configured.name;
    if (creation->ranks == 0) {
        SLIMWIRE_TRY(
            nccl_status(nccl, nccl.CommCount(state.comm, &creation->ranks), "ncclCommCount"));
        SLIMWIRE_TRY(
            nccl_status(nccl, nccl.CommUserRank(state.comm, &creation->rank), "ncclCommUserRank"));
    }
    SLIMWIRE_TRY(
        nccl_status(nccl, nccl.CommCuDevice(state.comm, &state.device), "ncclCommCuDevice"));
    state.rank = creation->rank;
    state.shape.ranks = creation->ranks;
    state.stats->rank = creation->rank;
    state.stats->ranks = creation->ranks;
    state.stats->device = state.device;
    return {};
}

// Where the server is; none, and the creation says why, where this rank cannot reach it.
std::optional<AgreementAddress> server_of(const Runtime& runtime, Creation* creation) {
    AgreementAddress address;
    const TailState tail = read_id_tail(creation->id, &address);
    if (tail == TailState::kPresent) {
        return address;
    }
    const std::string rank = "rank " + std::to_string(creation->rank);
    if (tail == TailState::kTorn) {
        creation->agreement.text = "the unique id's tail is damaged";
        log_line(LogLevel::kWarn,
                 rank + ": the unique id's tail is damaged; the communicator is native");
    } else if (runtime.engaged()) {
        creation->agreement.text =
            "the process that made the unique id says no address: it runs without slimwire or "
            "without a policy, or found no interface for it";
    } else {
        creation->agreement.text = why_not_here(runtime, *creation->nccl);
    }
    if (runtime.engaged()) {
        log_once(LogLevel::kWarn, "no tail",
                 rank + ": " + creation->agreement.text + "; communicators stay native");
    }
    return std::nullopt;
}

Status send_hello_to(const AgreementAddress& address,
                     Runtime& runtime,
                     Creation* creation,
                     AbortWatch* watch) {
    Hello hello;
    hello.ranks = creation->ranks;
    hello.rank = creation->rank;
    hello.config_hash = runtime.config.hash;
    hello.settings = compared_text(runtime.config);
    hello.native_reason = why_not_on(runtime, *creation->state);
    if (hello.native_reason.empty()) {
        hello.native_reason = room_to_tell(runtime, *creation->state, kMostTold).message();
    }
    if (!runtime.config_status.ok()) {
        hello.error = runtime.config_status.message();
    } else if (hello.native_reason.empty()) {
        reserve(runtime, creation->state.get());
    }
    Status sent = creation->client.send(address, hello, runtime.config.settings.agree_timeout_us,
                                        [&] { return watch->stop(); });
    SLIMWIRE_TRY(watch->why());
    if (!sent.ok()) {
        // The server never counts us in, so the others go native as well.
        creation->agreement.text = sent.message();
        log_line(LogLevel::kWarn, "rank " + std::to_string(creation->rank) + ": " + sent.message() +
                                      "; the communicator is native");
        creation->kind = Creation::Kind::kNative;
    }
    return {};
}

}  // namespace

Status send_hello(Runtime& runtime, Creation* creation, AbortWatch* watch) {
    SLIMWIRE_TRY(ask_nccl(runtime, creation));
    creation->agreement.verdict = Verdict::kNative;
    switch (creation->kind) {
        case Creation::Kind::kNative:
            creation->agreement.text = creation->reason;
            return {};
        case Creation::Kind::kInitAll:
        case Creation::Kind::kSplit:
            // One process, or a parent whose ranks agreed: nothing can differ.
            creation->agreement.text = why_not_on(runtime, *creation->state);
            SLIMWIRE_TRY(runtime.config_status);
            if (creation->agreement.text.empty()) {
                reserve(runtime, creation->state.get());
                creation->agreement.verdict = Verdict::kGo;
            }
            return {};
        case Creation::Kind::kUniqueId:
        case Creation::Kind::kGrown:  // whose ranks all have the id now
            creation->kind = Creation::Kind::kUniqueId;
            break;
    }
    const std::optional<AgreementAddress> server = server_of(runtime, creation);
    return server.has_value() ? send_hello_to(*server, runtime, creation, watch) : Status();
}

Status hear(Runtime& runtime, Creation* creation, AbortWatch* watch) {
    if (creation->kind != Creation::Kind::kUniqueId || !creation->agreement.text.empty()) {
        return {};
    }
    // The server answers one timeout after the first hello; twice that covers the slowest sender.
    Result<Agreement> heard = creation->client.wait(
        2 * runtime.config.settings.agree_timeout_us + 1000000, [&] { return watch->stop(); });
    SLIMWIRE_TRY(watch->why());
    SLIMWIRE_TRY_ASSIGN(creation->agreement, std::move(heard));
    if (creation->agreement.verdict == Verdict::kError) {
        return {Code::kInvalidArgument, creation->agreement.text};
    }
    if (creation->agreement.verdict == Verdict::kNative && creation->rank == 0 &&
        runtime.engaged()) {
        log_line(LogLevel::kWarn, "communicator of " + std::to_string(creation->ranks) +
                                      " ranks stays native: " + creation->agreement.text);
    }
    return {};
}

namespace {

Status start_sharing(Runtime& runtime, const std::vector<Creation*>& grown, IdSharing* sharing) {
    const CommUse use;                    // this may be a thread of slimwire's own
    sharing->mine.reserve(grown.size());  // the parts name what is in both
    sharing->all.resize(grown.size());
    std::vector<AllGathering::Part> parts;
    for (const Creation* creation : grown) {
        const Communicator* parent = runtime.comms.find(creation->parent);
        if (parent == nullptr) {
            return {Code::kInvalidUsage, "the communicator that grows was destroyed meanwhile"};
        }
        const ncclUniqueId& mine = sharing->mine.emplace_back(creation->id);
        parts.push_back(AllGathering::part_of(*parent, mine, &sharing->all[parts.size()]));
    }
    sharing->gathering = std::make_unique<AllGathering>(runtime, std::move(parts));
    return sharing->gathering->start();
}

}  // namespace

void begin_sharing(Runtime& runtime, const std::vector<Creation*>& grown) {
    if (grown.empty()) {
        return;
    }
    const auto sharing = std::make_shared<IdSharing>();
    sharing->started = start_sharing(runtime, grown, sharing.get());
    for (size_t i = 0; i < grown.size(); ++i) {
        grown[i]->sharing = sharing;
        grown[i]->shared_as = i;
    }
}

Status share_ids(Runtime& runtime, std::vector<Creation>& creations, AbortWatch* watch) {
    std::vector<Creation*> left;
    for (Creation& creation : creations) {
        if (creation.kind == Creation::Kind::kGrown && creation.sharing == nullptr) {
            left.push_back(&creation);
        }
    }
    begin_sharing(runtime, left);
    for (Creation& creation : creations) {
        if (creation.sharing == nullptr) {
            continue;
        }
        IdSharing& sharing = *creation.sharing;
        if (!sharing.finished) {
            SLIMWIRE_TRY(sharing.started);
            SLIMWIRE_TRY(sharing.gathering->finish(watch, creation_deadline_us(runtime)));
            sharing.finished = true;
        }
        for (const ncclUniqueId& id : sharing.all[creation.shared_as]) {
            AgreementAddress address;
            if (read_id_tail(id, &address) != TailState::kAbsent) {
                creation.id = id;
            }
        }
    }
    return {};
}

}  // namespace slimwire
