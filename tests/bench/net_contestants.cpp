#include "tests/bench/net_contestants.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "plugin/net/engine.h"
#include "plugin/net/settings.h"
#include "plugin/net/ucx/ucx_wire.h"

namespace slimwire::bench {
namespace {

void send_all(int fd, const void* data, size_t bytes) {
    const auto* next = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t sent = ::send(fd, next, bytes, MSG_NOSIGNAL);
        if (sent <= 0) {
            give_up(std::string("send: ") + strerror(errno));
        }
        next += sent;
        bytes -= static_cast<size_t>(sent);
    }
}

void receive_all(int fd, void* data, size_t bytes) {
    auto* next = static_cast<char*>(data);
    Idle idle;
    while (bytes > 0) {
        // Polling, as the others do: a thread that sleeps is woken late.
        const ssize_t got = ::recv(fd, next, bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) {
            idle.none();
            continue;
        }
        if (got <= 0) {
            give_up(std::string("recv: ") +
                    (got == 0 ? "the other process has ended" : strerror(errno)));
        }
        next += got;
        bytes -= static_cast<size_t>(got);
    }
}

char* slot(char* data, size_t bytes, int message) {
    return data + static_cast<size_t>(message % kWindow) * bytes;
}

// A connected TCP socket; the first process calls.
int make_socket(const Channel& channel, bool first) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (first) {
        channel.hear(&address, sizeof address);
        if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
            give_up(std::string("connect: ") + strerror(errno));
        }
    } else {
        if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
            listen(fd, 1) != 0 ||
            getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
            give_up(std::string("listen: ") + strerror(errno));
        }
        channel.say(&address, sizeof address);
        const int door = fd;
        fd = accept(door, nullptr, nullptr);
        close(door);
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

// One socket for both directions, or one for each as NCCL's connections are.
class Sockets final : public Contestant {
  public:
    Sockets(const Channel& channel, bool first, bool one_way) : one_way_(one_way) {
        const int there = make_socket(channel, first);
        const int back = one_way ? make_socket(channel, first) : there;
        out_ = first ? there : back;
        in_ = first ? back : there;
    }
    ~Sockets() override {
        close(out_);
        if (in_ != out_) {
            close(in_);
        }
    }
    [[nodiscard]] std::string name() const override {
        return one_way_ ? "sockets, one a direction" : "sockets";
    }

    void stream(bool first, char* data, size_t bytes, int count) override {
        for (int i = 0; i < count; ++i) {
            first ? send_all(out_, slot(data, bytes, i), bytes)
                  : receive_all(in_, slot(data, bytes, i), bytes);
        }
    }
    void ping_pong(
        bool first, char* data, size_t bytes, int count, std::vector<double>* seconds) override {
        for (int i = 0; i < count; ++i) {
            const double begin = now_s();
            if (first) {
                send_all(out_, data, bytes);
            }
            receive_all(in_, data, bytes);
            if (!first) {
                send_all(out_, data, bytes);
            }
            seconds->push_back(now_s() - begin);
        }
    }

  private:
    const bool one_way_;
    int out_ = -1, in_ = -1;
};

void check(const Status& status) {
    if (!status.ok()) {
        give_up(status.message());
    }
}

// What starts requests and tests them.
template <class Request>
class Requesting : public Contestant {
  public:
    void stream(bool first, char* data, size_t bytes, int count) override {
        std::deque<Request*> open;
        Idle idle;
        for (int started = 0, finished = 0; finished < count;) {
            Request* request = nullptr;
            if (started < count && started - finished < kWindow) {
                request = start(first, slot(data, bytes, started), bytes);
            }
            if (request != nullptr) {
                open.push_back(request);
                ++started;
            }
            const bool done = !open.empty() && test(first, open.front());
            if (done) {
                open.pop_front();
                ++finished;
            }
            done || request != nullptr ? idle.some() : idle.none();
        }
    }

    void ping_pong(
        bool first, char* data, size_t bytes, int count, std::vector<double>* seconds) override {
        for (int i = 0; i < count; ++i) {
            const double begin = now_s();
            Request* const in = started(false, data, bytes);
            if (first) {
                wait(true, started(true, data, bytes));
            }
            wait(false, in);
            if (!first) {
                wait(true, started(true, data, bytes));
            }
            seconds->push_back(now_s() - begin);
        }
    }

  protected:
    // Null where there is no room yet.
    virtual Request* start(bool sending, char* data, size_t bytes) = 0;
    virtual bool test(bool sending, Request* request) = 0;

  private:
    Request* started(bool sending, char* data, size_t bytes) {
        Request* request = nullptr;
        while (request == nullptr) {
            request = start(sending, data, bytes);
        }
        return request;
    }
    void wait(bool sending, Request* request) {
        Idle idle;
        while (!test(sending, request)) {
            idle.none();
        }
    }
};

std::unique_ptr<net::Wire> loopback_wire() {
    net::UcxSettings settings = net::read_ucx_settings();
    settings.interfaces = "=lo";
    auto wire = net::open_ucx_wire(settings);
    check(wire.status());
    return std::move(wire).value();
}

class UcxWireContestant final : public Requesting<net::WireRequest> {
  public:
    UcxWireContestant(const Channel& channel, bool first) : wire_(loopback_wire()) {
        check(wire_->open(1, -1, &context_));
        check(context_->listen(0, handle_, &listener_));
        char other[net::kNetHandleBytes];
        channel.exchange(first, handle_, other, sizeof other);
        std::unique_ptr<net::WireConnecting> attempt;
        while (sender_ == nullptr || receiver_ == nullptr) {
            if (sender_ == nullptr) {
                check(context_->connect(0, other, &attempt, &sender_));
            }
            if (receiver_ == nullptr) {
                check(listener_->accept(&receiver_));
            }
        }
    }
    [[nodiscard]] std::string name() const override { return "ucx wire"; }

  protected:
    net::WireRequest* start(bool sending, char* data, size_t bytes) override {
        net::WireRequest* request = nullptr;
        check(sending ? sender_->send(net::Lane::kData, data, bytes, nullptr, &request)
                      : receiver_->receive(net::Lane::kData, data, bytes, nullptr, &request));
        return request;
    }
    bool test(bool sending, net::WireRequest* request) override {
        net::WireConnection& wire =
            sending ? static_cast<net::WireConnection&>(*sender_) : *receiver_;
        bool done = false;
        check(wire.test(request, &done, nullptr));
        return done;
    }

  private:
    std::unique_ptr<net::Wire> wire_;
    std::unique_ptr<net::WireContext> context_;
    std::unique_ptr<net::WireListener> listener_;
    alignas(8) char handle_[net::kNetHandleBytes] = {};
    std::unique_ptr<net::SendWire> sender_;
    std::unique_ptr<net::ReceiveWire> receiver_;
};

// Over that wire, with or without the codec, on a network made slower on request.
class EngineContestant final : public Requesting<net::Request> {
  public:
    EngineContestant(const Channel& channel, bool first, bool codec, double rate_bytes_per_s)
        : codec_(codec) {
        auto settings = net::read_engine_settings();
        check(settings.status());
        settings.value().codec = codec;
        settings.value().rate_bytes_per_s = rate_bytes_per_s;
        engine_ = std::make_unique<net::Engine>(loopback_wire(), settings.value());
        check(engine_->open(1, -1, &context_));
        check(context_->listen(0, handle_, &listener_));
        channel.exchange(first, handle_, other_, sizeof other_);
        while (sender_ == nullptr || receiver_ == nullptr) {
            if (sender_ == nullptr) {
                check(context_->connect(0, other_, &sender_));
            }
            if (receiver_ == nullptr) {
                check(listener_->accept(&receiver_));
            }
        }
    }
    [[nodiscard]] std::string name() const override {
        return codec_ ? "engine" : "engine, codec off";
    }

  protected:
    net::Request* start(bool sending, char* data, size_t bytes) override {
        net::Request* request = nullptr;
        if (sending) {
            check(sender_->send(data, bytes, 0, nullptr, &request));
        } else {
            void* target = data;
            const int tag = 0;
            net::Memory* memory = nullptr;
            check(receiver_->receive(1, &target, &bytes, &tag, &memory, false, &request));
        }
        return request;
    }
    bool test(bool sending, net::Request* request) override {
        bool done = false;
        check(sending ? sender_->test(request, &done, nullptr)
                      : receiver_->test(request, &done, nullptr));
        return done;
    }

  private:
    const bool codec_;
    std::unique_ptr<net::Engine> engine_;
    std::unique_ptr<net::Context> context_;
    std::unique_ptr<net::Listener> listener_;
    alignas(8) char handle_[net::kNetHandleBytes] = {};
    alignas(8) char other_[net::kNetHandleBytes] = {};
    std::unique_ptr<net::SendConnection> sender_;
    std::unique_ptr<net::ReceiveConnection> receiver_;
};

// Number of the last line's second column in what a command prints.
double median_of(const std::string& command) {
    FILE* pipe = popen(command.c_str(), "r");
    double value = 0;
    char line[512];
    while (pipe != nullptr && fgets(line, sizeof line, pipe) != nullptr) {
        double iterations = 0, median = 0;
        if (sscanf(line, "%lf %lf", &iterations, &median) == 2) {
            value = median;
        }
    }
    if (pipe != nullptr) {
        pclose(pipe);
    }
    return value;
}

}  // namespace

void Channel::say(const void* data, size_t bytes) const {
    send_all(fd_, data, bytes);
}

void Channel::hear(void* data, size_t bytes) const {
    receive_all(fd_, data, bytes);
}

void Channel::exchange(bool first, const void* mine, void* other, size_t bytes) const {
    if (first) {
        say(mine, bytes);
    }
    hear(other, bytes);
    if (!first) {
        say(mine, bytes);
    }
}

void Channel::meet() const {
    char byte = 0;
    say(&byte, 1);
    hear(&byte, 1);
}

void give_up(const std::string& why) {
    fprintf(stderr, "net_bench: %s\n", why.c_str());
    _exit(1);
}

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::unique_ptr<Contestant> make_sockets(const Channel& channel, bool first, bool one_way) {
    return std::make_unique<Sockets>(channel, first, one_way);
}

std::unique_ptr<Contestant> make_ucx_wire(const Channel& channel, bool first) {
    return std::make_unique<UcxWireContestant>(channel, first);
}

std::unique_ptr<Contestant> make_engine_contestant(const Channel& channel,
                                                   bool first,
                                                   bool codec,
                                                   double rate_bytes_per_s) {
    return std::make_unique<EngineContestant>(channel, first, codec, rate_bytes_per_s);
}

double ucx_perftest_latency_us(size_t bytes, int count) {
    if (system("command -v ucx_perftest >/dev/null 2>&1") != 0) {
        return 0;
    }
    const int port = 20000 + getpid() % 20000;
    const std::string tool = "UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest -p " +
                             std::to_string(port) + " -t tag_lat -f -s " + std::to_string(bytes) +
                             " -n " + std::to_string(count);
    const pid_t server = fork();
    if (server == 0) {
        setpgid(0, 0);
        execl("/bin/sh", "sh", "-c", ("exec >/dev/null 2>&1; " + tool).c_str(), nullptr);
        _exit(127);
    }
    double value = 0;
    for (int i = 0; i < 50 && value == 0; ++i) {  // until the server listens
        usleep(100'000);
        value = median_of(tool + " 127.0.0.1 2>/dev/null");
    }
    kill(-server, SIGTERM);
    waitpid(server, nullptr, 0);
    return value;
}

}  // namespace slimwire::bench
