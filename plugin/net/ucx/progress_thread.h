// The process's one thread of the UCX wire. It asks for nothing while callers drive their
// connections themselves; when nobody has for a moment it finishes what UCX still has to do
// (acknowledgements that a peer waits for, closes) and then sleeps until a connection's worker or
// socket has news. It runs while there are links.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "codecs/base/status.h"

namespace slimwire::net {

class Link;

class ProgressThread {
  public:
    ProgressThread() = default;
    // Ends the thread; links still closing are cut off after at most two seconds.
    ~ProgressThread();
    ProgressThread(const ProgressThread&) = delete;
    ProgressThread& operator=(const ProgressThread&) = delete;

    // Any thread, without a link's mutex.
    Status watch(const std::shared_ptr<Link>& link);
    void forget(const Link* link);
    // The link is closing: drives it until it is gone.
    void finish(const Link* link);
    // Waits until no link is closing, at most `limit_ms`.
    void wait_for_closing(int limit_ms);

  private:
    struct Watched {
        std::shared_ptr<Link> link;
        uint64_t activity = 0;
        uint64_t since_ns = 0;  // `activity` has been that for so long
        bool armed = false;
        bool closing = false;
    };
    using Links = std::unordered_map<uint64_t, Watched>;

    Status start();
    void run();
    void handle_events(int limit_ms);
    void round();
    void wake() const;

    std::mutex mutex_;
    std::condition_variable gone_;
    Links links_;
    uint64_t next_id_ = 1;
    int closing_ = 0;
    bool ending_ = false;
    int epoll_ = -1;
    int wake_ = -1;
    std::thread thread_;
};

}  // namespace slimwire::net
