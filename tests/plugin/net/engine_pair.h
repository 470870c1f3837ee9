// Two engines over one memory network and a connection between them, for tests of the engine.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "plugin/net/engine.h"
#include "plugin/net/engine/traffic.h"
#include "plugin/net/settings.h"
#include "tests/plugin/net/memory_wire.h"
#include "tests/plugin/net/wire_pair.h"

namespace slimwire::net {

struct EnginePair {
    Traffic sent, received;  // what the engines count
    std::shared_ptr<MemoryNetwork> network;
    std::unique_ptr<Engine> sending_engine, receiving_engine;
    std::unique_ptr<Context> sending_context, receiving_context;
    std::unique_ptr<Listener> listener;
    alignas(8) char handle[kNetHandleBytes] = {};
    std::unique_ptr<SendConnection> sender;
    std::unique_ptr<ReceiveConnection> receiver;
    ProfilerCallback profiler = nullptr;  // as NCCL gives it to the sender
    void* phandle = nullptr;              // that sends are given

    Status open(const EngineSettings& settings, const MemoryWireOptions& options) {
        network = MemoryNetwork::make(options);
        sending_engine = make_engine(network->wire(), settings, &sent);
        receiving_engine = make_engine(network->wire(), settings, &received);
        SLIMWIRE_TRY(sending_engine->open(1, -1, profiler, &sending_context));
        SLIMWIRE_TRY(receiving_engine->open(1, -1, nullptr, &receiving_context));
        SLIMWIRE_TRY(receiving_context->listen(0, handle, &listener));
        return connect(&sender, &receiver);
    }

    Status connect(std::unique_ptr<SendConnection>* send,
                   std::unique_ptr<ReceiveConnection>* receive) {
        Status status;
        const bool in_time = poll_until([&] {
            if (*send == nullptr) {
                status = sending_context->connect(0, handle, send);
            }
            if (status.ok() && *receive == nullptr) {
                status = listener->accept(receive);
            }
            return !status.ok() || (*send != nullptr && *receive != nullptr);
        });
        return in_time ? status : Status(Code::kInternalError, "no connection in time");
    }

    // Closes everything and checks that nothing is left and no rule was broken.
    void close() {
        sender.reset();
        receiver.reset();
        listener.reset();
        sending_context.reset();
        receiving_context.reset();
        sending_engine.reset();
        receiving_engine.reset();
        const MemoryWireCounts& counts = network->counts();
        EXPECT_EQ(counts.connections, 0);
        EXPECT_EQ(counts.listeners, 0);
        EXPECT_EQ(counts.attempts, 0);
        EXPECT_EQ(counts.contexts, 0);
        EXPECT_EQ(counts.requests, 0);
        EXPECT_EQ(counts.memories, 0);
        EXPECT_EQ(network->violations(), 0) << network->first_violation();
    }
};

// A message on its way: what was sent, and the memory it goes to, with guards around.
struct Message {
    static constexpr size_t kGuard = 64;

    std::vector<uint8_t> data;
    std::vector<uint8_t> memory;
    size_t capacity = 0;
    Request* send = nullptr;
    Request* receive = nullptr;
    bool sent = false, received = false;
    size_t size = 0;

    Message(std::vector<uint8_t> bytes, size_t more)
        : data(std::move(bytes)),
          memory(data.size() + more + 2 * kGuard, 0xC3),
          capacity(data.size() + more) {}

    uint8_t* target() { return memory.data() + kGuard; }

    void check(const std::string& what) const {
        ASSERT_EQ(size, data.size()) << what;
        ASSERT_TRUE(data.empty() ||
                    std::memcmp(memory.data() + kGuard, data.data(), data.size()) == 0)
            << what;
        for (size_t i = 0; i < kGuard; ++i) {
            ASSERT_EQ(memory[i], 0xC3) << what;
            ASSERT_EQ(memory[memory.size() - 1 - i], 0xC3) << what;
        }
        for (size_t i = data.size(); i < capacity; ++i) {
            ASSERT_EQ(memory[kGuard + i], 0xC3) << what << " beyond the message at " << i;
        }
    }
};

// Sends `messages` with tag 5, at most `depth` at a time on either side, and checks them.
inline Status exchange(EnginePair& pair, std::vector<Message>& messages, size_t depth) {
    size_t sent = 0, received = 0, sends_done = 0, receives_done = 0;
    Status failure;
    const auto step = [&](Status status) {
        if (failure.ok() && !status.ok()) {
            failure = status;
        }
        return status.ok();
    };
    const bool in_time = poll_until([&] {
        if (sent < messages.size() && sent - sends_done < depth) {
            Message& m = messages[sent];
            if (!step(pair.sender->send(m.data.data(), m.data.size(), 5, nullptr, pair.phandle,
                                        &m.send))) {
                return true;
            }
            sent += m.send != nullptr ? 1 : 0;
        }
        if (received < messages.size() && received - receives_done < depth) {
            Message& m = messages[received];
            void* target = m.target();
            const int tag = 5;
            Memory* memory = nullptr;
            if (!step(pair.receiver->receive(1, &target, &m.capacity, &tag, &memory,
                                             received % 3 == 0, &m.receive))) {
                return true;
            }
            received += m.receive != nullptr ? 1 : 0;
        }
        // Newest first: completion in any order is asked for.
        for (size_t i = sent; i-- > 0;) {
            Message& m = messages[i];
            if (!m.sent && m.send != nullptr) {
                if (!step(pair.sender->test(m.send, &m.sent, nullptr))) {
                    return true;
                }
                sends_done += m.sent ? 1 : 0;
            }
        }
        for (size_t i = received; i-- > 0;) {
            Message& m = messages[i];
            if (!m.received && m.receive != nullptr) {
                if (!step(pair.receiver->test(m.receive, &m.received, &m.size))) {
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
