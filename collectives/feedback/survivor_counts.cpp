#include "collectives/feedback/survivor_counts.h"

#include <algorithm>
#include <utility>

#include "codecs/sparse/threshold_args.h"

namespace slimwire {
namespace {

constexpr size_t kBytes = 64 << 10;  // the runs of a larger state beyond it are not read

}  // namespace

void SurvivorCounts::begin(const DeviceApi& api,
                           CallStats* key,
                           const void* state,
                           size_t bytes,
                           size_t run_bytes,
                           cudaStream_t stream) noexcept {
    if (key_ != nullptr) {
        return;
    }
    if (copy_ == nullptr && !tolerate(api, api.host_alloc(&copy_, kBytes, 0))) {
        copy_ = nullptr;
        return;
    }
    if (end_ == nullptr &&
        !tolerate(api, api.event_create_with_flags(&end_, cudaEventDisableTiming))) {
        end_ = nullptr;
        return;
    }
    bytes_ = std::min(bytes, kBytes) / run_bytes * run_bytes;
    run_bytes_ = run_bytes;
    if (tolerate(api, api.memcpy_async(copy_, state, bytes_, cudaMemcpyDeviceToHost, stream)) &&
        tolerate(api, api.event_record(end_, stream))) {
        key_ = key;
    }
}

void SurvivorCounts::look(const DeviceApi& api) noexcept {
    if (key_ == nullptr || !tolerate(api, api.event_query(end_))) {
        return;
    }
    ThresholdTotals totals;
    for (size_t at = 0; at < bytes_; at += run_bytes_) {
        const auto* run =
            reinterpret_cast<const ThresholdRun*>(static_cast<const char*>(copy_) + at);
        totals.encodings += run->encodings;
        totals.exact += run->exact;
        totals.moved += run->moved;
        totals.survivors += run->survivors;
        totals.wanted += run->wanted;
    }
    std::exchange(key_, nullptr)->set_thresholds(totals);
}

void SurvivorCounts::release(const DeviceApi& api, bool lost) noexcept {
    if (!lost) {
        look(api);
    }
    key_ = nullptr;
    if (end_ != nullptr) {
        tolerate(api, api.event_destroy(std::exchange(end_, nullptr)));
    }
    void* const copy = std::exchange(copy_, nullptr);
    if (copy != nullptr && !lost) {
        tolerate(api, api.free_host(copy));
    }
}

}  // namespace slimwire
