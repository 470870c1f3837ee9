// Looks at the data of single calls on the device and hands over what was found without anyone
// waiting: results lie in memory that host and device share, and carry a mark when they are there.
// Used by the observing modes.
//
// Thread contract: prepare() and start() on the calling threads, without lock; collect() on one
// thread at a time, without CUDA.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "codecs/base/device.h"
#include "codecs/measure.h"
#include "collectives/call.h"

namespace slimwire {

class Samples {
  public:
    // What a result is about.
    struct About {
        uint64_t call = 0, comm = 0, tensor = 0;
        uint64_t count = 0;
        DType dtype = DType::kFloat32;
    };

    // Makes room on the current device; does nothing the second time. Not under capture.
    Status prepare(const DeviceApi& api, int device);
    // Enqueues the look at `buffer` on a stream of the device, which is the current one; true when
    // it will be collected. Without room or free place nothing happens.
    bool start(const DeviceApi& api,
               int device,
               const void* buffer,
               const About& about,
               cudaStream_t stream);
    // Gives what has come since the last time to `take`.
    void collect(const std::function<void(const About&, const Measured&)>& take);

  private:
    static constexpr int kPlaces = 32;
    static constexpr int kDevices = 64;
    enum State : uint32_t { kFree, kTaken, kRunning };
    struct Place {
        std::atomic<uint32_t> state{kFree};
        uint32_t mark = 0;
        About about;
    };
    struct OfDevice {
        std::array<Place, kPlaces> places;
        Measured* results = nullptr;   // pinned host memory, never freed
        MeasureWork* works = nullptr;  // device memory, never freed
        std::atomic<uint32_t> next{0};
    };
    std::mutex mutex_;  // of prepare()
    std::array<std::atomic<OfDevice*>, kDevices> devices_{};
    std::atomic<bool> refused_{false};
};

// As a line of the trace, with its end.
void append_sample(const Samples::About& about, const Measured& found, std::string* out);

}  // namespace slimwire
