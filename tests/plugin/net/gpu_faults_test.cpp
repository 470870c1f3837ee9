// What goes wrong with messages in GPU memory: errors of CUDA, buffers that are taken away, peers
// that send what cannot be.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "plugin/net/engine/frame.h"
#include "tests/plugin/net/gpu_pair.h"
#include "tests/plugin/net/messages.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

class NetGpuFaults : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_TRUE(GpuSpy::get().good());
        GpuSpy::get().reset();
    }
    std::vector<GpuMessage> floats(EnginePair& pair, int count, size_t bytes) {
        std::vector<GpuMessage> messages;
        for (int i = 0; i < count; ++i) {
            messages.emplace_back(gaussian_bytes(DType::kBfloat16, bytes, random_), true, true);
            const Status status = messages.back().register_both(pair);
            EXPECT_TRUE(status.ok()) << status.message();
        }
        return messages;
    }
    std::mt19937 random_{test_seed()};
};

TEST_F(NetGpuFaults, an_error_of_cuda_is_the_error_of_its_connection) {
    int failed = 0;
    for (const DeviceCall call : {DeviceCall::launch, DeviceCall::memcpy_async,
                                  DeviceCall::event_record, DeviceCall::event_query}) {
        for (const int nth : {0, 1, 4, 9}) {
            GpuPair pair;
            EngineSettings settings;
            settings.checksum = nth == 9;
            ASSERT_TRUE(pair.open(settings, {}).ok());
            std::vector<GpuMessage> messages = floats(pair, 6, 500'000);
            GpuSpy::get().fail(call, nth, cudaErrorIllegalAddress);
            const Status status = exchange(pair, messages, 4);
            if (!status.ok()) {
                ++failed;
                EXPECT_EQ(status.code(), Code::kCudaError) << status.message();
                EXPECT_NE(status.message().find("700"), std::string::npos) << status.message();
            }
            // The end that failed says so again; the program does not find the error.
            EXPECT_EQ(cudaGetLastError(), cudaSuccess);
            GpuSpy::get().reset();
            for (GpuMessage& m : messages) {
                static_cast<void>(m.deregister_both(pair));
            }
            pair.close();
        }
    }
    EXPECT_EQ(failed, 16) << "every fault is met";
}

TEST_F(NetGpuFaults, without_pinned_memory_the_start_says_how_much_was_asked_for) {
    for (const DeviceCall call :
         {DeviceCall::host_alloc, DeviceCall::malloc, DeviceCall::stream_create_with_priority,
          DeviceCall::event_create_with_flags}) {
        GpuSpy::get().fail(call, 0, cudaErrorMemoryAllocation);
        const Result<std::unique_ptr<Gpu>> opened = Gpu::open(GpuSpy::get().api(), {});
        ASSERT_FALSE(opened.ok());
        EXPECT_NE(opened.status().message().find(
                      call == DeviceCall::host_alloc ? "bytes of pinned memory" : "cuda error 2"),
                  std::string::npos)
            << opened.status().message();
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    }
    GpuSpy::get().fail(DeviceCall::get_device_count, 0, cudaErrorNoDevice);
    const Result<std::unique_ptr<Gpu>> opened = Gpu::open(GpuSpy::get().api(), {});
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.status().message(), "no GPU was found");
}

// Each end has one lane from its start, which the first connection takes.
TEST_F(NetGpuFaults, pinned_memory_that_runs_out_later_ends_the_announcement) {
    GpuPair pair;
    ASSERT_TRUE(pair.open({}, {}).ok());
    std::vector<GpuMessage> messages = floats(pair, 1, 100'000);
    EXPECT_TRUE(pair.sending_engine->device(0).cuda_memory);
    std::unique_ptr<SendConnection> second;
    std::unique_ptr<ReceiveConnection> other;
    ASSERT_TRUE(pair.connect(&second, &other).ok());
    GpuSpy::get().fail(DeviceCall::host_alloc, 0, cudaErrorMemoryAllocation);
    Memory* memory = nullptr;
    Place more(true, 1000);
    const Status status =
        second->register_memory(more.data(), more.bytes(), MemoryKind::kCuda, &memory);
    EXPECT_EQ(status.code(), Code::kOutOfMemory);
    EXPECT_NE(status.message().find("pinned memory"), std::string::npos) << status.message();
    EXPECT_FALSE(pair.sending_engine->device(0).cuda_memory);
    EXPECT_TRUE(pair.receiving_engine->device(0).cuda_memory);
    // The connection that has its lane goes on.
    const Status sent = exchange(pair, messages, 1);
    EXPECT_TRUE(sent.ok()) << sent.message();
    messages[0].check("message");
    ASSERT_TRUE(messages[0].deregister_both(pair).ok());
    second.reset();
    other.reset();
    pair.close();
}

TEST_F(NetGpuFaults, memory_that_cannot_be_served_is_refused) {
    GpuPair pair;
    ASSERT_TRUE(pair.open({}, {}).ok());
    Memory* memory = nullptr;
    std::vector<uint8_t> host(1000);
    Status status = pair.sender->register_memory(host.data(), 1000, MemoryKind::kCuda, &memory);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("no memory of a GPU"), std::string::npos) << status.message();

    Place here(true, 1000);
    ASSERT_TRUE(pair.sender->register_memory(here.data(), 1000, MemoryKind::kCuda, &memory).ok());
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    {
        Place there(true, 1000);
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
        Memory* other = nullptr;
        status = pair.sender->register_memory(there.data(), 1000, MemoryKind::kCuda, &other);
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_NE(status.message().find("GPU 1"), std::string::npos) << status.message();
        // Another connection serves it, whatever device is current.
        ASSERT_TRUE(
            pair.receiver->register_memory(there.data(), 1000, MemoryKind::kCuda, &other).ok());
        int current = -1;
        ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
        EXPECT_EQ(current, 0);
        ASSERT_TRUE(pair.receiver->deregister_memory(other).ok());
    }
    ASSERT_TRUE(pair.sender->deregister_memory(memory).ok());
    pair.close();

    EnginePair without;
    ASSERT_TRUE(without.open({}, {}).ok());
    EXPECT_FALSE(without.sending_engine->device(0).cuda_memory);
    status = without.sender->register_memory(here.data(), 1000, MemoryKind::kCuda, &memory);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("SLIMWIRE_NET_GPU"), std::string::npos) << status.message();
    without.close();
}

// NCCL frees its buffers after a close or a deregistration with requests in flight: nothing may
// touch them then. Freed device memory of the emulator is handed out again at once.
TEST_F(NetGpuFaults,
       closing_or_deregistering_with_requests_in_flight_touches_no_buffer_afterwards) {
    for (int trial = 0; trial < 16; ++trial) {
        GpuPair pair;
        EngineSettings settings;
        settings.checksum = trial % 4 == 3;
        GpuSpy::get().delay_us = trial % 2 == 0 ? 0 : 3000;
        ASSERT_TRUE(pair.open(settings, {}).ok());
        constexpr size_t kBytes = 400'000;
        Place out(true, 8 * kBytes), in(true, 8 * kBytes);
        out.write(gaussian_bytes(DType::kBfloat16, 8 * kBytes, random_));
        Memory *out_memory = nullptr, *in_memory = nullptr;
        ASSERT_TRUE(
            pair.sender->register_memory(out.data(), out.bytes(), MemoryKind::kCuda, &out_memory)
                .ok());
        ASSERT_TRUE(
            pair.receiver->register_memory(in.data(), in.bytes(), MemoryKind::kCuda, &in_memory)
                .ok());
        Request *send = nullptr, *receive = nullptr;
        for (size_t i = 0; i < 8; ++i) {
            ASSERT_TRUE(
                pair.sender->send(out.data() + i * kBytes, kBytes, 5, out_memory, nullptr, &send)
                    .ok());
            void* target = in.data() + i * kBytes;
            const size_t capacity = kBytes;
            const int tag = 5;
            ASSERT_TRUE(
                pair.receiver->receive(1, &target, &capacity, &tag, &in_memory, false, &receive)
                    .ok());
        }
        bool sent = false, received = false;
        // With a slow GPU: until it has a decoder to run.
        const auto decodes = [] {
            const std::vector<SeenLaunch> seen = GpuSpy::get().launches();
            return std::any_of(seen.begin(), seen.end(),
                               [](const SeenLaunch& launch) { return launch.what == "decode"; });
        };
        GpuSpy::get().reset_launches();
        if (trial % 2 == 1) {
            ASSERT_TRUE(poll_until([&] {
                EXPECT_TRUE(pair.sender->test(send, &sent, nullptr).ok());
                EXPECT_TRUE(pair.receiver->test(receive, &received, nullptr).ok());
                return decodes();
            }));
        }
        for (int i = 0; trial % 2 == 0 && i < 100 * trial && !sent && !received; ++i) {
            ASSERT_TRUE(pair.sender->test(send, &sent, nullptr).ok());
            ASSERT_TRUE(pair.receiver->test(receive, &received, nullptr).ok());
        }
        if (trial % 4 < 2) {
            ASSERT_TRUE(pair.sender->deregister_memory(out_memory).ok());
            ASSERT_TRUE(pair.receiver->deregister_memory(in_memory).ok());
            if (!received) {
                EXPECT_EQ(pair.receiver->test(receive, &received, nullptr).code(),
                          Code::kRemoteError);
            }
        } else {
            // Left to the close, as NCCL does when it aborts.
            static_cast<void>(pair.sender->deregister_memory(out_memory));
            pair.sender.reset();
            static_cast<void>(pair.receiver->deregister_memory(in_memory));
            pair.receiver.reset();
        }
        const std::vector<uint8_t> other(8 * kBytes, 0x77);
        out.write(other);
        in.write(other);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        in.check(other, "receiver's buffer of trial " + std::to_string(trial));
        pair.close();
    }
}

TEST_F(NetGpuFaults, damaged_bytes_end_the_connection_and_are_noticed_with_checksums) {
    int noticed = 0;
    for (int victim = 0; victim < 24; ++victim) {
        bool changed = false;
        MemoryWireOptions options;
        options.tamper = [&](Lane, uint64_t number, uint8_t* data, size_t* bytes) {
            if (number == static_cast<uint64_t>(victim / 2) && !changed && *bytes > 0) {
                changed = true;
                data[random_() % *bytes] ^= static_cast<uint8_t>(1u << random_() % 8);
            }
        };
        EngineSettings settings;
        settings.checksum = true;
        GpuPair pair;
        ASSERT_TRUE(pair.open(settings, options).ok());
        std::vector<GpuMessage> messages;
        for (int i = 0; i < 12; ++i) {
            messages.emplace_back(
                gaussian_bytes(DType::kBfloat16, i % 2 == 0 ? 1000 : 200'000, random_), true, true);
            ASSERT_TRUE(messages.back().register_both(pair).ok());
        }
        const Status status = exchange(pair, messages, 1);
        ASSERT_TRUE(changed);
        if (status.ok()) {
            for (const GpuMessage& m : messages) {
                m.check("victim " + std::to_string(victim));
            }
        } else {
            ++noticed;
            EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
        }
        for (GpuMessage& m : messages) {
            static_cast<void>(m.deregister_both(pair));
        }
        pair.close();
    }
    EXPECT_GE(noticed, 20);
}

// What no encoder writes: found by the kernel, and before it by the size that an encoding tells.
TEST_F(NetGpuFaults, pieces_that_are_none_are_refused_without_checksums) {
    for (const size_t at : {size_t{0}, size_t{8}, size_t{20}, size_t{80}}) {
        MemoryWireOptions options;
        options.tamper = [&](Lane lane, uint64_t number, uint8_t* data, size_t*) {
            if (lane == Lane::kData && number == 2) {
                std::fill_n(data + at, 8, uint8_t{0xFF});
            }
        };
        GpuPair pair;
        ASSERT_TRUE(pair.open({}, options).ok());
        std::vector<GpuMessage> messages = floats(pair, 2, 600'000);
        const Status status = exchange(pair, messages, 2);
        EXPECT_EQ(status.code(), Code::kRemoteError) << at;
        EXPECT_NE(status.message().find("damaged data"), std::string::npos) << status.message();
        for (GpuMessage& m : messages) {
            static_cast<void>(m.deregister_both(pair));
        }
        pair.close();
    }
}

}  // namespace
}  // namespace slimwire::net
