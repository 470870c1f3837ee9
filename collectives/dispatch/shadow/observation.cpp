// What the observing modes do around one call and one group: the second half of observer.h.
#include <algorithm>
#include <string>

#include "codecs/base/device_scope.h"
#include "collectives/call/log.h"
#include "collectives/call/per_thread.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/fallback.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/dispatch/shadow/observer.h"
#include "collectives/dispatch/thread_group.h"
#include "collectives/identity/tensor_names.h"

namespace slimwire {
namespace {

// Calls of a thread's group whose end is not timed yet.
struct GroupedTiming {
    Session* state;
    CallTimes::Timing* timing;
    cudaStream_t stream;
};
struct ObservedGroup {
    std::vector<GroupedTiming> timings;
    std::vector<ShadowEncoder::Call> rehearsals;  // of calls that the group's end launches
    uint32_t calls = 0;
    bool failed = false;  // NCCL refused one of them
    void clear() noexcept {
        timings.clear();
        rehearsals.clear();
        calls = 0;
        failed = false;
    }
};
ObservedGroup& observed_group() noexcept {
    return per_thread<ObservedGroup>();
}

constexpr uint64_t kMostSampled = uint64_t{1} << 36;  // elements; beyond is no buffer

// Does what needs the events of the communicator's times, which an abort by another thread destroys
// otherwise.
template <class Work>
void with_times(Session* state, const Work& work) {
    const InUse use(state);
    if (!state->ended) {
        work();
    }
}

}  // namespace

void forget_observed(const Session& state) noexcept {
    ObservedGroup& group = observed_group();
    std::erase_if(group.timings, [&](const GroupedTiming& of) { return of.state == &state; });
    std::erase_if(group.rehearsals,
                  [&](const ShadowEncoder::Call& of) { return of.item.state == &state; });
}

ObservedTensor& Observer::tensor_of(const CollectiveCall& call, Session* state) {
    ObservedComm& observed = *state->observed;
    const bool message = is_point_to_point(call.signature.op);
    uint64_t signature = call_signature(call.signature);
    if (message) {  // which is one for both ends and all peers
        signature = mix_key(signature, static_cast<uint64_t>(call.signature.op) << 32 |
                                           static_cast<uint32_t>(call.signature.root_or_peer));
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

void Observer::group_ending() noexcept {
    ObservedGroup& mine = observed_group();
    if (mine.failed || mine.rehearsals.empty()) {
        return;
    }
    for (const ShadowEncoder::Call& call : mine.rehearsals) {
        call.item.state->observed->shadow_encoder->run(call);
    }
    for (const GroupedTiming& of : mine.timings) {
        const DeviceScope scope(*api_, of.state->device);
        with_times(of.state, [&] { CallTimes::restart(*api_, of.timing, of.stream); });
    }
}

void Observer::group_ended(uint64_t group, uint64_t began_ns, ncclResult_t result) noexcept {
    ObservedGroup& mine = observed_group();
    for (const GroupedTiming& of : mine.timings) {
        // What NCCL launches later, or not at all, has no time.
        if (result == ncclSuccess) {
            const DeviceScope scope(*api_, of.state->device);
            with_times(of.state, [&] { CallTimes::end(*api_, of.timing, of.stream); });
        }
    }
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
    mine.clear();
}

void Observer::group_dropped() noexcept {
    observed_group().clear();
}

Observation::Observation(Runtime& runtime, const CollectiveCall& call) noexcept
    : observer_(*dispatch_state(runtime).observer), stream_(call.stream) {
    try {
        begin(call);
    } catch (const std::exception& error) {
        state_ = nullptr;
        log_once(LogLevel::kWarn, "observer",
                 std::string("calls are not observed: ") + error.what());
    }
    item_.at_ns = steady_ns();
}

void Observation::begin(const CollectiveCall& made) {
    Runtime& runtime = observer_.runtime_;
    Session* const state = observer_.state_of(made.comm);
    if (state == nullptr || !state->observed->known) {
        return;
    }
    const DeviceApi* const api = observer_.api_;
    CollectiveCall call = made;
    call.signature.ranges_id = hear(made, state);
    // Rehearsals of a group keep theirs.
    PlanEntry* entry = plan_of(runtime, state, call.signature, !in_group());
    AskedPlace place;
    if (entry != nullptr && entry->plan->asks_place() && api != nullptr &&
        !find_placed_plan(runtime, state, &call, &entry, &place).ok()) {
        return;
    }
    CallStats* const stats = entry != nullptr ? entry->stats : nullptr;
    item_.name = TensorNames::of(call);
    if (stats != nullptr) {
        stats->count_name(item_.name);
    }
    state_ = state;
    item_.would_compress = ask_plan(call, entry, &place);
    ObservedTensor& tensor = observer_.tensor_of(call, state);
    const bool new_tensor = tensor.calls == 0;
    item_.call = observer_.calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    item_.comm = state->observed->key;
    item_.signature = call.signature;
    item_.tensor = tensor.key;
    item_.occurrence = tensor.calls++;
    item_.stream = call.stream;
    item_.in_place = call.send == call.recv;
    if (in_group()) {
        item_.group = static_cast<uint32_t>(group_number());
        ++observed_group().calls;
    }
    if (new_tensor && entry != nullptr && state->observed->shadow_encoder != nullptr) {
        observer_.show_decision(*state, *entry, tensor.key);
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
    if (item_.would_compress) {
        rehearse(call, *entry);
    }
    // Every call of a tensor until eight are known, then one of sixteen.
    const bool timed = tensor.timed < 8 || item_.occurrence % 16 == 0;
    const uint32_t every = runtime.config.settings.trace_sample;
    const bool sampled = every != 0 && item_.occurrence % every == 0 &&
                         can_measure(call.signature.dtype) && call.signature.count > 0 &&
                         used_buffers(call.signature, state->rank).first;
    if (!timed && !sampled) {
        return;
    }
    const DeviceScope scope(*api, state->device);
    if (sampled) {
        sample(call);
    }
    if (timed) {
        start_timing(stats, &tensor);
    }
}

void Observation::sample(const CollectiveCall& call) {
    const DeviceApi& api = *observer_.api_;
    const uint64_t elements = elements_given(call.signature, state_->shape.ranks);
    if (elements >= kMostSampled || !on_device(api, call.send)) {
        return;
    }
    Samples::Batch batch = observer_.samples_.begin(
        state_->device, {item_.call, item_.comm, item_.tensor, call.signature.dtype});
    MeasureArgs look{};
    look.input = call.send;
    look.count = static_cast<int64_t>(elements);
    look.scale = 1.0f;
    look.dtype = call.signature.dtype;
    observer_.samples_.add(api, &batch, look, call.stream);
    Samples::commit(&batch);
}

void Observation::start_timing(CallStats* stats, ObservedTensor* tensor) {
    with_times(state_, [&] {
        CallTimes& times = state_->observed->times;
        times.read(*observer_.api_, &observer_.trace_);
        timing_ = times.start(*observer_.api_, stream_);
    });
    if (timing_ == nullptr) {
        return;
    }
    ++tensor->timed;
    timing_->call = item_.call;
    timing_->stats = stats;
    if (in_group()) {
        // The first of a stream tells for all of the group.
        auto& grouped = observed_group().timings;
        if (std::none_of(grouped.begin(), grouped.end(),
                         [&](const GroupedTiming& of) { return of.stream == stream_; })) {
            grouped.push_back({state_, timing_, stream_});
        }
        timing_ = nullptr;
    }
}

uint32_t Observation::hear(const CollectiveCall& call, Session* state) {
    if (state->tracker == nullptr || state->observed->deaf || state->revoked) {
        return 0;
    }
    if (is_point_to_point(call.signature.op)) {
        return 0;
    }
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (!tolerate(*observer_.api_, observer_.api_->stream_is_capturing(call.stream, &capture)) ||
        capture != cudaStreamCaptureStatusNone) {
        // Reading what came before would break the capture.
        Observer::stop_hearing(state, {Code::kUnsupported, "a call is under stream capture"});
        return 0;
    }
    heard_ = in_group() ? nullptr : state;
    const Result<uint32_t> ranges_id = slimwire::hear(observer_.runtime_, call, state);
    if (!ranges_id.ok()) {
        Observer::stop_hearing(state, ranges_id.status());
    }
    return ranges_id.ok() ? ranges_id.value() : 0;
}

bool Observation::ask_plan(const CollectiveCall& call, PlanEntry* entry, AskedPlace* place) {
    Runtime& runtime = observer_.runtime_;
    if (entry != nullptr && entry->plan->compressed && observer_.api_ != nullptr) {
        const Result<std::optional<FallbackReason>> fallback =
            check_fallback(runtime, call, state_, *entry, place);
        item_.place = place->place;
        if (!fallback.ok()) {
            return false;
        }
        if (fallback.value().has_value()) {
            count_fallback(state_, entry, *fallback.value());
            return false;
        }
        count_run(*state_, *entry->plan, entry->stats);
        return true;
    }
    if (entry != nullptr) {
        count_native(*entry, *state_);
    }
    if (observer_.api_ != nullptr) {
        item_.place = place->asked ? place->place : follow_native(runtime, call, state_);
    }
    return false;
}

void Observation::rehearse(const CollectiveCall& call, const PlanEntry& entry) {
    ShadowEncoder::Call rehearsed{{call, state_, entry.plan.get(), item_.place, {}},
                                  item_.call,
                                  item_.comm,
                                  item_.tensor,
                                  item_.occurrence};
    if (call.signature.redop == RedOp::kPreMulSum) {
        rehearsed.item.scalar = *scalar_of(*state_, call);
    }
    if (in_group()) {
        observed_group().rehearsals.push_back(rehearsed);
    } else {
        state_->observed->shadow_encoder->run(rehearsed);
    }
}

ncclResult_t Observation::end(ncclResult_t result) noexcept {
    if (heard_ != nullptr) {
        try {
            if (const Status status = heard(observer_.runtime_, heard_, result); !status.ok()) {
                Observer::stop_hearing(heard_, status);
            }
        } catch (const std::exception& error) {
            Observer::stop_hearing(heard_, {Code::kInternalError, error.what()});
        }
    }
    if (state_ == nullptr) {
        return result;
    }
    item_.host_ns = steady_ns() - item_.at_ns;
    item_.result = static_cast<uint8_t>(result);
    flag_forwarded(observer_.runtime_, state_, result);
    if (timing_ != nullptr && result == ncclSuccess) {
        const DeviceScope scope(*observer_.api_, state_->device);
        with_times(state_, [&] { CallTimes::end(*observer_.api_, timing_, stream_); });
    }
    if (in_group() && result != ncclSuccess && result != ncclInProgress) {
        observed_group().failed = true;
    }
    observer_.trace_.push(item_);
    if (observer_.trace_.pressing()) {
        observer_.runtime_.reporter().wake();
    }
    return result;
}

}  // namespace slimwire
