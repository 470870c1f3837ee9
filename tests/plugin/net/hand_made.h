// Peers of the wire over UCX that are made by hand, from its own parts: they keep to the handshake
// and then do what no wire does.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/net/ucx/connections.h"
#include "plugin/net/ucx/devices.h"
#include "plugin/net/ucx/handshake.h"
#include "plugin/net/ucx/link.h"
#include "plugin/net/ucx/progress_thread.h"
#include "tests/plugin/net/wire_pair.h"

namespace slimwire::net {

// A link over loopback that no wire owns.
inline Result<std::shared_ptr<Link>> bare_link(ProgressThread* progress_thread) {
    SLIMWIRE_TRY_ASSIGN(const UcxApi* api, load_ucx());
    SLIMWIRE_TRY_ASSIGN(std::vector<NetDevice> found, find_devices("=lo", ""));
    found.at(0).link_alone = over_sockets();
    static const UcxSettings settings;
    auto device = std::make_shared<UcxDevice>(*api, found.at(0), settings);
    SLIMWIRE_TRY(device->open());
    return Link::create(device, progress_thread, 0);
}

// Connects by a blocking socket. Its messages are of any lane, number and token.
class HandMadeSender {
  public:
    HandMadeSender() = default;
    ~HandMadeSender() {
        for (const auto& link : links_) {
            link->abandon();
        }
        if (fd_ >= 0) {
            close(fd_);
        }
    }
    HandMadeSender(const HandMadeSender&) = delete;
    HandMadeSender& operator=(const HandMadeSender&) = delete;

    Status say_hello(const WireHandle& handle) {
        SLIMWIRE_TRY_ASSIGN(const SocketAddress address, address_of(handle));
        fd_ = socket(AF_INET, SOCK_STREAM, 0);
        const Hello hello{kWireMagic, kWireVersion, 0, handle.cookie};
        if (::connect(fd_, &address.any, sizeof address.v4) != 0 ||
            ::send(fd_, &hello, sizeof hello, 0) != sizeof hello) {
            return {Code::kSystemError, "connect"};
        }
        return {};
    }
    // After the receiver's accept().
    Status hear_answer() {
        if (recv(fd_, &answer_, sizeof answer_, MSG_WAITALL) != sizeof answer_) {
            return {Code::kSystemError, "no answer"};
        }
        worker_.resize(answer_.address_bytes);
        if (recv(fd_, worker_.data(), worker_.size(), MSG_WAITALL) !=
            static_cast<ssize_t>(worker_.size())) {
            return {Code::kSystemError, "no address"};
        }
        return add_link(answer_.token);
    }
    // A further way to the receiver's worker; send() takes the newest. A worker takes one socket,
    // on which messages have the token from here on.
    Status add_link(uint64_t token) {
        if (over_sockets() && !links_.empty()) {
            links_.back()->set_token(token);
            return {};
        }
        SLIMWIRE_TRY_ASSIGN(const std::shared_ptr<Link> link, bare_link(&progress_thread_));
        link->set_token(token);
        links_.push_back(link);
        return link->connect_endpoint(worker_);
    }
    [[nodiscard]] uint64_t token() const { return answer_.token; }
    Status say_goodbye(const Bye& bye) {
        if (::send(fd_, &bye, sizeof bye, 0) != sizeof bye) {
            return {Code::kSystemError, "no goodbye"};
        }
        shutdown(fd_, SHUT_WR);
        return {};
    }
    // UCX has taken it when this returns; a receiver that is gone makes it an error.
    Status send(Lane lane, uint64_t number, const void* data, size_t bytes) {
        Link& link = *links_.back();
        const std::lock_guard lock(link.mutex());
        UcxRequest* request = link.new_request(lane, number);
        request->bytes = bytes;
        link.post_send(data, request);
        Status status;
        const bool in_time = poll_until([&] {
            bool done = false;
            status = link.advance(request, Outlook::kOpen, &done, nullptr);
            return done || !status.ok();
        });
        return in_time ? status : Status(Code::kInternalError, "a send that does not end");
    }
    [[nodiscard]] int socket_fd() const { return fd_; }

  private:
    ProgressThread progress_thread_;
    std::vector<std::shared_ptr<Link>> links_;
    int fd_ = -1;
    Answer answer_{};
    std::string worker_;
};

// Listens, and answers whoever comes as a receiver would.
class HandMadeReceiver {
  public:
    ~HandMadeReceiver() {
        if (link_ != nullptr) {
            link_->abandon();
        }
    }
    HandMadeReceiver() = default;
    HandMadeReceiver(const HandMadeReceiver&) = delete;
    HandMadeReceiver& operator=(const HandMadeReceiver&) = delete;

    Status listen(WireHandle* handle) {
        SocketAddress address{};
        address.v4.sin_family = AF_INET;
        address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        SLIMWIRE_TRY_ASSIGN(door_, listen_at(&address));
        SLIMWIRE_TRY_ASSIGN(const Cookie cookie, random_cookie());
        *handle = make_handle(address, cookie);
        return {};
    }
    // To be called until *answered.
    Status attend(bool* answered) {
        *answered = false;
        if (!guest_.valid()) {
            SocketAddress peer;
            SLIMWIRE_TRY_ASSIGN(guest_, accept_waiting(door_, &peer));
            if (!guest_.valid()) {
                return {};
            }
        }
        bool end = false;
        const long got = receive_some(guest_.fd(), hello_ + heard_, sizeof hello_ - heard_, &end);
        heard_ += static_cast<size_t>(got > 0 ? got : 0);
        if (heard_ < sizeof hello_) {
            return {};
        }
        SLIMWIRE_TRY_ASSIGN(link_, bare_link(&progress_thread_));
        SLIMWIRE_TRY_ASSIGN(const std::string address, link_->worker_address());
        const Answer answer{kWireMagic, kWireVersion, static_cast<uint32_t>(address.size()), 0};
        say(&answer, sizeof answer);
        say(address.data(), address.size());
        *answered = true;
        return {};
    }
    void say(const void* data, size_t bytes) {
        static_cast<void>(send_some(guest_.fd(), data, bytes));
    }
    void hang_up() { guest_.reset(); }

  private:
    ProgressThread progress_thread_;
    Socket door_, guest_;
    uint8_t hello_[sizeof(Hello)] = {};
    size_t heard_ = 0;
    std::shared_ptr<Link> link_;
};

}  // namespace slimwire::net
