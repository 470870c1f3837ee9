#include "plugin/net/ucx/ucx_wire.h"

#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <string>

#include "plugin/net/ucx/connections.h"
#include "plugin/net/ucx/handshake.h"
#include "plugin/net/ucx/socket_api.h"

namespace slimwire::net {
namespace {

// Beyond this many waiting at once, the one who has waited longest without a right hello goes.
constexpr size_t kMostGuests = 1024;

// The receiving side's door: a TCP socket at which senders say Hello. Whoever says something else,
// or nothing in time, is refused with one log line; those who wait are bounded in number.
class UcxListener final : public WireListener {
  public:
    UcxListener(std::shared_ptr<UcxState> state, std::shared_ptr<UcxDevice> device)
        : state_(std::move(state)), device_(std::move(device)) {}

    Status open(WireHandle* handle) {
        SLIMWIRE_TRY_ASSIGN(SocketAddress address,
                            listening_address(device_->facts(), state_->settings.interfaces));
        SLIMWIRE_TRY_ASSIGN(cookie_, random_cookie());
        SLIMWIRE_TRY_ASSIGN(door_, listen_at(&address));
        *handle = make_handle(address, cookie_);
        return {};
    }

    Status accept(std::unique_ptr<ReceiveWire>* wire) override {
        wire->reset();
        SLIMWIRE_TRY(let_in_all());
        for (auto guest = guests_.begin(); guest != guests_.end();) {
            Result<Fate> fate = attend(&*guest);
            if (!fate.ok()) {
                guests_.erase(guest);
                return fate.status();
            }
            if (fate.value() == Fate::kWaits) {
                ++guest;
                continue;
            }
            if (fate.value() == Fate::kRefused) {
                guest = guests_.erase(guest);
                continue;
            }
            const std::shared_ptr<Link> link = guest->link;
            const Status started = link->start(std::move(guest->socket), to_string(guest->peer));
            guests_.erase(guest);
            SLIMWIRE_TRY(started);
            *wire = std::make_unique<UcxReceiveWire>(state_, link);
            return {};
        }
        return {};
    }

  private:
    // Somebody at the door: first listened to, then answered.
    struct Guest {
        Socket socket;
        SocketAddress peer;
        uint64_t since_ns = 0;
        Hello hello{};
        size_t heard = 0;
        std::shared_ptr<Link> link;  // once the hello is right
        std::string answer;
        size_t said = 0;
    };
    enum class Fate { kWaits, kRefused, kConnected };

    void refuse(const Guest& guest, const std::string& why) const {
        if (state_->settings.warn) {
            state_->settings.warn("net: refused a connection from " + to_string(guest.peer) + ": " +
                                  why);
        }
    }

    Status let_in_all() {
        while (true) {
            Guest guest;
            SLIMWIRE_TRY_ASSIGN(guest.socket, accept_waiting(door_, &guest.peer));
            if (!guest.socket.valid()) {
                return {};
            }
            guest.since_ns = steady_ns();
            if (guests_.size() == kMostGuests) {
                const auto stranger =
                    std::find_if(guests_.begin(), guests_.end(),
                                 [](const Guest& one) { return one.link == nullptr; });
                if (stranger == guests_.end()) {
                    return {};
                }
                refuse(*stranger, "it says nothing, and others wait");
                guests_.erase(stranger);
            }
            guests_.push_back(std::move(guest));
        }
    }

    Status prepare_answer(Guest* guest) {
        SLIMWIRE_TRY_ASSIGN(guest->link, Link::create(device_, &state_->progress_thread,
                                                      state_->settings.promise_ns));
        SLIMWIRE_TRY_ASSIGN(const std::string address, guest->link->worker_address());
        SLIMWIRE_TRY_ASSIGN(const uint64_t token, random_token());
        guest->link->set_token(token);
        const Answer answer{kWireMagic, kWireVersion, static_cast<uint32_t>(address.size()), token};
        guest->answer.assign(reinterpret_cast<const char*>(&answer), sizeof answer);
        guest->answer += address;
        return {};
    }

    Result<Fate> attend(Guest* guest) {
        while (guest->heard < sizeof guest->hello) {
            bool end = false;
            const long got = receive_some(guest->socket.fd(),
                                          reinterpret_cast<uint8_t*>(&guest->hello) + guest->heard,
                                          sizeof guest->hello - guest->heard, &end);
            if (got < 0) {
                refuse(*guest,
                       end ? "it left before it had said all of its hello" : strerror(errno));
                return Fate::kRefused;
            }
            guest->heard += static_cast<size_t>(got);
            const std::string why = refusal(guest->hello, guest->heard, cookie_);
            if (!why.empty()) {
                refuse(*guest, why);
                return Fate::kRefused;
            }
            if (got == 0) {
                if (steady_ns() < guest->since_ns + state_->settings.handshake_ns) {
                    return Fate::kWaits;
                }
                refuse(*guest, "it did not say its hello in time");
                return Fate::kRefused;
            }
        }
        if (guest->link == nullptr) {
            SLIMWIRE_TRY(prepare_answer(guest));
        }
        const long sent = send_some(guest->socket.fd(), guest->answer.data() + guest->said,
                                    guest->answer.size() - guest->said);
        if (sent < 0) {
            refuse(*guest, std::string("it left before it was answered: ") + strerror(errno));
            return Fate::kRefused;
        }
        guest->said += static_cast<size_t>(sent);
        return guest->said == guest->answer.size() ? Fate::kConnected : Fate::kWaits;
    }

    const std::shared_ptr<UcxState> state_;
    const std::shared_ptr<UcxDevice> device_;
    Cookie cookie_{};
    Socket door_;
    std::list<Guest> guests_;
};

// A peer that was there a moment ago and is not found any more has so long to hang up.
constexpr uint64_t kHangUpNs = 500'000'000;

// The sending side's way to a connection, one step at each call of WireContext::connect().
class UcxConnecting final : public WireConnecting {
  public:
    UcxConnecting(std::shared_ptr<UcxState> state, std::shared_ptr<UcxDevice> device)
        : state_(std::move(state)), device_(std::move(device)) {}

    // kInvalidArgument when the handle is not of this wire.
    Status start(const WireHandle& handle) {
        SLIMWIRE_TRY_ASSIGN(address_, address_of(handle));
        if (address_.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address_.v6.sin6_addr)) {
            address_.v6.sin6_scope_id = if_nametoindex(device_->facts().interface.c_str());
        }
        hello_ = {kWireMagic, kWireVersion, 0, handle.cookie};
        SLIMWIRE_TRY_ASSIGN(socket_, start_connect(address_));
        return {};
    }

    // A null *wire: not yet. After an error the attempt is over.
    Status step(std::unique_ptr<SendWire>* wire) {
        wire->reset();
        if (said_ < sizeof hello_) {
            bool said = false;
            SLIMWIRE_TRY(say_hello(&said));
            if (!said) {
                return {};
            }
        }
        bool heard = false;
        SLIMWIRE_TRY(hear_answer(&heard));
        if (!heard) {
            return {};
        }
        const std::string worker = answer_.substr(sizeof(Answer));
        std::shared_ptr<UcxDevice> device = device_;
        if (of_socket_api(worker) && !device->facts().link_alone) {
            NetDevice facts = device->facts();
            facts.name = facts.interface;
            facts.rdma = false;
            facts.link_alone = true;
            device = std::make_shared<UcxDevice>(device_->api(), facts, state_->settings);
            SLIMWIRE_TRY(device->open());
        }
        SLIMWIRE_TRY_ASSIGN(
            const std::shared_ptr<Link> link,
            Link::create(device, &state_->progress_thread, state_->settings.promise_ns));
        Answer answer{};
        memcpy(&answer, answer_.data(), sizeof answer);
        link->set_token(answer.token);
        if (Status status = link->connect_endpoint(worker); !status.ok()) {
            // Over shared memory: the peer's is gone a moment before its socket is.
            if (has_hung_up(socket_)) {
                return lost("the peer has closed it again");
            }
            const uint64_t now = steady_ns();
            unreachable_ns_ = unreachable_ns_ == 0 ? now : unreachable_ns_;
            return now - unreachable_ns_ < kHangUpNs ? Status() : status;
        }
        SLIMWIRE_TRY(link->start(std::move(socket_), to_string(address_)));
        *wire = std::make_unique<UcxSendWire>(state_, link);
        return {};
    }

  private:
    Status lost(const std::string& why) const {
        return {Code::kRemoteError, "net: no connection to " + to_string(address_) + ": " + why};
    }

    Status say_hello(bool* said) {
        *said = false;
        if (const int error = connect_error(socket_); error != 0) {
            return error == EINPROGRESS ? Status() : lost(strerror(error));
        }
        const long sent = send_some(socket_.fd(), reinterpret_cast<const char*>(&hello_) + said_,
                                    sizeof hello_ - said_);
        if (sent < 0) {
            return lost(strerror(errno));
        }
        said_ += static_cast<size_t>(sent);
        *said = said_ == sizeof hello_;
        return {};
    }

    Status hear_answer(bool* heard) {
        *heard = false;
        while (true) {
            size_t wanted = sizeof(Answer);
            if (answer_.size() >= sizeof(Answer)) {
                Answer answer{};
                memcpy(&answer, answer_.data(), sizeof answer);
                if (answer.magic != kWireMagic || answer.version != kWireVersion ||
                    answer.address_bytes == 0 || answer.address_bytes > kMaxWorkerAddressBytes ||
                    answer.token >> kTokenBits != 0) {
                    return lost("what listens there does not speak slimwire's protocol");
                }
                wanted += answer.address_bytes;
            }
            if (answer_.size() == wanted) {
                *heard = true;
                return {};
            }
            const size_t had = answer_.size();
            answer_.resize(wanted);
            bool end = false;
            const long got = receive_some(socket_.fd(), answer_.data() + had, wanted - had, &end);
            answer_.resize(had + static_cast<size_t>(got > 0 ? got : 0));
            if (got < 0) {
                return lost(end ? "it refused us, or was closed" : strerror(errno));
            }
            if (got == 0) {
                return {};
            }
        }
    }

    const std::shared_ptr<UcxState> state_;
    const std::shared_ptr<UcxDevice> device_;
    SocketAddress address_{};
    Socket socket_;
    Hello hello_{};
    size_t said_ = 0;
    uint64_t unreachable_ns_ = 0;  // when the worker was first not found
    std::string answer_;           // Answer and the worker's address, as far as they have come
};

// A context's end waits so long for the last acknowledgements of closed connections.
constexpr int kCloseLimitMs = 2000;
constexpr size_t kMostDevices = 16;  // that NCCL's own transports take

class UcxContext final : public WireContext {
  public:
    explicit UcxContext(std::shared_ptr<UcxState> state) : state_(std::move(state)) {}
    ~UcxContext() override { state_->progress_thread.wait_for_closing(kCloseLimitMs); }

    Status listen(int device, void* handle, std::unique_ptr<WireListener>* listener) override {
        SLIMWIRE_TRY_ASSIGN(std::shared_ptr<UcxDevice> chosen, device_at(device));
        auto made = std::make_unique<UcxListener>(state_, std::move(chosen));
        WireHandle named{};
        SLIMWIRE_TRY(made->open(&named));
        memcpy(handle, &named, sizeof named);
        *listener = std::move(made);
        return {};
    }

    Status connect(int device,
                   void* handle,
                   std::unique_ptr<WireConnecting>* attempt,
                   std::unique_ptr<SendWire>* wire) override {
        wire->reset();
        if (*attempt == nullptr) {
            SLIMWIRE_TRY_ASSIGN(std::shared_ptr<UcxDevice> chosen, device_at(device));
            WireHandle read{};
            memcpy(&read, handle, sizeof read);
            auto made = std::make_unique<UcxConnecting>(state_, std::move(chosen));
            SLIMWIRE_TRY(made->start(read));
            *attempt = std::move(made);
        }
        const Status status = static_cast<UcxConnecting&>(**attempt).step(wire);
        if (!status.ok() || *wire != nullptr) {
            attempt->reset();
        }
        return status;
    }

  private:
    Result<std::shared_ptr<UcxDevice>> device_at(int index) const {
        std::shared_ptr<UcxDevice> device = state_->devices[static_cast<size_t>(index)];
        SLIMWIRE_TRY(device->open());
        return device;
    }

    const std::shared_ptr<UcxState> state_;
};

class UcxWire final : public Wire {
  public:
    explicit UcxWire(std::shared_ptr<UcxState> state) : state_(std::move(state)) {}
    [[nodiscard]] int devices() const noexcept override {
        return static_cast<int>(state_->devices.size());
    }
    [[nodiscard]] const WireDevice& device(int index) const noexcept override {
        return state_->devices[static_cast<size_t>(index)]->facts();
    }
    // Traffic classes belong to a UCX context, which is shared: UCX_IB_TRAFFIC_CLASS sets one.
    Status open(uint64_t, int, std::unique_ptr<WireContext>* context) override {
        *context = std::make_unique<UcxContext>(state_);
        return {};
    }
    void finish(int limit_ms) noexcept override {
        state_->progress_thread.wait_for_closing(limit_ms);
    }

  private:
    const std::shared_ptr<UcxState> state_;
};

}  // namespace

Result<std::unique_ptr<Wire>> open_ucx_wire(UcxSettings settings) {
    SLIMWIRE_TRY_ASSIGN(const UcxApi* api, load_ucx());
    auto state = std::make_shared<UcxState>();
    SLIMWIRE_TRY_ASSIGN(const std::vector<NetDevice> found,
                        find_devices(settings.interfaces, settings.devices));
    state->settings = std::move(settings);
    Status last;
    for (NetDevice device : found) {
        device.link_alone |= state->settings.sockets;
        auto made = std::make_shared<UcxDevice>(*api, device, state->settings);
        // One that opens shows that UCX works here; the others are opened when they are asked for.
        if (state->devices.empty()) {
            last = made->open();
        }
        if (last.ok() && state->devices.size() < kMostDevices) {
            if (device.link_alone && !state->settings.sockets && state->settings.warn) {
                state->settings.warn("net: " + device.name +
                                     " has only an IPv6 address of the link, which UCX cannot use; "
                                     "plain sockets carry its messages");
            }
            state->devices.push_back(std::move(made));
        }
    }
    if (state->devices.empty()) {
        return last;
    }
    return std::unique_ptr<Wire>(std::make_unique<UcxWire>(std::move(state)));
}

}  // namespace slimwire::net
