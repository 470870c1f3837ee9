#include "tools/emulator/nccl/transport/mesh.h"

#include <cstring>
#include <string>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/bootstrap/doorkeeper.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/transport/mesh_reader.h"

namespace slimwire::emu {
namespace {

constexpr uint32_t kFrameMagic = 0x534c4d46;
constexpr uint64_t kMaxFrameBytes = 1 << 20;
constexpr int kConnectTimeoutMs = 20'000;
constexpr int kSendTimeoutMs = 10'000;

enum FrameKind : uint32_t { kData = 1, kLeft = 2, kAborted = 3, kBye = 4 };

struct PeerHello {
    uint64_t token;
    int32_t rank;
    int32_t reserved;
};

}  // namespace

bool frame_is_sound(const Mesh::Frame& frame) noexcept {
    return frame.magic == kFrameMagic && frame.bytes <= kMaxFrameBytes;
}

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
    while (!try_receive(from, comm, tag, out)) {
        if (stop) {
            return {Code::kInvalidUsage, "the communicator was aborted"};
        }
        if (dead_since_ns(from) != 0 || aborted_since_ns(from, comm) != 0) {
            return {Code::kRemoteError, "rank " + std::to_string(from) + " is gone"};
        }
        std::unique_lock lock(mutex_);
        if (!mailbox_.contains(Key{from, comm, tag})) {
            arrived_.wait_for(lock, std::chrono::milliseconds(50));
        }
    }
    return {};
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

uint64_t Mesh::aborted_since_ns(int rank, uint64_t comm) {
    const std::lock_guard lock(mutex_);
    const auto found = aborted_.find({rank, comm});
    return found == aborted_.end() ? 0 : found->second;
}

uint64_t Mesh::left_since_ns(int rank, uint64_t comm) {
    const std::lock_guard lock(mutex_);
    const auto found = left_.find({rank, comm});
    return found == left_.end() ? 0 : found->second;
}

void Mesh::on_frame(int from, const Frame& frame, std::vector<char> payload) {
    const std::lock_guard lock(mutex_);
    switch (frame.kind) {
        case kData:
            mailbox_[Key{from, frame.comm, frame.tag}] = std::move(payload);
            break;
        case kLeft:
            left_[{from, frame.comm}] = now_ns();
            ++changes_;
            break;
        case kAborted:
            aborted_[{from, frame.comm}] = now_ns();
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
