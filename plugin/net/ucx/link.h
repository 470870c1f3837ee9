// One connection's own UCX worker, and the socket whose end says that the peer is gone. A worker
// for each connection keeps connections apart: what one peer does or how it dies touches no other,
// no lock is shared, and destroying the worker ends for certain all access to the buffers of
// operations in flight, which UCX cannot cancel one by one.
//
// Thread contract: the owner (a SendWire or ReceiveWire, one thread at a time) and the
// progress_thread both drive the worker, under mutex(). Members that say so need it held.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codecs/base/status.h"
#include "codecs/base/steady_ns.h"
#include "plugin/net/ucx/handshake.h"
#include "plugin/net/ucx/ucx_device.h"

namespace slimwire::net {

class ProgressThread;
class Link;

struct UcxRequest {
    Link* link = nullptr;
    Lane lane = Lane::kControl;
    bool complete = false;
    ucs_status_t status = UCS_OK;
    uint64_t sequence = 0;
    size_t bytes = 0;     // of the message; receive: once complete
    size_t capacity = 0;  // receive
};

// Operations that a link has in flight at most.
inline constexpr size_t kMostRequests = 1024;

// What is known about a message that has not come yet.
enum class Outlook : uint8_t { kOpen, kPromised, kNever };

// For how long an owner has looked in vain for what a peer that hung up had sent. Time in which he
// did not look does not count: the process was stopped, or got no processor, and what is under way
// was not looked for. Anything that comes begins it anew.
class SilenceTimer {
  public:
    void moved() noexcept { looked_in_vain_ns_ = 0; }
    // The time looked in vain, with this look.
    uint64_t look(uint64_t now) noexcept {
        constexpr uint64_t kLookNs = 10'000'000;
        looked_in_vain_ns_ += now - last_look_ns_ < kLookNs ? now - last_look_ns_ : kLookNs;
        last_look_ns_ = now;
        return looked_in_vain_ns_;
    }

  private:
    uint64_t looked_in_vain_ns_ = 0;
    uint64_t last_look_ns_ = 0;
};

class Link : public std::enable_shared_from_this<Link> {
  public:
    // `promise_ns`: see UcxSettings.
    static Result<std::shared_ptr<Link>> create(std::shared_ptr<UcxDevice> device,
                                                ProgressThread* progress_thread,
                                                uint64_t promise_ns);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    // Before it is connected.
    void set_token(uint64_t token) noexcept { token_ = token; }
    Result<std::string> worker_address() const;
    Status connect_endpoint(const std::string& worker_address);
    // The link is connected: the socket is watched from now on.
    Status start(Socket socket, const std::string& peer);

    [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
    [[nodiscard]] UcxDevice& device() const noexcept { return *device_; }
    [[nodiscard]] const std::string& peer() const noexcept { return peer_; }

    // --- The owner's, with mutex() held.
    // Null when too many are in flight.
    UcxRequest* new_request(Lane lane, uint64_t sequence);
    void post_send(const void* data, UcxRequest* request);
    void post_receive(void* data, UcxRequest* request);
    // Whether the request is over. After an error, and when *done, the request is gone.
    Status advance(UcxRequest* request, Outlook outlook, bool* done, size_t* bytes);
    // The error that ended the link, or ok.
    [[nodiscard]] const Status& failure() const noexcept { return failure_; }
    // The peer has closed its side, or is gone.
    [[nodiscard]] bool hung_up() const noexcept { return hung_up_.load(std::memory_order_acquire); }
    // Ends the link: no buffer is touched any more.
    const Status& fail(const std::string& why);
    [[nodiscard]] int socket() const noexcept { return socket_.fd(); }
    // Whether a sender's socket was seen to have something to read since it was asked last.
    [[nodiscard]] bool take_unread() noexcept { return std::exchange(unread_, false); }

    // Ends all operations in flight. Takes the mutex itself.
    void drop() noexcept;
    // Ends the link. When nothing of the owner is in flight, only after UCX has handed over what it
    // still has to move and the peer's machine has got `bye`, or the peer has hung up: what was
    // sent comes, however late a living peer looks. May take 20 ms; the progress_thread does the
    // rest.
    void close(const std::optional<Bye>& bye);

    // --- The progress_thread's.
    enum class Rest { kArmed, kBusy, kGone };
    void hang_up() noexcept;
    // Moves on what UCX has to do, then makes the worker wake `epoll` when there is more.
    Rest housekeep(int epoll, uint64_t id);
    [[nodiscard]] uint64_t activity() const noexcept {
        return activity_.load(std::memory_order_relaxed);
    }
    Status watch_socket(int epoll, uint64_t id) const;
    // No more patience: the link is over now.
    void abandon();

  private:
    Link(std::shared_ptr<UcxDevice> device, ProgressThread* progress_thread, uint64_t promise_ns);
    bool peer_has_left() noexcept;
    unsigned progress() noexcept;
    void release(UcxRequest* request);
    void post(void* handle, UcxRequest* request);
    // An error when `request` waits in vain; ends the link when a promised message does not come.
    Status lose_patience(const UcxRequest& request, Outlook outlook);
    [[nodiscard]] Status comes_no_more() const;
    void end(const std::string& why);
    void start_flush();
    bool has_closed() noexcept;
    void leave() noexcept;
    void end_worker() noexcept;

    static void on_sent(void* handle, ucs_status_t status, void* request);
    static void on_received(void* handle,
                            ucs_status_t status,
                            const ucp_tag_recv_info_t* info,
                            void* request);
    static void on_flushed(void* handle, ucs_status_t status, void* link);
    static void on_endpoint_error(void* link, ucp_ep_h endpoint, ucs_status_t status);

    const std::shared_ptr<UcxDevice> device_;
    ProgressThread* const progress_thread_;
    const uint64_t promise_ns_;
    uint64_t token_ = 0;
    std::string peer_;
    std::mutex mutex_;
    ucp_worker_h worker_ = nullptr;
    ucp_ep_h endpoint_ = nullptr;
    int event_fd_ = -1;
    bool event_known_ = false;  // to the progress_thread's epoll
    Socket socket_;
    Status failure_;
    ucs_status_t endpoint_status_ = UCS_OK;
    int in_flight_ = 0;
    bool used_ = false;
    bool unread_ = false;
    bool closing_ = false;
    bool flushing_ = false;
    std::optional<Bye> bye_;
    bool bye_said_ = false;
    SilenceTimer silence_;
    std::atomic<uint64_t> activity_{0};
    std::atomic<bool> hung_up_{false};
    std::deque<UcxRequest> requests_;
    std::vector<UcxRequest*> free_;
};

}  // namespace slimwire::net
