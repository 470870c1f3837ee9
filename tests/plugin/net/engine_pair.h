// Two engines over one memory network and a connection between them, for tests of the engine.
#pragma once

#include <gtest/gtest.h>

#include <memory>

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

    Status open(const EngineSettings& settings, const MemoryWireOptions& options) {
        network = MemoryNetwork::make(options);
        sending_engine = std::make_unique<Engine>(network->wire(), settings, &sent);
        receiving_engine = std::make_unique<Engine>(network->wire(), settings, &received);
        SLIMWIRE_TRY(sending_engine->open(1, -1, &sending_context));
        SLIMWIRE_TRY(receiving_engine->open(1, -1, &receiving_context));
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
        const MemoryWireCounts& counts = network->counts;
        EXPECT_EQ(counts.connections, 0);
        EXPECT_EQ(counts.listeners, 0);
        EXPECT_EQ(counts.attempts, 0);
        EXPECT_EQ(counts.contexts, 0);
        EXPECT_EQ(counts.requests, 0);
        EXPECT_EQ(counts.memories, 0);
        EXPECT_EQ(network->violations(), 0) << network->first_violation();
    }
};

}  // namespace slimwire::net
