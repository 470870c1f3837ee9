// Two engines with a GPU over one memory network, and messages in host or device memory between
// them, for tests of the engine. Device memory is the emulator's; in its strict mode a host access
// to it traps.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "plugin/net/gpu/gpu.h"
#include "tests/plugin/net/exchange.h"
#include "tests/plugin/net/gpu_spy.h"

namespace slimwire::net {

// Memory of either kind, with a guard around what is used.
class Place {
  public:
    static constexpr size_t kGuard = 256;
    static constexpr uint8_t kPoison = 0xC3;

    // `offset` shifts the begin from a multiple of 256.
    Place(bool on_gpu, size_t bytes, size_t offset = 0)
        : on_gpu_(on_gpu), bytes_(bytes), begin_(kGuard + offset) {
        const std::vector<uint8_t> poison(whole(), kPoison);
        if (on_gpu_) {
            void* made = nullptr;
            EXPECT_EQ(cudaMalloc(&made, whole()), cudaSuccess);
            memory_ = static_cast<uint8_t*>(made);
            EXPECT_EQ(cudaMemcpy(memory_, poison.data(), whole(), cudaMemcpyHostToDevice),
                      cudaSuccess);
        } else {
            host_ = poison;
            memory_ = host_.data();
        }
    }
    ~Place() {
        if (on_gpu_) {
            EXPECT_EQ(cudaFree(memory_), cudaSuccess);
        }
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    [[nodiscard]] bool on_gpu() const { return on_gpu_; }
    [[nodiscard]] MemoryKind kind() const {
        return on_gpu_ ? MemoryKind::kCuda : MemoryKind::kHost;
    }
    [[nodiscard]] uint8_t* data() const { return memory_ + begin_; }
    [[nodiscard]] size_t bytes() const { return bytes_; }
    void write(const std::vector<uint8_t>& from) {
        if (!from.empty()) {
            ASSERT_EQ(cudaMemcpy(data(), from.data(), from.size(), cudaMemcpyDefault), cudaSuccess);
        }
    }
    // All of it, guards included.
    [[nodiscard]] std::vector<uint8_t> read() const {
        std::vector<uint8_t> out(whole());
        EXPECT_EQ(cudaMemcpy(out.data(), memory_, whole(), cudaMemcpyDefault), cudaSuccess);
        return out;
    }
    // Holds exactly `expected` and the poison around and behind it.
    void check(const std::vector<uint8_t>& expected, const std::string& what) const {
        check_framed(read(), begin_, expected, kPoison, what);
    }

  private:
    [[nodiscard]] size_t whole() const { return begin_ + bytes_ + kGuard; }

    const bool on_gpu_;
    const size_t bytes_, begin_;
    std::vector<uint8_t> host_;
    uint8_t* memory_ = nullptr;
};

struct GpuPair : EnginePair {
    EngineSettings settings;

    Status open(const EngineSettings& with, const MemoryWireOptions& options) {
        settings = with;
        settings.gpu = true;
        SLIMWIRE_TRY_ASSIGN(std::unique_ptr<Gpu> first, Gpu::open(GpuSpy::get().api(), settings));
        SLIMWIRE_TRY_ASSIGN(std::unique_ptr<Gpu> second, Gpu::open(GpuSpy::get().api(), settings));
        return EnginePair::open(settings, options, std::move(first), std::move(second));
    }
};

// A message between two places.
struct GpuMessage : AnyMessage {
    std::unique_ptr<Place> from, to;

    GpuMessage(std::vector<uint8_t> bytes,
               bool from_gpu,
               bool to_gpu,
               size_t more = 0,
               size_t from_offset = 0,
               size_t to_offset = 0) {
        data = std::move(bytes);
        capacity = data.size() + more;
        from = std::make_unique<Place>(from_gpu, data.size(), from_offset);
        to = std::make_unique<Place>(to_gpu, capacity, to_offset);
        from->write(data);
    }
    [[nodiscard]] uint8_t* source() { return from->data(); }
    [[nodiscard]] uint8_t* target() { return to->data(); }
    Status register_both(EnginePair& pair) {
        SLIMWIRE_TRY(
            pair.sender->register_memory(from->data(), from->bytes(), from->kind(), &from_memory));
        return pair.receiver->register_memory(to->data(), to->bytes(), to->kind(), &to_memory);
    }
    Status deregister_both(EnginePair& pair) {
        SLIMWIRE_TRY(pair.sender->deregister_memory(from_memory));
        return pair.receiver->deregister_memory(to_memory);
    }
    void check(const std::string& what) const {
        ASSERT_EQ(size, data.size()) << what;
        to->check(data, what);
        from->check(data, what + " at its sender");
    }
};

}  // namespace slimwire::net
