#include "tools/emulator/nccl/transport/mesh.h"

#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/bootstrap/doorkeeper.h"
#include "tools/emulator/nccl/bootstrap/log.h"

namespace slimwire::emu {
namespace {

constexpr uint32_t kFrameMagic = 0x534c4d46;
constexpr uint64_t kMaxFrameBytes = 1 << 20;
constexpr int kConnectTimeoutMs = 60'000;
constexpr int kSendTimeoutMs = 10'000;

enum FrameKind : uint32_t { kData = 1, kLeft = 2, kAborted = 3, kBye = 4 };

struct PeerHello {
    uint64_t token;
    int32_t rank;
    int32_t reserved;
};

// The one thread of a process that reads the control sockets of all its meshes. Started with the
// first mesh, kept until the process ends. A forked child closes its copies of the sockets, so that
// the death of the parent is still seen by the others.
class MeshReader {
  public:
    // Reads `fd` for `mesh` from now on. The result names the entry.
    uint64_t add(int fd, Mesh* mesh, int peer);
    // After return the mesh is not called for this entry any more.
    void remove(uint64_t id);

    // For the thread and for fork.
    void run();
    void lock_for_fork() { mutex_.lock(); }
    void unlock_after_fork(bool child);

  private:
    struct Entry {
        int fd;
        Mesh* mesh;
        int peer;
        bool closed = false;
        std::vector<char> buffer;
    };
    void start();
    bool read_available(Entry& entry);
    void deliver(Entry& entry);

    std::mutex mutex_;
    int epoll_fd_ = -1;
    uint64_t next_id_ = 1;
    std::map<uint64_t, std::unique_ptr<Entry>> entries_;
};

MeshReader& mesh_reader() {
    static MeshReader* const reader = new MeshReader;  // its thread never ends
    return *reader;
}

void MeshReader::start() {
    if (epoll_fd_ >= 0) {
        return;
    }
    epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
    std::thread([this] {
        pthread_setname_np(pthread_self(), "emu-nccl-mesh");
        run();
    }).detach();
    pthread_atfork([] { mesh_reader().lock_for_fork(); },
                   [] { mesh_reader().unlock_after_fork(false); },
                   [] { mesh_reader().unlock_after_fork(true); });
}

void MeshReader::unlock_after_fork(bool child) {
    if (child) {
        for (auto& [id, entry] : entries_) {
            close(entry->fd);
        }
        close(epoll_fd_);
    }
    mutex_.unlock();
}

uint64_t MeshReader::add(int fd, Mesh* mesh, int peer) {
    const std::lock_guard lock(mutex_);
    start();
    const uint64_t id = next_id_++;
    entries_[id] = std::make_unique<Entry>(Entry{fd, mesh, peer, false, {}});
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.u64 = id;
    epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
    return id;
}

void MeshReader::remove(uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end()) {
        epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, found->second->fd, nullptr);
        entries_.erase(found);
    }
}

void MeshReader::run() {
    epoll_event events[64];
    while (true) {
        const int count = epoll_wait(epoll_fd_, events, 64, -1);
        const std::lock_guard lock(mutex_);
        for (int i = 0; i < count; ++i) {
            const auto found = entries_.find(events[i].data.u64);
            if (found == entries_.end()) {
                continue;
            }
            Entry& entry = *found->second;
            if (!entry.closed && !read_available(entry)) {
                entry.closed = true;
                epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, entry.fd, nullptr);
                entry.mesh->on_closed(entry.peer);
            }
        }
    }
}

// False at the end of the stream.
bool MeshReader::read_available(Entry& entry) {
    char bytes[4096];
    while (true) {
        const ssize_t count = recv(entry.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (count > 0) {
            entry.buffer.insert(entry.buffer.end(), bytes, bytes + count);
            deliver(entry);
        } else if (count < 0 && errno == EINTR) {
            continue;
        } else {
            return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        }
    }
}

void MeshReader::deliver(Entry& entry) {
    size_t used = 0;
    Mesh::Frame frame{};
    while (entry.buffer.size() - used >= sizeof frame) {
        memcpy(&frame, entry.buffer.data() + used, sizeof frame);
        if (frame.magic != kFrameMagic || frame.bytes > kMaxFrameBytes) {
            log_warn("control socket of rank %d: not a message of ours", entry.peer);
            entry.buffer.clear();
            return;
        }
        if (entry.buffer.size() - used < sizeof frame + frame.bytes) {
            break;
        }
        const auto payload = entry.buffer.begin() + static_cast<long>(used + sizeof frame);
        entry.mesh->on_frame(entry.peer, frame,
                             std::vector<char>(payload, payload + static_cast<long>(frame.bytes)));
        used += sizeof frame + frame.bytes;
    }
    entry.buffer.erase(entry.buffer.begin(), entry.buffer.begin() + static_cast<long>(used));
}

}  // namespace

Result<std::shared_ptr<Mesh>> Mesh::join(const ncclUniqueId& id,
                                         int nranks,
                                         int rank,
                                         RankInfo self) {
    SLIMWIRE_TRY_ASSIGN(Socket listener, listen_on_bootstrap_interface(&self.address));
    SLIMWIRE_TRY_ASSIGN(Membership membership, join_at_root(id, nranks, rank, self));
    std::shared_ptr<Mesh> mesh(new Mesh);
    mesh->rank_ = rank;
    mesh->token_ = membership.token;
    mesh->infos_ = std::move(membership.ranks);
    for (int i = 0; i < nranks; ++i) {
        mesh->peers_.push_back(std::make_unique<Peer>());
    }
    SLIMWIRE_TRY(mesh->connect_all(std::move(listener)));
    return mesh;
}

// Each rank calls those below it and is called by those above it.
Status Mesh::connect_all(Socket listener) {
    for (int lower = 0; lower < rank_; ++lower) {
        SLIMWIRE_TRY_ASSIGN(Socket socket, connect_to(info(lower).address, kConnectTimeoutMs));
        const PeerHello hello{token_, rank_, 0};
        SLIMWIRE_TRY(send_all(socket.fd(), &hello, sizeof hello, kSendTimeoutMs));
        peers_[static_cast<size_t>(lower)]->socket = std::move(socket);
    }
    Doorkeeper<PeerHello> door(std::move(listener));
    const uint64_t deadline_ns = now_ns() + uint64_t{kConnectTimeoutMs} * 1'000'000;
    for (int missing = size() - rank_ - 1; missing > 0;) {
        door.wait(100);
        for (Guest<PeerHello>& guest : door.arrivals()) {
            const int from = guest.greeting.rank;
            if (guest.greeting.token != token_ || from <= rank_ || from >= size() ||
                peers_[static_cast<size_t>(from)]->socket.valid()) {
                log_info("bootstrap: a stray connection was refused");
                continue;
            }
            peers_[static_cast<size_t>(from)]->socket = std::move(guest.socket);
            --missing;
        }
        if (missing > 0 && now_ns() > deadline_ns) {
            return {Code::kRemoteError, "bootstrap: " + std::to_string(missing) +
                                            " ranks ended before they connected to rank " +
                                            std::to_string(rank_)};
        }
    }
    for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank_) {
            Peer& entry = *peers_[static_cast<size_t>(peer)];
            entry.reader_id = mesh_reader().add(entry.socket.fd(), this, peer);
        }
    }
    return {};
}

Mesh::~Mesh() {
    for (int peer = 0; peer < size(); ++peer) {
        Peer& entry = *peers_[static_cast<size_t>(peer)];
        if (entry.reader_id != 0) {
            send_frame(peer, kBye, 0, 0, nullptr, 0);
            mesh_reader().remove(entry.reader_id);
        }
    }
}

void Mesh::send_frame(
    int to, uint32_t kind, uint64_t comm, uint64_t tag, const void* data, size_t bytes) {
    const Frame frame{kFrameMagic, kind, comm, tag, bytes};
    if (to == rank_) {
        const char* first = static_cast<const char*>(data);
        on_frame(to, frame, std::vector<char>(first, first + bytes));
        return;
    }
    Peer& peer = *peers_[static_cast<size_t>(to)];
    std::vector<char> buffer(sizeof frame + bytes);
    memcpy(buffer.data(), &frame, sizeof frame);
    if (bytes > 0) {
        memcpy(buffer.data() + sizeof frame, data, bytes);
    }
    const std::lock_guard lock(peer.send_mutex);
    if (peer.dead_since_ns == 0) {
        // A failure means that the peer is gone; the reading thread finds that out by itself.
        (void)send_all(peer.socket.fd(), buffer.data(), buffer.size(), kSendTimeoutMs).ok();
    }
}

void Mesh::send(int to, uint64_t comm, uint64_t tag, const void* data, size_t bytes) {
    send_frame(to, kData, comm, tag, data, bytes);
}

bool Mesh::try_receive(int from, uint64_t comm, uint64_t tag, std::vector<char>* out) {
    const std::lock_guard lock(mutex_);
    const auto found = mailbox_.find(Key{from, comm, tag});
    if (found == mailbox_.end()) {
        return false;
    }
    *out = std::move(found->second);
    mailbox_.erase(found);
    return true;
}

Status Mesh::receive(
    int from, uint64_t comm, uint64_t tag, const std::atomic<bool>& stop, std::vector<char>* out) {
    while (true) {
        // Asked before the look into the mailbox: what was sent comes before the end.
        const bool gone = dead_since_ns(from) != 0 || ended_since_ns(from, comm, true) != 0;
        if (try_receive(from, comm, tag, out)) {
            return {};
        }
        if (stop) {
            return {Code::kInvalidUsage, "the communicator was aborted"};
        }
        if (gone) {
            return {Code::kRemoteError, "rank " + std::to_string(from) + " is gone"};
        }
        std::unique_lock lock(mutex_);
        if (!mailbox_.contains(Key{from, comm, tag})) {
            arrived_.wait_for(lock, std::chrono::milliseconds(50));
        }
    }
}

void Mesh::announce_end(uint64_t comm, bool aborted) {
    for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank_) {
            send_frame(peer, aborted ? kAborted : kLeft, comm, 0, nullptr, 0);
        }
    }
}

uint64_t Mesh::dead_since_ns(int rank) const noexcept {
    return peers_[static_cast<size_t>(rank)]->dead_since_ns;
}

uint64_t Mesh::ended_since_ns(int rank, uint64_t comm, bool aborted) {
    const std::lock_guard lock(mutex_);
    const auto found = ended_.find({rank, comm, aborted});
    return found == ended_.end() ? 0 : found->second;
}

void Mesh::on_frame(int from, const Frame& frame, std::vector<char> payload) {
    const std::lock_guard lock(mutex_);
    switch (frame.kind) {
        case kData:
            mailbox_[Key{from, frame.comm, frame.tag}] = std::move(payload);
            break;
        case kLeft:
        case kAborted:
            ended_[{from, frame.comm, frame.kind == kAborted}] = now_ns();
            ++changes_;
            break;
        case kBye:
            peers_[static_cast<size_t>(from)]->said_bye = true;
            break;
        default:
            break;
    }
    arrived_.notify_all();
}

void Mesh::on_closed(int from) {
    const std::lock_guard lock(mutex_);
    Peer& peer = *peers_[static_cast<size_t>(from)];
    if (!peer.said_bye && peer.dead_since_ns == 0) {
        log_info("rank %d of %d ended without leaving its communicators", from, size());
        peer.dead_since_ns = now_ns();
        ++changes_;
    }
    arrived_.notify_all();
}

}  // namespace slimwire::emu
