#include "collectives/dispatch/shadow/observer.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "codecs/base/device_scope.h"
#include "codecs/codec.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/communicator/local_shape.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/identity/parameter_tracker.h"
#include "collectives/plan/comm_costs.h"

namespace slimwire {
namespace {

std::string json_text(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        const bool plain = c >= ' ' && c != '"' && c != '\\' && static_cast<unsigned char>(c) < 127;
        out += plain ? c : '?';
    }
    return out + '"';
}

std::string trace_header(const Runtime& runtime, const Settings& settings) {
    const std::optional<int> rank = launcher_rank();
    return "\"mode\":\"" + std::string(mode_name(settings.mode)) +
           "\",\"host\":" + json_text(host_name()) + ",\"pid\":" + std::to_string(getpid()) +
           ",\"launcher_rank\":" + (rank ? std::to_string(*rank) : "null") +
           ",\"version\":" + json_text(SLIMWIRE_VERSION) +
           ",\"nccl_path\":" + json_text(runtime.libraries.first().path) +
           ",\"sample_every\":" + std::to_string(settings.trace_sample);
}

}  // namespace

Observer::Observer(Runtime& runtime) : runtime_(runtime), trace_(trace_options()) {
    told();
}

TraceOptions Observer::trace_options() {
    const Settings& settings = runtime_.config.settings;
    TraceOptions options;
    options.pattern = settings.trace_pattern;
    options.max_bytes = settings.trace_bytes;
    options.header = trace_header(runtime_, settings);
    options.more = [this](std::string* out) {
        {
            const std::lock_guard lock(decisions_mutex_);
            *out += std::exchange(decisions_, {});
        }
        samples_.collect([out](const Samples::About& about, std::span<const Measured> found) {
            append_sample(about, found.front(), out);
        });
        errors_.collect([out](const Samples::About& about, std::span<const Measured> parts) {
            append_rehearsal(about, parts, out);
        });
    };
    return options;
}

void Observer::told() noexcept {
    const Training& training = training_state();
    if (training.changes.load(std::memory_order_acquire) != 0) {
        TraceItem item;
        item.kind = TraceKind::kTraining;
        item.at_ns = steady_ns();
        item.marked = training.marks.load(std::memory_order_acquire) != 0;
        item.place.step = training.step.load(std::memory_order_relaxed);
        item.phase = training.phase.load(std::memory_order_relaxed);
        item.learning_rate = training.learning_rate.load(std::memory_order_relaxed);
        item.loss_scale = training.loss_scale.load(std::memory_order_relaxed);
        trace_.push(item);
    }
}

void Observer::adopt(const RealNccl& nccl,
                     ncclComm_t comm,
                     uint64_t key,
                     const std::string& name) noexcept {
    if (comm == nullptr) {
        return;
    }
    try {
        (void)see(nccl, comm, key, name, false);
    } catch (const std::exception& error) {
        log_once(LogLevel::kWarn, "observer",
                 std::string("a communicator is not observed: ") + error.what());
    }
}

Session* Observer::see(
    const RealNccl& nccl, ncclComm_t comm, uint64_t key, const std::string& name, bool in_call) {
    Session* state = session_of(runtime_, comm);
    if (state != nullptr && (state->observed == nullptr || state->observed->known)) {
        return state;
    }
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!in_call) {
        lock.lock();
    } else if (!lock.try_lock()) {
        return nullptr;  // a creation may wait for the device; the next call is seen
    }
    state = session_of(runtime_, comm);
    state = state != nullptr ? state : add(nccl, comm, key, name, in_call);
    if (state->observed != nullptr && !state->observed->known) {
        ask(state, in_call);
    }
    return state;
}

Session* Observer::add(
    const RealNccl& nccl, ncclComm_t comm, uint64_t key, const std::string& name, bool in_call) {
    const Result<DeviceApi>& device = runtime_.device();
    api_ = device.ok() ? &device.value() : nullptr;
    runtime_.reporter().set_beside([this] { return trace_.flush(); });
    auto state = std::make_unique<Session>();
    state->comm = comm;
    state->nccl = &nccl;
    runtime_.libraries.record(comm, &nccl);
    state->observed = std::make_shared<ObservedComm>();
    ObservedComm& observed = *state->observed;
    observed.ordinal = comms_.fetch_add(1) + 1;
    // Of a communicator whose making was not seen, this process's own.
    observed.key =
        key != 0 ? key
                 : mix_key(mix_key(steady_ns(), static_cast<uint64_t>(getpid())), observed.ordinal);
    observed.others.key = mix_key(observed.ordinal, 0);
    state->comm_key = observed.key;
    state->device_memory = &runtime_.device_memory;
    state->places = std::make_unique<TensorSlots>();
    state->skipped_steps = std::make_unique<SkippedSteps>(
        api_ != nullptr ? runtime_.device_memory.pin(*api_, SkippedSteps::kBytes, !in_call)
                        : Pinned());
    state->stats = runtime_.reporter().add_comm();
    state->stats->comm = hex_key(observed.key);
    state->configured.name = state->shape.name = state->stats->name = name;
    const std::string mode = mode_name(runtime_.config.settings.mode);
    state->shape.native_reason = "SLIMWIRE_MODE is " + mode;
    state->stats->agreement = "native: " + state->shape.native_reason;
    return &session(runtime_.comms.add(std::move(state)));
}

uint64_t Observer::key_of_part(ncclComm_t parent, int color) noexcept {
    const Session* state = session_of(runtime_, parent);
    if (state == nullptr || state->observed == nullptr) {
        return 0;
    }
    return mix_key(mix_key(state->observed->key, ++state->observed->children),
                   static_cast<uint64_t>(static_cast<uint32_t>(color)) + 1);
}

void Observer::ending(Session* state) noexcept {
    if (state->observed == nullptr) {
        return;
    }
    ObservedComm& observed = *state->observed;  // dies with the state
    forget_observed(*state);
    // While another thread enqueues a call that is being aborted, all is left to it.
    if (api_ == nullptr || !observed.known || state->users != 0) {
        return;
    }
    const DeviceScope device(*api_, state->device);
    observed.times.read(*api_, &trace_);
    observed.times.clear(*api_);
    if (observed.shadow_encoder != nullptr) {
        observed.shadow_encoder->end();
    }
}

void Observer::collect_memory() noexcept {
    if (api_ != nullptr && api_->peek_at_last_error() == cudaSuccess) {
        runtime_.device_memory.collect(*api_);
    }
}

Session* Observer::state_of(ncclComm_t comm) {
    Session* state = session_of(runtime_, comm);
    if (comm != nullptr &&
        (state == nullptr || (state->observed != nullptr && !state->observed->known))) {
        state = see(*runtime_.libraries.of(comm, &runtime_.libraries.first()), comm, 0, {}, true);
    }
    return state != nullptr && state->observed != nullptr ? state : nullptr;
}

// A communicator that is not ready yet refuses, as it will the program's call.
void Observer::ask(Session* state, bool in_call) {
    const RealNccl& nccl = *state->nccl;
    const ReentryGuard guard;
    int ranks = 0, rank = 0, device = 0;
    if (nccl.CommCount(state->comm, &ranks) != ncclSuccess ||
        nccl.CommUserRank(state->comm, &rank) != ncclSuccess ||
        nccl.CommCuDevice(state->comm, &device) != ncclSuccess) {
        return;
    }
    state->rank = rank;
    state->device = device;
    state->shape.ranks = ranks;
    state->state_key = mix_key(state->comm_key, static_cast<uint64_t>(rank) + 1);
    state->stats->update([&](CommStats& stats) {
        stats.rank = rank;
        stats.ranks = ranks;
        stats.device = device;
    });
    if (!in_call) {
        prepare(device);
    }
    if (runtime_.config.settings.mode == Mode::kShadow) {
        ask_shape(state);
        if (state->shape.go && api_ != nullptr && runtime_.config.policy.wants_parameters()) {
            // The job waits for such results itself; never long for what only a prediction wants.
            constexpr uint64_t kPatienceUs = 1'000'000;
            state->tracker = std::make_shared<ParameterTracker>(ParameterRegistry::instance().now(),
                                                                kPatienceUs);
            const DeviceScope scope(*api_, device);
            if (!state->tracker->prepare(*api_, &runtime_.device_memory, !in_call)) {
                stop_hearing(state, {Code::kOutOfMemory, "there is no pinned memory"});
            }
        }
        if (state->shape.go && api_ != nullptr) {
            state->observed->shadow_encoder =
                std::make_unique<ShadowEncoder>(runtime_, state, &errors_, &trace_);
            if (runtime_.config.settings.trace_sample != 0 && !loaded_.contains(device)) {
                state->observed->shadow_encoder->refuse("the kernels are not loaded on device " +
                                                        std::to_string(device));
            }
        }
    }
    TraceItem item;
    item.kind = TraceKind::kComm;
    item.comm = state->observed->key;
    item.ordinal = state->observed->ordinal;
    item.rank = rank;
    item.ranks = ranks;
    item.device = device;
    trace_.push(item);
    state->observed->known = true;
}

void Observer::prepare(int device) {
    if (api_ == nullptr || runtime_.config.settings.trace_sample == 0 || loaded_.contains(device)) {
        return;
    }
    const DeviceScope scope(*api_, device);
    if (const Status loaded = load_cuda_kernels(*api_); !loaded.ok()) {
        log_once(LogLevel::kWarn, "kernels",
                 "device " + std::to_string(device) + ": " + loaded.message() +
                     "; the data is not looked at there");
        return;
    }
    loaded_.insert(device);
    make_room(&samples_, device);
    if (runtime_.config.settings.mode == Mode::kShadow) {
        make_room(&errors_, device);
    }
}

void Observer::make_room(Samples* samples, int device) {
    DeviceMemory& memory = runtime_.device_memory;
    void* works = nullptr;
    Status ready = cuda_status(*api_, memory.allocate(*api_, device, Samples::kWorkBytes, &works),
                               "room for samples");
    if (ready.ok()) {
        const Result<bool> taken = samples->prepare(*api_, device, works);
        ready = taken.status();
        if (!taken.ok() || !taken.value()) {
            memory.free(*api_, device, works);
        }
    }
    if (!ready.ok()) {
        log_once(LogLevel::kWarn, samples->what(),
                 std::string("no ") + samples->what() + ": " + ready.message() +
                     " (trace_sample of the policy)");
    }
}

void Observer::ask_shape(Session* state) {
    PlanShape& shape = state->shape;
    const LocalShape local = local_shape(api_, shape.ranks, state->rank);
    shape.scope = local.shape.scope;
    shape.max_ranks_per_node = local.shape.max_ranks_per_node;
    shape.nodes = std::make_shared<const NodeTable>(local.shape);
    shape.costs = CommCosts::make(runtime_.config.calibrations, shape.ranks, local.shape.nodes, 0);
    shape.go = runtime_.config.policy.has_codec();
    shape.private_comm = runtime_.config.policy.can_compress(shape.ranks, shape.scope);
    if (!shape.go) {
        shape.native_reason += ", and no rule has a codec";
    } else if (!local.known && shape.ranks > 1) {
        shape.native_reason += "; which ranks share a node is not known, so each is taken for one";
    }
    state->stats->update([&](CommStats& stats) {
        stats.nodes = local.shape.nodes;
        stats.agreement = "native: " + shape.native_reason;
    });
}

void Observer::stop_hearing(Session* state, const Status& why) noexcept {
    if (!std::exchange(state->observed->deaf, true)) {
        log_line(LogLevel::kWarn, log_prefix(*state) +
                                      ": what its calls carry is not heard any more: " +
                                      why.message() + " (SLIMWIRE_MODE=shadow); the job goes on");
    }
}

// Once a tensor.
void Observer::show_decision(const Session& state, const PlanEntry& entry, uint64_t tensor) {
    const Plan& plan = *entry.plan;
    const CallStats& stats = *entry.stats;
    const bool native = stats.shadow_codec.empty();
    std::string line = "{\"v\":1,\"record\":\"decision\",\"comm\":\"" +
                       hex_key(state.observed->key) + "\",\"tensor\":\"" + hex_key(tensor) +
                       "\",\"codec\":" + json_text(native ? "native" : stats.shadow_codec) +
                       ",\"algorithm\":" + json_text(native ? "native" : stats.shadow_algorithm) +
                       ",\"rule\":" + json_text(plan.rule) +
                       ",\"reason\":" + json_text(plan.reason);
    if (!native) {
        line += ",\"wire_bytes\":" + std::to_string(wire_bytes_of(plan, state.shape, state.rank)) +
                ",\"stand_in\":" + (ShadowEncoder::stands_in(plan) ? "true" : "false");
    }
    line += ",\"native_wire_bytes\":" +
            std::to_string(native_wire_bytes(plan.signature, state.shape.ranks, state.rank)) +
            "}\n";
    const std::lock_guard lock(decisions_mutex_);
    decisions_ += line;
}

}  // namespace slimwire
