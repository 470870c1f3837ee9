#include "plugin/net/ucx/link.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "plugin/net/ucx/progress_thread.h"

namespace slimwire::net {
namespace {

// A peer that hung up without a word may have sent something just before, of which the network may
// lose a segment twice: TCP sends it again after 0.2 and 0.4 s.
constexpr uint64_t kGraceNs = 1'000'000'000;

// UCX says "Input/output error" when the process may open no more files, of which a worker needs
// several.
std::string if_files_ran_out() {
    constexpr uint64_t kNeeded = 16;
    rlimit limit{};
    std::error_code error;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return {};
    }
    const std::filesystem::directory_iterator files("/proc/self/fd", error);
    const auto open = error ? limit.rlim_cur : static_cast<uint64_t>(std::distance(files, {}));
    if (open + kNeeded < limit.rlim_cur) {
        return {};
    }
    return " (the process has " + std::to_string(open) + " files open and may have " +
           std::to_string(limit.rlim_cur) + ": ulimit -n)";
}

}  // namespace

Link::Link(std::shared_ptr<UcxDevice> device, ProgressThread* progress_thread, uint64_t promise_ns)
    : device_(std::move(device)), progress_thread_(progress_thread), promise_ns_(promise_ns) {}

Link::~Link() {
    end_worker();
}

Result<std::shared_ptr<Link>> Link::create(std::shared_ptr<UcxDevice> device,
                                           ProgressThread* progress_thread,
                                           uint64_t promise_ns) {
    std::shared_ptr<Link> link(new Link(std::move(device), progress_thread, promise_ns));
    const UcxApi& api = link->device_->api();
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    ucs_status_t status = api.ucp_worker_create(link->device_->context(), &params, &link->worker_);
    if (status != UCS_OK) {
        link->worker_ = nullptr;
        return ucx_error(api, "a connection's worker" + if_files_ran_out(), status);
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
    limit_silence(socket_);
    peer_ = peer + " (" + device_->carrier() + ")";
    return progress_thread_->watch(shared_from_this());
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
    post(device_->api().ucp_tag_send_nbx(endpoint_, data, request->bytes,
                                         tag_of(token_, request->lane, request->sequence), &param),
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
    post(device_->api().ucp_tag_recv_nbx(worker_, data, request->capacity,
                                         tag_of(token_, request->lane, request->sequence),
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
        pollfd entry{socket_.fd(), POLLIN | POLLRDHUP, 0};
        if (poll(&entry, 1, 0) > 0) {
            unread_ = true;
            if ((entry.revents & ~POLLIN) != 0) {
                hang_up();
            }
        }
    }
    return endpoint_ != nullptr && hung_up();
}

unsigned Link::progress() noexcept {
    if (worker_ == nullptr || peer_has_left()) {
        return 0;
    }
    const unsigned moved = device_->api().ucp_worker_progress(worker_);
    if (moved != 0) {
        silence_.moved();
    }
    return moved;
}

// Only this one comes no more: UCX may have others, which are there as soon as they are asked for,
// and keeps this one's place until the end.
Status Link::comes_no_more() const {
    return {Code::kRemoteError,
            "lost the peer " + peer_ + ": it has closed the connection or its process has ended"};
}

Status Link::lose_patience(const UcxRequest& request, Outlook outlook) {
    if (outlook == Outlook::kNever) {
        return comes_no_more();
    }
    const uint64_t vain_ns = silence_.look(steady_ns());
    switch (outlook) {
        case Outlook::kNever:
        case Outlook::kOpen:
            return vain_ns > kGraceNs ? comes_no_more() : Status();
        case Outlook::kPromised:
            if (vain_ns > promise_ns_) {
                end("it has closed the connection, and message " +
                    std::to_string(request.sequence) + " of lane " +
                    std::to_string(static_cast<int>(request.lane)) +
                    ", which it sent before, has not come");
            }
            break;
    }
    return {};
}

Status Link::advance(UcxRequest* request, Outlook outlook, bool* done, size_t* bytes) {
    *done = false;
    activity_.store(activity_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (!request->complete && failure_.ok() && progress() == 0 && !request->complete) {
        if (endpoint_status_ != UCS_OK) {
            end(device_->api().ucs_status_string(endpoint_status_));
        } else if (hung_up() && endpoint_ != nullptr) {
            end("it has closed the connection or its process has ended");
        } else if (hung_up()) {
            SLIMWIRE_TRY(lose_patience(*request, outlook));
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

// How links end, and what the progress_thread does with them.

namespace {

constexpr uint64_t kInlineCloseNs = 20'000'000;
constexpr int kHousekeepingRounds = 16;

// Whether the peer's machine has all that was sent, the end of the stream included: then nothing
// that happens to this end takes it away again.
bool all_arrived(int socket) noexcept {
    int unacknowledged = 0;
    return ioctl(socket, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

}  // namespace

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

// Whether nothing is left to be done for the peer; else to be asked again. Credits that nobody read
// would turn the close into a reset, so they are read.
bool Link::has_closed() noexcept {
    if (hung_up() || endpoint_status_ != UCS_OK) {
        return true;
    }
    if (flushing_ || !bye_.has_value()) {
        return !flushing_;
    }
    if (!bye_said_) {
        static_cast<void>(send_some(socket_.fd(), &*bye_, sizeof *bye_));
        shutdown(socket_.fd(), SHUT_WR);
        bye_said_ = true;
    }
    char unread[256];
    bool end = false;
    while (receive_some(socket_.fd(), unread, sizeof unread, &end) > 0) {
    }
    return end || all_arrived(socket_.fd());
}

void Link::leave() noexcept {
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
            while (!(gone = has_closed()) && steady_ns() < deadline_ns) {
                if (progress() == 0) {
                    sched_yield();
                }
            }
        }
        if (gone) {
            leave();
        } else {
            closing_ = true;
        }
    }
    if (gone) {
        progress_thread_->forget(this);
    } else {
        progress_thread_->finish(this);
    }
}

void Link::abandon() {
    const std::lock_guard lock(mutex_);
    leave();
}

// --- The progress_thread's

void Link::hang_up() noexcept {
    hung_up_.store(true, std::memory_order_release);
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
        if (!has_closed()) {
            return Rest::kBusy;
        }
        leave();
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
