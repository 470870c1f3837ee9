// Copies between a device and ordinary memory of the host that no thread waits for, as CUDA's own
// of such memory may: piece by piece through pinned memory, by functions that run on the host in
// the order of the stream.
//
// One thread at a time. Copies of one object run one after the other, whatever their streams are.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/communicator/device_memory.h"

namespace slimwire {

// What a copy brings to the host.
struct HostValue {
    explicit HostValue(size_t count) : bytes(count) {}
    std::vector<std::byte> bytes;
    std::atomic<bool> there{false};  // read it with acquire order
};

class HostCopies {
  public:
    static constexpr size_t kPieceBytes = 16 << 10;

    // On the current device, at a creation; else with `may_wait` false. False, and copies are
    // CUDA's own, where there is no such memory.
    bool prepare(const DeviceApi& api, DeviceMemory* memory, bool may_wait = true) noexcept;
    // Gives back what it has, which copies on their way may use.
    void release(const DeviceApi& api, Retirement* left) noexcept;

    // Enqueue on `stream`, which is not captured. All of `value` is filled; `from` is kept until it
    // is read.
    Status to_host(const DeviceApi& api,
                   const void* from,
                   const std::shared_ptr<HostValue>& value,
                   cudaStream_t stream) const;
    Status to_device(const DeviceApi& api,
                     void* to,
                     const std::shared_ptr<const std::byte[]>& from,
                     size_t bytes,
                     cudaStream_t stream) const;
    // As cudaEventQuery behind the copies so far.
    [[nodiscard]] cudaError_t query(const DeviceApi& api) const noexcept;

  private:
    struct Piece;
    static void run(void* piece) noexcept;
    static Status enqueue(const DeviceApi& api, std::unique_ptr<Piece> piece, cudaStream_t stream);
    // copy(at, count) of each piece, behind the last copy.
    template <class Copy>
    Status in_pieces(const DeviceApi& api,
                     size_t bytes,
                     cudaStream_t stream,
                     const Copy& copy) const;

    Pinned pinned_;              // kPieceBytes
    cudaEvent_t end_ = nullptr;  // of the last copy
};

}  // namespace slimwire
