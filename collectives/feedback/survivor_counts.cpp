// What a tensor's thresholds (codecs/sparse/threshold_control.h) have come to, for the report: now
// and then a copy of their state travels to the host behind a call, and a later call adds it up.
// Nobody waits for it.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "codecs/sparse/threshold_control.h"
#include "collectives/feedback/call_hook.h"

namespace slimwire {
namespace {

constexpr size_t kBytes = 64 << 10;  // the runs of a larger state beyond it are not read

// Over all encodings of the key's tensor that was looked at last.
class SurvivorStats final : public FeatureStats {
  public:
    std::atomic<uint64_t> encodings{0}, exact{0};  // of runs
    std::atomic<uint64_t> moved{0};                // thresholds, by a sample
    std::atomic<uint64_t> survivors{0}, wanted{0};

    void report(ReportFields* fields) const override {
        if (encodings > 0) {
            fields->push_back({"aims", ReportFields{{"encodings", encodings.load()},
                                                    {"exact", exact.load()},
                                                    {"moved", moved.load()},
                                                    {"survivors", survivors.load()},
                                                    {"wanted", wanted.load()}}});
        }
    }
    [[nodiscard]] uint64_t mark() const noexcept override { return encodings.load(); }
};

class SurvivorCounts final : public CallHook {
  public:
    void add_stats(const Plan& plan, const Communicator&, CallStats* stats) override {
        if (plan.residual.has_thresholds) {
            stats->features.push_back(std::make_unique<SurvivorStats>());
        }
    }
    void before(const CallRun& run) noexcept override { look(run.api); }
    // Enqueues a copy of the state, unless one is under way. What fails is not read.
    void after(const CallRun& run) noexcept override;
    void made(const DeviceApi& api, Communicator* communicator) override {
        copy_ = communicator->device_memory->pin(api, kBytes);
    }
    void release(const DeviceApi& api, Communicator*, Retirement* left) noexcept override;

  private:
    // Adds up what has arrived.
    void look(const DeviceApi& api) noexcept;

    Pinned copy_;
    cudaEvent_t end_ = nullptr;
    CallStats* key_ = nullptr;  // null: none is under way
    size_t bytes_ = 0, run_bytes_ = 0;
};

void SurvivorCounts::after(const CallRun& run) noexcept {
    const DeviceApi& api = run.api;
    const Plan& plan = run.plan;
    if (!run.timed || !plan.residual.has_thresholds || run.residual.buffer == nullptr ||
        key_ != nullptr || copy_.memory == nullptr) {
        return;
    }
    if (end_ == nullptr &&
        !tolerate(api, api.event_create_with_flags(&end_, cudaEventDisableTiming))) {
        end_ = nullptr;
        return;
    }
    const auto* const state =
        static_cast<const char*>(run.residual.buffer) + plan.residual.thresholds_offset;
    run_bytes_ = static_cast<size_t>(plan.layout.threshold_bytes);
    bytes_ = std::min<size_t>(plan.residual.bytes - plan.residual.thresholds_offset, kBytes) /
             run_bytes_ * run_bytes_;
    if (tolerate(api,
                 api.memcpy_async(copy_.memory, state, bytes_, cudaMemcpyDeviceToHost, run.work)) &&
        tolerate(api, api.event_record(end_, run.work))) {
        key_ = run.stats;
    }
}

void SurvivorCounts::look(const DeviceApi& api) noexcept {
    if (key_ == nullptr || !tolerate(api, api.event_query(end_))) {
        return;
    }
    auto* const stats = std::exchange(key_, nullptr)->feature<SurvivorStats>();
    if (stats == nullptr) {
        return;
    }
    uint64_t encodings = 0, exact = 0, moved = 0, survivors = 0, wanted = 0;
    for (size_t at = 0; at < bytes_; at += run_bytes_) {
        const auto* run = reinterpret_cast<const ThresholdRun*>(copy_.as<const char>() + at);
        encodings += run->encodings;
        exact += run->exact;
        moved += run->moved;
        survivors += run->survivors;
        wanted += run->wanted;
    }
    stats->exact = exact;
    stats->moved = moved;
    stats->survivors = survivors;
    stats->wanted = wanted;
    stats->encodings = encodings;
}

void SurvivorCounts::release(const DeviceApi& api, Communicator*, Retirement* left) noexcept {
    look(api);
    key_ = nullptr;
    if (end_ != nullptr) {
        tolerate(api, api.event_destroy(std::exchange(end_, nullptr)));
    }
    left->add(std::exchange(copy_, {}));
}

std::unique_ptr<CallHook> make_survivor_counts(const Policy& policy) {
    const bool any = std::any_of(policy.rules.begin(), policy.rules.end(), [](const Rule& rule) {
        const std::optional<CodecSpec>& codec = rule.action.codec;
        return codec.has_value() && codec->traits(DType::kFloat32).adapts_threshold;
    });
    return any ? std::make_unique<SurvivorCounts>() : nullptr;
}

}  // namespace

const HookKind kSurvivorCountsHook{nullptr, nullptr, false, make_survivor_counts};

}  // namespace slimwire
