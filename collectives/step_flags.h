// Which steps of a communicator the program skipped. Training with 16-bit gradients reduces one
// number by its maximum before each optimizer step: 0, or 1 where some rank found a gradient that
// is not finite, and then all ranks skip the step (Megatron, DeepSpeed). The result is copied to
// the host behind the program's call and looked at later; nothing waits for it, unless asked. It is
// the same number on all ranks, but known to them at different times: what decides by it must ask
// wait_for(), at a call that all ranks make.
//
// Part of a CommState, and like it used by one thread at a time; end() may meet another that is
// still in a call (an abort).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/call.h"
#include "collectives/stats.h"

namespace slimwire {

enum class StepFlag : uint8_t {
    kUnknown,  // not read: captured, its call failed, too many at once, or not there yet
    kClear,
    kSet,    // the program skips the step
    kOther,  // no flag: another number than 0 and 1
};

class StepFlags {
  public:
    static constexpr size_t kMostUnread = 8;
    static constexpr size_t kRemembered = 64;

    // Whether a call's result may be such a flag: an all-reduce of one number by its maximum.
    [[nodiscard]] static bool may_be(const CallFacts& facts) noexcept;

    // Such a call is handed to NCCL on `device`: the next number, from 1. Looks at what came in.
    void made(const DeviceApi& api, int device, const CollectiveCall& call, CommStats* stats);
    // The calls made are launched, or, with dropped(), never were.
    void launched(const DeviceApi& api, int device) noexcept;
    void dropped() noexcept;
    // Of the thread that makes the calls.
    [[nodiscard]] bool waits_for_launch() const noexcept { return !pending_.empty(); }

    // Flags made so far; their numbers are equal on all ranks.
    [[nodiscard]] uint64_t count() const noexcept { return count_; }
    // Of one of the last kRemembered, as far as it is known now.
    [[nodiscard]] StepFlag of(uint64_t number) const noexcept;
    // Waits for it on the host, at most for the call itself and what the program put before it.
    StepFlag wait_for(const DeviceApi& api, uint64_t number, CommStats* stats);

    // From now on results are on the device, too, where they are known as early as the program
    // knows them.
    void keep_on_device() noexcept { keeps_ = true; }
    // The word of flag `number` and what it is where the flag is set; nullptr where it is not one
    // of the last kRemembered, or was not copied.
    struct OnDevice {
        const uint32_t* word = nullptr;
        uint32_t set = 0;
    };
    [[nodiscard]] OnDevice on_device(uint64_t number) noexcept;
    // Work on `stream` from here on comes after all copies so far.
    Status order_behind(const DeviceApi& api, cudaStream_t stream) noexcept;

    // Frees what it has. `wait`: reads what is on its way first; else (abort) what may still be
    // written stays, which is a few bytes.
    void end(const DeviceApi& api, int device, bool wait, CommStats* stats) noexcept;

  private:
    struct Slot {
        uint64_t number = 0;  // 0: free
        DType dtype = DType::kFloat32;
        cudaEvent_t ready = nullptr;
    };
    struct Pending {
        uint64_t number = 0;
        DType dtype = DType::kFloat32;
        const void* source = nullptr;
        cudaStream_t stream = nullptr;
    };
    void read(const DeviceApi& api, Slot* slot, bool wait, CommStats* stats) noexcept;
    void read_ready(const DeviceApi& api, CommStats* stats) noexcept;

    std::mutex mutex_;  // of all but what only the thread of the calls asks
    bool ended_ = false;
    std::vector<Pending> pending_;
    std::array<Slot, kMostUnread> slots_{};
    uint64_t* values_ = nullptr;  // pinned, one for each slot
    std::array<StepFlag, kRemembered> known_{};
    struct Kept {
        uint64_t number = 0;
        uint32_t set = 0;
    };
    void copy_on_device(const DeviceApi& api, const Pending& flag) noexcept;
    bool keeps_ = false;
    uint32_t* words_ = nullptr;  // on the device, one for each of kept_
    cudaEvent_t copied_ = nullptr;
    std::array<Kept, kRemembered> kept_{};
    uint64_t count_ = 0;
};

}  // namespace slimwire
