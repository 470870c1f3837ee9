// What was sent comes after its sender has closed: however late the receiver gets a processor,
// however slowly it comes, and when the sender's process ends at once. Other processes are this
// program again, started with --drain or --fill.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "plugin/net/ucx/connections.h"
#include "plugin/net/ucx/devices.h"
#include "plugin/net/ucx/ucx_wire.h"
#include "tests/plugin/net/other_process.h"
#include "tests/plugin/net/wire_pair.h"

namespace slimwire::net {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kConnections = 6;
constexpr size_t kMessage = 1500;

// Small buffers in the kernel, which a few messages fill.
Result<std::unique_ptr<Wire>> open_wire() {
    setenv("UCX_TCP_SNDBUF", "64k", 1);
    setenv("UCX_TCP_RCVBUF", "64k", 1);
    UcxSettings settings = read_ucx_settings();
    settings.interfaces = "=lo";
    settings.transports.clear();
    return open_ucx_wire(settings);
}

// --- A receiver

struct Drained {
    uint32_t sender = 0;    // as its first message says
    uint32_t messages = 0;  // after that one
};

Drained drain(ReceiveWire& wire) {
    Drained result;
    std::vector<uint32_t> message(kMessage / 4);
    for (uint32_t number = 0;; ++number) {
        WireRequest* request = nullptr;
        Status status = wire.receive(Lane::kData, message.data(), kMessage, nullptr, &request);
        bool done = false;
        while (status.ok() && !done) {
            status = wire.test(request, &done, nullptr);
            std::this_thread::yield();
        }
        if (!status.ok()) {
            result.messages = number - 1;
            return result;
        }
        if (number == 0) {
            result.sender = message.front();
        } else if (message.front() != number || message.back() != number) {
            failed("message " + std::to_string(number) + " is wrong");
        }
    }
}

// Accepts kConnections, receives what comes until each ends, and writes a Drained for each.
int be_drain() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto wire = open_wire();
    must(wire.status());
    std::unique_ptr<WireContext> context;
    must(wire.value()->open(1, -1, &context));
    alignas(8) char handle[kNetHandleBytes];
    std::unique_ptr<WireListener> listener;
    must(context->listen(0, handle, &listener));
    write_out(handle, sizeof handle);
    std::vector<std::unique_ptr<ReceiveWire>> receivers;
    while (receivers.size() < kConnections) {
        std::unique_ptr<ReceiveWire> receiver;
        must(listener->accept(&receiver));
        if (receiver != nullptr) {
            receivers.push_back(std::move(receiver));
        }
    }
    write_out("R", 1);
    for (const auto& receiver : receivers) {
        const Drained drained = drain(*receiver);
        write_out(&drained, sizeof drained);
    }
    return 0;
}

// --- A sender

struct Filled {
    uint32_t messages = 0;  // that are over
    bool all_over = true;   // nothing is in flight
    bool closed_late = false;
};

// Sends until `most` messages are over, or one does not go.
Filled fill(SendWire& wire, uint32_t most) {
    Filled result;
    static std::vector<uint32_t> message(kMessage / 4);
    while (result.messages < most) {
        message.front() = message.back() = result.messages + 1;
        WireRequest* request = start_send(wire, Lane::kData, message.data(), kMessage);
        bool done = false;
        const auto end = Clock::now() + 700ms;
        while (!done && Clock::now() < end) {
            must(wire.test(request, &done, nullptr));
        }
        if (!done) {
            result.all_over = false;
            return result;
        }
        ++result.messages;
    }
    return result;
}

// Connects kConnections to a drain that is then stopped, fills each until nothing more goes, and
// closes. The first finds out how much that is, and ends with a message in flight.
std::vector<Filled> fill_all(WireContext& context, char* handle, pid_t drain_pid) {
    std::vector<std::unique_ptr<SendWire>> senders(kConnections);
    for (uint32_t i = 0; i < kConnections; ++i) {
        std::unique_ptr<WireConnecting> attempt;
        while (senders[i] == nullptr) {
            must(context.connect(0, handle, &attempt, &senders[i]));
            std::this_thread::sleep_for(1ms);
        }
        const std::vector<uint32_t> name(kMessage / 4, i);
        WireRequest* request = start_send(*senders[i], Lane::kData, name.data(), kMessage);
        const Finished over = finish(*senders[i], request);
        must(over.status);
    }
    std::this_thread::sleep_for(200ms);  // the drain has accepted them all
    kill(drain_pid, SIGSTOP);
    std::vector<Filled> filled;
    uint32_t most = UINT32_MAX;
    for (auto& sender : senders) {
        filled.push_back(fill(*sender, most));
        most = std::min(most, filled.back().messages);
        const auto begin = Clock::now();
        sender.reset();
        filled.back().closed_late = Clock::now() - begin > 15ms;
    }
    return filled;
}

// fill DRAIN_PID: the handle comes by stdin, what was sent goes out by stdout. Ends as a process
// does whose NCCL never closes the context.
int be_fill(pid_t drain_pid) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alignas(8) char handle[kNetHandleBytes];
    read_in(handle, sizeof handle);
    auto wire = open_wire();
    must(wire.status());
    std::unique_ptr<WireContext> context;
    must(wire.value()->open(1, -1, &context));
    const std::vector<Filled> filled = fill_all(*context, handle, drain_pid);
    write_out(filled.data(), filled.size() * sizeof(Filled));
    static_cast<void>(context.release());
    wire.value()->finish(10'000);
    _exit(0);
}

// --- The tests

// What was over when its sender closed has come, and there was something to wait for.
void expect_all_came(const OtherProcess& drain, const std::vector<Filled>& filled) {
    ASSERT_TRUE(drain.ready());
    EXPECT_FALSE(filled[0].all_over) << "the kernel takes everything: nothing is tested";
    int late = 0, compared = 0;
    for (int i = 0; i < kConnections; ++i) {
        Drained drained;
        ASSERT_TRUE(drain.hear(&drained, sizeof drained));
        ASSERT_LT(drained.sender, static_cast<uint32_t>(kConnections));
        const Filled& sent = filled[drained.sender];
        late += sent.all_over && sent.closed_late ? 1 : 0;
        compared += sent.all_over ? 1 : 0;
        if (sent.all_over) {
            EXPECT_EQ(drained.messages, sent.messages) << "connection " << drained.sender;
        }
    }
    EXPECT_GE(compared, 2);
    EXPECT_GE(late, 1) << "no close had anything left to hand over";
}

TEST(UcxClose, AReceiverThatWasStoppedForLongGetsWhatWasSent) {
    const OtherProcess drain({"--drain"});
    auto wire = open_wire();
    ASSERT_TRUE(wire.ok()) << wire.status().message();
    std::unique_ptr<WireContext> context;
    ASSERT_TRUE(wire.value()->open(1, -1, &context).ok());
    alignas(8) char handle[kNetHandleBytes];
    ASSERT_TRUE(drain.hear(handle, sizeof handle));
    const std::vector<Filled> filled = fill_all(*context, handle, drain.pid());
    std::this_thread::sleep_for(2500ms);
    kill(drain.pid(), SIGCONT);
    expect_all_came(drain, filled);
}

TEST(UcxClose, AProcessThatEndsAtOnceHandsOverWhatWasSent) {
    const OtherProcess drain({"--drain"});
    const OtherProcess filling({"--fill", std::to_string(drain.pid())});
    alignas(8) char handle[kNetHandleBytes];
    ASSERT_TRUE(drain.hear(handle, sizeof handle));
    ASSERT_TRUE(filling.tell(handle, sizeof handle));
    std::vector<Filled> filled(kConnections);
    ASSERT_TRUE(filling.hear(filled.data(), filled.size() * sizeof(Filled)));
    std::this_thread::sleep_for(200ms);
    kill(drain.pid(), SIGCONT);
    expect_all_came(drain, filled);
}

}  // namespace
}  // namespace slimwire::net

int main(int argc, char** argv) {
    if (argc == 2 && std::string(argv[1]) == "--drain") {
        return slimwire::net::be_drain();
    }
    if (argc == 3 && std::string(argv[1]) == "--fill") {
        return slimwire::net::be_fill(std::stoi(argv[2]));
    }
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
