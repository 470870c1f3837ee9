// The control sockets between the ranks of a communicator: one between each two, open for as long
// as any communicator made from it lives. They carry small messages (handles of connections, what a
// split needs) and tell at once when a process is gone, which shared memory does not.
//
// A rank that is done says so before it closes; a socket that ends without that word is a dead
// peer. One thread for each process reads all sockets. Thread contract: everything from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/bootstrap/unique_id.h"

namespace slimwire::emu {

class Mesh {
  public:
    // Joins at the root of `id`, then connects to all other ranks.
    static Result<std::shared_ptr<Mesh>> join(const ncclUniqueId& id,
                                              int nranks,
                                              int rank,
                                              RankInfo self);
    ~Mesh();
    Mesh(const Mesh&) = delete;
    Mesh& operator=(const Mesh&) = delete;

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int size() const noexcept { return static_cast<int>(peers_.size()); }
    [[nodiscard]] uint64_t token() const noexcept { return token_; }
    [[nodiscard]] const RankInfo& info(int rank) const { return infos_[static_cast<size_t>(rank)]; }

    // Sends a message to `to`; (comm, tag) say what it is. A dead receiver is not an error here.
    void send(int to, uint64_t comm, uint64_t tag, const void* data, size_t bytes);
    // Takes a message if it has come.
    bool try_receive(int from, uint64_t comm, uint64_t tag, std::vector<char>* out);
    // Waits for it; fails when the sender dies or `stop` becomes true.
    Status receive(int from,
                   uint64_t comm,
                   uint64_t tag,
                   const std::atomic<bool>& stop,
                   std::vector<char>* out);

    // This rank has left communicator `comm`, in good order or by abort.
    void announce_end(uint64_t comm, bool aborted);

    // When the process of `rank` was found dead; 0 while it lives.
    [[nodiscard]] uint64_t dead_since_ns(int rank) const noexcept;
    // When `rank` aborted `comm`, or left it in good order; 0 when it did not.
    [[nodiscard]] uint64_t ended_since_ns(int rank, uint64_t comm, bool aborted);
    // Changes whenever one of the two above does: a cheap reason not to ask.
    [[nodiscard]] uint64_t changes() const noexcept { return changes_.load(); }

    // Called by the reading thread.
    struct Frame {
        uint32_t magic;
        uint32_t kind;
        uint64_t comm;
        uint64_t tag;
        uint64_t bytes;
    };
    void on_frame(int from, const Frame& frame, std::vector<char> payload);
    void on_closed(int from);

  private:
    struct Peer {
        Socket socket;
        std::mutex send_mutex;
        std::atomic<uint64_t> dead_since_ns{0};
        bool said_bye = false;   // guarded by mutex_
        uint64_t reader_id = 0;  // of the reading thread; 0 for this rank itself
    };
    Mesh() = default;
    Status connect_all(Socket listener);
    void send_frame(
        int to, uint32_t kind, uint64_t comm, uint64_t tag, const void* data, size_t bytes);

    int rank_ = 0;
    uint64_t token_ = 0;
    std::vector<RankInfo> infos_;
    std::vector<std::unique_ptr<Peer>> peers_;
    std::atomic<uint64_t> changes_{0};

    std::mutex mutex_;
    std::condition_variable arrived_;
    using Key = std::tuple<int, uint64_t, uint64_t>;  // from, comm, tag
    std::map<Key, std::vector<char>> mailbox_;
    std::map<std::tuple<int, uint64_t, bool>, uint64_t> ended_;  // by rank, comm, aborted
};

}  // namespace slimwire::emu
