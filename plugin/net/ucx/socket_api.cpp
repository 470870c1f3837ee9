#include "plugin/net/ucx/socket_api.h"

#include <net/if.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plugin/net/ucx/connections.h"

namespace slimwire::net {
namespace {

constexpr int kRounds = 64;  // of reading or writing, before others get their turn
constexpr size_t kMostVisitors = 64;
constexpr size_t kMostEarly = 2 * kAheadBytes;  // a sender sends less before receives are posted

struct Message {
    ucp_tag_t tag = 0;
    uint64_t bytes = 0;
};

struct Request {
    Message message;  // receive: its capacity
    std::byte* data = nullptr;
    size_t sent = 0;  // its header included
    ucp_request_param_t param{};

    // Gone afterwards, as the callback frees it.
    void send_done(ucs_status_t status) { param.cb.send(this, status, param.user_data); }
    void receive_done(ucs_status_t status, uint64_t bytes) {
        const ucp_tag_recv_info_t info{message.tag, static_cast<size_t>(bytes)};
        param.cb.recv(this, status, &info, param.user_data);
    }
};

// A connection before it has said the cookie.
struct Guest {
    Socket socket;
    Cookie cookie{};
    size_t heard = 0;
};

// One direction: a sender's has a stream, a receiver's a door until its sender has come.
class Worker {
  public:
    explicit Worker(std::string interface) : interface_(std::move(interface)) {}
    ~Worker() {
        for (const auto& [tag, request] : posted_) {
            delete request;
        }
        for (const auto& request : outgoing_) {
            delete request;
        }
        delete flush_;
        if (epoll_ >= 0) {
            close(epoll_);
        }
    }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    Status open() {
        epoll_ = epoll_create1(EPOLL_CLOEXEC);
        return epoll_ >= 0 ? Status() : Status(Code::kSystemError, strerror(errno));
    }
    [[nodiscard]] int events() const noexcept { return epoll_; }

    Result<WireHandle> address() {
        SLIMWIRE_TRY_ASSIGN(const std::vector<Interface> running, running_interfaces());
        const auto own = std::find_if(running.begin(), running.end(),
                                      [&](const Interface& one) { return one.name == interface_; });
        if (own == running.end()) {
            return no_interface(running, interface_);
        }
        SocketAddress address = own->address;
        SLIMWIRE_TRY_ASSIGN(cookie_, random_cookie());
        SLIMWIRE_TRY_ASSIGN(door_, listen_at(&address));
        watch(door_, EPOLLIN, EPOLL_CTL_ADD);
        return make_handle(address, cookie_);
    }

    Status connect(const WireHandle& peer, const ucp_err_handler_t& on_error) {
        SLIMWIRE_TRY_ASSIGN(SocketAddress address, address_of(peer));
        if (address.any.sa_family == AF_INET6) {
            address.v6.sin6_scope_id = if_nametoindex(interface_.c_str());
        }
        on_error_ = on_error;
        cookie_ = peer.cookie;
        SLIMWIRE_TRY_ASSIGN(stream_, start_connect(address));
        watch(stream_, EPOLLIN, EPOLL_CTL_ADD);
        return {};
    }

    // As far as it goes at once; who waits for events goes on.
    void send(Request* request) {
        outgoing_.push_back(request);
        progress();
        arm();
    }
    [[nodiscard]] bool sends() const noexcept { return !outgoing_.empty(); }
    void flush(Request* request) { flush_ = request; }

    void receive(Request* request) {
        const auto early = early_.find(request->message.tag);
        if (early == early_.end()) {
            posted_[request->message.tag] = request;
            return;
        }
        const std::vector<std::byte> bytes = std::move(early->second);
        early_.erase(early);
        early_bytes_ -= bytes.size();
        deliver(request, bytes);
    }

    unsigned progress() {
        unsigned moved = 0;
        if (door_.valid()) {
            let_in();
        }
        for (int round = 0; round < kRounds && stream_.valid(); ++round) {
            const bool more = write_some();
            if (!stream_.valid() || (!read_some() && !more)) {
                break;
            }
            ++moved;
        }
        if (flush_ != nullptr && outgoing_.empty()) {
            std::exchange(flush_, nullptr)->send_done(UCS_OK);
            ++moved;
        }
        return moved;
    }

    void arm() {
        if (stream_.valid()) {
            watch(stream_, EPOLLIN | (outgoing_.empty() ? 0u : EPOLLOUT), EPOLL_CTL_MOD);
        }
    }

  private:
    void watch(const Socket& socket, uint32_t what, int how) const {
        epoll_event event{};
        event.events = what;
        epoll_ctl(epoll_, how, socket.fd(), &event);
    }

    void let_in() {
        Result<Socket> came = Socket();
        SocketAddress from;
        while (guests_.size() < kMostVisitors && (came = accept_waiting(door_, &from)).ok() &&
               came.value().valid()) {
            watch(came.value(), EPOLLIN, EPOLL_CTL_ADD);
            guests_.push_back({std::move(came).value()});
        }
        for (auto guest = guests_.begin(); guest != guests_.end();) {
            bool end = false;
            const long got = receive_some(guest->socket.fd(), guest->cookie.data() + guest->heard,
                                          guest->cookie.size() - guest->heard, &end);
            guest->heard += static_cast<size_t>(std::max(got, 0L));
            const bool whole = guest->heard == guest->cookie.size();
            if (whole && guest->cookie == cookie_) {
                stream_ = std::move(guest->socket);
                guests_.clear();
                door_.reset();
                return;
            }
            guest = got < 0 || whole ? guests_.erase(guest) : std::next(guest);
        }
    }

    // What was sent before it ended has been read.
    void ended(bool error) {
        stream_.reset();
        if (on_error_.cb != nullptr && error) {
            on_error_.cb(on_error_.arg, nullptr, UCS_ERR_CONNECTION_RESET);
        }
    }

    // Whether something went.
    bool write_some() {
        if (cookie_sent_ < cookie_.size() && on_error_.cb != nullptr) {
            const long sent = send_some(stream_.fd(), cookie_.data() + cookie_sent_,
                                        cookie_.size() - cookie_sent_);
            cookie_sent_ += static_cast<size_t>(std::max(sent, 0L));
            if (sent < 0) {
                ended(true);
            }
            return sent > 0;
        }
        if (outgoing_.empty()) {
            return false;
        }
        Request* const first = outgoing_.front();
        const bool header = first->sent < sizeof(Message);
        const void* const from =
            header ? reinterpret_cast<const std::byte*>(&first->message) + first->sent
                   : first->data + (first->sent - sizeof(Message));
        const size_t all = sizeof(Message) + static_cast<size_t>(first->message.bytes);
        const long sent =
            send_some(stream_.fd(), from, (header ? sizeof(Message) : all) - first->sent);
        if (sent < 0) {
            ended(true);
            return false;
        }
        first->sent += static_cast<size_t>(sent);
        if (first->sent == all) {
            outgoing_.pop_front();
            first->send_done(UCS_OK);
        }
        return sent > 0;
    }

    static void deliver(Request* request, const std::vector<std::byte>& bytes) {
        const bool fits = bytes.size() <= request->message.bytes;
        if (fits && !bytes.empty()) {
            memcpy(request->data, bytes.data(), bytes.size());
        }
        request->receive_done(fits ? UCS_OK : UCS_ERR_MESSAGE_TRUNCATED, bytes.size());
    }

    // Of the message whose header has come. False: nobody sends such a one.
    bool begin_message() {
        const auto posted = posted_.find(coming_.tag);
        into_ = posted != posted_.end() && coming_.bytes <= posted->second->message.bytes
                    ? posted->second->data
                    : nullptr;
        aside_.clear();
        if (into_ != nullptr) {
            return true;
        }
        const bool taken = coming_.bytes <= kAheadBytes && early_bytes_ <= kMostEarly;
        aside_.resize(taken ? static_cast<size_t>(coming_.bytes) : 0);
        return taken;
    }

    void end_message() {
        const auto posted = posted_.find(coming_.tag);
        come_ = 0;
        if (posted == posted_.end()) {
            early_bytes_ += aside_.size();
            early_[coming_.tag] = std::exchange(aside_, {});
            return;
        }
        Request* const request = posted->second;
        posted_.erase(posted);
        if (into_ != nullptr) {
            request->receive_done(UCS_OK, coming_.bytes);
        } else {
            deliver(request, aside_);
        }
    }

    // Whether something came.
    bool read_some() {
        const bool header = come_ < sizeof coming_;
        void* const to =
            header ? reinterpret_cast<std::byte*>(&coming_) + come_
                   : (into_ != nullptr ? into_ : aside_.data()) + (come_ - sizeof coming_);
        const size_t wanted =
            (header ? sizeof coming_ : sizeof coming_ + static_cast<size_t>(coming_.bytes)) - come_;
        bool end = false;
        const long got = receive_some(stream_.fd(), to, wanted, &end);
        if (got <= 0) {
            if (got < 0) {
                ended(true);
            }
            return false;
        }
        come_ += static_cast<size_t>(got);
        if (header && come_ == sizeof coming_ && !begin_message()) {
            ended(true);
            return false;
        }
        if (come_ == sizeof coming_ + coming_.bytes) {
            end_message();
        }
        return true;
    }

    const std::string interface_;
    int epoll_ = -1;
    Cookie cookie_{};
    size_t cookie_sent_ = 0;
    Socket door_;
    std::vector<Guest> guests_;
    Socket stream_;
    ucp_err_handler_t on_error_{};  // a sender's
    std::deque<Request*> outgoing_;
    Request* flush_ = nullptr;
    std::map<ucp_tag_t, Request*> posted_;
    std::map<ucp_tag_t, std::vector<std::byte>> early_;  // before their receives
    size_t early_bytes_ = 0;
    Message coming_;
    size_t come_ = 0;            // of it, its header included
    std::byte* into_ = nullptr;  // a posted receive's; null: aside
    std::vector<std::byte> aside_;
};

// --- As ucp.h has them. A configuration, and a context, is the name of an interface.

Worker* worker_of(ucp_worker_h worker) noexcept {
    return reinterpret_cast<Worker*>(worker);
}

ucs_status_t config_read(const char*, const char*, ucp_config_t** config) {
    *config = reinterpret_cast<ucp_config_t*>(new std::string);
    return UCS_OK;
}
ucs_status_t config_modify(ucp_config_t* config, const char* name, const char* value) {
    if (std::string_view(name) == "NET_DEVICES") {
        *reinterpret_cast<std::string*>(config) = value;
    }
    return UCS_OK;
}
void config_release(ucp_config_t* config) {
    delete reinterpret_cast<std::string*>(config);
}
ucs_status_t init_version(
    unsigned, unsigned, const ucp_params_t*, const ucp_config_t* config, ucp_context_h* context) {
    *context = reinterpret_cast<ucp_context_h>(
        new std::string(*reinterpret_cast<const std::string*>(config)));
    return UCS_OK;
}
void cleanup(ucp_context_h context) {
    delete reinterpret_cast<std::string*>(context);
}

ucs_status_t worker_create(ucp_context_h context, const ucp_worker_params_t*, ucp_worker_h* made) {
    auto worker = std::make_unique<Worker>(*reinterpret_cast<const std::string*>(context));
    if (!worker->open().ok()) {
        return UCS_ERR_IO_ERROR;
    }
    *made = reinterpret_cast<ucp_worker_h>(worker.release());
    return UCS_OK;
}
void worker_destroy(ucp_worker_h worker) {
    delete worker_of(worker);
}
ucs_status_t worker_get_address(ucp_worker_h worker, ucp_address_t** address, size_t* bytes) {
    const Result<WireHandle> own = worker_of(worker)->address();
    if (!own.ok()) {
        return UCS_ERR_NO_DEVICE;
    }
    *address = reinterpret_cast<ucp_address_t*>(new WireHandle(own.value()));
    *bytes = sizeof(WireHandle);
    return UCS_OK;
}
void worker_release_address(ucp_worker_h, ucp_address_t* address) {
    delete reinterpret_cast<WireHandle*>(address);
}
ucs_status_t worker_get_efd(ucp_worker_h worker, int* fd) {
    *fd = worker_of(worker)->events();
    return UCS_OK;
}
ucs_status_t worker_arm(ucp_worker_h worker) {
    worker_of(worker)->arm();
    return UCS_OK;
}
unsigned worker_progress(ucp_worker_h worker) {
    return worker_of(worker)->progress();
}

Request* request_of(const ucp_request_param_t& param,
                    const void* data,
                    size_t bytes,
                    ucp_tag_t tag) {
    auto* const request = new Request;
    request->message = {tag, bytes};
    request->data = static_cast<std::byte*>(const_cast<void*>(data));
    request->param = param;
    return request;
}
ucs_status_ptr_t worker_flush_nbx(ucp_worker_h worker, const ucp_request_param_t* param) {
    if (!worker_of(worker)->sends()) {
        return nullptr;
    }
    Request* const request = request_of(*param, nullptr, 0, 0);
    worker_of(worker)->flush(request);
    return request;
}
ucs_status_t ep_create(ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* endpoint) {
    WireHandle peer{};
    memcpy(&peer, params->address, sizeof peer);
    if (!worker_of(worker)->connect(peer, params->err_handler).ok()) {
        return UCS_ERR_UNREACHABLE;
    }
    *endpoint = reinterpret_cast<ucp_ep_h>(worker);
    return UCS_OK;
}
ucs_status_ptr_t tag_send_nbx(ucp_ep_h endpoint,
                              const void* data,
                              size_t bytes,
                              ucp_tag_t tag,
                              const ucp_request_param_t* param) {
    Request* const request = request_of(*param, data, bytes, tag);
    reinterpret_cast<Worker*>(endpoint)->send(request);
    return request;
}
ucs_status_ptr_t tag_recv_nbx(ucp_worker_h worker,
                              void* data,
                              size_t capacity,
                              ucp_tag_t tag,
                              ucp_tag_t,
                              const ucp_request_param_t* param) {
    Request* const request = request_of(*param, data, capacity, tag);
    worker_of(worker)->receive(request);
    return request;
}
void request_free(void* request) {
    delete static_cast<Request*>(request);
}
const char* status_string(ucs_status_t status) {
    return status == UCS_OK ? "success"
           : status == UCS_ERR_CONNECTION_RESET
               ? "it has closed the connection or its process has ended"
           : status == UCS_ERR_NO_DEVICE   ? "the interface has no address"
           : status == UCS_ERR_UNREACHABLE ? "it cannot be reached"
                                           : "no more files or sockets";
}

}  // namespace

const UcxApi& socket_api() noexcept {
    static constexpr UcxApi api{config_read,
                                config_modify,
                                config_release,
                                init_version,
                                cleanup,
                                nullptr,
                                nullptr,
                                worker_create,
                                worker_destroy,
                                worker_get_address,
                                worker_release_address,
                                worker_get_efd,
                                worker_arm,
                                worker_flush_nbx,
                                worker_progress,
                                ep_create,
                                tag_send_nbx,
                                tag_recv_nbx,
                                request_free,
                                status_string};
    return api;
}

bool of_socket_api(const std::string& worker_address) noexcept {
    return worker_address.size() == sizeof(WireHandle) &&
           memcmp(worker_address.data(), &kWireMagic, sizeof kWireMagic) == 0;
}

}  // namespace slimwire::net
