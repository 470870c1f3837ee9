#include "collectives/call_ranges.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/log.h"
#include "collectives/open_ranges.h"
#include "collectives/step_detector.h"

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
    std::vector<uint32_t> words(slots_, kNoCall);
    for (auto& [key, entry] : entries_) {
        words[entry.number] = entry.now;
        entry.now = kNoCall;
    }
    compare_due_ = fresh_ = false;
    since_given_ = 0;
    given_ = true;
    return with_complements(std::move(words));
}

size_t RangeTable::adopt(const std::vector<uint32_t>& greatest) {
    size_t different = 0;
    for (auto& [key, entry] : entries_) {
        if (entry.number >= slots_) {
            continue;  // came later
        }
        const uint32_t word = greatest[entry.number];
        if (!same_on_all(greatest, entry.number)) {
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

CallRanges::CallRanges(std::vector<std::string> patterns)
    : patterns_(std::move(patterns)),
      comparison_({"NVTX ranges", "the ranks compare in which NVTX ranges their calls are",
                   "no rule with range"}) {}

Result<uint32_t> CallRanges::next(const RealNccl& nccl,
                                  const DeviceApi& api,
                                  const CommState& state,
                                  const CollectiveCall& call,
                                  const StepPlace& place,
                                  uint64_t step,
                                  bool captured) {
    if (comparison_.lost()) {
        table_.taken_back();
    }
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
    SLIMWIRE_TRY_ASSIGN(const std::vector<uint32_t> greatest, comparison_.read(nccl, api, state));
    const size_t different = table_.adopt(greatest);
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

Result<std::optional<Queued>> CallRanges::comparison(const DeviceApi& api,
                                                     CommState* state,
                                                     const CollectiveCall& call,
                                                     bool captured) {
    if (!table_.compare_due() || captured) {
        return std::optional<Queued>();
    }
    SLIMWIRE_TRY_ASSIGN(Queued item, comparison_.give(api, state, call, table_.give()));
    return std::optional<Queued>(std::move(item));
}

void warn_without_ranges() {
    if (find_open_ranges() == nullptr) {
        log_once(LogLevel::kWarn, "nvtx",
                 std::string("rules of the policy have 'range', and this process hears of no NVTX "
                             "ranges: NVTX_INJECTION64_PATH must name ") +
                     kOpenRangesLibrary + " (slimwire run sets it)");
    }
}

}  // namespace slimwire
