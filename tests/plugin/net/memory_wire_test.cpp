// The wire for tests does to its users what it is told to, and notices what they must not do.
#include "tests/plugin/net/memory_wire.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/plugin/net/wire_pair.h"

namespace slimwire::net {
namespace {

struct Ends {
    explicit Ends(const MemoryWireOptions& options)
        : network(MemoryNetwork::make(options)), wire(network->wire()) {
        const Status status = pair.open(*wire, *wire);
        EXPECT_TRUE(status.ok()) << status.message();
    }
    std::shared_ptr<MemoryNetwork> network;
    std::unique_ptr<Wire> wire;
    WirePair pair;
};

TEST(MemoryWire, KillsAtTheMessageAskedFor) {
    Ends ends({.eager_bytes = 100, .kill_at_message = 2});
    char byte = 1;
    EXPECT_NE(start_send(*ends.pair.sender, Lane::kData, &byte, 1), nullptr);
    EXPECT_NE(start_send(*ends.pair.sender, Lane::kControl, &byte, 1), nullptr);
    WireRequest* request = nullptr;
    EXPECT_EQ(ends.pair.sender->send(Lane::kData, &byte, 1, nullptr, &request).code(),
              Code::kRemoteError);
    EXPECT_EQ(ends.pair.receiver->receive(Lane::kData, &byte, 1, nullptr, &request).code(),
              Code::kRemoteError);
}

TEST(MemoryWire, KillsAllConnections) {
    Ends ends({});
    char byte = 1;
    WireRequest* request = start_receive(*ends.pair.receiver, Lane::kData, &byte, 1);
    ends.network->kill_connections();
    bool done = false;
    EXPECT_EQ(ends.pair.receiver->test(request, &done, nullptr).code(), Code::kRemoteError);
}

TEST(MemoryWire, TamperedMessagesArriveTampered) {
    Ends ends({.tamper = [](Lane, uint64_t number, uint8_t* data, size_t* bytes) {
        data[0] = static_cast<uint8_t>(number + 10);
        *bytes = 2;
    }});
    const char out[4] = {1, 2, 3, 4};
    char in[4] = {};
    WireRequest* receive = start_receive(*ends.pair.receiver, Lane::kData, in, 4);
    ASSERT_NE(start_send(*ends.pair.sender, Lane::kData, out, 4), nullptr);
    const Finished over = finish(*ends.pair.receiver, receive);
    ASSERT_TRUE(over.status.ok());
    EXPECT_EQ(over.bytes, 2u);
    EXPECT_EQ(in[0], 10);
}

TEST(MemoryWire, MessagesAreLate) {
    Ends ends({.delay_ns = 50'000'000, .eager_bytes = 10});
    char byte = 1;
    WireRequest* receive = start_receive(*ends.pair.receiver, Lane::kData, &byte, 1);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_NE(start_send(*ends.pair.sender, Lane::kData, &byte, 1), nullptr);
    EXPECT_TRUE(finish(*ends.pair.receiver, receive).status.ok());
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
}

TEST(MemoryWire, NotesWhatBreaksTheContract) {
    Ends ends({.eager_bytes = 10});
    char bytes[8] = {};
    WireMemory* memory = nullptr;
    ASSERT_TRUE(ends.pair.sender->register_memory(bytes, 4, &memory).ok());
    WireRequest* request = nullptr;
    ASSERT_TRUE(ends.pair.sender->send(Lane::kData, bytes, 4, memory, &request).ok());
    EXPECT_EQ(ends.network->violations(), 0) << ends.network->first_violation();
    bool done = false;
    ASSERT_TRUE(ends.pair.sender->test(request, &done, nullptr).ok());
    ASSERT_TRUE(done);
    EXPECT_FALSE(ends.pair.sender->test(request, &done, nullptr).ok());
    EXPECT_EQ(ends.network->violations(), 1);
    ASSERT_TRUE(ends.pair.sender->send(Lane::kData, bytes + 1, 4, memory, &request).ok());
    EXPECT_EQ(ends.network->violations(), 2);
    ASSERT_TRUE(ends.pair.sender->deregister_memory(memory).ok());
    EXPECT_FALSE(ends.pair.sender->deregister_memory(memory).ok());
    EXPECT_EQ(ends.network->violations(), 3);
    EXPECT_NE(ends.network->first_violation(), "");
}

TEST(MemoryWire, CountsWhatIsOpen) {
    std::shared_ptr<MemoryNetwork> network;
    {
        Ends ends({});
        network = ends.network;
        char byte = 1;
        ASSERT_NE(start_receive(*ends.pair.receiver, Lane::kData, &byte, 1), nullptr);
        EXPECT_EQ(network->counts().contexts, 2);
        EXPECT_EQ(network->counts().listeners, 1);
        EXPECT_EQ(network->counts().connections, 2);
        EXPECT_EQ(network->counts().requests, 1);
    }
    EXPECT_EQ(network->counts().contexts, 0);
    EXPECT_EQ(network->counts().listeners, 0);
    EXPECT_EQ(network->counts().attempts, 0);
    EXPECT_EQ(network->counts().connections, 0);
    EXPECT_EQ(network->counts().requests, 0);
}

}  // namespace
}  // namespace slimwire::net
