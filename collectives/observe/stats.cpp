#include "collectives/observe/stats.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "collectives/observe/report.h"

namespace slimwire {
namespace {

void add(const KeyRecord& from, KeyRecord* to) {
    to->calls += from.calls;
    to->input_bytes += from.input_bytes;
    to->wire_bytes += from.wire_bytes;
    to->native_wire_bytes += from.native_wire_bytes;
    to->timed_calls += from.timed_calls;
    to->time_ns += from.time_ns;
    to->wire_is_estimate |= from.wire_is_estimate;
    to->shadow_wire_bytes += from.shadow_wire_bytes;
    add_fields(from.fields, &to->fields);
}

auto fold_identity(const KeyRecord& key) {
    return std::make_tuple(std::string(key.one_sided != nullptr ? key.one_sided : ""),
                           key.signature.op, key.signature.direction, key.signature.dtype,
                           key.signature.redop, key.rule, key.codec, key.algorithm, key.reason,
                           key.shadow_codec, key.shadow_algorithm);
}

// Adds `keys` up by identity; those already folded take part.
std::vector<KeyRecord> folded(const std::vector<KeyRecord>& keys) {
    std::map<decltype(fold_identity(keys.front())), KeyRecord> totals;
    for (const KeyRecord& key : keys) {
        const auto [where, is_new] = totals.try_emplace(fold_identity(key), key);
        if (is_new) {
            where->second.signature.count = 0;
            where->second.signature.root_or_peer = 0;
            where->second.folded = true;
            where->second.name.clear();
            drop_lists(&where->second.fields);
        } else {
            add(key, &where->second);
        }
    }
    std::vector<KeyRecord> out;
    for (auto& [identity, record] : totals) {
        out.push_back(std::move(record));
    }
    return out;
}

}  // namespace

CallStats& CommStats::add_key() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return keys_.emplace_back();
}

void CommStats::publish(CallStats& key, bool waits) {
    const bool compresses = key.codec != "native" || !key.shadow_codec.empty();
    if (rules_ != nullptr && (compresses || (key.remedy != nullptr && !waits && rank == 0))) {
        key.use = &rules_->of(key.rule);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    published_.push_back(&key);
    ++version_;
}

void CommStats::rule_compresses(const std::string& rule) {
    if (rules_ != nullptr) {
        rules_->of(rule).count(true);
    }
}

CommRecord CommStats::snapshot() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    CommRecord record;
    record.comm = comm;
    record.rank = rank;
    record.ranks = ranks;
    record.nodes = nodes;
    record.links = links;
    record.thresholds = thresholds;
    record.device = device;
    record.name = name;
    record.agreement = agreement;
    record.scratch_bytes = scratch_bytes.load(std::memory_order_relaxed);
    record.residual_bytes = residual_bytes.load(std::memory_order_relaxed);
    record.residual_tensors = residual_tensors.load(std::memory_order_relaxed);
    record.calls_without_residual = calls_without_residual.load(std::memory_order_relaxed);
    record.missed_masks = missed_masks.load(std::memory_order_relaxed);
    record.host_waits = host_waits.load(std::memory_order_relaxed);
    record.plans = plans.load(std::memory_order_relaxed);
    record.setup_us = setup_us;
    record.private_setup_us = private_setup_us;
    record.private_connections = private_connections;
    record.private_bytes = private_bytes.load(std::memory_order_relaxed);
    record.first_call_us = first_call_us.load(std::memory_order_relaxed);
    record.step_calls = step_calls.load(std::memory_order_relaxed);
    record.steps = steps.load(std::memory_order_relaxed);
    record.placed_calls = placed_calls.load(std::memory_order_relaxed);
    record.unplaced_calls = unplaced_calls.load(std::memory_order_relaxed);
    record.step_flags = step_flags.load(std::memory_order_relaxed);
    record.skipped_steps = skipped_steps.load(std::memory_order_relaxed);
    record.other_flags = other_flags.load(std::memory_order_relaxed);
    record.keys.reserve(published_.size());
    for (const CallStats* key : published_) {
        const uint64_t calls = key->calls.load(std::memory_order_relaxed);
        const uint64_t native = key->folded_native_bytes.load(std::memory_order_relaxed);
        const char* const name = key->one_name.load(std::memory_order_relaxed);
        ReportFields fields;
        for (const std::unique_ptr<FeatureStats>& feature : key->features) {
            feature->report(&fields);
        }
        record.keys.push_back({key->signature,
                               key->one_sided,
                               key->rule,
                               key->codec,
                               key->algorithm,
                               key->reason,
                               calls,
                               calls * key->input_bytes_per_call +
                                   key->folded_input_bytes.load(std::memory_order_relaxed),
                               calls * key->wire_bytes_per_call +
                                   key->folded_wire_bytes.load(std::memory_order_relaxed),
                               calls * key->native_bytes_per_call + native,
                               key->timed_calls.load(std::memory_order_relaxed),
                               key->time_ns.load(std::memory_order_relaxed),
                               key->wire_is_estimate,
                               key->folded,
                               name != nullptr ? name : "",
                               key->shadow_codec,
                               key->shadow_algorithm,
                               calls * key->shadow_wire_bytes_per_call +
                                   key->folded_shadow_bytes.load(std::memory_order_relaxed),
                               std::move(fields),
                               key->remedy,
                               key->lacks_feedback});
    }
    return record;
}

uint64_t CommStats::mark() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (version_ == 0) {
        return 0;
    }
    // Every term only grows (memory figures aside, which come with an odd factor), so a change of
    // any counter changes the sum.
    uint64_t mark =
        version_ + 3 * scratch_bytes.load(std::memory_order_relaxed) +
        5 * residual_bytes.load(std::memory_order_relaxed) +
        residual_tensors.load(std::memory_order_relaxed) +
        calls_without_residual.load(std::memory_order_relaxed) +
        host_waits.load(std::memory_order_relaxed) + missed_masks.load(std::memory_order_relaxed) +
        7 * plans.load(std::memory_order_relaxed) + private_bytes.load(std::memory_order_relaxed) +
        first_call_us.load(std::memory_order_relaxed) +
        placed_calls.load(std::memory_order_relaxed) +
        unplaced_calls.load(std::memory_order_relaxed) + steps.load(std::memory_order_relaxed) +
        step_flags.load(std::memory_order_relaxed) + skipped_steps.load(std::memory_order_relaxed) +
        other_flags.load(std::memory_order_relaxed);
    for (const CallStats* key : published_) {
        mark += key->calls.load(std::memory_order_relaxed) +
                key->timed_calls.load(std::memory_order_relaxed);
        for (const std::unique_ptr<FeatureStats>& feature : key->features) {
            mark += feature->mark();
        }
    }
    return std::max<uint64_t>(mark, 1);
}

void fold_keys(size_t max_keys, CommRecord* comm) {
    if (comm->keys.size() <= max_keys) {
        return;
    }
    const auto rest = comm->keys.begin() + static_cast<std::ptrdiff_t>(max_keys);
    const std::vector<KeyRecord> totals = folded({rest, comm->keys.end()});
    comm->keys.erase(rest, comm->keys.end());
    comm->keys.insert(comm->keys.end(), totals.begin(), totals.end());
}

void fold_comm(const CommRecord& comm, CommRecord* total) {
    const bool is_first = total->comm.empty();
    total->comm = "folded";
    total->retired = true;
    total->rank = comm.rank;
    total->ranks = std::max(total->ranks, comm.ranks);
    total->nodes = std::max(total->nodes, comm.nodes);
    total->device = comm.device;
    total->agreement = is_first || total->agreement == comm.agreement ? comm.agreement : "mixed";
    total->communicators =
        is_first ? comm.communicators : total->communicators + comm.communicators;
    total->setup_us += comm.setup_us;
    total->private_setup_us += comm.private_setup_us;
    total->first_call_us += comm.first_call_us;
    total->calls_without_residual += comm.calls_without_residual;
    total->host_waits += comm.host_waits;
    total->missed_masks += comm.missed_masks;
    total->steps += comm.steps;
    total->placed_calls += comm.placed_calls;
    total->unplaced_calls += comm.unplaced_calls;
    total->step_flags += comm.step_flags;
    total->skipped_steps += comm.skipped_steps;
    total->other_flags += comm.other_flags;
    total->keys.insert(total->keys.end(), comm.keys.begin(), comm.keys.end());
    total->keys = folded(total->keys);
}

}  // namespace slimwire
