// The operations that streams execute: copies, fills, host functions, event records and waits,
// launches. All immutable; see stream.h.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tools/emulator/cudart/machine/event.h"
#include "tools/emulator/cudart/machine/memory.h"
#include "tools/emulator/cudart/machine/stream.h"

namespace slimwire::emulator {

// Addresses are the emulator's (aliases).
class CopyOperation final : public Operation {
  public:
    CopyOperation(void* dst, const void* src, size_t bytes) : dst_(dst), src_(src), bytes_(bytes) {}
    // A copy whose source was taken at the call, as the CUDA Runtime does for pageable host memory.
    CopyOperation(void* dst, std::vector<unsigned char> staged)
        : staged_(std::move(staged)), dst_(dst), src_(staged_.data()), bytes_(staged_.size()) {}

    // memmove: a copy onto itself is legal for the CUDA Runtime.
    void execute() const override { std::memmove(dst_, src_, bytes_); }
    [[nodiscard]] const char* name() const override { return "cudaMemcpy"; }

  private:
    const std::vector<unsigned char> staged_;
    void* dst_;
    const void* src_;
    size_t bytes_;
};

class FillOperation final : public Operation {
  public:
    FillOperation(void* dst, int value, size_t bytes) : dst_(dst), value_(value), bytes_(bytes) {}
    void execute() const override { std::memset(dst_, value_, bytes_); }
    [[nodiscard]] const char* name() const override { return "cudaMemset"; }

  private:
    void* dst_;
    int value_;
    size_t bytes_;
};

class PoisonOperation final : public Operation {
  public:
    PoisonOperation(const DeviceMemory& memory, const void* fresh, size_t bytes)
        : memory_(memory), fresh_(fresh), bytes_(bytes) {}
    void execute() const override { memory_.poison(fresh_, bytes_); }
    [[nodiscard]] const char* name() const override { return "cudaMallocAsync"; }

  private:
    const DeviceMemory& memory_;
    const void* fresh_;
    size_t bytes_;
};

// CUDA may run the host functions of all streams one after the other, and does so if strict.
class HostTurn {
  public:
    explicit HostTurn(bool strict) {
        static std::mutex mutex;
        lock_ = strict ? std::unique_lock(mutex) : std::unique_lock<std::mutex>();
    }

  private:
    std::unique_lock<std::mutex> lock_;
};

class HostFunctionOperation final : public Operation {
  public:
    HostFunctionOperation(cudaHostFn_t function, void* user_data, bool strict)
        : function_(function), user_data_(user_data), strict_(strict) {}
    void execute() const override {
        const HostTurn turn(strict_);
        function_(user_data_);
    }
    [[nodiscard]] const char* name() const override { return "a host function"; }
    [[nodiscard]] bool holds_queue() const override { return true; }

  private:
    cudaHostFn_t function_;
    void* user_data_;
    bool strict_;
};

class RecordOperation final : public Operation {
  public:
    explicit RecordOperation(std::shared_ptr<Recording> recording)
        : recording_(std::move(recording)) {}
    void execute() const override { recording_->complete(); }
    [[nodiscard]] const char* name() const override { return "cudaEventRecord"; }
    [[nodiscard]] bool survives_poison() const override { return true; }

  private:
    std::shared_ptr<Recording> recording_;
};

class WaitOperation final : public Operation {
  public:
    explicit WaitOperation(std::shared_ptr<Recording> recording)
        : recording_(std::move(recording)) {}
    void execute() const override { recording_->wait(); }
    [[nodiscard]] const char* name() const override { return "cudaStreamWaitEvent"; }
    [[nodiscard]] bool holds_queue() const override { return true; }
    [[nodiscard]] bool survives_poison() const override { return true; }

  private:
    std::shared_ptr<Recording> recording_;
};

// Gives a block of device memory back when the stream gets there.
class ReleaseOperation final : public Operation {
  public:
    ReleaseOperation(DeviceMemory& memory, void* pointer) : memory_(memory), pointer_(pointer) {}
    void execute() const override { memory_.release(pointer_); }
    [[nodiscard]] const char* name() const override { return "cudaFreeAsync"; }
    [[nodiscard]] bool survives_poison() const override { return true; }

  private:
    DeviceMemory& memory_;
    void* pointer_;
};

}  // namespace slimwire::emulator
