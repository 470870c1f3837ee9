#include "collectives/observer.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "codecs/base/device_scope.h"
#include "collectives/dispatch.h"
#include "collectives/keys.h"
#include "collectives/launcher.h"
#include "collectives/log.h"
#include "collectives/members.h"
#include "collectives/tensor_names.h"

namespace slimwire {
namespace {

// Calls of a thread's group whose end is not timed yet.
struct GroupedTiming {
    CommState* state;
    ObservedComm::Timing* timing;
    cudaStream_t stream;
};
struct ObservedGroup {
    std::vector<GroupedTiming> timings;
    uint32_t calls = 0;
};
ObservedGroup& thread_group() noexcept {
    static thread_local ObservedGroup group;
    return group;
}

bool reads_send(const CollectiveCall& call, int rank) noexcept {
    const Op op = call.facts.op;
    const bool only_root = op == Op::kBroadcast || op == Op::kScatter;
    return op != Op::kRecv && (!only_root || call.facts.root_or_peer == rank);
}

// Elements of the buffer that this rank gives.
uint64_t elements_given(const CallFacts& facts, int ranks) noexcept {
    const bool blocks =
        facts.op == Op::kReduceScatter || facts.op == Op::kAllToAll || facts.op == Op::kScatter;
    return facts.count * (blocks ? static_cast<uint64_t>(ranks) : 1);
}

bool on_device(const DeviceApi& api, const void* buffer) noexcept {
    cudaPointerAttributes attributes{};
    return buffer != nullptr && tolerate(api, api.pointer_get_attributes(&attributes, buffer)) &&
           (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged);
}

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
           ",\"nccl_path\":" + json_text(runtime.nccl.path) +
           ",\"sample_every\":" + std::to_string(settings.trace_sample);
}

constexpr uint64_t kMostSampled = uint64_t{1} << 36;  // elements; beyond is no buffer

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
        samples_.collect([out](const Samples::About& about, const Measured& found) {
            append_sample(about, found, out);
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
        trace_.push(item);
    }
}

void Observer::adopt(ncclComm_t comm, uint64_t key) noexcept {
    if (comm == nullptr) {
        return;
    }
    try {
        const std::lock_guard lock(mutex_);
        if (runtime_.comms.find(comm) != nullptr) {
            return;
        }
        const Result<DeviceApi>& device = runtime_.device();
        api_ = device.ok() ? &device.value() : nullptr;
        runtime_.reporter().set_beside([this] { trace_.flush(); });
        auto state = std::make_unique<CommState>();
        state->comm = comm;
        state->observed = std::make_shared<ObservedComm>();
        ObservedComm& observed = *state->observed;
        observed.ordinal = comms_.fetch_add(1) + 1;
        // Of a communicator whose making was not seen, this process's own.
        observed.key = key != 0 ? key
                                : mix_key(mix_key(steady_ns(), static_cast<uint64_t>(getpid())),
                                          observed.ordinal);
        observed.others.key = mix_key(observed.ordinal, 0);
        state->comm_key = observed.key;
        state->places = std::make_unique<CallPlaces>();
        state->stats = runtime_.reporter().add_comm();
        state->stats->comm = hex_key(observed.key);
        const std::string mode = mode_name(runtime_.config.settings.mode);
        state->shape.native_reason = "SLIMWIRE_MODE is " + mode;
        state->stats->agreement = "native: " + state->shape.native_reason;
        runtime_.comms.add(std::move(state));
    } catch (const std::exception& error) {
        log_once(LogLevel::kWarn, "observer",
                 std::string("a communicator is not observed: ") + error.what());
    }
}

uint64_t Observer::key_of_part(ncclComm_t parent, int color) noexcept {
    const CommState* state = runtime_.comms.find(parent);
    if (state == nullptr || state->observed == nullptr) {
        return 0;
    }
    return mix_key(mix_key(state->observed->key, ++state->observed->children),
                   static_cast<uint64_t>(static_cast<uint32_t>(color)) + 1);
}

void Observer::ending(CommState* state) noexcept {
    if (state->observed == nullptr) {
        return;
    }
    if (api_ != nullptr && state->observed->known) {
        const DeviceScope device(*api_, state->device);
        read_times(state);
    }
    const std::shared_ptr<ObservedComm> observed = std::move(state->observed);
    auto& grouped = thread_group().timings;
    std::erase_if(grouped, [&](const GroupedTiming& of) { return of.state == state; });
    if (api_ == nullptr || !observed->known) {
        return;
    }
    const DeviceScope device(*api_, state->device);
    for (ObservedComm::Timing& timing : observed->timings) {
        for (const cudaEvent_t event : {timing.begin, timing.end}) {
            if (event != nullptr) {
                tolerate(*api_, api_->event_destroy(event));
            }
        }
    }
}

CommState* Observer::state_of(ncclComm_t comm) {
    CommState* state = runtime_.comms.find(comm);
    if (state == nullptr && comm != nullptr) {
        adopt(comm, 0);
        state = runtime_.comms.find(comm);
    }
    if (state == nullptr || state->observed == nullptr) {
        return nullptr;
    }
    if (!state->observed->known) {
        ask(state);
    }
    return state;
}

// A communicator that is not ready yet refuses, as it will the program's call.
void Observer::ask(CommState* state) {
    const RealNccl& nccl = runtime_.nccl;
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
    state->observed->known = true;
    if (api_ != nullptr && runtime_.config.settings.trace_sample != 0) {
        const DeviceScope scope(*api_, device);
        if (const Status ready = samples_.prepare(*api_, device); !ready.ok()) {
            log_once(LogLevel::kWarn, "samples",
                     "no samples of the data: " + ready.message() + " (SLIMWIRE_TRACE_SAMPLE)");
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
}

ObservedTensor& Observer::tensor_of(const CollectiveCall& call, CommState* state) {
    ObservedComm& observed = *state->observed;
    const bool message = is_point_to_point(call.facts.op);
    uint64_t signature = call_signature(call.facts);
    if (message) {  // which is one for both ends and all peers
        signature = mix_key(signature, static_cast<uint64_t>(call.facts.op) << 32 |
                                           static_cast<uint32_t>(call.facts.root_or_peer));
    }
    const void* buffer = call.recv != nullptr ? call.recv : call.send;
    const auto found = observed.tensors.find({signature, buffer});
    if (found != observed.tensors.end()) {
        return found->second;
    }
    if (observed.tensors.size() >= ObservedComm::kMaxTensors) {
        return observed.others;
    }
    ObservedTensor tensor;
    tensor.key = mix_key(mix_key(signature, observed.ordinal), ++observed.buffers[signature]);
    return observed.tensors.emplace(ObservedComm::Kind{signature, buffer}, tensor).first->second;
}

void Observer::read_times(CommState* state) {
    if (api_->peek_at_last_error() != cudaSuccess) {
        return;  // the program's own: an event that is not ready would take its place
    }
    for (ObservedComm::Timing& timing : state->observed->timings) {
        if (!timing.busy || !tolerate(*api_, api_->event_query(timing.end))) {
            continue;
        }
        float elapsed_ms = 0;
        if (tolerate(*api_, api_->event_elapsed_time(&elapsed_ms, timing.begin, timing.end))) {
            TraceItem item;
            item.kind = TraceKind::kTime;
            item.call = timing.call;
            item.device_ns = static_cast<uint64_t>(static_cast<double>(elapsed_ms) * 1e6);
            trace_.push(item);
            if (timing.stats != nullptr) {
                timing.stats->count_time(item.device_ns);
            }
        }
        timing.busy = false;
    }
}

ObservedComm::Timing* Observer::start_timing(CommState* state, const CollectiveCall& call) {
    ObservedComm& observed = *state->observed;
    read_times(state);
    for (ObservedComm::Timing& timing : observed.timings) {
        if (timing.busy || observed.timing_failed) {
            continue;
        }
        if (timing.begin == nullptr) {
            observed.timing_failed =
                !tolerate(*api_, api_->event_create_with_flags(&timing.begin, cudaEventDefault)) ||
                !tolerate(*api_, api_->event_create_with_flags(&timing.end, cudaEventDefault));
        }
        if (!observed.timing_failed &&
            tolerate(*api_, api_->event_record(timing.begin, call.stream))) {
            return &timing;
        }
        return nullptr;
    }
    return nullptr;
}

void Observer::end_timing(CommState* state, ObservedComm::Timing* timing, cudaStream_t stream) {
    const DeviceScope scope(*api_, state->device);
    timing->busy = tolerate(*api_, api_->event_record(timing->end, stream));
}

void Observer::group_ended(uint64_t group, uint64_t began_ns, ncclResult_t result) noexcept {
    ObservedGroup& mine = thread_group();
    for (const GroupedTiming& of : mine.timings) {
        // What NCCL launches later, or not at all, has no time.
        if (result == ncclSuccess) {
            end_timing(of.state, of.timing, of.stream);
        }
    }
    mine.timings.clear();
    if (mine.calls > 0) {
        TraceItem item;
        item.kind = TraceKind::kGroup;
        item.group = static_cast<uint32_t>(group);
        item.ordinal = mine.calls;
        item.at_ns = began_ns;
        item.host_ns = steady_ns() - began_ns;
        item.result = static_cast<uint8_t>(result);
        trace_.push(item);
    }
    mine.calls = 0;
}

void Observer::group_dropped() noexcept {
    thread_group().timings.clear();
    thread_group().calls = 0;
}

Observation::Observation(Runtime& runtime, const CollectiveCall& call) noexcept
    : observer_(*runtime.observer), stream_(call.stream) {
    try {
        begin(call);
    } catch (const std::exception& error) {
        state_ = nullptr;
        log_once(LogLevel::kWarn, "observer",
                 std::string("calls are not observed: ") + error.what());
    }
    item_.at_ns = steady_ns();
}

void Observation::begin(const CollectiveCall& call) {
    Runtime& runtime = observer_.runtime_;
    CommState* const state = observer_.state_of(call.comm);
    if (state == nullptr || !state->observed->known) {
        return;
    }
    const DeviceApi* const api = observer_.api_;
    Plan* const plan = plan_of(runtime, state, call.facts, true);
    KeyStats* const stats = plan != nullptr ? plan->stats : nullptr;
    if (stats != nullptr) {
        stats->count_call();
        stats->count_name(TensorNames::instance().find(call));
    }
    if (api != nullptr) {
        item_.place = follow_native(runtime, call, state);
    }
    ObservedTensor& tensor = observer_.tensor_of(call, state);
    state_ = state;
    item_.call = observer_.calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    item_.comm = state->observed->key;
    item_.facts = call.facts;
    item_.tensor = tensor.key;
    item_.occurrence = tensor.calls++;
    item_.stream = call.stream;
    item_.name = TensorNames::instance().find(call);
    item_.in_place = call.send == call.recv;
    if (in_group()) {
        item_.group = static_cast<uint32_t>(group_number());
        ++thread_group().calls;
    }
    if (api == nullptr || state->revoked) {
        return;
    }
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    // Where CUDA does not say, nothing is put on the stream.
    const bool asked = tolerate(*api, api->stream_is_capturing(call.stream, &capture));
    item_.captured = asked && capture != cudaStreamCaptureStatusNone;
    if (!asked || item_.captured) {
        return;
    }
    // Every call of a tensor until eight are known, then one of sixteen.
    const bool timed = tensor.timed < 8 || item_.occurrence % 16 == 0;
    const uint32_t every = runtime.config.settings.trace_sample;
    const bool sampled = every != 0 && item_.occurrence % every == 0 &&
                         can_measure(call.facts.dtype) && call.facts.count > 0 &&
                         reads_send(call, state->rank);
    if (!timed && !sampled) {
        return;
    }
    const DeviceScope scope(*api, state->device);
    const uint64_t elements = elements_given(call.facts, state->shape.ranks);
    if (sampled && elements < kMostSampled && on_device(*api, call.send)) {
        (void)observer_.samples_.start(
            *api, state->device, call.send,
            {item_.call, item_.comm, item_.tensor, elements, call.facts.dtype}, call.stream);
    }
    timing_ = timed ? observer_.start_timing(state, call) : nullptr;
    if (timing_ != nullptr) {
        ++tensor.timed;
        timing_->call = item_.call;
        timing_->stats = stats;
        if (in_group()) {
            // The first of a stream tells for all of the group.
            auto& grouped = thread_group().timings;
            if (std::none_of(grouped.begin(), grouped.end(),
                             [&](const GroupedTiming& of) { return of.stream == stream_; })) {
                grouped.push_back({state, timing_, stream_});
            }
            timing_ = nullptr;
        }
    }
}

ncclResult_t Observation::end(ncclResult_t result) noexcept {
    if (state_ == nullptr) {
        return result;
    }
    item_.host_ns = steady_ns() - item_.at_ns;
    item_.result = static_cast<uint8_t>(result);
    if (timing_ != nullptr && result == ncclSuccess) {
        observer_.end_timing(state_, timing_, stream_);
    }
    observer_.trace_.push(item_);
    if (observer_.trace_.pressing()) {
        observer_.runtime_.reporter().wake();
    }
    return result;
}

}  // namespace slimwire
