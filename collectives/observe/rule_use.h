// Rules with a codec that compress nothing: each is reported once in a process, after kIdleCalls
// calls that it matched at rank 0 of communicators, of which the process may have more ranks, or at
// exit, by the rank that prints the summary. Counted by the threads of the calls, without a lock;
// the reporter (reporter.cpp) makes the line from its records.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace slimwire {

struct CommRecord;  // collectives/observe/report.h

// Calls of a rule that are native, and not for a while only, until it is reported.
inline constexpr uint64_t kIdleCalls = 1000;

class RuleUse {
  public:
    explicit RuleUse(const std::function<void()>* report) : report_(report) {}
    // One call of the rule was enqueued. Wait-free but for the one that reports.
    void count(bool compressed) noexcept {
        if (settled_.load(std::memory_order_relaxed)) {
            return;
        }
        if (compressed) {
            settle();
        } else if (native_calls_.fetch_add(1, std::memory_order_relaxed) + 1 == kIdleCalls) {
            (*report_)();
        }
    }
    // Nothing is left to report. Returns whether that was so before.
    bool settle() noexcept { return settled_.exchange(true, std::memory_order_relaxed); }
    // Whether there is something to report before exit.
    [[nodiscard]] bool due() const noexcept {
        return native_calls_.load(std::memory_order_relaxed) >= kIdleCalls;
    }

  private:
    const std::function<void()>* report_;
    std::atomic<uint64_t> native_calls_{0};
    std::atomic<bool> settled_{false};  // it compressed a call, or was reported
};

class RuleUses {
  public:
    // `report` is called where a rule is due, inside a call of the program; throws nothing.
    explicit RuleUses(std::function<void()> report) : report_(std::move(report)) {}
    // Thread-safe; valid as long as this object.
    RuleUse& of(const std::string& rule);

  private:
    const std::function<void()> report_;
    std::mutex mutex_;
    std::map<std::string, RuleUse> uses_;
};

struct IdleRule {
    std::string rule;
    std::string text;  // "rule 'a' compressed none of its 12 calls (..): why; ..."
};
// The rules with a codec of which every call in the records is native.
[[nodiscard]] std::vector<IdleRule> idle_rules(const std::vector<CommRecord>& comms);

}  // namespace slimwire
