#include "collectives/dispatch/dispatch_state.h"

#include <algorithm>
#include <string>

#include "codecs/base/device_scope.h"
#include "collectives/call/log.h"
#include "collectives/communicator/local_shape.h"
#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/planner.h"
#include "collectives/dispatch/ring/state_ring.h"
#include "collectives/dispatch/session.h"
#include "collectives/dispatch/shadow/observer.h"
#include "collectives/dispatch/thread_group.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {
namespace {

// What all ranks had registered alike when the communicator was made; nothing, with a warning,
// where they differ.
std::shared_ptr<const RegisteredParameters> agreed_parameters(const Session& state) {
    const std::vector<Member>& members = state.members;
    const auto other = std::find_if(members.begin(), members.end(), [&](const Member& member) {
        return member.registered != members.front().registered;
    });
    if (other == members.end()) {
        return state.registered;
    }
    log_line(LogLevel::kWarn,
             log_prefix(state) +
                 ": the program did not register the same parameters on ranks 0 and " +
                 std::to_string(other - members.begin()) + "; what it registered is not used");
    return std::make_shared<const RegisteredParameters>();
}

}  // namespace

std::unique_ptr<CommunicatorListener> make_dispatch_state(Runtime& runtime) {
    return std::make_unique<DispatchState>(runtime);
}

DispatchState::DispatchState(Runtime& runtime)
    : residuals(&runtime.memory, &runtime.device_memory), runtime_(runtime), timer_(runtime) {}

DispatchState::~DispatchState() = default;

void DispatchState::started() {
    if (slimwire::observes(runtime_.config.settings.mode) && runtime_.config_status.ok()) {
        observer = std::make_unique<Observer>(runtime_);
    }
    if (runtime_.config.active && !runtime_.config.settings.state_ring.folder.empty()) {
        ring = std::make_unique<StateRing>(runtime_);
    }
}

std::unique_ptr<Communicator> DispatchState::make() {
    auto made = std::make_unique<Session>();
    if (runtime_.config.policy.wants_parameter_names()) {
        made->registered = ParameterRegistry::instance().now();
        made->registered_hash = made->registered->hash();
    }
    return made;
}

uint64_t DispatchState::saved_run() {
    if (ring == nullptr) {
        return 0;
    }
    ring->begin();
    return ring->told();
}

uint64_t DispatchState::scratch_wanted(const Communicator& made) {
    // What rules take that ask for parameters is not known yet. Slices of it are cut smaller where
    // that is too little, factors of matrices are not.
    constexpr uint64_t kLeast = 4 << 20, kLeastOfUnknown = 32 << 20;
    const Policy& policy = runtime_.config.policy;
    const bool unknown = policy.wants_parameters();
    const std::string name = policy.wants_names() ? made.configured.name : "";
    const std::lock_guard lock(mutex_);
    const auto [found, first] = scratch_wanted_.try_emplace({made.shape.ranks, name}, 0);
    if (!first) {
        return found->second;
    }
    const LocalShape local = local_shape(&runtime_.api(), made.shape.ranks, made.rank);
    PlanShape shape;
    shape.ranks = made.shape.ranks;
    shape.go = true;
    shape.name = name;
    shape.max_ranks_per_node = local.shape.max_ranks_per_node;
    shape.nodes = std::make_shared<const NodeTable>(local.shape);
    for (const Scope scope : {Scope::kIntraNode, Scope::kInterNode}) {
        if ((local.known && scope != local.shape.scope) ||
            !policy.can_compress(
                shape.ranks, scope,
                policy.wants_names() ? std::optional<std::string_view>(name) : std::nullopt)) {
            continue;
        }
        shape.scope = scope;
        found->second = std::max({found->second, largest_scratch(shape, runtime_.config),
                                  unknown ? kLeastOfUnknown : kLeast});
    }
    for (const HookKind* hook : kHooks) {
        if (found->second > 0 && hook->scratch != nullptr) {
            found->second = std::max(found->second, hook->scratch(policy, shape));
        }
    }
    return found->second;
}

bool DispatchState::tells() const {
    return runtime_.config.policy.wants_progress() && !PendingState::instance().comms().empty();
}

Status DispatchState::agree(const std::vector<Communicator*>& made,
                            const std::vector<Communicator*>& strangers,
                            AbortWatch* watch) {
    if (ring != nullptr) {
        ring->begin();
        for (const Communicator* const one : made) {
            for (const Member& member : one->members) {
                ring->at_least_run(one->group.of_all() ? member.saved_run : 0);
            }
        }
    }
    std::vector<ProgressOf> counting;
    for (Communicator* one : strangers) {
        if (runtime_.config.policy.wants_progress()) {
            counting.push_back({one, &session(one).progress});
        }
    }
    return agree_on_progress(runtime_, counting, watch);
}

Status DispatchState::time_calls(const std::vector<Communicator*>& made, AbortWatch* watch) {
    return timer_.time(made, watch);
}

void DispatchState::created(Communicator* communicator) {
    Session& state = session(communicator);
    const Policy& policy = runtime_.config.policy;
    if (!state.shape.go || !runtime_.device().ok()) {
        return;
    }
    const DeviceScope device(runtime_.api(), state.device);
    const StateComm loaded = PendingState::instance().comm_of(state);
    std::copy_n(loaded.drawn, 2, state.random.before);
    if (ring != nullptr) {
        ring->created(&state);
    }
    if (policy.wants_parameters()) {
        state.tracker = std::make_shared<ParameterTracker>(agreed_parameters(state));
        state.tracker->prepare(runtime_.api(), &runtime_.device_memory);
    }
    if (policy.wants_steps()) {
        state.places = std::make_unique<TensorSlots>();
        state.skipped_steps = std::make_unique<SkippedSteps>(
            runtime_.device_memory.pin(runtime_.api(), SkippedSteps::kBytes));
    }
    if (policy.wants_rows() && observer == nullptr) {
        state.rows = std::make_unique<MessageRows>();
    }
    for (const HookKind* kind : kHooks) {
        if (std::unique_ptr<CallHook> hook = kind->make(policy)) {
            if (kind->follows) {
                state.following.push_back(hook.get());
            }
            if (state.exchange_comm != nullptr) {
                hook->made(runtime_.api(), &state);
            }
            state.hooks.push_back(std::move(hook));
        }
    }
    if (ring != nullptr && state.places != nullptr && state.exchange_comm != nullptr) {
        state.hooks.push_back(make_gathered_weights(ring.get()));
        state.hooks.back()->made(runtime_.api(), &state);
        state.following.push_back(state.hooks.back().get());
    }
}

void DispatchState::ending(Communicator* communicator, bool abort) noexcept {
    if (observer != nullptr) {
        observer->ending(&session(communicator));
        if (!abort) {
            observer->collect_memory();
        }
    }
}

void DispatchState::release(Communicator* communicator, Retirement* left) noexcept {
    Session& state = session(communicator);
    const DeviceApi& api = runtime_.api();
    for (auto& [way, masks] : state.masks) {
        masks.release(&state, left);
    }
    for (auto& [way, weights] : state.codes) {
        weights.release(api, &state, left);
    }
    for (const std::unique_ptr<CallHook>& hook : state.hooks) {
        hook->release(api, &state, left);
    }
    for (const std::unique_ptr<Controller>& controller : state.controllers) {
        controller->release(api, &state, left);
    }
    residuals.take(state.state_key, left);
}

void DispatchState::ended(Communicator* communicator, bool abort) noexcept {
    Session& state = session(communicator);
    if (runtime_.device().ok() && state.skipped_steps != nullptr) {
        state.skipped_steps->end(runtime_.api(), state.device, abort, &runtime_.device_memory,
                                 state.stats.get());
    }
    if (runtime_.device().ok() && state.tracker != nullptr) {
        state.tracker->end(runtime_.api(), state.device, abort, &runtime_.device_memory);
    }
    if (!abort) {
        forget_queued(state);
    }
}

void DispatchState::adopt(const RealNccl& nccl,
                          ncclComm_t comm,
                          uint64_t key,
                          const std::string& name) noexcept {
    observer->adopt(nccl, comm, key, name);
}

uint64_t DispatchState::key_of_part(ncclComm_t parent, int color) noexcept {
    return observer == nullptr ? 0 : observer->key_of_part(parent, color);
}

bool DispatchState::in_group() const noexcept {
    return slimwire::in_group();
}

}  // namespace slimwire
