#include "plugin/net/ucx/listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace slimwire::net {
namespace {

// Beyond this many waiting at once, the one who has waited longest without a right hello goes.
constexpr size_t kMostGuests = 1024;

}  // namespace

UcxListener::UcxListener(std::shared_ptr<UcxState> state, std::shared_ptr<UcxDevice> device)
    : state_(std::move(state)), device_(std::move(device)) {}

Result<std::unique_ptr<UcxListener>> UcxListener::open(std::shared_ptr<UcxState> state,
                                                       std::shared_ptr<UcxDevice> device,
                                                       WireHandle* handle) {
    std::unique_ptr<UcxListener> listener(new UcxListener(std::move(state), std::move(device)));
    SLIMWIRE_TRY_ASSIGN(
        SocketAddress address,
        listening_address(listener->device_->facts(), listener->state_->settings.interfaces));
    SLIMWIRE_TRY_ASSIGN(listener->cookie_, random_cookie());
    SLIMWIRE_TRY_ASSIGN(listener->door_, listen_at(&address));
    *handle = make_handle(address, listener->cookie_);
    return listener;
}

void UcxListener::refuse(const Guest& guest, const std::string& why) const {
    if (state_->settings.warn) {
        state_->settings.warn("net: refused a connection from " + to_string(guest.peer) + ": " +
                              why);
    }
}

Status UcxListener::let_in_all() {
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

Status UcxListener::prepare_answer(Guest* guest) {
    SLIMWIRE_TRY_ASSIGN(
        guest->link, Link::create(device_, &state_->progress_thread, state_->settings.promise_ns));
    SLIMWIRE_TRY_ASSIGN(const std::string address, guest->link->worker_address());
    SLIMWIRE_TRY_ASSIGN(const uint64_t token, random_token());
    guest->link->set_token(token);
    const Answer answer{kWireMagic, kWireVersion, static_cast<uint32_t>(address.size()), token};
    guest->answer.assign(reinterpret_cast<const char*>(&answer), sizeof answer);
    guest->answer += address;
    return {};
}

Result<UcxListener::Fate> UcxListener::attend(Guest* guest) {
    while (guest->heard < sizeof guest->hello) {
        bool end = false;
        const long got = receive_some(guest->socket.fd(),
                                      reinterpret_cast<uint8_t*>(&guest->hello) + guest->heard,
                                      sizeof guest->hello - guest->heard, &end);
        if (got < 0) {
            refuse(*guest, end ? "it left before it had said all of its hello" : strerror(errno));
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

Status UcxListener::accept(std::unique_ptr<ReceiveWire>* wire) {
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

}  // namespace slimwire::net
