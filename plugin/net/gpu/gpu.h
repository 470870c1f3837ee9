// The process's use of its GPUs by the net plugin: which connections have a lane (gpu_lane.h), the
// lanes that wait for the next connection, and how many thread blocks run at the moment.
//
// Lanes are kept when their connection is closed and never freed: cudaFree, cudaFreeHost and the
// like wait for everything that runs on the device, NCCL's spinning kernels included.
//
// Thread contract: everything from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "plugin/net/settings.h"

namespace slimwire::net {

class GpuLane;

class Gpu {
  public:
    // Looks for a GPU, loads the kernels on the thread's current device and makes a first lane
    // there, to see that pinned memory is to be had. kUnsupported where GPU memory cannot be
    // served.
    static Result<std::unique_ptr<Gpu>> open(const DeviceApi& api, const EngineSettings& settings);
    ~Gpu();
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    // Whether devices should still be announced as taking GPU memory: not once a lane could not be
    // made.
    [[nodiscard]] bool announced() const noexcept { return announced_.load(); }

    // A lane on the device where `data` lies; a kept one, else a new one, which allocates. Called
    // when memory is registered, before NCCL's kernels wait for the connection.
    Result<std::unique_ptr<GpuLane>> lane_at(const void* data);
    // The device where `data` lies; kInvalidArgument where it is no memory of a GPU.
    [[nodiscard]] Result<int> device_of(const void* data) const;
    // Takes back a lane that nobody uses any more. One that still works, or has failed, is left
    // alone for ever.
    void give_back(std::unique_ptr<GpuLane> lane) noexcept;

    // Thread blocks for a launch on `device` that could use `most`: what other launches leave of
    // SLIMWIRE_NET_SMS, at least 1, so that a connection nobody asks about stops no other.
    [[nodiscard]] int take_blocks(int device, int most) noexcept;
    void give_blocks(int device, int blocks) noexcept;

    [[nodiscard]] const DeviceApi& api() const noexcept { return api_; }
    [[nodiscard]] const EngineSettings& settings() const noexcept { return settings_; }

  private:
    static constexpr size_t kMostDevices = 64;

    Gpu(const DeviceApi& api, const EngineSettings& settings);
    Result<std::unique_ptr<GpuLane>> make_lane(int device);

    const DeviceApi api_;
    const EngineSettings settings_;
    std::atomic<bool> announced_{true};
    std::array<std::atomic<int>, kMostDevices> blocks_{};
    std::mutex mutex_;
    std::vector<std::unique_ptr<GpuLane>> kept_;
    std::vector<std::unique_ptr<GpuLane>> left_alone_;
};

}  // namespace slimwire::net
