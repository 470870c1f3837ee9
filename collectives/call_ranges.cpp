#include "collectives/call_ranges.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/log.h"
#include "collectives/open_ranges.h"
#include "collectives/step_detector.h"
#include "collectives/underway.h"

namespace slimwire {
namespace {

// Words of the tables. A place that no call came to since the last comparison, which all ranks know
// alike; kRangesVary; one whose ranges this rank cannot tell; known_ranges().
constexpr uint32_t kNoCall = 0;
constexpr uint32_t kUntold = 4;
constexpr size_t kLeastSlots = 64;

std::string place_text(const CallFacts& facts) {
    return std::string(op_name(facts.op)) + " " + dtype_name(facts.dtype) + " count " +
           std::to_string(facts.count);
}

}  // namespace

uint32_t RangeTable::next(const CallFacts& facts,
                          const StepPlace& place,
                          uint64_t step,
                          std::optional<uint32_t> local) {
    if (place.path != path_ || step != step_) {
        path_ = place.path;
        step_ = step;
        ++since_new_;
        ++since_given_;
        if (given_) {
            read_due_ = true;
        } else if ((fresh_ && since_new_ >= kLearnSteps) || since_given_ >= kRenewSteps) {
            compare_due_ = !entries_.empty();
        }
    }
    const Key key{place.path, call_signature(facts), place.nth};
    auto found = entries_.find(key);
    if (found == entries_.end()) {
        if (entries_.size() == kMostPlaces) {
            return 0;
        }
        found = entries_.emplace(key, Entry{entries_.size()}).first;
        fresh_ = true;
        since_new_ = 0;
    }
    Entry& entry = found->second;
    const uint32_t now = local.has_value() ? known_ranges(*local) : kUntold;
    entry.now = entry.now == kNoCall || entry.now == now ? now : kRangesVary;
    return entry.agreed;
}

std::vector<uint32_t> RangeTable::give() {
    slots_ = std::bit_ceil(std::max(entries_.size(), kLeastSlots));
    std::vector<uint32_t> words(2 * slots_, 0);
    for (auto& [key, entry] : entries_) {
        words[entry.number] = entry.now;
        entry.now = kNoCall;
    }
    // The greatest of both is a word and its complement where all ranks have the same.
    for (size_t slot = 0; slot < slots_; ++slot) {
        words[slots_ + slot] = ~words[slot];
    }
    compare_due_ = fresh_ = false;
    since_given_ = 0;
    given_ = true;
    return words;
}

size_t RangeTable::adopt(const std::vector<uint32_t>& greatest) {
    size_t different = 0;
    for (auto& [key, entry] : entries_) {
        if (entry.number >= slots_) {
            continue;  // came later
        }
        const uint32_t word = greatest[entry.number];
        if (word != ~greatest[slots_ + entry.number]) {
            entry.agreed = kRangesDiffer;
            ++different;
        } else if (word != kNoCall) {
            entry.agreed = word == kUntold ? 0 : word;
        }
    }
    given_ = read_due_ = false;
    return different;
}

void RangeTable::taken_back() noexcept {
    given_ = read_due_ = false;
    fresh_ = true;  // what was given is gone; learned again
    since_new_ = 0;
}

Result<uint32_t> CallRanges::next(const RealNccl& nccl,
                                  const DeviceApi& api,
                                  const CommState& state,
                                  const CollectiveCall& call,
                                  const StepPlace& place,
                                  uint64_t step,
                                  bool captured) {
    const std::optional<uint32_t> local = open_range_bits(patterns_);
    if (text_.empty() && local.value_or(0) != 0) {
        text_ = place_text(call.facts) + " in " + open_ranges_text();
    }
    uint32_t ranges = table_.next(call.facts, place, step, local);
    if (table_.read_due() && !captured) {
        SLIMWIRE_TRY(read(nccl, api, state));
        ranges = table_.next(call.facts, place, step, local);
    }
    return ranges;
}

Status CallRanges::read(const RealNccl& nccl, const DeviceApi& api, const CommState& state) {
    const std::lock_guard lock(mutex_);
    if (!launched_) {
        return {
            Code::kInvalidUsage,
            "this call is in one ncclGroup with calls of the training step before, in which the "
            "ranks compare their NVTX ranges; end the group between the steps, or use no rule "
            "with range"};
    }
    const DeviceScope device(api, state.device);
    for (Patience patience;; patience.pause()) {
        const cudaError_t ready = api.event_query(ready_);
        if (ready != cudaErrorNotReady) {
            SLIMWIRE_TRY(cuda_status(api, ready, "comparison of NVTX ranges"));
            break;
        }
        (void)api.get_last_error();  // not being ready is no error of the program
        bool launching = false;
        SLIMWIRE_TRY(still_alive(nccl, state, &launching));
    }
    queued_ = launched_ = false;
    const uint32_t* const back = words_ + room_;
    const size_t different = table_.adopt({back, back + 2 * table_.slots()});
    if (different > 0 && !std::exchange(told_, true)) {
        log_line(LogLevel::kWarn,
                 where(state) + ": ranks are in different NVTX ranges at " +
                     std::to_string(different) +
                     " places of the training step, where calls that a rule with range might take "
                     "are native; this rank: " +
                     (text_.empty() ? "in none that a rule names" : text_));
    }
    return {};
}

Status CallRanges::make_room(const DeviceApi& api, size_t words) {
    if (ready_ == nullptr) {
        SLIMWIRE_TRY(cuda_status(api, api.event_create_with_flags(&ready_, cudaEventDisableTiming),
                                 "event of a comparison of NVTX ranges"));
    }
    if (words > room_) {
        void* memory = nullptr;
        SLIMWIRE_TRY(cuda_status(api, api.host_alloc(&memory, 2 * words * sizeof(uint32_t), 0),
                                 "memory of a comparison of NVTX ranges"));
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
void CallRanges::show_key(CommState* state) {
    KeyStats& key = state->stats->add_key();
    key.facts = plan_.facts;
    key.codec = key.algorithm = algorithm_name(Algorithm::kNative);
    key.reason = "the ranks compare in which NVTX ranges their calls are";
    key.input_bytes_per_call = plan_.facts.count * sizeof(uint32_t);
    key.native_bytes_per_call = key.wire_bytes_per_call =
        native_wire_bytes(plan_.facts, state->shape.ranks, state->rank);
    key.wire_is_estimate = true;
    state->stats->publish(key);
    plan_.stats = &key;
}

Result<std::optional<Queued>> CallRanges::comparison(const DeviceApi& api,
                                                     CommState* state,
                                                     const CollectiveCall& call,
                                                     bool captured) {
    if (!table_.compare_due() || captured) {
        return std::optional<Queued>();
    }
    const std::lock_guard lock(mutex_);
    if (ended_) {
        return Status(Code::kInvalidUsage, "the communicator was aborted meanwhile");
    }
    const std::vector<uint32_t> words = table_.give();
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
    launched_ = false;
    Queued item;
    item.call.facts = plan_.facts;
    item.call.comm = call.comm;
    item.call.stream = call.stream;
    item.state = state;
    item.plan = &plan_;
    item.ranges = this;
    return std::optional<Queued>(item);
}

void CallRanges::dropped() noexcept {
    if (queued_ && !launched_) {
        queued_ = false;
        table_.taken_back();
    }
}

void CallRanges::end(const DeviceApi& api, int device, bool wait) noexcept {
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

void warn_without_ranges() {
    if (find_open_ranges() == nullptr) {
        log_once(LogLevel::kWarn, "nvtx",
                 std::string("rules of the policy have 'range', and this process hears of no NVTX "
                             "ranges: NVTX_INJECTION64_PATH must name ") +
                     kOpenRangesLibrary + " (slimwire run sets it)");
    }
}

Status RangeComparison::kernels(int /*phase*/) {
    return cuda_status(
        context_.api,
        context_.api.memcpy_async(context_.scratch, ranges_->words_, context_.plan.scratch_bytes,
                                  cudaMemcpyHostToDevice, context_.work),
        "comparison of NVTX ranges");
}

Status RangeComparison::exchange(int /*phase*/) {
    return nccl_status(
        context_.nccl,
        context_.nccl.AllReduce(context_.scratch, context_.scratch, context_.plan.facts.count,
                                ncclUint32, ncclMax, context_.state.exchange_comm, context_.work),
        "ncclAllReduce of NVTX ranges");
}

Status RangeComparison::finish(int /*phase*/) {
    const DeviceApi& api = context_.api;
    SLIMWIRE_TRY(cuda_status(
        api,
        api.memcpy_async(ranges_->words_ + ranges_->room_, context_.scratch,
                         context_.plan.scratch_bytes, cudaMemcpyDeviceToHost, context_.work),
        "comparison of NVTX ranges"));
    SLIMWIRE_TRY(
        cuda_status(api, api.event_record(ranges_->ready_, context_.work), "comparison of ranges"));
    ranges_->launched_ = true;
    return {};
}

}  // namespace slimwire
