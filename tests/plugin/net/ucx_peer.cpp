#include "tests/plugin/net/ucx_peer.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "plugin/net/ucx/ucx_wire.h"

namespace slimwire::net {
namespace {

constexpr int kOpen = 4;

[[noreturn]] void peer_failed(const std::string& why) {
    fprintf(stderr, "peer: %s\n", why.c_str());
    _exit(3);
}

void must(const Status& status) {
    if (!status.ok()) {
        peer_failed(status.message());
    }
}

// Keeps kOpen messages going until told otherwise by a signal; each message holds its number.
template <class Start>
void keep_going(WireConnection& wire, bool receiving, Start&& start) {
    std::vector<std::vector<uint32_t>> buffers(kOpen, std::vector<uint32_t>(kPeerMessage / 4));
    std::vector<WireRequest*> open(kOpen, nullptr);
    for (uint32_t begun = 0, ended = 0;;) {
        std::vector<uint32_t>& next = buffers[begun % kOpen];
        if (begun - ended < kOpen) {
            if (!receiving) {
                next.front() = next.back() = begun;
            }
            must(start(next.data(), &open[begun % kOpen]));
            begun += open[begun % kOpen] != nullptr ? 1 : 0;
        }
        bool done = false;
        if (begun > ended) {
            must(wire.test(open[ended % kOpen], &done, nullptr));
        }
        if (done) {
            const std::vector<uint32_t>& over = buffers[ended % kOpen];
            if (receiving && (over.front() != ended || over.back() != ended)) {
                peer_failed("message " + std::to_string(ended) + " is wrong");
            }
            ++ended;
        }
        std::this_thread::yield();
    }
}

void say_ready() {
    if (write(STDOUT_FILENO, "R", 1) != 1) {
        peer_failed("nobody listens");
    }
}

}  // namespace

Result<std::unique_ptr<Wire>> open_peer_wire(const std::string& transports) {
    UcxSettings settings = read_ucx_settings();
    settings.interfaces = "=lo";
    settings.transports = transports;
    return open_ucx_wire(settings);
}

int ucx_peer(const std::string& transports, const std::string& role, const std::string& step) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto wire = open_peer_wire(transports);
    must(wire.status());
    std::unique_ptr<WireContext> context;
    must(wire.value()->open(1, -1, &context));
    alignas(8) char handle[kNetHandleBytes];
    if (role == "receive") {
        std::unique_ptr<WireListener> listener;
        must(context->listen(0, handle, &listener));
        if (write(STDOUT_FILENO, handle, sizeof handle) != sizeof handle) {
            peer_failed("nobody wants the handle");
        }
        if (step == "connect") {
            pause();
        }
        std::unique_ptr<ReceiveWire> receiver;
        while (receiver == nullptr) {
            must(listener->accept(&receiver));
        }
        say_ready();
        if (step == "idle") {
            pause();
        }
        keep_going(*receiver, true, [&](void* data, WireRequest** request) {
            return receiver->receive(Lane::kData, data, kPeerMessage, nullptr, request);
        });
    }
    if (read(STDIN_FILENO, handle, sizeof handle) != sizeof handle) {
        peer_failed("no handle");
    }
    std::unique_ptr<WireConnecting> attempt;
    std::unique_ptr<SendWire> sender;
    must(context->connect(0, handle, &attempt, &sender));
    if (step == "connect") {
        say_ready();
        pause();
    }
    while (sender == nullptr) {
        must(context->connect(0, handle, &attempt, &sender));
    }
    say_ready();
    if (step == "idle") {
        pause();
    }
    keep_going(*sender, false, [&](void* data, WireRequest** request) {
        return sender->send(Lane::kData, data, kPeerMessage, nullptr, request);
    });
    return 0;
}

}  // namespace slimwire::net
