#include "collectives/observe/samples.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <string>

#include "codecs/base/number_text.h"
#include "codecs/base/own_stream.h"
#include "collectives/call/log.h"

namespace slimwire {

Result<bool> Samples::prepare(const DeviceApi& api, int device, void* works) {
    constexpr const char* kWhat = "room for samples";
    if (device < 0 || device >= kDevices) {
        return Status(Code::kUnsupported, "a device beyond those that samples are taken on");
    }
    auto& slot = devices_[static_cast<size_t>(device)];
    const std::lock_guard lock(mutex_);
    if (slot.load(std::memory_order_relaxed) != nullptr) {
        return false;
    }
    auto made = std::make_unique<OfDevice>();
    void* results = nullptr;
    const size_t in_all = size_t{kPlaces} * static_cast<size_t>(parts_);
    SLIMWIRE_TRY(cuda_status(
        api, api.host_alloc(&results, in_all * sizeof(Measured), cudaHostAllocPortable), kWhat));
    Status status = on_own_stream(api, kWhat, [&](cudaStream_t own) {
        return cuda_status(api, api.memset_async(works, 0, kWorkBytes, own), kWhat);
    });
    if (!status.ok()) {
        tolerate(api, api.free_host(results));
        return status;
    }
    made->results = static_cast<Measured*>(results);
    std::fill_n(made->results, in_all, Measured{});
    made->works = static_cast<MeasureWork*>(works);
    slot.store(made.release(), std::memory_order_release);
    return true;
}

Samples::Batch Samples::begin(int device, const About& about) {
    Batch batch;
    if (device < 0 || device >= kDevices || refused_.load(std::memory_order_relaxed)) {
        return batch;
    }
    OfDevice* const of = devices_[static_cast<size_t>(device)].load(std::memory_order_acquire);
    if (of == nullptr) {
        return batch;
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
        place.about.count = 0;
        place.parts = 0;
        place.mark = std::max(1u, place.mark + 1);
        batch.place_ = &place;
        batch.results_ = of->results + static_cast<size_t>(index) * static_cast<size_t>(parts_);
        batch.work_ = of->works + index;
        return batch;
    }
    return batch;
}

bool Samples::add(const DeviceApi& api, Batch* batch, MeasureArgs args, cudaStream_t stream) {
    if (batch->empty() || batch->place_->parts >= static_cast<uint32_t>(parts_)) {
        return false;
    }
    Place& place = *batch->place_;
    args.work = batch->work_;
    args.result = batch->results_ + place.parts;
    args.mark = place.mark;
    if (const Status status = enqueue(api, args, stream); !status.ok()) {
        // The place stays taken: the first of two kernels may be running.
        batch->place_ = nullptr;
        refused_.store(true, std::memory_order_relaxed);
        log_once(
            LogLevel::kWarn, what_,
            std::string("no ") + what_ + ": " + status.message() + " (trace_sample of the policy)");
        return false;
    }
    ++place.parts;
    place.about.count += static_cast<uint64_t>(args.count);
    return true;
}

void Samples::commit(Batch* batch) {
    if (!batch->empty()) {
        Place& place = *batch->place_;
        place.state.store(place.parts > 0 ? kRunning : kFree, std::memory_order_release);
        batch->place_ = nullptr;
    }
}

void Samples::collect(const Take& take) {
    for (auto& slot : devices_) {
        OfDevice* const of = slot.load(std::memory_order_acquire);
        for (size_t i = 0; of != nullptr && i < kPlaces; ++i) {
            Place& place = of->places[i];
            if (place.state.load(std::memory_order_acquire) != kRunning) {
                continue;
            }
            Measured* const first = of->results + i * static_cast<size_t>(parts_);
            const std::span<Measured> found(first, place.parts);
            if (std::all_of(found.begin(), found.end(), [&](Measured& one) {
                    return std::atomic_ref(one.done).load(std::memory_order_acquire) == place.mark;
                })) {
                take(place.about, found);
                place.state.store(kFree, std::memory_order_release);
            }
        }
    }
}

bool on_device(const DeviceApi& api, const void* buffer) noexcept {
    cudaPointerAttributes attributes{};
    return buffer != nullptr && tolerate(api, api.pointer_get_attributes(&attributes, buffer)) &&
           (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged);
}

void append_sample(const Samples::About& about, const Measured& found, std::string* out) {
    char text[512];
    const double count = std::max(1.0, static_cast<double>(about.count));
    const double finite = std::max(1.0, count - static_cast<double>(found.nonfinite));
    std::snprintf(text, sizeof text,
                  "{\"v\":1,\"record\":\"sample\",\"call\":%" PRIu64 ",\"comm\":\"%016" PRIx64
                  "\",\"tensor\":\"%016" PRIx64 "\",\"count\":%" PRIu64
                  ",\"dtype\":\"%s\",\"mean_square\":%s,\"largest\":%s,\"zeros_percent\":%s,"
                  "\"nonfinite\":%" PRIu64 ",\"exponent_bits\":%s}\n",
                  about.call, about.comm, about.tensor, about.count, dtype_name(about.dtype),
                  general_text(found.square_sum / finite, 9).c_str(),
                  general_text(static_cast<double>(found.largest), 9).c_str(),
                  general_text(100 * static_cast<double>(found.zeros) / count, 6).c_str(),
                  found.nonfinite, fixed_text(exponent_entropy_bits(found.exponents), 4).c_str());
    *out += text;
}

void append_rehearsal(const Samples::About& about,
                      std::span<const Measured> parts,
                      std::string* out) {
    double squares = 0, errors = 0;
    uint64_t nonfinite = 0;
    for (const Measured& part : parts) {
        squares += part.square_sum;
        errors += part.error_square_sum;
        nonfinite += part.nonfinite;
    }
    char text[320];
    std::snprintf(text, sizeof text,
                  "{\"v\":1,\"record\":\"rehearsal\",\"call\":%" PRIu64 ",\"comm\":\"%016" PRIx64
                  "\",\"tensor\":\"%016" PRIx64 "\",\"count\":%" PRIu64
                  ",\"rel_error\":%s,\"nonfinite\":%" PRIu64 "}\n",
                  about.call, about.comm, about.tensor, about.count,
                  general_text(squares > 0 ? std::sqrt(errors / squares) : 0.0, 12).c_str(),
                  nonfinite);
    *out += text;
}

}  // namespace slimwire
