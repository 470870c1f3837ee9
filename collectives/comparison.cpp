#include "collectives/comparison.h"

#include <algorithm>
#include <string>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/underway.h"

namespace slimwire {

std::vector<uint32_t> with_complements(std::vector<uint32_t> words) {
    const size_t count = words.size();
    words.resize(2 * count);
    std::transform(words.begin(), words.begin() + static_cast<ptrdiff_t>(count),
                   words.begin() + static_cast<ptrdiff_t>(count),
                   [](uint32_t word) { return ~word; });
    return words;
}

Status Comparison::make_room(const DeviceApi& api, size_t words) {
    if (ready_ == nullptr) {
        SLIMWIRE_TRY(cuda_status(api, api.event_create_with_flags(&ready_, cudaEventDisableTiming),
                                 "event of a comparison of ranks"));
    }
    if (words > room_) {
        void* memory = nullptr;
        SLIMWIRE_TRY(cuda_status(api, api.host_alloc(&memory, 2 * words * sizeof(uint32_t), 0),
                                 "memory of a comparison of ranks"));
        // The last comparison was read.
        if (words_ != nullptr) {
            tolerate(api, api.free_host(words_));
        }
        words_ = static_cast<uint32_t*>(memory);
        room_ = words;
    }
    return {};
}

// Each size has counters of its own: its bytes are of the report.
void Comparison::show_key(CommState* state) {
    KeyStats& key = state->stats->add_key();
    key.facts = plan_.facts;
    key.codec = key.algorithm = algorithm_name(Algorithm::kNative);
    key.reason = text_.reason;
    key.input_bytes_per_call = plan_.facts.count * sizeof(uint32_t);
    key.native_bytes_per_call = key.wire_bytes_per_call =
        native_wire_bytes(plan_.facts, state->shape.ranks, state->rank);
    key.wire_is_estimate = true;
    state->stats->publish(key);
    plan_.stats = &key;
}

Result<Queued> Comparison::give(const DeviceApi& api,
                                CommState* state,
                                const CollectiveCall& call,
                                const std::vector<uint32_t>& words) {
    const std::lock_guard lock(mutex_);
    if (ended_) {
        return Status(Code::kInvalidUsage, "the communicator was aborted meanwhile");
    }
    const DeviceScope device(api, state->device);
    SLIMWIRE_TRY(make_room(api, words.size()));
    std::copy(words.begin(), words.end(), words_);
    if (plan_.facts.count != words.size()) {
        plan_.facts = {Op::kAllReduce, DType::kUint32, RedOp::kMax, 0, words.size()};
        plan_.algorithm = Algorithm::kNative;
        plan_.scratch_bytes = words.size() * sizeof(uint32_t);
        show_key(state);
    }
    queued_ = true;
    launched_ = lost_ = false;
    Queued item;
    item.call.facts = plan_.facts;
    item.call.comm = call.comm;
    item.call.stream = call.stream;
    item.state = state;
    item.plan = &plan_;
    item.comparison = this;
    return item;
}

Result<std::vector<uint32_t>> Comparison::read(const RealNccl& nccl,
                                               const DeviceApi& api,
                                               const CommState& state) {
    const std::lock_guard lock(mutex_);
    if (!launched_) {
        return Status(Code::kInvalidUsage,
                      "this call is in one ncclGroup with calls of the training step before, in "
                      "which the ranks compare their " +
                          std::string(text_.what) + "; end the group between the steps, or use " +
                          text_.rules);
    }
    const DeviceScope device(api, state.device);
    for (Patience patience;; patience.pause()) {
        const cudaError_t ready = api.event_query(ready_);
        if (ready != cudaErrorNotReady) {
            SLIMWIRE_TRY(cuda_status(api, ready, "comparison of ranks"));
            break;
        }
        (void)api.get_last_error();  // not being ready is no error of the program
        bool launching = false;
        SLIMWIRE_TRY(still_alive(nccl, state, &launching));
    }
    queued_ = launched_ = false;
    const uint32_t* const back = words_ + room_;
    return std::vector<uint32_t>(back, back + plan_.facts.count);
}

void Comparison::dropped() noexcept {
    if (queued_ && !launched_) {
        queued_ = false;
        lost_ = true;
    }
}

bool Comparison::lost() noexcept {
    return std::exchange(lost_, false);
}

void Comparison::end(const DeviceApi& api, int device, bool wait) noexcept {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (wait) {
        lock.lock();
    } else if (!lock.try_lock()) {
        return;  // a thread of the program is in a call
    }
    ended_ = true;
    const DeviceScope scope(api, device);
    if (launched_ && !wait) {
        return;
    }
    if (ready_ != nullptr && (!launched_ || tolerate(api, api.event_synchronize(ready_)))) {
        tolerate(api, api.event_destroy(std::exchange(ready_, nullptr)));
        if (words_ != nullptr) {
            tolerate(api, api.free_host(std::exchange(words_, nullptr)));
        }
    }
}

Status ComparisonExchange::kernels(int /*phase*/) {
    return cuda_status(context_.api,
                       context_.api.memcpy_async(context_.scratch, comparison_->words_,
                                                 context_.plan.scratch_bytes,
                                                 cudaMemcpyHostToDevice, context_.work),
                       "comparison of ranks");
}

Status ComparisonExchange::exchange(int /*phase*/) {
    return nccl_status(
        context_.nccl,
        context_.nccl.AllReduce(context_.scratch, context_.scratch, context_.plan.facts.count,
                                ncclUint32, ncclMax, context_.state.exchange_comm, context_.work),
        "ncclAllReduce of a comparison of ranks");
}

Status ComparisonExchange::finish(int /*phase*/) {
    const DeviceApi& api = context_.api;
    SLIMWIRE_TRY(cuda_status(
        api,
        api.memcpy_async(comparison_->words_ + comparison_->room_, context_.scratch,
                         context_.plan.scratch_bytes, cudaMemcpyDeviceToHost, context_.work),
        "comparison of ranks"));
    SLIMWIRE_TRY(cuda_status(api, api.event_record(comparison_->ready_, context_.work),
                             "comparison of ranks"));
    comparison_->launched_ = true;
    return {};
}

}  // namespace slimwire
