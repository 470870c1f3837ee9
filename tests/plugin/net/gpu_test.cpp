// The engine with messages in GPU memory, over a network inside this process and the emulator's
// device memory: every message arrives whole and in order between either kinds of memory, nothing
// waits or allocates once a connection is there, and kernels keep to their thread blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plugin/net/engine/frame.h"
#include "tests/plugin/net/gpu_pair.h"
#include "tests/plugin/net/messages.h"
#include "tests/plugin/net/situations.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

enum class Ends : uint8_t { kGpuToGpu, kGpuToHost, kHostToGpu };

const char* name_of(Ends ends) {
    switch (ends) {
        case Ends::kGpuToGpu:
            return "gpu_to_gpu";
        case Ends::kGpuToHost:
            return "gpu_to_host";
        case Ends::kHostToGpu:
            return "host_to_gpu";
    }
    return "";
}

class NetGpu : public testing::TestWithParam<std::tuple<Situation, Ends>> {
  protected:
    void SetUp() override {
        ASSERT_TRUE(GpuSpy::get().good());
        GpuSpy::get().reset();
        EngineSettings settings;
        MemoryWireOptions options;
        std::get<0>(GetParam()).change(settings, options);
        const Status opened = pair_.open(settings, options);
        ASSERT_TRUE(opened.ok()) << opened.message();
    }
    [[nodiscard]] static bool from_gpu() { return std::get<1>(GetParam()) != Ends::kHostToGpu; }
    [[nodiscard]] static bool to_gpu() { return std::get<1>(GetParam()) != Ends::kGpuToHost; }

    void run(std::vector<GpuMessage>& messages, size_t depth) {
        register_all(messages);
        const Status status = exchange(pair_, messages, depth);
        ASSERT_TRUE(status.ok()) << status.message();
        check_all(messages);
    }
    void run_groups(std::vector<GpuMessage>& messages) {
        register_all(messages);
        const Status status = exchange_groups(pair_, messages);
        ASSERT_TRUE(status.ok()) << status.message();
        check_all(messages);
    }
    void register_all(std::vector<GpuMessage>& messages) {
        for (GpuMessage& m : messages) {
            const Status status = m.register_both(pair_);
            ASSERT_TRUE(status.ok()) << status.message();
        }
    }
    void check_all(std::vector<GpuMessage>& messages) {
        for (size_t i = 0; i < messages.size(); ++i) {
            messages[i].check("message " + std::to_string(i) + " of " +
                              std::to_string(messages[i].data.size()) + " bytes, seed " +
                              std::to_string(test_seed()));
            ASSERT_TRUE(messages[i].deregister_both(pair_).ok());
        }
    }

    GpuPair pair_;
    std::mt19937 random_{test_seed()};
};

constexpr DType kTypes[] = {DType::kBfloat16, DType::kFloat32,    DType::kFloat16,
                            DType::kFloat64,  DType::kFloat8e4m3, DType::kFloat8e5m2,
                            DType::kUint8,    DType::kInt8,       DType::kInt32,
                            DType::kUint32,   DType::kInt64,      DType::kUint64};

TEST_P(NetGpu, messages_of_all_sizes_and_kinds_arrive_as_they_were_sent) {
    std::vector<GpuMessage> messages;
    const size_t sizes[] = {0,     1,     100,    kInlineBytes, kInlineBytes + 1, 32768,
                            32769, 65536, 131072, 131075,       200'003,          (1 << 20) + 2};
    for (int round = 0; round < 3; ++round) {
        for (const size_t size : sizes) {
            const size_t more = random_() % 3 == 0 ? random_() % 5000 : 0;
            const size_t from_offset = random_() % 3 == 0 ? random_() % 17 : 0;
            const size_t to_offset = random_() % 3 == 0 ? random_() % 17 : 0;
            std::vector<uint8_t> data;
            switch (random_() % 6) {
                case 0:
                    data = random_bytes(size, random_);
                    break;
                case 1:
                    data = ll128_message(size, 3, random_);
                    break;
                case 2:
                    data.assign(size, 0);
                    break;
                default:
                    data = gaussian_bytes(kTypes[random_() % std::size(kTypes)], size, random_);
            }
            messages.emplace_back(std::move(data), from_gpu(), to_gpu(), more, from_offset,
                                  to_offset);
            messages.back().write_once = random_() % 3 == 0;
        }
    }
    run(messages, kNetMaxRequests);
    pair_.close();
}

// Either kind of memory in one connection, in turn.
TEST_P(NetGpu, host_and_gpu_memory_share_a_connection) {
    std::vector<GpuMessage> messages;
    for (int i = 0; i < 40; ++i) {
        const size_t size = random_() % 4 == 0 ? random_() % 5000 : random_() % 600'000;
        messages.emplace_back(gaussian_bytes(DType::kBfloat16, size, random_), random_() % 2 == 0,
                              random_() % 2 == 0);
    }
    run(messages, 12);
    pair_.close();
}

TEST_P(NetGpu, grouped_receives_take_messages_by_tag_in_any_order) {
    std::vector<GpuMessage> messages;
    for (size_t i = 0; i < kGroup * 5; ++i) {
        messages.emplace_back(
            gaussian_bytes(DType::kBfloat16, i % 3 == 0 ? 500 : 70'000 + 9'000 * i, random_),
            from_gpu(), to_gpu(), i);
    }
    run_groups(messages);
    pair_.close();
}

// After the connections are made no call of CUDA's waits, allocates or frees, and there is no
// launch beyond the thread blocks of SLIMWIRE_NET_SMS: those of both ends count, each is a process.
TEST_P(NetGpu, nothing_waits_or_allocates_and_blocks_are_kept) {
    std::vector<GpuMessage> messages;
    for (int i = 0; i < 24; ++i) {
        messages.emplace_back(gaussian_bytes(DType::kFloat32, 600'000, random_), from_gpu(),
                              to_gpu());
    }
    register_all(messages);
    GpuSpy& spy = GpuSpy::get();
    spy.reset();
    const Status status = exchange(pair_, messages, 8);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const DeviceCall call :
         {DeviceCall::malloc, DeviceCall::free, DeviceCall::malloc_async, DeviceCall::free_async,
          DeviceCall::host_alloc, DeviceCall::free_host, DeviceCall::stream_synchronize,
          DeviceCall::event_synchronize, DeviceCall::stream_create_with_flags,
          DeviceCall::stream_create_with_priority, DeviceCall::stream_destroy,
          DeviceCall::event_create_with_flags, DeviceCall::event_destroy,
          DeviceCall::launch_host_func, DeviceCall::pointer_get_attributes}) {
        EXPECT_EQ(spy.count(call), 0u) << "call " << static_cast<int>(call);
    }
    EXPECT_GT(spy.count(DeviceCall::event_query), 0u);
    const std::vector<SeenLaunch> launches = spy.launches();
    if (pair_.settings.codec) {
        EXPECT_FALSE(launches.empty());
    }
    for (const SeenLaunch& launch : launches) {
        EXPECT_GE(launch.max_blocks, 1) << launch.what;
        EXPECT_LE(launch.max_blocks, pair_.settings.gpu_blocks) << launch.what;
    }
    check_all(messages);
    pair_.close();
}

INSTANTIATE_TEST_SUITE_P(
    Situations,
    NetGpu,
    testing::Combine(testing::ValuesIn(situations_and({{"one_block",
                                                        [](EngineSettings& s, MemoryWireOptions&) {
                                                            s.gpu_blocks = 1;
                                                        }}})),
                     testing::Values(Ends::kGpuToGpu, Ends::kGpuToHost, Ends::kHostToGpu)),
    [](const auto& info) {
        return std::string(std::get<0>(info.param).name) + "_" + name_of(std::get<1>(info.param));
    });

// --- What is sent

struct Sent {
    uint64_t wire_bytes = 0;
    uint64_t coded_messages = 0;
    uint64_t flagged_messages = 0;
    std::vector<SeenLaunch> launches;
    uint64_t copies = 0;
};

// Sends each of `data` after the one before, from one buffer to one buffer.
Sent send_all(const std::vector<std::vector<uint8_t>>& data,
              bool from_gpu,
              bool to_gpu,
              const Hint& hint = {},
              bool write_once = false) {
    GpuPair pair;
    pair.answer_with(hint);
    EXPECT_TRUE(pair.open({}, {}).ok());
    GpuSpy::get().reset();
    Sent sent;
    std::vector<GpuMessage> messages;
    messages.emplace_back(data[0], from_gpu, to_gpu);
    EXPECT_TRUE(messages[0].register_both(pair).ok());
    for (const std::vector<uint8_t>& each : data) {
        GpuMessage& m = messages[0];
        m.write_once = write_once;
        m.data = each;
        m.from->write(each);
        m.rewind();
        const Status status = exchange(pair, messages, 1);
        EXPECT_TRUE(status.ok()) << status.message();
        m.check("message");
    }
    sent.launches = GpuSpy::get().launches();
    sent.copies = GpuSpy::get().count(DeviceCall::memcpy_async) +
                  GpuSpy::get().count(DeviceCall::memcpy_2d_async);
    EXPECT_TRUE(messages[0].deregister_both(pair).ok());
    pair.close();
    const std::vector<PeerTraffic> peers = pair.sent.peers();
    EXPECT_EQ(peers.size(), 1u);
    sent.wire_bytes = peers[0].totals.wire_bytes;
    sent.coded_messages = peers[0].totals.coded_messages;
    sent.flagged_messages = peers[0].totals.flagged_messages;
    return sent;
}

TEST(NetGpuSends, the_same_bytes_cross_the_network_from_either_memory) {
    std::mt19937 random(test_seed());
    for (const DType type : {DType::kBfloat16, DType::kFloat32, DType::kFloat16, DType::kFloat64}) {
        const std::vector<std::vector<uint8_t>> data = {gaussian_bytes(type, 1'000'003, random)};
        const Sent gpu = send_all(data, true, true);
        const Sent host = send_all(data, false, false);
        EXPECT_EQ(gpu.wire_bytes, host.wire_bytes) << dtype_name(type);
        EXPECT_EQ(gpu.coded_messages, 1u);
        EXPECT_EQ(host.coded_messages, 1u);
    }
}

// 1 MiB in pieces of 128 KiB: two launches a side, no copy but those of the sample, which is taken
// once; only the encoded bytes leave the GPU.
TEST(NetGpuSends, launches_and_copies_of_a_message_are_few) {
    std::mt19937 random(test_seed());
    std::vector<std::vector<uint8_t>> data(5);
    for (auto& each : data) {
        each = gaussian_bytes(DType::kBfloat16, 1 << 20, random);
    }
    const Sent coded = send_all(data, true, false);
    EXPECT_EQ(coded.coded_messages, 5u);
    EXPECT_EQ(coded.launches.size(), 10u);
    EXPECT_EQ(coded.copies, 4u);
    EXPECT_LT(coded.wire_bytes, 5u * 750'000);

    for (auto& each : data) {
        each = random_bytes(1 << 20, random);
    }
    const Sent raw = send_all(data, true, false);
    EXPECT_EQ(raw.coded_messages, 0u);
    EXPECT_TRUE(raw.launches.empty());
    EXPECT_LE(raw.copies, 5u * 2 + 3 * 4);  // samples are taken ever more rarely
}

TEST(NetGpuSends, a_hint_of_the_type_and_the_protocol_is_followed) {
    std::mt19937 random(test_seed());
    const std::vector<std::vector<uint8_t>> floats = {
        gaussian_bytes(DType::kBfloat16, 1 << 20, random)};
    EXPECT_LT(send_all(floats, true, true, {DType::kBfloat16, Protocol::kSimple}).wire_bytes,
              750'000u);
    EXPECT_GT(send_all(floats, true, true, {DType::kFloat32, Protocol::kSimple}).wire_bytes,
              750'000u);
    const Sent flagged = send_all(floats, true, true, {std::nullopt, Protocol::kLl128});
    EXPECT_EQ(flagged.coded_messages, 0u);
    EXPECT_EQ(flagged.flagged_messages, 1u);
    EXPECT_EQ(flagged.copies, 4u);  // no sample: two out, two in
}

// Data with flags goes as it is and is written by whole lines, whether or not the receiver asked.
TEST(NetGpuSends, flags_between_the_data_are_seen_and_written_in_lines) {
    std::mt19937 random(test_seed());
    const std::vector<std::vector<uint8_t>> data(3, ll128_message(1 << 20, 7, random));
    for (const bool write_once : {false, true}) {
        const Sent sent = send_all(data, true, true, {}, write_once);
        EXPECT_EQ(sent.flagged_messages, 3u);
        EXPECT_EQ(sent.coded_messages, 0u);
        ASSERT_FALSE(sent.launches.empty());
        int64_t bytes = 0;
        for (const SeenLaunch& launch : sent.launches) {
            EXPECT_EQ(launch.what, "copy_lines");
            bytes += launch.elements;
        }
        EXPECT_EQ(bytes, 3 << 20);
        EXPECT_EQ(sent.copies, 4u + 3 * 2);  // a sample of the registration, then two a message
    }
    // What arrives compressed is held and written in lines, too, where the receiver looks at it.
    const std::vector<std::vector<uint8_t>> floats = {
        gaussian_bytes(DType::kFloat32, 1 << 20, random)};
    const Sent held = send_all(floats, true, true, {}, true);
    EXPECT_EQ(held.coded_messages, 1u);
    EXPECT_TRUE(std::any_of(held.launches.begin(), held.launches.end(),
                            [](const SeenLaunch& l) { return l.what == "copy_lines"; }));
    EXPECT_TRUE(std::none_of(held.launches.begin(), held.launches.end(),
                             [](const SeenLaunch& l) { return l.what == "decode"; }));
}

// Several connections share the blocks; beside a full GPU a launch has one.
TEST(NetGpuBlocks, launches_share_what_is_allowed) {
    ASSERT_TRUE(GpuSpy::get().good());
    EngineSettings settings;
    settings.gpu_blocks = 5;
    Result<std::unique_ptr<Gpu>> opened = Gpu::open(GpuSpy::get().api(), settings);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    Gpu& gpu = *opened.value();
    EXPECT_EQ(gpu.take_blocks(0, 3), 3);
    EXPECT_EQ(gpu.take_blocks(0, 3), 2);
    EXPECT_EQ(gpu.take_blocks(0, 3), 1);
    EXPECT_EQ(gpu.take_blocks(1, 100), 5);
    gpu.give_blocks(0, 3);
    EXPECT_EQ(gpu.take_blocks(0, 100), 2);
}

}  // namespace
}  // namespace slimwire::net
