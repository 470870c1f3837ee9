#include "collectives/gate.h"

#include <algorithm>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/capture.h"
#include "collectives/comm_state.h"
#include "collectives/thread_group.h"
#include "collectives/underway.h"

namespace slimwire {
namespace {

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) {
        return *middle;
    }
    return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// The largest k with P(at most k of n fair coins show heads) <= 1/32, so that the median lies
// between the (k+1)-th smallest and largest of n values in 15 of 16 cases; -1: there is none.
int rank_of_bound(size_t n) noexcept {
    double term = 1;
    for (size_t i = 0; i < n; ++i) {
        term /= 2;
    }
    double sum = 0;
    int k = -1;
    for (size_t i = 0; i <= n; ++i) {
        sum += term;
        if (sum > 1.0 / 32) {
            break;
        }
        k = static_cast<int>(i);
        term = term * static_cast<double>(n - i) / static_cast<double>(i + 1);
    }
    return k;
}

}  // namespace

GateControl::Call GateControl::peek() const noexcept {
    if (calls_ < begin_) {
        return {native_, -1, false};
    }
    const uint64_t offset = calls_ - begin_;
    if (offset < warm_) {
        return {offset % 2 == 1, -1, false};
    }
    if (offset < warm_ + 2 * pairs_) {
        // Native first in one pair and last in the next: what drifts speaks for neither.
        const uint64_t turn = offset - warm_;
        const bool native = (turn % 2 == 0) == (turn / 2 % 2 == 0);
        return {native, static_cast<int>(turn / 2 * 2 + (native ? 0 : 1)), false};
    }
    return {native_, -1, calls_ == end_of_timing() + kLag - 1};
}

GateControl::Call GateControl::next() noexcept {
    const Call call = peek();
    ++calls_;
    return call;
}

bool GateControl::due() const noexcept {
    return calls_ == end_of_timing() + 2 * kLag - 1;
}

// Nothing is measured for a while.
void GateControl::rest() noexcept {
    native_s_.clear();
    compressed_s_.clear();
    begin_ = calls_ + std::min(interval_, rule_->every);
    interval_ = std::min(2 * interval_, rule_->every);
    warm_ = 0;
    pairs_ = kShortPairs;
    look_ = true;
}

void GateControl::next_batch(uint64_t gap) noexcept {
    begin_ = calls_ + std::min(gap, rule_->every);
    warm_ = 0;
    pairs_ = kPairs;
    look_ = false;
}

void GateControl::choose(bool native) {
    GateDecision decision{calls_, native, native_s_.size(), median(native_s_),
                          median(compressed_s_)};
    native_ = native;
    chosen_ = true;
    interval_ = kFirstLook;
    totals_.add(decision);
}

void GateControl::decide(const std::vector<float>& seconds) {
    std::vector<double> ratios;
    for (size_t pair = 0; 2 * pair + 1 < seconds.size() && pair < pairs_; ++pair) {
        const double native = seconds[2 * pair], compressed = seconds[2 * pair + 1];
        if (native > 0 && compressed > 0 && native < 1e6 && compressed < 1e6) {
            native_s_.push_back(native);
            compressed_s_.push_back(compressed);
        }
    }
    for (size_t i = 0; i < native_s_.size(); ++i) {
        ratios.push_back(compressed_s_[i] / native_s_[i]);
    }
    if (ratios.empty()) {
        return rest();
    }
    std::sort(ratios.begin(), ratios.end());
    if (look_) {
        const bool contrary =
            native_ ? ratios.back() < 1 - kContrary : ratios.front() > 1 + kContrary;
        ++totals_.looks;
        return contrary ? next_batch(0) : rest();
    }
    const double bound = !chosen_ ? 1 - kFirstGain : native_ ? 1 - kReturnGain : 1;
    const int rank = rank_of_bound(ratios.size());
    const double clear = ratios.size() < kFewPairs ? kClear : 0;
    const auto least = static_cast<size_t>(std::max(rank, 0));
    const bool sure = rank >= 0 && (ratios[least] > bound + clear ||
                                    ratios[ratios.size() - 1 - least] < bound - clear);
    if (!sure && ratios.size() < kMostPairs) {
        return next_batch(kGap);
    }
    choose(median(ratios) > bound);
    rest();
}

namespace {

// Waits on the host for the event, as long as the communicator lives.
Status wait_alive(const RealNccl& nccl,
                  const DeviceApi& api,
                  const CommState& state,
                  cudaEvent_t event,
                  const char* what) {
    for (Patience patience;; patience.pause()) {
        const cudaError_t ready = api.event_query(event);
        if (ready != cudaErrorNotReady) {
            return cuda_status(api, ready, what);
        }
        (void)api.get_last_error();  // not being ready is no error of the program
        bool launching = false;
        SLIMWIRE_TRY(still_alive(nccl, state, &launching));
    }
}

Status make_room(const DeviceApi& api, const CommState& state, GatedPlan* gate, int slot) {
    const DeviceScope device(api, state.device);
    if (gate->words == nullptr) {
        void* memory = nullptr;
        SLIMWIRE_TRY(cuda_status(api,
                                 api.host_alloc(&memory, 2 * GatedPlan::kSlots * sizeof(float), 0),
                                 "gate's times"));
        gate->words = static_cast<float*>(memory);
    }
    if (gate->heard == nullptr) {
        SLIMWIRE_TRY(cuda_status(api,
                                 api.event_create_with_flags(&gate->heard, cudaEventDisableTiming),
                                 "gate's event"));
    }
    if (slot < 0) {
        return {};
    }
    GatedPlan::Times& times = gate->times[static_cast<size_t>(slot)];
    for (cudaEvent_t* event : {&times.begin, &times.end}) {
        if (*event == nullptr) {
            SLIMWIRE_TRY(cuda_status(api, api.event_create_with_flags(event, cudaEventDefault),
                                     "gate's events"));
        }
    }
    times.timed = false;
    return {};
}

// What this rank's calls took, into the words to tell.
Status collect(const RealNccl& nccl,
               const DeviceApi& api,
               const CommState& state,
               GatedPlan* gate) {
    const DeviceScope device(api, state.device);
    for (size_t i = 0; i < GatedPlan::kSlots; ++i) {
        GatedPlan::Times& times = gate->times[i];
        gate->words[i] = 0;
        if (!times.timed || i >= gate->control.slots()) {
            continue;
        }
        SLIMWIRE_TRY(wait_alive(nccl, api, state, times.end, "a call timed by a gate"));
        float elapsed_ms = 0;
        SLIMWIRE_TRY(cuda_status(api, api.event_elapsed_time(&elapsed_ms, times.begin, times.end),
                                 "gate's time"));
        // What is too short for the events was there all the same.
        gate->words[i] = std::max(elapsed_ms * 1e-3f, 1e-9f) + times.host_s;
    }
    return {};
}

}  // namespace

Result<GatedCall> Gates::next(
    const RealNccl& nccl, const DeviceApi& api, CommState* state, Plan* plan, cudaStream_t stream) {
    GatedPlan& gate = plans_.try_emplace(plan, *plan->gate).first->second;
    if (in_group() && gate.group == group_number()) {
        return GatedCall{&gate, gate.of_group};
    }
    GateControl::Call call = gate.control.peek();
    const bool due = gate.control.due();
    if (due || call.acts()) {
        SLIMWIRE_TRY_ASSIGN(const bool captured, capturing(api, stream));
        if (captured) {
            // Does not count: how often a graph runs nobody sees.
            return GatedCall{&gate, {gate.control.totals().native, -1, false}};
        }
    }
    if (due) {
        std::vector<float> seconds;
        if (std::exchange(gate.told, false)) {
            SLIMWIRE_TRY(wait_alive(nccl, api, *state, gate.heard, "times of the other ranks"));
            seconds.assign(gate.words + GatedPlan::kSlots, gate.words + 2 * GatedPlan::kSlots);
        }
        gate.control.decide(seconds);
        state->stats->update([&](CommStats&) { plan->stats->gate = gate.control.totals(); });
        call = gate.control.peek();
    }
    if (call.acts()) {
        SLIMWIRE_TRY(make_room(api, *state, &gate, call.slot));
    }
    if (call.tells) {
        SLIMWIRE_TRY(collect(nccl, api, *state, &gate));
    }
    (void)gate.control.next();
    if (in_group()) {
        gate.group = group_number();
        gate.of_group = {call.native, -1, false};
        thread_group().gated.emplace_back(state, &gate);
    }
    return GatedCall{&gate, call};
}

void Gates::release(const DeviceApi& api, bool idle) noexcept {
    for (auto& [plan, gate] : plans_) {
        for (const GatedPlan::Times& times : gate.times) {
            for (const cudaEvent_t event : {times.begin, times.end}) {
                if (event != nullptr) {
                    tolerate(api, api.event_destroy(event));
                }
            }
        }
        if (gate.heard != nullptr) {
            tolerate(api, api.event_destroy(gate.heard));
        }
        if (gate.words != nullptr && idle) {
            tolerate(api, api.free_host(gate.words));
        }
    }
    plans_.clear();
}

}  // namespace slimwire
