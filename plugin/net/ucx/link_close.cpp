// How links end, and what the progress_thread does with them.
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <linux/sockios.h>

#include <cerrno>
#include <cstring>

#include "plugin/net/ucx/link.h"
#include "plugin/net/ucx/progress_thread.h"

namespace slimwire::net {
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
