// The tables over the engine and the memory wire: what NCCL asks reaches it as it was asked, each
// failure becomes one result and one line, and nothing leaks whatever the order of the calls.
#include <gtest/gtest.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plugin/net/abi/net.h"
#include "plugin/net/engine.h"
#include "tests/plugin/net/memory_wire.h"
#include "tests/plugin/net/wire_pair.h"
#include "tests/support/has.h"

extern "C" {
extern const slimwire::net::NetV8 ncclNetPlugin_v8;
extern const slimwire::net::NetV9 ncclNetPlugin_v9;
extern const slimwire::net::NetV10 ncclNetPlugin_v10;
extern const slimwire::net::NetV11 ncclNetPlugin_v11;
extern const slimwire::net::NetV12 ncclNetPlugin_v12;
}

namespace slimwire::net {
namespace {

std::vector<std::string> lines;

void log_line_of_nccl(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[500];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lines.emplace_back((level == kLogWarn ? "warn " : "info ") + std::string(text));
}

MemoryNetwork& network() {
    static const auto made = MemoryNetwork::make({.device = {.name = "mlx5_0",
                                                             .pci_path = "/sys/x",
                                                             .guid = 77,
                                                             .reg_is_global = true,
                                                             .speed_mbps = 200'000,
                                                             .port = 2,
                                                             .latency_us = 1.5F,
                                                             .max_connections = 99,
                                                             .rail_id = 4,
                                                             .plane_id = 5,
                                                             .max_message_bytes = 1 << 20}});
    return *made;
}

// Calls until *comm is there.
template <class Call>
void await(void** comm, Call&& call) {
    EXPECT_TRUE(poll_until([&] { return call(comm) != ncclSuccess || *comm != nullptr; }));
    ASSERT_NE(*comm, nullptr);
}

class Tables : public testing::Test {
  protected:
    void SetUp() override {
        lines.clear();
        contexts_before = network().counts.contexts;
        NetCommConfigV11 config{3};
        ASSERT_EQ(v11.init(&context, 42, &config, log_line_of_nccl, nullptr), ncclSuccess);
        ASSERT_EQ(v11.listen(context, 0, handle, &listener), ncclSuccess);
        await(&sender, [&](void** comm) { return v11.connect(context, 0, handle, comm, nullptr); });
        await(&receiver, [&](void** comm) { return v11.accept(listener, comm, nullptr); });
    }
    void TearDown() override {
        network().options.at_call = {};
        EXPECT_EQ(v11.finalize(context), ncclSuccess);  // before what lives in it
        EXPECT_EQ(network().counts.contexts, contexts_before + 1);
        EXPECT_EQ(v11.close_send(sender), ncclSuccess);
        EXPECT_EQ(v11.close_recv(receiver), ncclSuccess);
        EXPECT_EQ(v11.close_listen(listener), ncclSuccess);
        const MemoryWireCounts& counts = network().counts;
        EXPECT_EQ(counts.contexts, contexts_before);
        EXPECT_EQ(counts.connections + counts.listeners + counts.requests + counts.memories, 0);
        EXPECT_EQ(network().violations(), 0) << network().first_violation();
    }
    void* send(size_t bytes, int tag) {
        void* request = nullptr;
        EXPECT_EQ(v11.isend(sender, data, bytes, tag, nullptr, nullptr, &request), ncclSuccess);
        EXPECT_NE(request, nullptr);
        return request;
    }
    // Whether all are over, with the sizes of the last.
    bool all_over(std::vector<void*> requests, int* sizes) {
        return poll_until([&] {
            std::erase_if(requests, [&](void* request) {
                int done = 0;
                EXPECT_EQ(v11.test(request, &done, sizes), ncclSuccess);
                return done == 1;
            });
            return requests.empty() || HasFailure();
        });
    }
    // A request that fails with its peer, who has closed.
    void expect_failed_request() {
        void* const request = send(16, 5);
        int done = 1;
        EXPECT_TRUE(poll_until([&] {
            const ncclResult_t result = v11.test(request, &done, nullptr);
            EXPECT_TRUE(result == ncclSuccess || result == ncclRemoteError);
            return result != ncclSuccess;
        }));
        EXPECT_EQ(v11.test(request, &done, nullptr), ncclRemoteError);
        EXPECT_EQ(done, 0);
    }

    const NetV11& v11 = ncclNetPlugin_v11;
    void *context = nullptr, *listener = nullptr, *receiver = nullptr, *sender = nullptr;
    alignas(8) char handle[kNetHandleBytes] = {};
    char data[8000] = {};  // more than a frame holds: it waits for its receive
    long contexts_before = 0;
};

TEST_F(Tables, TheContextIsTheCommunicators) {
    EXPECT_EQ(network().comm_id, 42u);
    EXPECT_EQ(network().traffic_class, 3);
    EXPECT_EQ(v11.finalize(nullptr), ncclSuccess);
}

TEST_F(Tables, RequestsGoThereAndComeBack) {
    void* const sent = send(8000, 5);
    int done = 5, sizes[kMaxGroupedReceives] = {};
    ASSERT_EQ(v11.test(sent, &done, sizes), ncclSuccess);
    EXPECT_EQ(done, 0) << "nobody has asked for it";
    std::vector<char> into(sizeof data);
    void* buffers[3] = {into.data(), into.data() + 4, into.data() + 8};
    size_t capacities[3] = {8000, 5, 6};
    int tags[3] = {5, 7, 8};
    void* mhandles[3] = {};
    void* phandles[3] = {};
    void* request = nullptr;
    ASSERT_EQ(v11.irecv(receiver, 1, buffers, capacities, tags, mhandles, phandles, &request),
              ncclSuccess);
    EXPECT_FALSE(static_cast<Request*>(request)->write_once);
    EXPECT_TRUE(all_over({sent, request}, sizes));
    EXPECT_EQ(sizes[0], 8000);
    EXPECT_EQ(v11.test(request, &done, nullptr), ncclInvalidArgument) << "it is over";

    lines.clear();
    tags[0] = 9;
    const std::vector<void*> sends = {send(2, 7), send(3, 8), send(1, 9)};
    request = kOptionalReceiveCompletion;
    ASSERT_EQ(v11.irecv(receiver, 3, buffers, capacities, tags, mhandles, phandles, &request),
              ncclSuccess);
    EXPECT_TRUE(static_cast<Request*>(request)->write_once);
    int ignored[kMaxGroupedReceives];
    EXPECT_TRUE(all_over({request}, sizes) && all_over(sends, ignored));
    EXPECT_EQ(sizes[0] * 100 + sizes[1] * 10 + sizes[2], 123);
    EXPECT_EQ(sizes[3], 0);
    EXPECT_EQ(lines.size(), 0u);
}

TEST_F(Tables, NoRoomIsANullRequest) {
    for (int i = 0; i < kNetMaxRequests; ++i) {
        send(16, 5);
    }
    void* request = data;
    ASSERT_EQ(v11.isend(sender, data, 16, 5, nullptr, nullptr, &request), ncclSuccess);
    EXPECT_EQ(request, nullptr);
    void* comm = data;
    ASSERT_EQ(v11.connect(context, 0, handle, &comm, nullptr), ncclSuccess);
    EXPECT_EQ(comm, nullptr);
    comm = data;
    ASSERT_EQ(v11.accept(listener, &comm, nullptr), ncclSuccess);
    EXPECT_EQ(comm, nullptr);
}

TEST_F(Tables, ACodeBecomesItsResultAndOneLine) {
    const std::pair<Code, ncclResult_t> cases[] = {
        {Code::kInvalidArgument, ncclInvalidArgument}, {Code::kInvalidUsage, ncclInvalidUsage},
        {Code::kUnsupported, ncclInvalidUsage},        {Code::kNotFound, ncclSystemError},
        {Code::kOutOfMemory, ncclSystemError},         {Code::kSystemError, ncclSystemError},
        {Code::kCudaError, ncclUnhandledCudaError},    {Code::kRemoteError, ncclRemoteError},
        {Code::kNcclError, ncclInternalError},         {Code::kInternalError, ncclInternalError}};
    for (const auto& [code, result] : cases) {
        lines.clear();
        network().options.at_call = [code = code] { return Status(code, "the network has gone"); };
        void* comm = data;
        EXPECT_EQ(v11.listen(context, 0, handle, &comm), result);
        EXPECT_EQ(comm, nullptr);
        ASSERT_EQ(lines.size(), 1u);
        EXPECT_EQ(lines[0].find("warn "), 0u);
        EXPECT_HAS(lines[0], "the network has gone");
    }
}

// A connection that failed stays so and says it once; however many requests are asked for, they
// fail in test().
TEST_F(Tables, RequestsOfAFailedConnectionFail) {
    EXPECT_EQ(v11.close_recv(std::exchange(receiver, nullptr)), ncclSuccess);
    for (int asked = 0; asked < 5 * kNetMaxRequests && !HasFailure(); ++asked) {
        expect_failed_request();
    }
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_HAS(lines[0], "the peer has closed");
}

TEST_F(Tables, NoExceptionLeaves) {
    network().options.at_call = []() -> Status { throw std::runtime_error("thrown"); };
    void* out = nullptr;
    EXPECT_EQ(v11.isend(sender, data, 16, 5, nullptr, nullptr, &out), ncclInternalError);
    EXPECT_EQ(v11.reg_mr(receiver, data, 16, kPtrHost, &out), ncclInternalError);
    EXPECT_EQ(v11.listen(context, 0, handle, &out), ncclInternalError);
    EXPECT_EQ(v11.connect(context, 0, handle, &out, nullptr), ncclInternalError);
    EXPECT_EQ(v11.accept(listener, &out, nullptr), ncclInternalError);
    NetCommConfigV11 config{-1};
    EXPECT_EQ(v11.init(&out, 1, &config, log_line_of_nccl, nullptr), ncclInternalError);
    EXPECT_EQ(out, nullptr);
    EXPECT_FALSE(lines.empty());
}

TEST_F(Tables, ModeOffIsNcclWithoutThePlugin) {
    setenv("SLIMWIRE_MODE", "off", 1);
    setenv("SLIMWIRE_NET_LINK", "nonsense", 1);
    void* other = nullptr;
    NetCommConfigV11 config{-1};
    EXPECT_EQ(v11.init(&other, 1, &config, log_line_of_nccl, nullptr), ncclInvalidUsage);
    EXPECT_EQ(other, nullptr);
    EXPECT_EQ(v11.finalize(other), ncclSuccess);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].find("info NET/slimwire: off"), 0u) << lines[0];
    unsetenv("SLIMWIRE_MODE");
    unsetenv("SLIMWIRE_NET_LINK");
}

TEST_F(Tables, HostMemoryIsRegistered) {
    void* mhandle = nullptr;
    ASSERT_EQ(v11.reg_mr(receiver, data, 16, kPtrHost, &mhandle), ncclSuccess);
    EXPECT_EQ(v11.dereg_mr(receiver, mhandle), ncclSuccess);
    EXPECT_EQ(v11.dereg_mr(receiver, nullptr), ncclSuccess);
    EXPECT_EQ(v11.reg_mr(sender, data, 16, kPtrCuda, &mhandle), ncclInvalidArgument);
    EXPECT_EQ(v11.reg_mr(sender, data, 16, kPtrDmaBuf, &mhandle), ncclInvalidArgument);
}

TEST_F(Tables, WhatCannotBeIsRefused) {
    void* request = nullptr;
    void* buffers[9] = {};
    size_t sizes[9] = {};
    int tags[9] = {}, done = 0;
    void* handles[9] = {};
    EXPECT_EQ(v11.isend(sender, data, (size_t{1} << 30) + 1, 0, nullptr, nullptr, &request),
              ncclInvalidArgument);
    EXPECT_HAS(lines.back(), "1073741825");
    EXPECT_EQ(v11.irecv(receiver, 9, buffers, sizes, tags, handles, handles, &request),
              ncclInvalidArgument);
    EXPECT_EQ(v11.irecv(sender, 1, buffers, sizes, tags, handles, handles, &request),
              ncclInvalidArgument);
    EXPECT_EQ(v11.isend(receiver, data, 1, 0, nullptr, nullptr, &request), ncclInvalidArgument);
    EXPECT_EQ(v11.isend(nullptr, data, 1, 0, nullptr, nullptr, &request), ncclInvalidArgument);
    EXPECT_EQ(v11.test(nullptr, &done, nullptr), ncclInvalidArgument);
    EXPECT_EQ(v11.listen(nullptr, 0, handle, &request), ncclInvalidArgument);
    EXPECT_EQ(v11.listen(context, 1, handle, &request), ncclInvalidArgument);
    EXPECT_EQ(v11.connect(context, -1, handle, &request, nullptr), ncclInvalidArgument);
    EXPECT_HAS(lines.back(), "no network device -1; there are 1");
    NetPropertiesV11 properties;
    EXPECT_EQ(v11.get_properties(1, &properties), ncclInvalidArgument);
    EXPECT_EQ(v11.get_properties(-1, &properties), ncclInvalidArgument);
}

TEST_F(Tables, AFlushWithoutWorkIsANullRequest) {
    void* buffers[1] = {data};
    int sizes[1] = {16};
    void* handles[1] = {};
    void* request = data;
    EXPECT_EQ(v11.iflush(receiver, 1, buffers, sizes, handles, &request), ncclSuccess);
    EXPECT_EQ(request, nullptr);
}

TEST_F(Tables, DevicesAreDescribedHonestly) {
    int count = 0;
    EXPECT_EQ(ncclNetPlugin_v12.devices(&count), ncclSuccess);
    EXPECT_EQ(count, 1);
    NetPropertiesV12 v12;
    ASSERT_EQ(ncclNetPlugin_v12.get_properties(0, &v12), ncclSuccess);
    EXPECT_STREQ(v12.name, "mlx5_0");
    EXPECT_STREQ(v12.pci_path, "/sys/x");
    EXPECT_EQ(v12.guid, 77u);
    EXPECT_EQ(v12.ptr_support, kPtrHost);
    EXPECT_EQ(v12.reg_is_global, 0) << "the engine's registrations are not";
    EXPECT_EQ(v12.force_flush, 0);
    EXPECT_EQ(v12.speed_mbps, 200'000);
    EXPECT_EQ(v12.port, 2);
    EXPECT_EQ(v12.latency_us, 1.5F);
    EXPECT_EQ(v12.max_comms, 99);
    EXPECT_EQ(v12.max_recvs, kMaxGroupedReceives);
    EXPECT_EQ(v12.device_type, kNetDeviceHost);
    EXPECT_EQ(v12.virtual_devices.count, 1);
    EXPECT_EQ(v12.virtual_devices.devices[0], 0);
    EXPECT_EQ(v12.max_p2p_bytes, 1u << 20);
    EXPECT_EQ(v12.max_coll_bytes, 1u << 20);
    EXPECT_EQ(v12.max_multi_request_size, 1);
    EXPECT_EQ(v12.rail_id, 4);
    EXPECT_EQ(v12.plane_id, 5);
    NetPropertiesV9 v9;
    ASSERT_EQ(ncclNetPlugin_v9.get_properties(0, &v9), ncclSuccess);
    EXPECT_EQ(v9.max_p2p_bytes, 1u << 20);
    EXPECT_EQ(v9.ptr_support, kPtrHost);
    NetPropertiesV8 v8;
    ASSERT_EQ(ncclNetPlugin_v8.get_properties(0, &v8), ncclSuccess);
    EXPECT_EQ(v8.speed_mbps, 200'000);
    for (const char* table_name : {ncclNetPlugin_v8.name, ncclNetPlugin_v9.name,
                                   ncclNetPlugin_v10.name, v11.name, ncclNetPlugin_v12.name}) {
        EXPECT_STREQ(table_name, "slimwire");
    }
}

// Where NCCL looks; members of bases and of what follows them have no offsetof.
template <class Object, class Member>
ptrdiff_t place_of(const Object& object, const Member& member) {
    return reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&object);
}

TEST(TableLayout, IsThatOfNccl) {
    const auto check = [](const auto& table) {
        EXPECT_EQ(place_of(table, table.isend), 80);
        EXPECT_EQ(place_of(table, table.irecv_consumed), 144);
        if constexpr (requires { table.make_vdevice; }) {
            EXPECT_EQ(place_of(table, table.make_vdevice), 152);
        }
        if constexpr (requires { table.set_net_attr; }) {
            EXPECT_EQ(place_of(table, table.finalize), 160);
            EXPECT_EQ(place_of(table, table.set_net_attr), 168);
        }
    };
    check(ncclNetPlugin_v8);
    check(ncclNetPlugin_v9);
    check(ncclNetPlugin_v10);
    check(ncclNetPlugin_v11);
    check(ncclNetPlugin_v12);
    const NetPropertiesV11 v11{};
    EXPECT_EQ(place_of(v11, v11.max_multi_request_size), 104);
    const NetPropertiesV12 v12{};
    EXPECT_EQ(place_of(v12, v12.virtual_devices), 64);
    EXPECT_EQ(place_of(v12, v12.max_multi_request_size), 120);
    EXPECT_EQ(place_of(v12, v12.plane_id), 126);
}

// One context for the process, which stays: its objects are closed here, it is not.
TEST(OldTables, IntsAreCheckedAndTheContextIsShared) {
    lines.clear();
    const NetV8& v8 = ncclNetPlugin_v8;
    const std::atomic<long>& contexts = network().counts.contexts;
    const long before = contexts;
    ASSERT_EQ(v8.init(log_line_of_nccl), ncclSuccess);
    ASSERT_EQ(v8.init(log_line_of_nccl), ncclSuccess);
    alignas(8) char handle[kNetHandleBytes] = {};
    char data[16] = {};
    void *listener = nullptr, *receiver = nullptr, *sender = nullptr, *request = nullptr;
    ASSERT_EQ(v8.listen(0, handle, &listener), ncclSuccess);
    await(&sender, [&](void** comm) { return v8.connect(0, handle, comm, nullptr); });
    await(&receiver, [&](void** comm) { return v8.accept(listener, comm, nullptr); });
    EXPECT_EQ(contexts, before + 1);
    EXPECT_EQ(network().traffic_class, -1);
    EXPECT_EQ(v8.isend(sender, data, -1, 0, nullptr, &request), ncclInvalidArgument);
    EXPECT_EQ(v8.isend(sender, data, 16, 1, nullptr, &request), ncclSuccess);
    void* buffers[2] = {data, data};
    void* mhandles[2] = {};
    int sizes[2] = {16, -5}, tags[2] = {1, 2}, done = 0, came[8] = {};
    EXPECT_EQ(v8.irecv(receiver, 2, buffers, sizes, tags, mhandles, &request), ncclInvalidArgument);
    EXPECT_EQ(v8.irecv(receiver, 1, buffers, sizes, tags, mhandles, &request), ncclSuccess);
    EXPECT_TRUE(
        poll_until([&] { return v8.test(request, &done, came) != ncclSuccess || done == 1; }));
    EXPECT_EQ(came[0], 16);
    v8.close_send(sender);
    v8.close_recv(receiver);

    const NetV10& v10 = ncclNetPlugin_v10;
    ASSERT_EQ(v10.init(log_line_of_nccl, nullptr), ncclSuccess);
    NetCommConfigV10 config{7};
    for (int i = 0; i < 2; ++i) {
        sender = nullptr;
        await(&sender, [&](void** comm) { return v10.connect(0, &config, handle, comm, nullptr); });
        EXPECT_EQ(network().traffic_class, 7);
        EXPECT_EQ(contexts, before + 2);
        v10.close_send(sender);
    }
    v8.close_listen(listener);
    EXPECT_EQ(network().counts.connections + network().counts.listeners, 0);
}

}  // namespace

Result<Engine*> plugin_engine(DebugLogger) {
    SLIMWIRE_TRY(network().called());
    static auto* const engine = new Engine(network().wire(), {});
    return engine;
}

}  // namespace slimwire::net
