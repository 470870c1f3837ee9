// How demo_train's ranks find each other: the variables, the exchange over real sockets, and what
// happens when someone does not come, comes twice, or does not belong.
#include "tools/demo_train/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <utility>

#include "tests/support/has.h"
#include "tools/demo_train/error.h"

namespace demo {
namespace {

using Block = std::array<std::byte, 128>;
using std::chrono::milliseconds;

// A socket at a free port of this host.
int bound_socket(std::string* bound) {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length), 0);
    *bound = std::to_string(ntohs(address.sin_port));
    return descriptor;
}

// A port that was free a moment ago.
std::string free_port() {
    std::string port;
    ::close(bound_socket(&port));
    return port;
}

World world_of(int rank, int size, const std::string& port) {
    World world;
    world.rank = rank;
    world.size = size;
    world.master_port = port;
    return world;
}

std::string exchange_error(const World& world, milliseconds timeout) {
    Block block{};
    try {
        exchange_from_rank0(world, block, timeout);
    } catch (const TrainError& error) {
        return error.what();
    }
    return "no error";
}

TEST(DemoRendezvous, StrangerIsDropped) {
    const std::string port = free_port();
    Block sent{}, received{};
    sent.fill(std::byte{0x5a});
    std::thread server(
        [&] { exchange_from_rank0(world_of(0, 2, port), sent, milliseconds(10000)); });
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int stranger = ::socket(AF_INET, SOCK_STREAM, 0);
    while (::connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_EQ(::send(stranger, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    exchange_from_rank0(world_of(1, 2, port), received, milliseconds(10000));
    server.join();
    ::close(stranger);
    EXPECT_EQ(received, sent);
}

TEST(DemoRendezvous, WhoDoesNotComeIsNamedInTime) {
    EXPECT_HAS(exchange_error(world_of(0, 3, free_port()), milliseconds(150)), "2 did not come");
    const std::string port = free_port();
    const std::string text = exchange_error(world_of(1, 2, port), milliseconds(150));
    EXPECT_HAS(text, "127.0.0.1:" + port);
    EXPECT_HAS(text, "Connection refused");
}

TEST(DemoRendezvous, PortInUseSaysSo) {
    std::string port;
    const int other = bound_socket(&port);
    ASSERT_EQ(::listen(other, 1), 0);
    EXPECT_HAS(exchange_error(world_of(0, 2, port), milliseconds(100)),
               "Address already in use; choose a free MASTER_PORT");
    ::close(other);
}

TEST(DemoRendezvous, TwoProcessesOfOneRankAreAnError) {
    const std::string port = free_port();
    std::string text;
    std::thread server([&] { text = exchange_error(world_of(0, 3, port), milliseconds(5000)); });
    Block block{};
    exchange_from_rank0(world_of(1, 3, port), block, milliseconds(5000));
    exchange_error(world_of(1, 3, port), milliseconds(300));
    server.join();
    EXPECT_HAS(text, "rank 1 of 3 came");
}

class DemoWorld : public ::testing::Test {
  protected:
    void SetUp() override {
        for (const char* name :
             {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
            ::unsetenv(name);
        }
    }
    void TearDown() override { SetUp(); }
    static std::string error() {
        try {
            world_from_environment();
        } catch (const TrainError& caught) {
            return caught.what();
        }
        return "no error";
    }
};

TEST_F(DemoWorld, ReadsTheLaunchersVariables) {
    World world = world_from_environment();
    EXPECT_EQ(world.rank, 0);
    EXPECT_EQ(world.size, 1);
    for (const auto& [name, value] : {std::pair("RANK", "3"),
                                      {"WORLD_SIZE", "8"},
                                      {"LOCAL_RANK", "1"},
                                      {"MASTER_ADDR", "node0"},
                                      {"MASTER_PORT", "4242"}}) {
        ::setenv(name, value, 1);
    }
    world = world_from_environment();
    EXPECT_EQ(world.rank, 3);
    EXPECT_EQ(world.size, 8);
    EXPECT_EQ(world.local_rank, 1);
    EXPECT_EQ(world.master_address, "node0");
    EXPECT_EQ(world.master_port, "4242");
}

TEST_F(DemoWorld, BadVariablesNameThemselves) {
    ::setenv("WORLD_SIZE", "4", 1);
    EXPECT_HAS(error(), "RANK is not");
    ::setenv("RANK", "4", 1);
    EXPECT_EQ(error(), "RANK='4': expected a number from 0 to 3");
    ::setenv("RANK", "1x", 1);
    EXPECT_EQ(error(), "RANK='1x': expected a number from 0 to 3");
    ::setenv("RANK", "1", 1);
    ::setenv("MASTER_PORT", "0", 1);
    EXPECT_EQ(error(), "MASTER_PORT='0': expected a number from 1 to 65535");
}

}  // namespace
}  // namespace demo
