#include "plugin/net/ucx/connecting.h"

#include <net/if.h>

#include <cerrno>
#include <cstring>

#include "plugin/net/ucx/socket_api.h"

namespace slimwire::net {
namespace {

// A peer that was there a moment ago and is not found any more has so long to hang up.
constexpr uint64_t kHangUpNs = 500'000'000;

}  // namespace

UcxConnecting::UcxConnecting(std::shared_ptr<UcxState> state, std::shared_ptr<UcxDevice> device)
    : state_(std::move(state)), device_(std::move(device)) {}

Result<std::unique_ptr<UcxConnecting>> UcxConnecting::start(std::shared_ptr<UcxState> state,
                                                            std::shared_ptr<UcxDevice> device,
                                                            const WireHandle& handle) {
    std::unique_ptr<UcxConnecting> attempt(new UcxConnecting(std::move(state), std::move(device)));
    SLIMWIRE_TRY_ASSIGN(attempt->address_, address_of(handle));
    if (attempt->address_.any.sa_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&attempt->address_.v6.sin6_addr)) {
        attempt->address_.v6.sin6_scope_id =
            if_nametoindex(attempt->device_->facts().interface.c_str());
    }
    attempt->hello_ = {kWireMagic, kWireVersion, 0, handle.cookie};
    SLIMWIRE_TRY_ASSIGN(attempt->socket_, start_connect(attempt->address_));
    return attempt;
}

Status UcxConnecting::lost(const std::string& why) const {
    return {Code::kRemoteError, "net: no connection to " + to_string(address_) + ": " + why};
}

Status UcxConnecting::say_hello(bool* said) {
    *said = false;
    int error = 0;
    switch (connect_state(socket_, &error)) {
        case ConnectState::kPending:
            return {};
        case ConnectState::kFailed:
            return lost(strerror(error));
        case ConnectState::kReady:
            break;
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

Status UcxConnecting::hear_answer(bool* heard) {
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

Status UcxConnecting::step(std::unique_ptr<SendWire>* wire) {
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

}  // namespace slimwire::net
