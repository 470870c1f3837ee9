#include "collectives/observe/rule_use.h"

#include <algorithm>

#include "collectives/observe/report.h"

namespace slimwire {
namespace {

struct Totals {
    bool compresses = false;
    uint64_t calls = 0, input_bytes = 0;
    std::map<std::string, uint64_t> reasons, remedies;
};

}  // namespace

RuleUse& RuleUses::of(const std::string& rule) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return uses_.try_emplace(rule, &report_).first->second;
}

std::vector<IdleRule> idle_rules(const std::vector<CommRecord>& comms) {
    std::map<std::string, Totals> rules;
    for (const CommRecord& comm : comms) {
        for (const KeyRecord& key : comm.keys) {
            Totals& rule = rules[key.rule];
            rule.compresses |= key.calls > 0 && (key.compressed() || !key.shadow_codec.empty());
            if (key.calls > 0 && key.remedy != nullptr) {
                rule.calls += key.calls;
                rule.input_bytes += key.input_bytes;
                rule.reasons[key.reason] += key.calls;
                rule.remedies[key.remedy] += key.input_bytes;
            }
        }
    }
    std::vector<IdleRule> idle;
    for (const auto& [name, rule] : rules) {
        if (rule.compresses || rule.calls == 0) {
            continue;
        }
        const auto remedy =
            std::max_element(rule.remedies.begin(), rule.remedies.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
        idle.push_back({name, "rule '" + name + "' compressed none of its " +
                                  std::to_string(rule.calls) + " calls, input " +
                                  format_bytes(rule.input_bytes) +
                                  ", why: " + largest_counts(rule.reasons, 2) +
                                  "; what would change it: " + remedy->first});
    }
    return idle;
}

}  // namespace slimwire
