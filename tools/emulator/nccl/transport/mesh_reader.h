// The one thread of a process that reads the control sockets of all its meshes. Started with the
// first mesh, kept until the process ends. A forked child closes its copies of the sockets, so that
// the death of the parent is still seen by the others. Thread contract: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tools/emulator/nccl/transport/mesh.h"

namespace slimwire::emu {

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

[[nodiscard]] MeshReader& mesh_reader();

// True for a frame of ours of a permitted size.
[[nodiscard]] bool frame_is_sound(const Mesh::Frame& frame) noexcept;

}  // namespace slimwire::emu
