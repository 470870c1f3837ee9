// How the lanes of a connection find each other: every inner connection begins with a hello.
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <utility>

#include "plugin/net/nccl_log.h"
#include "plugin/net/wrapped/wrapped_state.h"

namespace slimwire::net {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostArrivals = 256;  // that have not said their hello
constexpr auto kHelloTime = std::chrono::seconds(30);

InnerComm own_comm(const std::shared_ptr<InnerContext>& context, bool sends, void* comm) {
    return {comm, [context, sends](void* closing) {
                InnerTable& inner = context->inner();
                static_cast<void>(sends ? inner.close_send(closing) : inner.close_recv(closing));
            }};
}

// One side's hello on one inner connection.
class Greeting {
  public:
    Greeting(InnerTable& inner, InnerComm comm) : inner_(inner), comm_(std::move(comm)) {}
    ~Greeting() { forget(); }
    Greeting(const Greeting&) = delete;
    Greeting& operator=(const Greeting&) = delete;

    // Sets *over when the hello has been sent or has come.
    Status advance(bool sending, bool* over) {
        *over = false;
        if (!registered_) {
            SLIMWIRE_TRY(inner_status(inner_, "regMr",
                                      inner_.reg_mr(comm_.get(), buffer_.get(),
                                                    sizeof(WrappedHello), kPtrHost, &mhandle_)));
            registered_ = true;
        }
        if (request_ == nullptr) {
            void* data = buffer_.get();
            const size_t bytes = sizeof(WrappedHello);
            const int tag = kInnerTag;
            const ncclResult_t result =
                sending ? inner_.isend(comm_.get(), data, bytes, tag, mhandle_, &request_)
                        : inner_.irecv(comm_.get(), 1, &data, &bytes, &tag, &mhandle_, &request_);
            SLIMWIRE_TRY(inner_status(inner_, sending ? "isend" : "irecv", result));
            if (request_ == nullptr) {
                return {};
            }
        }
        int done = 0;
        int size = 0;
        SLIMWIRE_TRY(inner_status(inner_, "test", inner_.test(request_, &done, &size)));
        if (done == 0) {
            return {};
        }
        if (!sending && size != static_cast<int>(sizeof(WrappedHello))) {
            return {Code::kRemoteError, "its first message has " + std::to_string(size) +
                                            " bytes, not " + std::to_string(sizeof(WrappedHello))};
        }
        *over = true;
        return {};
    }

    [[nodiscard]] WrappedHello& hello() noexcept { return *buffer_; }
    // The connection, when its hello is over.
    InnerComm take() {
        forget();
        return std::move(comm_);
    }

  private:
    void forget() noexcept {
        if (registered_ && comm_ != nullptr) {
            static_cast<void>(inner_.dereg_mr(comm_.get(), mhandle_));
        }
        registered_ = false;
    }

    // Before the connection: that is closed first, and may write until then.
    std::unique_ptr<WrappedHello> buffer_ = std::make_unique<WrappedHello>();
    InnerTable& inner_;
    InnerComm comm_;
    void* mhandle_ = nullptr;
    void* request_ = nullptr;
    bool registered_ = false;
};

class WrappedListener final : public WireListener {
  public:
    WrappedListener(std::shared_ptr<InnerContext> context, void* comm, uint64_t cookie, bool global)
        : context_(std::move(context)), comm_(comm), cookie_(cookie), reg_is_global_(global) {}
    ~WrappedListener() override {
        arrivals_.clear();
        halves_.clear();
        static_cast<void>(context_->inner().close_listen(comm_));
    }

    Status accept(std::unique_ptr<ReceiveWire>* wire) override {
        wire->reset();
        SLIMWIRE_TRY(take_arrivals());
        const auto now = Clock::now();
        for (auto arrival = arrivals_.begin(); arrival != arrivals_.end();) {
            bool over = false;
            Status status = arrival->greeting.advance(false, &over);
            if (status.ok() && over) {
                status = check(arrival->greeting.hello());
            }
            if (status.ok() && !over && now - arrival->since > kHelloTime) {
                status = Status(Code::kRemoteError, "it has said nothing for 30 s");
            }
            if (!status.ok()) {
                nccl_warn("a peer is refused: " + status.message());
                arrival = arrivals_.erase(arrival);
                continue;
            }
            if (!over) {
                ++arrival;
                continue;
            }
            const WrappedHello hello = arrival->greeting.hello();
            Half& half = halves_[hello.connection];
            half.lanes[hello.lane] = arrival->greeting.take();
            half.since = now;
            arrival = arrivals_.erase(arrival);
            if (half.lanes[0] != nullptr && half.lanes[1] != nullptr) {
                *wire = make_wrapped_receive(context_, half.lanes, reg_is_global_);
                halves_.erase(hello.connection);
                break;
            }
        }
        drop_old_halves(now);
        return {};
    }

  private:
    struct Arrival {
        Arrival(InnerTable& inner, InnerComm comm) : greeting(inner, std::move(comm)) {}
        Greeting greeting;
        const Clock::time_point since = Clock::now();
    };
    struct Half {
        InnerComm lanes[kLanes];
        Clock::time_point since;
    };

    Status take_arrivals() {
        while (arrivals_.size() < kMostArrivals) {
            void* comm = nullptr;
            InnerTable& inner = context_->inner();
            SLIMWIRE_TRY(inner_status(inner, "accept", inner.accept(comm_, &comm)));
            if (comm == nullptr) {
                break;
            }
            arrivals_.emplace_back(inner, own_comm(context_, false, comm));
        }
        return {};
    }

    [[nodiscard]] Status check(const WrappedHello& hello) const {
        if (hello.magic != kWrappedMagic) {
            return {Code::kRemoteError,
                    "it is not slimwire; accepted: ranks that all load it, with the same "
                    "SLIMWIRE_NET_INNER"};
        }
        if (hello.version != kWrappedVersion) {
            return {Code::kRemoteError, "it speaks version " + std::to_string(hello.version) +
                                            "; accepted: " + std::to_string(kWrappedVersion)};
        }
        if (hello.cookie != cookie_) {
            return {Code::kRemoteError, "its cookie is wrong: it looked for another listener"};
        }
        const auto half = halves_.find(hello.connection);
        if (hello.lane >= kLanes ||
            (half != halves_.end() && half->second.lanes[hello.lane] != nullptr)) {
            return {Code::kRemoteError,
                    "its lane " + std::to_string(hello.lane) + " is there already or cannot be"};
        }
        return {};
    }

    void drop_old_halves(Clock::time_point now) {
        for (auto half = halves_.begin(); half != halves_.end();) {
            if (now - half->second.since > kHelloTime) {
                nccl_warn("a peer is refused: only one of its two connections came in 30 s");
                half = halves_.erase(half);
            } else {
                ++half;
            }
        }
    }

    std::shared_ptr<InnerContext> context_;
    void* comm_;
    const uint64_t cookie_;
    const bool reg_is_global_;
    std::list<Arrival> arrivals_;
    std::map<uint64_t, Half> halves_;  // by connection
};

class WrappedConnecting final : public WireConnecting {
  public:
    WrappedConnecting(std::shared_ptr<InnerContext> context, int device)
        : context_(std::move(context)), device_(device) {}

    // Reads the listener's handle.
    Status start(const void* handle) {
        WrappedTail tail{};
        std::memcpy(&tail, static_cast<const char*>(handle) + kTailOffset, sizeof tail);
        const WrappedTail none{};
        if (tail.magic == kWrappedMagic && tail.version != kWrappedVersion) {
            return {Code::kRemoteError,
                    "the peer speaks version " + std::to_string(tail.version) +
                        " of slimwire's chain; accepted: " + std::to_string(kWrappedVersion)};
        }
        if (std::memcmp(&tail, &none, sizeof tail) == 0) {
            return {Code::kRemoteError,
                    "the peer does not use slimwire; accepted: ranks that all load it, with the "
                    "same SLIMWIRE_NET_INNER"};
        }
        const bool ours = tail.magic == kWrappedMagic;  // else the inner plugin needs the place
        const uint64_t connection = random_number();
        for (int lane = 0; lane < kLanes; ++lane) {
            std::memcpy(handles_[lane], handle, kNetHandleBytes);
            if (ours) {
                std::memset(handles_[lane] + kTailOffset, 0, sizeof tail);
            }
            hellos_[lane] = {kWrappedMagic, kWrappedVersion, static_cast<uint16_t>(lane),
                             connection, ours ? tail.cookie : 0};
        }
        return {};
    }

    Status advance(bool reg_is_global, std::unique_ptr<SendWire>* wire) {
        for (int lane = 0; lane < kLanes; ++lane) {
            if (greetings_[lane] == nullptr) {
                void* comm = nullptr;
                InnerTable& inner = context_->inner();
                SLIMWIRE_TRY(
                    inner_status(inner, "connect",
                                 inner.connect(context_->get(), device_, handles_[lane], &comm)));
                if (comm == nullptr) {
                    continue;
                }
                greetings_[lane] =
                    std::make_unique<Greeting>(inner, own_comm(context_, true, comm));
                greetings_[lane]->hello() = hellos_[lane];
            }
            if (!over_[lane]) {
                SLIMWIRE_TRY(greetings_[lane]->advance(true, &over_[lane]));
            }
        }
        if (over_[0] && over_[1]) {
            InnerComm lanes[kLanes] = {greetings_[0]->take(), greetings_[1]->take()};
            *wire = make_wrapped_send(context_, lanes, reg_is_global);
        }
        return {};
    }

  private:
    std::shared_ptr<InnerContext> context_;
    const int device_;
    // A copy for each attempt: plugins note in it how far they are.
    alignas(16) char handles_[kLanes][kNetHandleBytes] = {};
    WrappedHello hellos_[kLanes] = {};
    std::unique_ptr<Greeting> greetings_[kLanes];
    bool over_[kLanes] = {};
};

class WrappedContext final : public WireContext {
  public:
    WrappedContext(std::shared_ptr<InnerContext> context, std::vector<bool> global)
        : context_(std::move(context)), reg_is_global_(std::move(global)) {}

    Status listen(int device, void* handle, std::unique_ptr<WireListener>* listener) override {
        alignas(16) char inner_handle[kNetHandleBytes] = {};
        void* comm = nullptr;
        const ncclResult_t result =
            context_->inner().listen(context_->get(), device, inner_handle, &comm);
        SLIMWIRE_TRY(
            inner_status(context_->inner(), "listen",
                         result == ncclSuccess && comm == nullptr ? ncclInternalError : result));
        const char none[sizeof(WrappedTail)] = {};
        uint64_t cookie = 0;
        if (std::memcmp(inner_handle + kTailOffset, none, sizeof none) == 0) {
            cookie = random_number();
            const WrappedTail tail{kWrappedMagic, kWrappedVersion, cookie};
            std::memcpy(inner_handle + kTailOffset, &tail, sizeof tail);
        }
        std::memcpy(handle, inner_handle, kNetHandleBytes);
        *listener = std::make_unique<WrappedListener>(context_, comm, cookie,
                                                      reg_is_global_[static_cast<size_t>(device)]);
        return {};
    }

    Status connect(int device,
                   void* handle,
                   std::unique_ptr<WireConnecting>* attempt,
                   std::unique_ptr<SendWire>* wire) override {
        wire->reset();
        if (*attempt == nullptr) {
            auto made = std::make_unique<WrappedConnecting>(context_, device);
            SLIMWIRE_TRY(made->start(handle));
            *attempt = std::move(made);
        }
        SLIMWIRE_TRY(static_cast<WrappedConnecting&>(**attempt).advance(
            reg_is_global_[static_cast<size_t>(device)], wire));
        if (*wire != nullptr) {
            attempt->reset();
        }
        return {};
    }

  private:
    const std::shared_ptr<InnerContext> context_;
    const std::vector<bool> reg_is_global_;
};

}  // namespace

std::unique_ptr<WireContext> make_wrapped_context(std::shared_ptr<InnerContext> context,
                                                  std::vector<bool> global) {
    return std::make_unique<WrappedContext>(std::move(context), std::move(global));
}

}  // namespace slimwire::net
