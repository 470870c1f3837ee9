#include "collectives/samples.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <string>

#include "collectives/log.h"

namespace slimwire {

Status Samples::prepare(const DeviceApi& api, int device) {
    if (device < 0 || device >= kDevices) {
        return {Code::kUnsupported, "a device beyond those that samples are taken on"};
    }
    auto& slot = devices_[static_cast<size_t>(device)];
    const std::lock_guard lock(mutex_);
    if (slot.load(std::memory_order_relaxed) != nullptr) {
        return {};
    }
    auto made = std::make_unique<OfDevice>();
    void* results = nullptr;
    void* works = nullptr;
    SLIMWIRE_TRY(cuda_status(
        api, api.host_alloc(&results, kPlaces * sizeof(Measured), cudaHostAllocPortable),
        "room for samples"));
    Status status =
        cuda_status(api, api.malloc(&works, kPlaces * sizeof(MeasureWork)), "room for samples");
    cudaStream_t stream = nullptr;
    if (status.ok()) {
        status = cuda_status(api, api.stream_create_with_flags(&stream, cudaStreamNonBlocking),
                             "room for samples");
    }
    if (status.ok()) {
        status = cuda_status(api, api.memset_async(works, 0, kPlaces * sizeof(MeasureWork), stream),
                             "room for samples");
    }
    if (status.ok()) {
        status = cuda_status(api, api.stream_synchronize(stream), "room for samples");
    }
    if (stream != nullptr) {
        tolerate(api, api.stream_destroy(stream));
    }
    if (!status.ok()) {
        tolerate(api, api.free(works));
        tolerate(api, api.free_host(results));
        return status;
    }
    made->results = static_cast<Measured*>(results);
    std::fill_n(made->results, kPlaces, Measured{});
    made->works = static_cast<MeasureWork*>(works);
    slot.store(made.release(), std::memory_order_release);
    return {};
}

bool Samples::start(
    const DeviceApi& api, int device, const void* buffer, const About& about, cudaStream_t stream) {
    if (device < 0 || device >= kDevices || refused_.load(std::memory_order_relaxed)) {
        return false;
    }
    OfDevice* const of = devices_[static_cast<size_t>(device)].load(std::memory_order_acquire);
    if (of == nullptr) {
        return false;
    }
    const uint32_t first = of->next.fetch_add(1, std::memory_order_relaxed);
    for (uint32_t i = 0; i < kPlaces; ++i) {
        const uint32_t index = (first + i) % kPlaces;
        Place& place = of->places[index];
        uint32_t expected = kFree;
        if (!place.state.compare_exchange_strong(expected, kTaken, std::memory_order_acquire)) {
            continue;
        }
        place.about = about;
        place.mark = std::max(1u, place.mark + 1);
        MeasureArgs args{};
        args.input = buffer;
        args.work = of->works + index;
        args.result = of->results + index;
        args.count = static_cast<int64_t>(about.count);
        args.scale = 1.0f;
        args.dtype = about.dtype;
        args.mark = place.mark;
        if (const Status status = enqueue(api, args, stream); !status.ok()) {
            // The place stays taken: the first of two kernels may be running.
            refused_.store(true, std::memory_order_relaxed);
            log_once(LogLevel::kWarn, "samples",
                     "no samples of the data: " + status.message() + " (SLIMWIRE_TRACE_SAMPLE)");
            return false;
        }
        place.state.store(kRunning, std::memory_order_release);
        return true;
    }
    return false;
}

void Samples::collect(const std::function<void(const About&, const Measured&)>& take) {
    for (auto& slot : devices_) {
        OfDevice* const of = slot.load(std::memory_order_acquire);
        for (size_t i = 0; of != nullptr && i < kPlaces; ++i) {
            Place& place = of->places[i];
            if (place.state.load(std::memory_order_acquire) == kRunning &&
                std::atomic_ref(of->results[i].done).load(std::memory_order_acquire) ==
                    place.mark) {
                take(place.about, of->results[i]);
                place.state.store(kFree, std::memory_order_release);
            }
        }
    }
}

void append_sample(const Samples::About& about, const Measured& found, std::string* out) {
    char text[512];
    const double count = std::max(1.0, static_cast<double>(about.count));
    const double finite = std::max(1.0, count - static_cast<double>(found.nonfinite));
    std::snprintf(text, sizeof text,
                  "{\"v\":1,\"record\":\"sample\",\"call\":%" PRIu64 ",\"comm\":\"%016" PRIx64
                  "\",\"tensor\":\"%016" PRIx64 "\",\"count\":%" PRIu64
                  ",\"dtype\":\"%s\",\"mean_square\":%.9g,\"largest\":%.9g,\"zeros_percent\":%.6g,"
                  "\"nonfinite\":%" PRIu64 ",\"exponent_bits\":%.4f}\n",
                  about.call, about.comm, about.tensor, about.count, dtype_name(about.dtype),
                  found.square_sum / finite, static_cast<double>(found.largest),
                  100 * static_cast<double>(found.zeros) / count, found.nonfinite,
                  exponent_entropy_bits(found.exponents));
    *out += text;
}

}  // namespace slimwire
