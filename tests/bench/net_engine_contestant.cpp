// The net plugin's engine as a contestant of net_bench: over the UCX wire on loopback, with or
// without the codec, on a network made slower on request.
#include <deque>

#include "plugin/net/engine.h"
#include "plugin/net/settings.h"
#include "plugin/net/ucx/ucx_wire.h"
#include "tests/bench/net_contestants.h"

namespace slimwire::bench {
namespace {

void check(const Status& status) {
    if (!status.ok()) {
        give_up(status.message());
    }
}

class EngineContestant final : public Contestant {
  public:
    EngineContestant(const Channel& channel, bool first, bool codec, double rate_bytes_per_s)
        : codec_(codec) {
        auto settings = net::read_engine_settings();
        check(settings.status());
        settings.value().codec = codec;
        settings.value().rate_bytes_per_s = rate_bytes_per_s;
        net::UcxSettings ucx = net::read_ucx_settings();
        ucx.interfaces = "=lo";
        auto opened = net::open_ucx_wire(ucx);
        check(opened.status());
        engine_ = std::make_unique<net::Engine>(std::move(opened).value(), settings.value());
        check(engine_->open(1, -1, &context_));
        check(context_->listen(0, handle_, &listener_));
        if (first) {
            channel.say(handle_, sizeof handle_);
            channel.hear(other_, sizeof other_);
        } else {
            channel.hear(other_, sizeof other_);
            channel.say(handle_, sizeof handle_);
        }
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

    void stream(bool first, char* data, size_t bytes, int count) override {
        std::deque<net::Request*> open;
        Idle idle;
        for (int started = 0, finished = 0; finished < count;) {
            net::Request* request = nullptr;
            if (started < count && started - finished < kWindow) {
                request =
                    start(first, data + static_cast<size_t>(started % kWindow) * bytes, bytes);
            }
            if (request != nullptr) {
                open.push_back(request);
                ++started;
            }
            bool done = false;
            if (!open.empty()) {
                done = test(first, open.front());
            }
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
            net::Request* in = nullptr;
            while (in == nullptr) {
                in = start(false, data, bytes);
            }
            if (first) {
                send_one(data, bytes);
            }
            wait(false, in);
            if (!first) {
                send_one(data, bytes);
            }
            seconds->push_back(now_s() - begin);
        }
    }

  private:
    net::Request* start(bool sending, char* data, size_t bytes) {
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
    bool test(bool sending, net::Request* request) {
        bool done = false;
        check(sending ? sender_->test(request, &done, nullptr)
                      : receiver_->test(request, &done, nullptr));
        return done;
    }
    void wait(bool sending, net::Request* request) {
        Idle idle;
        while (!test(sending, request)) {
            idle.none();
        }
    }
    void send_one(char* data, size_t bytes) {
        net::Request* out = nullptr;
        while (out == nullptr) {
            out = start(true, data, bytes);
        }
        wait(true, out);
    }

    const bool codec_;
    std::unique_ptr<net::Engine> engine_;
    std::unique_ptr<net::Context> context_;
    std::unique_ptr<net::Listener> listener_;
    alignas(8) char handle_[net::kNetHandleBytes] = {};
    alignas(8) char other_[net::kNetHandleBytes] = {};
    std::unique_ptr<net::SendConnection> sender_;
    std::unique_ptr<net::ReceiveConnection> receiver_;
};

}  // namespace

std::unique_ptr<Contestant> make_engine_contestant(const Channel& channel,
                                                   bool first,
                                                   bool codec,
                                                   double rate_bytes_per_s) {
    return std::make_unique<EngineContestant>(channel, first, codec, rate_bytes_per_s);
}

}  // namespace slimwire::bench
