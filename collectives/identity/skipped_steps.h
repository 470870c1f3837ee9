// Counts the steps of a communicator that the program skipped, for the report. Training with 16-bit
// gradients reduces one number by its maximum before each optimizer step: 0, or 1 where some rank
// found a gradient that is not finite, and then all ranks skip the step (Megatron, DeepSpeed). The
// result is copied to the host behind the program's call and read at the next such call; nothing
// waits for it.
//
// Kept for one communicator, and like it used by one thread at a time; end() may meet another that
// is still in a call (an abort).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/call/call.h"
#include "collectives/communicator/device_memory.h"
#include "collectives/observe/stats.h"

namespace slimwire {

class SkippedSteps {
  public:
    static constexpr size_t kMostUnread = 8;  // results beyond these are not counted
    static constexpr size_t kBytes = kMostUnread * sizeof(uint64_t);

    // Reads by `values`, at least kBytes, which go back at the end; nothing where there are none.
    explicit SkippedSteps(const Pinned& values) noexcept : values_(values) {}

    // An all-reduce of one number by its maximum.
    [[nodiscard]] static bool may_tell(const CallSignature& signature) noexcept;

    // Such a call is handed to NCCL on `device`. Counts the results that have come in.
    void made(const DeviceApi& api, int device, const CollectiveCall& call, CommStats* stats);
    // The calls made are launched, or, with dropped(), never were.
    void launched(const DeviceApi& api, int device) noexcept;
    void dropped() noexcept;
    // Called by the thread that makes the calls.
    [[nodiscard]] bool waits_for_launch() const noexcept { return !pending_.empty(); }

    // Counts what has come in and gives back what it has. In an abort another thread may be in a
    // call, and then all stays.
    void end(const DeviceApi& api,
             int device,
             bool abort,
             DeviceMemory* memory,
             CommStats* stats) noexcept;

  private:
    struct Slot {
        bool taken = false;
        DType dtype = DType::kFloat32;
        cudaEvent_t ready = nullptr;
    };
    struct Pending {
        DType dtype = DType::kFloat32;
        const void* source = nullptr;
        cudaStream_t stream = nullptr;
    };
    void read(const DeviceApi& api, Slot* slot, CommStats* stats) noexcept;

    std::mutex mutex_;  // guards all but what only the thread of the calls asks
    bool ended_ = false;
    std::vector<Pending> pending_;
    std::array<Slot, kMostUnread> slots_{};
    Pinned values_;  // one for each slot
};

}  // namespace slimwire
