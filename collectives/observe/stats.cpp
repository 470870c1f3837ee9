#include "collectives/observe/stats.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "collectives/observe/report.h"

namespace slimwire {

void add_fields(const ReportFields& from, ReportFields* to) {
    for (const ReportField& field : from) {
        if (std::holds_alternative<std::vector<ReportFields>>(field.value)) {
            continue;
        }
        const auto same = std::find_if(to->begin(), to->end(), [&](const ReportField& other) {
            return other.name == field.name && other.value.index() == field.value.index();
        });
        if (same == to->end()) {
            to->push_back(field);
        } else if (auto* const number = std::get_if<uint64_t>(&same->value)) {
            *number += std::get<uint64_t>(field.value);
        } else if (auto* const object = std::get_if<ReportFields>(&same->value)) {
            add_fields(std::get<ReportFields>(field.value), object);
        }
    }
}

void drop_lists(ReportFields* fields) {
    std::erase_if(*fields, [](const ReportField& field) {
        return std::holds_alternative<std::vector<ReportFields>>(field.value);
    });
}

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
    static_cast<CommFacts&>(record) = *this;
    for (size_t i = 0; i < std::size(kCommCounts<uint64_t>); ++i) {
        record.*kCommCounts<uint64_t>[i].member =
            (this->*kCommCounts<std::atomic<uint64_t>>[i].member).load(std::memory_order_relaxed);
    }
    record.keys.reserve(published_.size());
    for (const CallStats* key : published_) {
        const uint64_t calls = key->calls.load(std::memory_order_relaxed);
        const auto total = [&](uint64_t of_each, const std::atomic<uint64_t>& folded) {
            return calls * of_each + folded.load(std::memory_order_relaxed);
        };
        KeyRecord& one = record.keys.emplace_back();
        static_cast<KeyFacts&>(one) = *key;
        one.calls = calls;
        one.input_bytes = total(key->input_bytes_per_call, key->folded_input_bytes);
        one.wire_bytes = total(key->wire_bytes_per_call, key->folded_wire_bytes);
        one.native_wire_bytes = total(key->native_bytes_per_call, key->folded_native_bytes);
        one.shadow_wire_bytes = total(key->shadow_wire_bytes_per_call, key->folded_shadow_bytes);
        one.timed_calls = key->timed_calls.load(std::memory_order_relaxed);
        one.time_ns = key->time_ns.load(std::memory_order_relaxed);
        const char* const name = key->one_name.load(std::memory_order_relaxed);
        one.name = name != nullptr ? name : "";
        for (const std::unique_ptr<FeatureStats>& feature : key->features) {
            feature->report(&one.fields);
        }
    }
    return record;
}

uint64_t CommStats::mark() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (version_ == 0) {
        return 0;
    }
    uint64_t mark = version_;
    // Odd factors: a change of any count changes the sum.
    for (const auto& count : kCommCounts<std::atomic<uint64_t>>) {
        mark = 31 * mark + (this->*count.member).load(std::memory_order_relaxed);
    }
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
    for (const auto& count : kCommCounts<uint64_t>) {
        total->*count.member += count.stays ? comm.*count.member : 0;
    }
    total->keys.insert(total->keys.end(), comm.keys.begin(), comm.keys.end());
    total->keys = folded(total->keys);
}

}  // namespace slimwire
