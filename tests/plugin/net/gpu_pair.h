// Two engines with a GPU over one memory network, and messages in host or device memory between
// them, for tests of the engine. Device memory is the emulator's; in its strict mode a host access
// to it traps.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "plugin/net/gpu/gpu.h"
#include "tests/plugin/net/engine_pair.h"
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
        const std::vector<uint8_t> all = read();
        for (size_t i = 0; i < all.size(); ++i) {
            const bool inside = i >= begin_ && i - begin_ < expected.size();
            ASSERT_EQ(all[i], inside ? expected[i - begin_] : kPoison)
                << what << ", byte " << static_cast<int64_t>(i) - static_cast<int64_t>(begin_);
        }
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
        network = MemoryNetwork::make(options);
        SLIMWIRE_TRY_ASSIGN(std::unique_ptr<Gpu> first, Gpu::open(GpuSpy::get().api(), settings));
        SLIMWIRE_TRY_ASSIGN(std::unique_ptr<Gpu> second, Gpu::open(GpuSpy::get().api(), settings));
        sending_engine = make_engine(network->wire(), settings, &sent, std::move(first));
        receiving_engine = make_engine(network->wire(), settings, &received, std::move(second));
        SLIMWIRE_TRY(sending_engine->open(1, -1, profiler, &sending_context));
        SLIMWIRE_TRY(receiving_engine->open(1, -1, nullptr, &receiving_context));
        SLIMWIRE_TRY(receiving_context->listen(0, handle, &listener));
        return connect(&sender, &receiver);
    }
};

// A message between two places.
struct GpuMessage {
    std::vector<uint8_t> data;
    std::unique_ptr<Place> from, to;
    int tag = 5;
    bool write_once = false;
    Memory* from_memory = nullptr;
    Memory* to_memory = nullptr;
    Request* send = nullptr;
    Request* receive = nullptr;
    bool sent = false, received = false;
    size_t size = 0;

    GpuMessage(std::vector<uint8_t> bytes,
               bool from_gpu,
               bool to_gpu,
               size_t more = 0,
               size_t from_offset = 0,
               size_t to_offset = 0)
        : data(std::move(bytes)),
          from(std::make_unique<Place>(from_gpu, data.size(), from_offset)),
          to(std::make_unique<Place>(to_gpu, data.size() + more, to_offset)) {
        from->write(data);
    }
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

// Sends and receives all, registered before, at most `depth` at a time on either side, and asks
// about the newest first.
inline Status exchange(EnginePair& pair, std::vector<GpuMessage>& messages, size_t depth) {
    size_t sent = 0, received = 0, sends_done = 0, receives_done = 0;
    Status failure;
    const auto bad = [&](Status status) {
        if (failure.ok() && !status.ok()) {
            failure = std::move(status);
        }
        return !failure.ok();
    };
    const bool in_time = poll_until([&] {
        if (sent < messages.size() && sent - sends_done < depth) {
            GpuMessage& m = messages[sent];
            if (bad(pair.sender->send(m.from->data(), m.data.size(), m.tag, m.from_memory,
                                      pair.phandle, &m.send))) {
                return true;
            }
            sent += m.send != nullptr ? 1 : 0;
        }
        if (received < messages.size() && received - receives_done < depth) {
            GpuMessage& m = messages[received];
            void* target = m.to->data();
            const size_t capacity = m.to->bytes();
            if (bad(pair.receiver->receive(1, &target, &capacity, &m.tag, &m.to_memory,
                                           m.write_once, &m.receive))) {
                return true;
            }
            received += m.receive != nullptr ? 1 : 0;
        }
        for (size_t i = sent; i-- > 0;) {
            GpuMessage& m = messages[i];
            if (!m.sent && m.send != nullptr) {
                if (bad(pair.sender->test(m.send, &m.sent, nullptr))) {
                    return true;
                }
                sends_done += m.sent ? 1 : 0;
            }
        }
        for (size_t i = received; i-- > 0;) {
            GpuMessage& m = messages[i];
            if (!m.received && m.receive != nullptr) {
                if (bad(pair.receiver->test(m.receive, &m.received, &m.size))) {
                    return true;
                }
                receives_done += m.received ? 1 : 0;
            }
        }
        return sends_done == messages.size() && receives_done == messages.size();
    });
    EXPECT_TRUE(in_time) << sends_done << " sends and " << receives_done << " receives of "
                         << messages.size() << " were done in time";
    return failure;
}

}  // namespace slimwire::net
