#include "plugin/net/ucx/link.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "plugin/net/ucx/housekeeper.h"

namespace slimwire::net {
namespace {

constexpr size_t kMostRequests = 1024;
// A peer that hung up without a word may have sent or acknowledged something just before.
constexpr uint64_t kGraceNs = 100'000'000;
// A message that the peer promised before it hung up is on its way, however busy the machines are.
constexpr uint64_t kPromiseNs = 60'000'000'000;
constexpr uint64_t kInlineCloseNs = 20'000'000;
// What a closed sender has not handed to the network yet: its receiver may get no processor for
// long. The housekeeper waits, nobody else.
constexpr uint64_t kCloseNs = 60'000'000'000;
constexpr int kHousekeepingRounds = 16;

ucp_tag_t tag_of(const UcxRequest& request) {
    return request.sequence << 1 | static_cast<uint64_t>(request.lane);
}

}  // namespace

uint64_t steady_ns() noexcept {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

Link::Link(std::shared_ptr<UcxDevice> device, Housekeeper* housekeeper)
    : device_(std::move(device)), housekeeper_(housekeeper) {}

Link::~Link() {
    end_worker();
}

Result<std::shared_ptr<Link>> Link::create(std::shared_ptr<UcxDevice> device,
                                           Housekeeper* housekeeper) {
    std::shared_ptr<Link> link(new Link(std::move(device), housekeeper));
    const UcxApi& api = link->device_->api();
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    ucs_status_t status = api.ucp_worker_create(link->device_->context(), &params, &link->worker_);
    if (status != UCS_OK) {
        link->worker_ = nullptr;
        return ucx_error(api, "a connection's worker", status);
    }
    status = api.ucp_worker_get_efd(link->worker_, &link->event_fd_);
    if (status != UCS_OK) {
        return ucx_error(api, "a worker's event descriptor", status);
    }
    return link;
}

Result<std::string> Link::worker_address() const {
    const UcxApi& api = device_->api();
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    const ucs_status_t status = api.ucp_worker_get_address(worker_, &address, &bytes);
    if (status != UCS_OK) {
        return ucx_error(api, "a worker's address", status);
    }
    std::string text(reinterpret_cast<const char*>(address), bytes);
    api.ucp_worker_release_address(worker_, address);
    if (text.size() > kMaxWorkerAddressBytes) {
        return Status(Code::kSystemError, "UCX: a worker's address has " +
                                              std::to_string(text.size()) + " bytes, more than " +
                                              std::to_string(kMaxWorkerAddressBytes));
    }
    return text;
}

Status Link::connect_endpoint(const std::string& worker_address) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {on_endpoint_error, this};
    const UcxApi& api = device_->api();
    ucs_status_t status = api.ucp_ep_create(worker_, &params, &endpoint_);
    if (status == UCS_ERR_UNREACHABLE) {
        // Shared memory does not notice a peer's end; the socket does.
        params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
        status = api.ucp_ep_create(worker_, &params, &endpoint_);
    }
    if (status != UCS_OK) {
        endpoint_ = nullptr;
        return ucx_error(
            api,
            "an endpoint (can the peer's device be reached from " + device_->facts().name + "?)",
            status);
    }
    return {};
}

Status Link::start(Socket socket, const std::string& peer) {
    socket_ = std::move(socket);
    peer_ = peer + " (ucx " + device_->transports() + ")";
    return housekeeper_->watch(shared_from_this());
}

UcxRequest* Link::new_request(Lane lane, uint64_t sequence) {
    UcxRequest* request = nullptr;
    if (!free_.empty()) {
        request = free_.back();
        free_.pop_back();
    } else if (requests_.size() < kMostRequests) {
        request = &requests_.emplace_back();
    } else {
        return nullptr;
    }
    *request = {};
    request->link = this;
    request->lane = lane;
    request->sequence = sequence;
    return request;
}

void Link::release(UcxRequest* request) {
    request->link = nullptr;
    free_.push_back(request);
}

// What a UCX call that starts an operation returned: a handle that will be called back, or a
// status when it is over already.
void Link::post(void* handle, UcxRequest* request) {
    used_ = true;
    if (UCS_PTR_IS_PTR(handle)) {
        ++in_flight_;
        return;
    }
    request->complete = true;
    request->status = UCS_PTR_RAW_STATUS(handle);
}

void Link::post_send(const void* data, UcxRequest* request) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = on_sent;
    param.user_data = request;
    post(device_->api().ucp_tag_send_nbx(endpoint_, data, request->bytes, tag_of(*request), &param),
         request);
}

// Always called back, maybe within the call: what UCX (1.13) says at once about a message of
// several fragments that has arrived already lacks its length.
void Link::post_receive(void* data, UcxRequest* request) {
    ucp_request_param_t param{};
    // Always by callback, which may run before the call returns: UCX 1.13 does not tell the size of
    // a message that was there before its receive when it completes at once.
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = on_received;
    param.user_data = request;
    request->posted_ns = steady_ns();
    post(device_->api().ucp_tag_recv_nbx(worker_, data, request->capacity, tag_of(*request),
                                         ~ucp_tag_t{0}, &param),
         request);
}

void Link::on_sent(void* handle, ucs_status_t status, void* opaque) {
    auto* request = static_cast<UcxRequest*>(opaque);
    request->complete = true;
    request->status = status;
    --request->link->in_flight_;
    request->link->device_->api().ucp_request_free(handle);
}

void Link::on_received(void* handle,
                       ucs_status_t status,
                       const ucp_tag_recv_info_t* info,
                       void* opaque) {
    static_cast<UcxRequest*>(opaque)->bytes = info->length;
    on_sent(handle, status, opaque);
}

void Link::on_endpoint_error(void* opaque, ucp_ep_h, ucs_status_t status) {
    static_cast<Link*>(opaque)->endpoint_status_ = status;
}

// A sender looks whether its peer is still there before UCX does: a send from the caller's memory
// that meets the reset of a dead peer half-way is completed twice by UCX 1.13, for which Debian's
// build of it ends the process. end_worker() and the kernel hang up this socket before UCX's.
bool Link::peer_has_left() noexcept {
    if (!hung_up() && endpoint_ != nullptr && in_flight_ > 0) {
        pollfd entry{socket_.fd(), POLLRDHUP, 0};
        if (poll(&entry, 1, 0) > 0) {
            hang_up();
        }
    }
    return endpoint_ != nullptr && hung_up();
}

unsigned Link::progress() noexcept {
    return worker_ != nullptr && !peer_has_left() ? device_->api().ucp_worker_progress(worker_) : 0;
}

bool Link::out_of_patience(const UcxRequest& request, Outlook outlook, uint64_t now) const {
    const uint64_t since = hung_up_ns_.load(std::memory_order_acquire);
    if (since == 0) {
        return false;
    }
    switch (outlook) {
        case Outlook::kNever:
            return true;
        case Outlook::kOpen:
            return now > since + kGraceNs;
        case Outlook::kPromised:
            break;
    }
    return now > std::max(since, request.posted_ns) + kPromiseNs;
}

Status Link::advance(UcxRequest* request, Outlook outlook, bool* done, size_t* bytes) {
    *done = false;
    activity_.store(activity_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (!request->complete && failure_.ok() && progress() == 0 && !request->complete) {
        if (endpoint_status_ != UCS_OK) {
            end(device_->api().ucs_status_string(endpoint_status_));
        } else if (hung_up() && outlook == Outlook::kNever) {
            // Only this one comes no more; what was promised before the goodbye may. UCX has it
            // until the end.
            return {Code::kRemoteError,
                    "lost the peer " + peer_ + ": it has closed the connection"};
        } else if (hung_up() &&
                   (endpoint_ != nullptr || out_of_patience(*request, outlook, steady_ns()))) {
            end("it has closed the connection or its process has ended");
        }
    }
    if (!request->complete) {
        if (!failure_.ok()) {
            release(request);
        }
        return failure_;
    }
    const ucs_status_t status = request->status;
    const size_t size = request->bytes, capacity = request->capacity;
    release(request);
    switch (status) {
        case UCS_OK:
            *done = true;
            if (bytes != nullptr) {
                *bytes = size;
            }
            return {};
        case UCS_ERR_MESSAGE_TRUNCATED:
            return {Code::kInvalidArgument, "a message that is larger than its receive of " +
                                                std::to_string(capacity) + " bytes came from " +
                                                peer_};
        default:
            return fail(device_->api().ucs_status_string(status));
    }
}

const Status& Link::fail(const std::string& why) {
    end(why);
    return failure_;
}

void Link::end(const std::string& why) {
    if (failure_.ok()) {
        failure_ = {Code::kRemoteError, "lost the peer " + peer_ + ": " + why};
        end_worker();
    }
}

void Link::end_worker() noexcept {
    if (worker_ != nullptr) {
        if (socket_.valid()) {
            shutdown(socket_.fd(), SHUT_WR);
        }
        device_->api().ucp_worker_destroy(worker_);
        worker_ = nullptr;
        endpoint_ = nullptr;
    }
}

// --- The end

// UCX cannot take back one operation, but without its worker there is none.
void Link::drop() noexcept {
    const std::lock_guard lock(mutex_);
    if (in_flight_ > 0) {
        end("its operations were dropped");
    }
}

void Link::on_flushed(void* handle, ucs_status_t, void* opaque) {
    auto* link = static_cast<Link*>(opaque);
    link->flushing_ = false;
    link->device_->api().ucp_request_free(handle);
}

void Link::start_flush() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = on_flushed;
    param.user_data = this;
    flushing_ = UCS_PTR_IS_PTR(device_->api().ucp_worker_flush_nbx(worker_, &param));
}

// Credits that nobody read would turn the close into a reset, so they are read.
void Link::finish_close() noexcept {
    if (bye_.has_value() && socket_.valid()) {
        static_cast<void>(send_some(socket_.fd(), &*bye_, sizeof *bye_));
        shutdown(socket_.fd(), SHUT_WR);
        char unread[256];
        bool end = false;
        while (receive_some(socket_.fd(), unread, sizeof unread, &end) > 0) {
        }
    }
    end_worker();
    socket_.reset();
}

void Link::close(const std::optional<Bye>& bye) {
    bool gone = true;
    {
        const std::lock_guard lock(mutex_);
        if (failure_.ok() && in_flight_ == 0 && !hung_up()) {
            bye_ = bye;
            if (used_) {
                start_flush();
            }
            const uint64_t deadline_ns = steady_ns() + kInlineCloseNs;
            while (flushing_ && endpoint_status_ == UCS_OK && !hung_up() &&
                   steady_ns() < deadline_ns) {
                if (progress() == 0) {
                    sched_yield();
                }
            }
            gone = !flushing_ || endpoint_status_ != UCS_OK || hung_up();
        }
        if (gone) {
            finish_close();
        } else {
            closing_ = true;
            close_deadline_ns_ = steady_ns() + kCloseNs;
        }
    }
    if (gone) {
        housekeeper_->forget(this);
    } else {
        housekeeper_->finish(this);
    }
}

void Link::abandon() {
    const std::lock_guard lock(mutex_);
    end_worker();
    socket_.reset();
}

// --- The housekeeper's

void Link::hang_up() noexcept {
    uint64_t never = 0;
    hung_up_ns_.compare_exchange_strong(never, steady_ns(), std::memory_order_release);
}

Status Link::watch_socket(int epoll, uint64_t id) const {
    epoll_event event{};
    event.events = EPOLLRDHUP | EPOLLONESHOT;
    event.data.u64 = id << 1;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, socket_.fd(), &event) != 0) {
        return {Code::kSystemError, std::string("watching a connection: ") + strerror(errno)};
    }
    return {};
}

Link::Rest Link::housekeep(int epoll, uint64_t id) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
        return Rest::kBusy;
    }
    int rounds = 0;
    while (rounds < kHousekeepingRounds && progress() != 0) {
        ++rounds;
    }
    if (closing_) {
        if (flushing_ && endpoint_status_ == UCS_OK && !hung_up() &&
            steady_ns() < close_deadline_ns_) {
            return Rest::kBusy;
        }
        finish_close();
    }
    if (worker_ == nullptr) {
        return Rest::kGone;
    }
    if (rounds == kHousekeepingRounds || device_->api().ucp_worker_arm(worker_) != UCS_OK) {
        return Rest::kBusy;
    }
    epoll_event event{};
    event.events = EPOLLIN | EPOLLONESHOT;
    event.data.u64 = id << 1 | 1;
    if (epoll_ctl(epoll, event_known_ ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, event_fd_, &event) != 0) {
        return Rest::kBusy;
    }
    event_known_ = true;
    return Rest::kArmed;
}

}  // namespace slimwire::net
