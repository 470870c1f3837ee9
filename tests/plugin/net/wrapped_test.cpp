// The wire over another plugin: which plugins are taken, and who is refused at the door.
#include "plugin/net/wrapped/wrapped_wire.h"

#include <gtest/gtest.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "plugin/net/nccl_log.h"
#include "plugin/net/wrapped/wrapped_state.h"
#include "tests/plugin/net/wire_pair.h"
#include "tests/support/has.h"

namespace slimwire::net {
namespace {

std::string inner(const char* version) {
    return std::string(SLIMWIRE_TEST_INNER) + version + ".so";
}

std::string g_lines;
void collect(LogLevel, unsigned long, const char*, int, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char line[1000];
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    g_lines += std::string(line) + "\n";
}

class Wrapped : public testing::Test {
  protected:
    void SetUp() override {
        set_nccl_log(collect);
        g_lines.clear();
        auto opened = open_wrapped_wire(inner("11"), nullptr);
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        wire_ = std::move(opened).value();
        ASSERT_TRUE(wire_->open(7, -1, &context_).ok());
        ASSERT_TRUE(context_->listen(0, handle_, &listener_).ok());
        auto table = InnerTable::open(inner("11"));
        ASSERT_TRUE(table.ok());
        table_ = std::move(table).value();
        ASSERT_EQ(table_->init(&stranger_context_, 0, -1, collect), ncclSuccess);
    }
    void TearDown() override {
        if (table_ != nullptr) {
            table_->finalize(stranger_context_);
        }
    }

    // Connects below slimwire and sends `bytes` of `message`; the comm.
    void* stranger(const void* message, size_t bytes) {
        alignas(16) char handle[kNetHandleBytes];
        std::memcpy(handle, handle_, sizeof handle);
        std::memset(handle + kTailOffset, 0, sizeof(WrappedTail));
        void* comm = nullptr;
        EXPECT_TRUE(poll_until([&] {
            return table_->connect(stranger_context_, 0, handle, &comm) != ncclSuccess ||
                   comm != nullptr;
        }));
        void* data = const_cast<void*>(message);
        void *mhandle = nullptr, *request = nullptr;
        EXPECT_EQ(table_->reg_mr(comm, data, bytes, kPtrHost, &mhandle), ncclSuccess);
        int done = 0, size = 0;
        EXPECT_TRUE(poll_until([&] {
            if (request == nullptr) {
                EXPECT_EQ(table_->isend(comm, data, bytes, 0, mhandle, &request), ncclSuccess);
                return false;
            }
            EXPECT_EQ(table_->test(request, &done, &size), ncclSuccess);
            return done != 0;
        }));
        EXPECT_EQ(table_->dereg_mr(comm, mhandle), ncclSuccess);
        return comm;
    }

    // Whether a right peer still comes through, and what was logged meanwhile.
    void expect_service(const char* line) {
        std::unique_ptr<ReceiveWire> receiver;
        if (line != nullptr) {
            EXPECT_TRUE(poll_until([&] {
                EXPECT_TRUE(listener_->accept(&receiver).ok());
                EXPECT_EQ(receiver, nullptr);
                return g_lines.find(line) != std::string::npos || HasFailure();
            })) << g_lines;
        }
        WirePair pair;
        std::unique_ptr<WireConnecting> attempt;
        std::unique_ptr<SendWire> sender;
        EXPECT_TRUE(poll_until([&] {
            if (sender == nullptr) {
                EXPECT_TRUE(context_->connect(0, handle_, &attempt, &sender).ok());
            }
            if (receiver == nullptr) {
                EXPECT_TRUE(listener_->accept(&receiver).ok());
            }
            return (sender != nullptr && receiver != nullptr) || HasFailure();
        }));
    }

    [[nodiscard]] WrappedHello right_hello() const {
        WrappedTail tail{};
        std::memcpy(&tail, handle_ + kTailOffset, sizeof tail);
        return {kWrappedMagic, kWrappedVersion, 0, 4711, tail.cookie};
    }

    std::unique_ptr<Wire> wire_;
    std::unique_ptr<WireContext> context_;
    std::unique_ptr<WireListener> listener_;
    std::unique_ptr<InnerTable> table_;
    void* stranger_context_ = nullptr;
    alignas(16) char handle_[kNetHandleBytes] = {};
};

TEST_F(Wrapped, WhoSpeaksSomethingElseIsRefused) {
    const std::pair<std::string, const char*> cases[] = {
        {std::string("GET / HTTP/1.1").append(sizeof(WrappedHello) - 14, ' '),
         "it is not slimwire"},
        {std::string(5, 'x'), "its first message has 5 bytes"},
        {std::string(5000, 'x'), "a peer is refused: net plugin TestTcp: test gave"}};
    for (const auto& [text, line] : cases) {
        void* comm = stranger(text.data(), text.size());
        expect_service(line);
        table_->close_send(comm);
    }
}

TEST_F(Wrapped, WrongVersionCookieAndLaneAreRefused) {
    WrappedHello hello = right_hello();
    hello.version = 9;
    void* first = stranger(&hello, sizeof hello);
    expect_service("it speaks version 9");
    hello = right_hello();
    hello.cookie ^= 1;
    void* second = stranger(&hello, sizeof hello);
    expect_service("its cookie is wrong");
    hello = right_hello();
    hello.lane = 2;
    void* third = stranger(&hello, sizeof hello);
    expect_service("its lane 2");
    // One lane that comes twice: the second is refused, the first waits for the other lane.
    hello = right_hello();
    void* fourth = stranger(&hello, sizeof hello);
    void* fifth = stranger(&hello, sizeof hello);
    expect_service("its lane 0 is there already");
    for (void* comm : {first, second, third, fourth, fifth}) {
        table_->close_send(comm);
    }
}

TEST_F(Wrapped, WhoSaysNothingOrGoesDoesNotHoldUpOthers) {
    alignas(16) char handle[kNetHandleBytes];
    std::memcpy(handle, handle_, sizeof handle);
    std::memset(handle + kTailOffset, 0, sizeof(WrappedTail));
    void* silent = nullptr;
    ASSERT_TRUE(poll_until([&] {
        return table_->connect(stranger_context_, 0, handle, &silent) != ncclSuccess ||
               silent != nullptr;
    }));
    expect_service(nullptr);
    table_->close_send(silent);
    expect_service("a peer is refused");
}

TEST_F(Wrapped, AListenerWithoutSlimwireIsRefused) {
    alignas(16) char handle[kNetHandleBytes] = {};
    void* comm = nullptr;
    ASSERT_EQ(table_->listen(stranger_context_, 0, handle, &comm), ncclSuccess);
    std::unique_ptr<WireConnecting> attempt;
    std::unique_ptr<SendWire> wire;
    const Status status = context_->connect(0, handle, &attempt, &wire);
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_HAS(status.message(), "does not use slimwire");
    const WrappedTail future{kWrappedMagic, 77, 1};
    std::memcpy(handle + kTailOffset, &future, sizeof future);
    const Status later = context_->connect(0, handle, &attempt, &wire);
    EXPECT_EQ(later.code(), Code::kRemoteError);
    EXPECT_HAS(later.message(), "version 77");
    table_->close_listen(comm);
}

TEST(WrappedOpen, WhatIsMissingIsNamed) {
    const auto none = open_wrapped_wire("/nowhere/libnccl-net-x.so", nullptr);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.status().code(), Code::kNotFound);
    EXPECT_HAS(none.status().message(), "/nowhere/libnccl-net-x.so");
    const auto short_name = open_wrapped_wire("nowhere", nullptr);
    ASSERT_FALSE(short_name.ok());
    EXPECT_HAS(short_name.status().message(), "libnccl-net-nowhere.so");
    const auto libc = open_wrapped_wire("libm.so.6", nullptr);
    ASSERT_FALSE(libc.ok());
    EXPECT_EQ(libc.status().code(), Code::kNotFound);
    EXPECT_HAS(libc.status().message(), "ncclNetPlugin_v12");
}

TEST(WrappedOpen, EachVersionIsFoundAndDescribed) {
    for (const char* version : {"8", "9", "10", "12"}) {
        auto table = InnerTable::open(inner(version));
        ASSERT_TRUE(table.ok()) << table.status().message();
        EXPECT_EQ(std::to_string(table.value()->version()), version);
        EXPECT_STREQ(table.value()->name(), "TestTcp");
        auto wire = open_wrapped_wire(inner(version), nullptr);
        ASSERT_TRUE(wire.ok()) << wire.status().message();
        ASSERT_EQ(wire.value()->devices(), 1);
        const WireDevice& device = wire.value()->device(0);
        EXPECT_EQ(device.name, "TestTcp");
        EXPECT_EQ(device.pci_path, "");
        EXPECT_EQ(device.speed_mbps, 25000);
        EXPECT_EQ(device.max_connections, 500);
        EXPECT_EQ(device.max_message_bytes, size_t{1} << 30);
    }
    EXPECT_FALSE(InnerTable::open(inner("9"), 12).ok());
}

// The plugin counts registrations, requests and connections, and writes the balance at finalize.
TEST(WrappedOpen, NothingIsLeftBehind) {
    const std::string log = testing::TempDir() + "wrapped_test_balance";
    std::remove(log.c_str());
    setenv("TEST_NET_BALANCE", log.c_str(), 1);
    {
        auto wire = open_wrapped_wire(inner("12"), nullptr);
        ASSERT_TRUE(wire.ok());
        WirePair pair;
        ASSERT_TRUE(pair.open(*wire.value(), *wire.value()).ok());
        char out[100] = {1}, in[100];
        WireMemory* memory = nullptr;
        ASSERT_TRUE(pair.sender->register_memory(out, 100, &memory).ok());
        WireRequest* receive = start_receive(*pair.receiver, Lane::kControl, in, sizeof in);
        finish_both(pair, start_send(*pair.sender, Lane::kControl, out, 50, memory), receive);
        EXPECT_TRUE(pair.sender->deregister_memory(memory).ok());
        // And one connection whose ends go with things open.
        std::unique_ptr<SendWire> sender;
        std::unique_ptr<ReceiveWire> receiver;
        ASSERT_TRUE(pair.connect(&sender, &receiver).ok());
        ASSERT_TRUE(sender->register_memory(out, 100, &memory).ok());
        sender->drop();
        EXPECT_TRUE(sender->deregister_memory(memory).ok());
    }
    unsetenv("TEST_NET_BALANCE");
    std::ifstream file(log);
    std::string line, last;
    while (std::getline(file, line)) {
        last = line;
    }
    EXPECT_HAS(last, "registered 0 open 0 requests 0");
}

}  // namespace
}  // namespace slimwire::net
