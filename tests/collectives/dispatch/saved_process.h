// A process with one communicator on a device that is plain memory, and residuals of its tensors.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codecs/base/device_scope.h"
#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/identity/tensor_names.h"
#include "tests/support/plain_device.h"

namespace slimwire::test {

inline cudaError_t g_event = cudaSuccess;  // what events answer
inline uint64_t g_pinned_bytes = 0;
inline std::atomic<bool> g_pinned_waits{false};  // who allocates them
inline std::atomic<bool> g_pinned_asked{false};

inline thread_local cudaStreamCaptureMode t_capture_mode = cudaStreamCaptureModeGlobal;
inline void expect_others_may_capture() {
    EXPECT_EQ(t_capture_mode, cudaStreamCaptureModeRelaxed) << "ends a capture of another thread";
}

inline DeviceApi plain_memory() {
    DeviceApi api = plain_device();
    api.exchange_capture_mode = [](cudaStreamCaptureMode* mode) {
        return std::swap(*mode, t_capture_mode), cudaSuccess;
    };
    api.event_query = [](cudaEvent_t) { return expect_others_may_capture(), g_event; };
    api.host_alloc = [](void** out, size_t bytes, unsigned) {
        expect_others_may_capture();
        g_pinned_asked = true;
        while (g_pinned_waits) {
            std::this_thread::yield();
        }
        g_pinned_bytes += bytes;
        return *out = std::malloc(bytes), cudaSuccess;
    };
    api.free_host = [](void* memory) { return std::free(memory), cudaSuccess; };
    return api;
}

constexpr uint64_t kBytes = 40, kPath = 5, kShape = 6;
inline const CallSignature kSum{Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 10};

// As in a process: a runtime is never destroyed.
inline Runtime& lasting_runtime() {
    static auto* const all = new std::vector<std::unique_ptr<Runtime>>;
    Runtime& made = *all->emplace_back(std::make_unique<Runtime>());
    made.listener = make_dispatch_state(made);
    return made;
}

// A process with one communicator, of rank `rank` of two.
class Process {
  public:
    explicit Process(int rank = 0) {
        runtime_.use_device(plain_memory());
        runtime_.config.active = true;
        runtime_.config.hash = 99;
        auto state = std::make_unique<Session>();
        state->comm = reinterpret_cast<ncclComm_t>(this);
        state->rank = rank;
        state->shape.ranks = 2;
        state->checkpoint_key = 1000 + static_cast<uint64_t>(rank);
        state->state_key = 2000 + static_cast<uint64_t>(rank);
        state->stats = std::make_shared<CommStats>();
        state->objects.chained = true;
        comm_ = state.get();
        runtime_.comms.add(std::move(state));
    }
    ~Process() {
        Retirement left(&runtime_.device_memory, api_, 0);
        dispatch_state(runtime_).residuals.take(comm_->state_key, &left);
    }

    [[nodiscard]] Runtime* runtime() noexcept { return &runtime_; }
    [[nodiscard]] Session& comm() noexcept { return *comm_; }
    // The residual of the tensor at a place, as a call gets it.
    char* residual(uint32_t ordinal, uint64_t path = kPath, uint64_t shape = kShape) {
        TensorKey key{comm_->state_key, kSum, nullptr, 0, ordinal};
        key.signature.count = count;
        return get(key, path, shape, comm_);
    }
    // The residual of a tensor whose memory has this name; null: none. `piece`: which memory.
    char* named(const char* name, uint32_t ordinal, char piece = 0) {
        static std::map<std::pair<std::string, char>, char> memory;
        if (name != nullptr) {
            const char* const at = &memory[{name, piece}];
            EXPECT_TRUE(TensorNames::instance().add(at, 1, name).ok());
            name_ = TensorNames::instance().find(at);
        }
        char* const got = residual(ordinal);
        name_ = nullptr;
        return got;
    }
    uint64_t count = kSum.count;  // elements of calls
    // The same once its ordinal is known, for which rules ask.
    char* residual_of_ordinal(uint32_t ordinal) {
        TensorKey key{comm_->state_key, kSum, nullptr, 0, ordinal};
        key.signature.ordinal = 1;
        return get(key, kPath, kShape, comm_);
    }
    char* residual_at(const void* address) {
        return get({comm_->state_key, kSum, address, 0, 0}, 0, kShape, address);
    }
    // Estimates of a call of all ranks, as its `calls`-th call gets them.
    char* shared(uint32_t ordinal, uint64_t calls) {
        comm_->progress.replicated_calls = calls;
        shared_ = true;
        char* const got = residual(ordinal);
        shared_ = false;
        return got;
    }
    [[nodiscard]] ResidualOrigin origin() const noexcept { return arrival_; }

  private:
    char* get(const TensorKey& key, uint64_t path, uint64_t shape, const void* address) {
        const DeviceScope scope(api_, 0);
        const auto* const buffer = static_cast<const char*>(address) + key.ordinal;
        Result<Residual> got = dispatch_state(runtime_).residuals.get(
            {api_, &comm_->objects, nullptr}, 0, {key, path, 1, buffer, 0, false, name_}, kBytes,
            {comm_->checkpoint_key, shape, shared_});
        arrival_ = got.ok() ? got.value().origin : ResidualOrigin::kKept;
        return got.ok() ? static_cast<char*>(got.value().buffer) : nullptr;
    }
    const DeviceApi api_ = plain_memory();
    Runtime& runtime_ = lasting_runtime();
    Session* comm_;
    bool shared_ = false;
    const char* name_ = nullptr;
    ResidualOrigin arrival_ = ResidualOrigin::kKept;
};

inline std::string held(const char* residual) {
    return {residual, kBytes};
}
inline std::string filled(char value) {
    return std::string(kBytes, value);
}
inline const std::string kZero = filled('\0');

}  // namespace slimwire::test
