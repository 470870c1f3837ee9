// A connection over any wire, for tests: both ends in one object, and the loops around calls that
// say "not yet".
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "plugin/net/wire.h"

namespace slimwire::net {

// Sockets stand in for UCX in this run.
inline bool over_sockets() {
    return std::getenv("TEST_SOCKETS") != nullptr;
}

// Calls `step` until it is true; false after a minute (a test's limit, not a wire's).
template <class Step>
bool poll_until(Step&& step) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!step()) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

struct WirePair {
    std::unique_ptr<WireContext> sender_context, receiver_context;
    std::unique_ptr<WireListener> listener;
    alignas(8) char handle[kNetHandleBytes] = {};
    std::unique_ptr<SendWire> sender;
    std::unique_ptr<ReceiveWire> receiver;

    // Connects from one wire to a new listener of the other.
    Status open(Wire& sending, Wire& receiving) {
        SLIMWIRE_TRY(sending.open(1, -1, &sender_context));
        SLIMWIRE_TRY(receiving.open(1, -1, &receiver_context));
        SLIMWIRE_TRY(receiver_context->listen(0, handle, &listener));
        return connect(&sender, &receiver);
    }

    // A further connection to the listener.
    Status connect(std::unique_ptr<SendWire>* send, std::unique_ptr<ReceiveWire>* receive) {
        std::unique_ptr<WireConnecting> attempt;
        Status status;
        const bool in_time = poll_until([&] {
            if (*send == nullptr) {
                status = sender_context->connect(0, handle, &attempt, send);
            }
            if (status.ok() && *receive == nullptr) {
                status = listener->accept(receive);
            }
            return !status.ok() || (*send != nullptr && *receive != nullptr);
        });
        return in_time ? status : Status(Code::kInternalError, "no connection in time");
    }
};

// Starts an operation, calling again while there is no room. Null on an error.
inline WireRequest* start_send(
    SendWire& wire, Lane lane, const void* data, size_t bytes, WireMemory* memory = nullptr) {
    WireRequest* request = nullptr;
    Status status;
    poll_until([&] {
        status = wire.send(lane, data, bytes, memory, &request);
        return !status.ok() || request != nullptr;
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return request;
}

inline WireRequest* start_receive(
    ReceiveWire& wire, Lane lane, void* data, size_t capacity, WireMemory* memory = nullptr) {
    WireRequest* request = nullptr;
    Status status;
    poll_until([&] {
        status = wire.receive(lane, data, capacity, memory, &request);
        return !status.ok() || request != nullptr;
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return request;
}

struct Finished {
    Status status;
    size_t bytes = 0;
    bool in_time = false;
};

// Waits until `request` is over, and calls `meanwhile` after each look.
template <class Meanwhile>
Finished finish(WireConnection& wire, WireRequest* request, Meanwhile&& meanwhile) {
    Finished result;
    bool done = false;
    result.in_time = poll_until([&] {
        result.status = wire.test(request, &done, &result.bytes);
        const bool over = done || !result.status.ok();
        if (!over) {
            meanwhile();
        }
        return over;
    });
    return result;
}
inline Finished finish(WireConnection& wire, WireRequest* request) {
    return finish(wire, request, [] {});
}
// The same of a message that both sides look at in turn; as its receiver sees it.
inline Finished finish_both(WirePair& pair, WireRequest* send, WireRequest* receive) {
    bool sent = false;
    const auto look = [&] {
        if (!sent) {
            EXPECT_TRUE(pair.sender->test(send, &sent, nullptr).ok());
        }
    };
    const Finished received = finish(*pair.receiver, receive, look);
    EXPECT_TRUE(received.in_time && received.status.ok()) << received.status.message();
    EXPECT_TRUE(sent || finish(*pair.sender, send).status.ok());
    return received;
}

}  // namespace slimwire::net
