#include "tools/emulator/nccl/transport/mesh_reader.h"

#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "tools/emulator/nccl/bootstrap/log.h"

namespace slimwire::emu {

MeshReader& mesh_reader() {
    static MeshReader* const reader = new MeshReader;  // its thread never ends
    return *reader;
}

void MeshReader::start() {
    if (epoll_fd_ >= 0) {
        return;
    }
    epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
    std::thread thread([this] { run(); });
    pthread_setname_np(thread.native_handle(), "emu-nccl-mesh");
    thread.detach();
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
        if (!frame_is_sound(frame)) {
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

}  // namespace slimwire::emu
