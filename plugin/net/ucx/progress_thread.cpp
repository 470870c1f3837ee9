#include "plugin/net/ucx/progress_thread.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "codecs/base/blocked_signals.h"
#include "plugin/net/ucx/link.h"

namespace slimwire::net {
namespace {

// How long callers must have been silent before the progress_thread takes a link's worker on.
constexpr uint64_t kSilenceNs = 1'000'000;
constexpr int kPeriodMs = 2;
constexpr int kEndingMs = 2000;

}  // namespace

ProgressThread::~ProgressThread() {
    wait_for_closing(kEndingMs);
    std::thread thread;
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
        thread = std::move(thread_);
    }
    if (thread.joinable()) {
        wake();
        thread.join();
    }
    for (auto& [id, watched] : links_) {
        watched.link->abandon();
    }
    links_.clear();
    for (const int fd : {epoll_, wake_}) {
        if (fd >= 0) {
            close(fd);
        }
    }
}

Status ProgressThread::start() {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = 0;
    if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) {
        return {Code::kSystemError, std::string("the progress_thread: ") + strerror(errno)};
    }
    const BlockedSignals blocked;
    try {
        thread_ = std::thread([this] {
            pthread_setname_np(pthread_self(), "slimwire-ucx");
            run();
        });
    } catch (const std::system_error& error) {
        return {Code::kSystemError, std::string("the progress_thread's thread: ") + error.what()};
    }
    return {};
}

void ProgressThread::wake() const {
    const uint64_t one = 1;
    static_cast<void>(!write(wake_, &one, sizeof one));
}

Status ProgressThread::watch(const std::shared_ptr<Link>& link) {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
        SLIMWIRE_TRY(start());
    }
    const uint64_t id = next_id_++;
    SLIMWIRE_TRY(link->watch_socket(epoll_, id));
    links_[id] = {link, link->activity(), steady_ns()};
    wake();
    return {};
}

void ProgressThread::forget(const Link* link) {
    std::shared_ptr<Link> last;  // destroyed after the lock is released
    const std::lock_guard lock(mutex_);
    const auto place = std::find_if(links_.begin(), links_.end(), [&](const auto& entry) {
        return entry.second.link.get() == link;
    });
    if (place != links_.end()) {
        last = std::move(place->second.link);
        links_.erase(place);
    }
}

void ProgressThread::finish(const Link* link) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, watched] : links_) {
        if (watched.link.get() == link) {
            watched.armed = false;
            watched.closing = true;
            ++closing_;
        }
    }
    wake();
}

void ProgressThread::wait_for_closing(int limit_ms) {
    std::unique_lock lock(mutex_);
    gone_.wait_for(lock, std::chrono::milliseconds(limit_ms), [this] { return closing_ == 0; });
}

void ProgressThread::run() {
    while (true) {
        bool watching = false;
        {
            const std::lock_guard lock(mutex_);
            if (ending_) {
                return;
            }
            watching = std::any_of(links_.begin(), links_.end(),
                                   [](const auto& entry) { return !entry.second.armed; });
        }
        handle_events(watching ? kPeriodMs : -1);
        round();
    }
}

void ProgressThread::handle_events(int limit_ms) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_, events, 64, limit_ms);
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i) {
        const uint64_t key = events[i].data.u64;
        const auto place = links_.find(key >> 1);
        if (key == 0) {
            uint64_t unread = 0;
            static_cast<void>(!read(wake_, &unread, sizeof unread));
        } else if (place == links_.end()) {
            continue;
        } else if ((key & 1) != 0) {
            // News for a worker. If nobody asked it since it was armed, `since_ns` is long ago.
            place->second.armed = false;
        } else {
            place->second.link->hang_up();
        }
    }
}

// Takes on the links whose callers are silent.
void ProgressThread::round() {
    std::vector<std::pair<uint64_t, std::shared_ptr<Link>>> silent;
    const uint64_t now = steady_ns();
    {
        const std::lock_guard lock(mutex_);
        for (auto& [id, watched] : links_) {
            if (watched.armed) {
                continue;
            }
            const uint64_t activity = watched.link->activity();
            if (activity != watched.activity) {
                watched.activity = activity;
                watched.since_ns = now;
            }
            if (watched.closing || now >= watched.since_ns + kSilenceNs) {
                silent.emplace_back(id, watched.link);
            }
        }
    }
    for (const auto& [id, link] : silent) {
        const Link::Rest rest = link->housekeep(epoll_, id);
        const std::lock_guard lock(mutex_);
        const auto place = links_.find(id);
        if (place == links_.end()) {
            continue;
        }
        switch (rest) {
            case Link::Rest::kBusy:
                break;
            case Link::Rest::kArmed:
                place->second.armed = !place->second.closing;
                break;
            case Link::Rest::kGone:
                if (place->second.closing) {
                    --closing_;
                    links_.erase(place);
                    gone_.notify_all();
                } else {
                    place->second.armed = true;  // nothing to wait for until its owner closes it
                }
                break;
        }
    }
}

}  // namespace slimwire::net
