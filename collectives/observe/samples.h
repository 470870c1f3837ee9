// Looks at the data of single calls on the device and hands over what was found without anyone
// waiting: results lie in memory that host and device share, and carry a mark when they are there.
// What is looked at together (one buffer, or the parts of a call that are encoded one by one) is a
// batch, and comes as one. Used by the observing modes.
//
// Thread contract: prepare(), begin(), add() and commit() on the calling threads, without lock
// after the first; collect() on one thread at a time, without CUDA.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>

#include "codecs/base/device.h"
#include "codecs/ops/measure.h"
#include "collectives/call/call.h"

namespace slimwire {

class Samples {
  private:
    static constexpr int kPlaces = 32;

  public:
    static constexpr uint64_t kWorkBytes = kPlaces * sizeof(MeasureWork);
    // What a batch is about.
    struct About {
        uint64_t call = 0, comm = 0, tensor = 0;
        DType dtype = DType::kFloat32;
        uint64_t count = 0;  // elements that were looked at
    };
    // A batch that is being enqueued; empty where there was no room.
    class Batch;

    // `parts`: the most of a batch. `what` names them in the log.
    Samples(int parts, const char* what) noexcept : parts_(parts), what_(what) {}

    // Makes room on the current device, with kWorkBytes of its memory at `works`, which stay in
    // use. False, and they are the caller's, where there was room already. Not under capture.
    Result<bool> prepare(const DeviceApi& api, int device, void* works);
    [[nodiscard]] const char* what() const noexcept { return what_; }
    // A batch on a stream of the device, which is the current one.
    Batch begin(int device, const About& about);
    // Enqueues the look at one more part; work, result and mark of `args` are filled in. False when
    // it is not looked at; after a failure nothing ever is.
    bool add(const DeviceApi& api, Batch* batch, MeasureArgs args, cudaStream_t stream);
    // From here on the batch is collected once all its parts are there.
    static void commit(Batch* batch);
    // Gives what has come since the last time to `take`.
    using Take = std::function<void(const About&, std::span<const Measured>)>;
    void collect(const Take& take);

  private:
    static constexpr int kDevices = 64;
    enum State : uint32_t { kFree, kTaken, kRunning };
    struct Place {
        std::atomic<uint32_t> state{kFree};
        uint32_t mark = 0;
        uint32_t parts = 0;
        About about;
    };
    struct OfDevice {
        std::array<Place, kPlaces> places;
        Measured* results = nullptr;   // of each place; pinned host memory, never freed
        MeasureWork* works = nullptr;  // one a place; device memory, never freed
        std::atomic<uint32_t> next{0};
    };

    const int parts_;
    const char* const what_;
    std::mutex mutex_;  // of prepare()
    std::array<std::atomic<OfDevice*>, kDevices> devices_{};
    std::atomic<bool> refused_{false};
};

class Samples::Batch {
  public:
    [[nodiscard]] bool empty() const noexcept { return place_ == nullptr; }

  private:
    friend class Samples;
    Place* place_ = nullptr;
    Measured* results_ = nullptr;
    MeasureWork* work_ = nullptr;
};

// Whether kernels may read the buffer; what a program passes by mistake must stay its mistake.
[[nodiscard]] bool on_device(const DeviceApi& api, const void* buffer) noexcept;

// As a line of the trace, with its end: of one buffer, and how far the decoded parts of a call are
// from what it gave.
void append_sample(const Samples::About& about, const Measured& found, std::string* out);
void append_rehearsal(const Samples::About& about,
                      std::span<const Measured> parts,
                      std::string* out);

}  // namespace slimwire
