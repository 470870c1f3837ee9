// Counters of what was done, and the report files made of them. One CommStats a communicator, one
// CallStats a tensor key; counters are relaxed atomics written by the calling thread and read by
// the reporter's thread, which starts with the first communicator and only if a report was asked
// for. Record format: collectives/SCHEMA.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/call/call.h"
#include "collectives/observe/report_source.h"
#include "collectives/observe/rule_use.h"
#include "topology/machine/comm_links.h"

namespace slimwire {

// What is counted of a communicator, in one table: atomics while it lives, numbers in its record,
// in report files (collectives/SCHEMA.md) and in sums over ranks. The calling threads write them,
// the reporter's thread reads them, all relaxed.
template <class Count>
struct CommCounts {
    Count scratch_bytes{0}, residual_bytes{0}, residual_tensors{0};
    Count calls_without_residual{0};  // compressed, without a residual for want of memory
    Count host_waits{0};              // of calls, for what was to be there
    // Answers of peers whose masks were not held, as far as the host knows.
    Count missed_masks{0};
    Count plans{0};  // held now
    // What the private communicator costs; 0 without one.
    Count setup_us{0};             // slimwire's part of the creation, in all
    Count private_setup_us{0};     // of that, making the private communicator
    Count private_connections{0};  // it may open so many, besides NCCL's own ring
    Count private_bytes{0}, first_call_us{0};
    // Of places in the step (tensor_slot.h); 0 where no rule wants them.
    Count step_calls{0};  // of the step that collectives follow now
    Count steps{0};       // followed to their end
    Count placed_calls{0}, unplaced_calls{0};
    // Results of skipped_steps.h: made, of those set, and of those no flags at all.
    Count step_flags{0}, skipped_steps{0}, other_flags{0};
};

// How sums over the ranks of a communicator have a count.
enum class OverRanks : uint8_t { kNot, kSum, kMost };

template <class Count>
struct CommCount {
    const char* name;  // in reports
    Count CommCounts<Count>::*member;
    bool stays;  // of communicators that are gone, too
    OverRanks over_ranks;
};

// In the order of a record.
template <class Count, class Counts = CommCounts<Count>>
inline constexpr CommCount<Count> kCommCounts[] = {
    {"scratch_bytes", &Counts::scratch_bytes, false, OverRanks::kSum},
    {"residual_bytes", &Counts::residual_bytes, false, OverRanks::kSum},
    {"residual_tensors", &Counts::residual_tensors, false, OverRanks::kSum},
    {"unfed_calls", &Counts::calls_without_residual, true, OverRanks::kSum},
    {"host_waits", &Counts::host_waits, true, OverRanks::kNot},
    {"missed_masks", &Counts::missed_masks, true, OverRanks::kSum},
    {"plans", &Counts::plans, false, OverRanks::kNot},
    {"setup_us", &Counts::setup_us, true, OverRanks::kNot},
    {"private_setup_us", &Counts::private_setup_us, true, OverRanks::kNot},
    {"private_connections", &Counts::private_connections, false, OverRanks::kNot},
    {"private_bytes", &Counts::private_bytes, false, OverRanks::kNot},
    {"first_call_us", &Counts::first_call_us, true, OverRanks::kNot},
    {"step_calls", &Counts::step_calls, false, OverRanks::kMost},
    {"steps", &Counts::steps, true, OverRanks::kMost},
    {"placed_calls", &Counts::placed_calls, true, OverRanks::kSum},
    {"unplaced_calls", &Counts::unplaced_calls, true, OverRanks::kSum},
    {"step_flags", &Counts::step_flags, true, OverRanks::kMost},
    {"skipped_steps", &Counts::skipped_steps, true, OverRanks::kMost},
    {"other_flags", &Counts::other_flags, true, OverRanks::kMost},
};

// What features count beside what every key has: named values, which the report prints as they
// come. Neither the statistics nor the report knows a feature by name.

struct ReportField;
using ReportFields = std::vector<ReportField>;
struct ReportField {
    std::string name;
    // Fields are an object; several of them are a list of objects.
    std::variant<uint64_t, double, bool, std::string, ReportFields, std::vector<ReportFields>>
        value;
};

// Where keys are added up: whole numbers are sums, other values are those of the first key that
// has them, and lists go.
void add_fields(const ReportFields& from, ReportFields* to);
void drop_lists(ReportFields* fields);

// A feature's counters of one key. Atomic ones change at any time, all else changes inside
// CommStats::update() only.
class FeatureStats {
  public:
    virtual ~FeatureStats() = default;
    virtual void report(ReportFields* fields) const = 0;
    // Changes with every atomic counter.
    [[nodiscard]] virtual uint64_t mark() const noexcept { return 0; }
};

struct CommRecord;  // collectives/observe/report.h

// From which size calls by a codec and algorithm pay on a communicator (comm_costs.h).
struct CostThreshold {
    Op op = Op::kAllReduce;
    DType dtype = DType::kFloat32;
    std::string codec, algorithm;
    std::optional<uint64_t> pays_from_bytes;  // of message; empty: at no size that was measured
};

// What is constant of the calls of one plan: in the counters and in the record made of them.
struct KeyFacts {
    CallSignature signature;          // count and root_or_peer are 0 when a record is folded
    const char* one_sided = nullptr;  // the operation where it is none of `signature`: "putsignal"
    std::string rule;                 // name of the rule that decided; empty when none matched
    std::string codec;                // canonical specification; "native"
    std::string algorithm;            // "native", "two_shot"
    std::string reason;               // why this plan; for native: why not compressed
    // Native calls of a rule with a codec: what would have them compressed; null for others.
    const char* remedy = nullptr;
    bool lacks_feedback = false;  // compressed by a codec that needs error feedback and has none
    bool wire_is_estimate = false;
    bool folded = false;  // of many plans: the bytes of each call are added by count_folded_call
    // Mode shadow, of native calls: what mode on would do; empty where that is native, too.
    std::string shadow_codec, shadow_algorithm;

    [[nodiscard]] bool compressed() const { return codec != "native"; }
};

// All calls of one plan. Addresses are stable until the CommStats dies.
struct CallStats : KeyFacts {
    // Set before the key is published, then constant, like the facts.
    RuleUse* use = nullptr;  // of `rule`; by publish()
    uint64_t input_bytes_per_call = 0;
    uint64_t wire_bytes_per_call = 0;    // payload this rank gives to the transport
    uint64_t native_bytes_per_call = 0;  // what native NCCL would send (ring formula, an estimate)
    uint64_t shadow_wire_bytes_per_call = 0;
    // Of the features that take part in the calls. Come inside CommStats::update() only, and then
    // stay.
    std::vector<std::unique_ptr<FeatureStats>> features;
    // Null where the feature has none here. By the thread of the calls.
    template <class Stats>
    [[nodiscard]] Stats* feature() const noexcept {
        for (const std::unique_ptr<FeatureStats>& one : features) {
            if (auto* const own = dynamic_cast<Stats*>(one.get())) {
                return own;
            }
        }
        return nullptr;
    }

    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> folded_input_bytes{0}, folded_native_bytes{0}, folded_wire_bytes{0};
    std::atomic<uint64_t> folded_shadow_bytes{0};
    std::atomic<uint64_t> timed_calls{0};
    std::atomic<uint64_t> time_ns{0};  // sum over timed calls, stream events around the call
    // The name of the calls' buffers (tensor_names.h): that of all calls since the first that had
    // one; null before that.
    static constexpr char kSeveralNames[1] = {};
    std::atomic<const char*> one_name{nullptr};
    // One call was enqueued. Wait-free, but for the call at which a rule is reported (RuleUse).
    void count_call() noexcept {
        calls.fetch_add(1, std::memory_order_relaxed);
        if (use != nullptr) {
            use->count(remedy == nullptr);
        }
    }
    // What this rank gave to the transport beside the calls. Wait-free.
    void count_control(uint64_t wire_bytes) noexcept {
        folded_wire_bytes.fetch_add(wire_bytes, std::memory_order_relaxed);
    }
    // One call of a kind that has no key of its own. Wait-free.
    void count_folded_call(uint64_t input_bytes,
                           uint64_t native_bytes,
                           uint64_t wire_bytes) noexcept {
        folded_input_bytes.fetch_add(input_bytes, std::memory_order_relaxed);
        folded_native_bytes.fetch_add(native_bytes, std::memory_order_relaxed);
        folded_wire_bytes.fetch_add(wire_bytes, std::memory_order_relaxed);
        count_call();
    }
    // One call's buffer has this name; null: none. Wait-free.
    void count_name(const char* name) noexcept {
        const char* const before = one_name.load(std::memory_order_relaxed);
        if (name != before && before != kSeveralNames) {
            one_name.store(before == nullptr ? name : kSeveralNames, std::memory_order_relaxed);
        }
    }
    // One call was measured. Wait-free.
    void count_time(uint64_t nanoseconds) noexcept {
        time_ns.fetch_add(nanoseconds, std::memory_order_relaxed);
        timed_calls.fetch_add(1, std::memory_order_relaxed);
    }
};

// A communicator, in the counters and in the record made of them.
struct CommFacts {
    std::string comm;  // key of the communicator as 16 hex digits
    std::string name;  // as the program named it; empty: not
    int rank = 0;
    int ranks = 0;
    int nodes = 0;
    CommLinks links;  // of the ranks, as they said; without nodes where they did not agree
    std::vector<CostThreshold> thresholds;  // of what was calibrated for its shape
    int device = 0;
    std::string agreement;  // "go", "native: why", "error: why", "inactive"
};

// Members may be set freely until the first update() or publish(), which make the communicator
// visible to the reporter; from then on the plain ones change only inside update().
struct CommStats : CommFacts, CommCounts<std::atomic<uint64_t>> {
    // One call was asked for its place. Wait-free.
    void count_place(bool sure) noexcept {
        (sure ? placed_calls : unplaced_calls).fetch_add(1, std::memory_order_relaxed);
    }

    // Runs change(*this) where the reporter does not look, then shows the communicator.
    template <class Change>
    void update(Change&& change) {
        const std::lock_guard<std::mutex> lock(mutex_);
        change(*this);
        ++version_;
    }

    // The feature's counters of a key, made where there are none. By the thread of the calls.
    template <class Stats>
    Stats& feature(CallStats* key) {
        if (Stats* const found = key->feature<Stats>()) {
            return *found;
        }
        auto made = std::make_unique<Stats>();
        Stats& stats = *made;
        update([&](CommStats&) { key->features.push_back(std::move(made)); });
        return stats;
    }

    // Thread-safe; the reference stays valid as long as this object. Fill the constant members,
    // then publish(). Only published keys are reported. `waits`: its calls are native for a while
    // only, which is no reason to report the rule before exit.
    CallStats& add_key();
    void publish(CallStats& key, bool waits = false);
    // Calls of another key are compressed by this rule, too.
    void rule_compresses(const std::string& rule);

    // A copy of the counters; for the reporter, tests and benchmarks.
    [[nodiscard]] CommRecord snapshot() const;
    // A number that changes with every counter; 0 while the communicator is not shown. Cheap.
    [[nodiscard]] uint64_t mark() const;

  private:
    friend class Reporter;
    std::shared_ptr<RuleUses> rules_;  // of the reporter; null without one
    mutable std::mutex mutex_;
    uint64_t version_ = 0;
    std::deque<CallStats> keys_;
    std::vector<const CallStats*> published_;
};

// What the report says of the process; all of it optional.
struct ProcessInfo {
    std::string version;        // of slimwire
    uint64_t config_hash = 0;   // Config::hash
    std::string policy_source;  // Policy::source
    bool active = false;        // Config::active: a summary is due even if nothing was compressed
    std::string nccl_version;   // "2.28.9"
    std::string nccl_path;
    std::string backend;            // "cuda", "emulator"
    uint64_t max_memory_bytes = 0;  // SLIMWIRE_MAX_MEMORY
    uint32_t stated_mb_s = 0;       // SLIMWIRE_BANDWIDTH; 0: not stated
};

// Writes the report file of this process. One instance, made at the first communicator. All members
// may be called from any thread; in a forked child they do nothing (add_comm gives counters that
// nobody reads).
class Reporter {
  public:
    // `pattern` may hold %h (host), %r (launcher rank, else the first communicator's rank), %p
    // (pid); empty: no file, only the summary. An unwritable path is a warning that names it, once.
    // `source` adds its records; may be null.
    Reporter(std::string pattern, bool summary, std::unique_ptr<ReportSource> source = nullptr);
    ~Reporter();
    Reporter(const Reporter&) = delete;
    Reporter& operator=(const Reporter&) = delete;

    void set_process_info(ProcessInfo info);
    // What the reporter's thread also does each time it looks, and what is done when a communicator
    // goes and at exit: writes a trace and returns its path, empty while there is none. The thread
    // then runs without a pattern, too. Before add_comm(); the first one stays.
    void set_beside(std::function<std::string()> flush);
    // Makes the thread look now.
    void wake() noexcept;
    std::shared_ptr<CommStats> add_comm();
    // For a process without communicators that we see: starts the thread, which writes the file
    // once the source has something. %r is then the launcher's rank, or "none".
    void start();
    // Writes the last records of a communicator (called when it is destroyed or aborted).
    void retire(const std::shared_ptr<CommStats>& comm);
    // Writes the file now if a counter changed since the last time.
    void flush();
    // At most five lines on stderr at process exit, from launcher rank 0, behind a warning for each
    // rule that compressed nothing; and a last flush. The second call does nothing.
    void finish();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace slimwire
