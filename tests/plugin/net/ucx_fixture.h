// A wire over UCX on loopback with one connection, and the ways to knock at its listener's door.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugin/net/ucx/connections.h"
#include "plugin/net/ucx/handshake.h"
#include "plugin/net/ucx/ucx_wire.h"
#include "tests/plugin/net/wire_pair.h"
#include "tests/support/has.h"

namespace slimwire::net {

class UcxWire : public testing::Test {
  protected:
    void SetUp() override { open(std::chrono::seconds(30)); }
    void open(std::chrono::nanoseconds patience) {
        pair_ = {};
        wire_.reset();
        UcxSettings settings = read_ucx_settings();
        settings.interfaces = "=lo";
        settings.transports.clear();
        settings.sockets = over_sockets();
        settings.handshake_ns = static_cast<uint64_t>(patience.count());
        settings.warn = [this](const std::string& line) {
            const std::lock_guard lock(mutex_);
            lines_.push_back(line);
        };
        auto wire = open_ucx_wire(settings);
        ASSERT_TRUE(wire.ok()) << wire.status().message();
        wire_ = std::move(wire).value();
        const Status status = pair_.open(*wire_, *wire_);
        ASSERT_TRUE(status.ok()) << status.message();
        memcpy(&handle_, pair_.handle, sizeof handle_);
    }

    // A stranger's blocking socket to the listener.
    int knock() const {
        const SocketAddress address = address_of(handle_).value();
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        EXPECT_EQ(connect(fd, &address.any, sizeof address.v4), 0) << strerror(errno);
        return fd;
    }
    Hello hello() const { return {kWireMagic, kWireVersion, 0, handle_.cookie}; }
    static void say(int fd, const void* bytes, size_t count) {
        EXPECT_EQ(send(fd, bytes, count, MSG_NOSIGNAL), static_cast<ssize_t>(count));
    }
    // Lets the listener look at its door for a while; whoever comes in is kept.
    void attend(std::chrono::milliseconds time) {
        const auto end = std::chrono::steady_clock::now() + time;
        while (std::chrono::steady_clock::now() < end) {
            std::unique_ptr<ReceiveWire> wire;
            const Status status = pair_.listener->accept(&wire);
            ASSERT_TRUE(status.ok()) << status.message();
            if (wire != nullptr) {
                came_in_.push_back(std::move(wire));
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    // The same until `over`.
    template <class Over>
    void attend_until(Over&& over) {
        EXPECT_TRUE(poll_until([&] {
            attend(std::chrono::milliseconds(1));
            return over() || HasFailure();
        }));
    }
    static bool closed_by_peer(int fd) {
        pollfd entry{fd, POLLIN, 0};
        char byte = 0;
        return poll(&entry, 1, 60'000) == 1 && recv(fd, &byte, 1, 0) <= 0;
    }
    void expect_one_line(const std::string& part) {
        ASSERT_EQ(lines_.size(), 1u) << testing::PrintToString(lines_);
        EXPECT_HAS(lines_[0], part);
        EXPECT_HAS(lines_[0], "127.0.0.1:");
        lines_.clear();
    }
    void expect_refused(const void* bytes, size_t count, const std::string& why) {
        const int fd = knock();
        say(fd, bytes, count);
        attend_until([&] { return !lines_.empty(); });
        EXPECT_TRUE(closed_by_peer(fd));
        close(fd);
        expect_one_line(why);
        EXPECT_TRUE(came_in_.empty());
    }
    void expect_works() {
        const std::string message = "still here";
        char buffer[16] = {};
        WireRequest* receive = start_receive(*pair_.receiver, Lane::kData, buffer, sizeof buffer);
        start_send(*pair_.sender, Lane::kData, message.data(), message.size());
        const Finished over = finish(*pair_.receiver, receive);
        EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        EXPECT_EQ(std::string(buffer), message);
    }

    std::mutex mutex_;
    std::vector<std::string> lines_;
    std::unique_ptr<Wire> wire_;
    WirePair pair_;
    std::vector<std::unique_ptr<ReceiveWire>> came_in_;
    WireHandle handle_{};
};

}  // namespace slimwire::net
