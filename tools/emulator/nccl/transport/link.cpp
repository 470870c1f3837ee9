#include "tools/emulator/nccl/transport/link.h"

#include <atomic>

namespace slimwire::emu {
namespace {

constexpr uint64_t kHandleTag = 1ull << 56;

struct Counters {
    std::atomic<uint64_t> sent{0};
    std::atomic<uint64_t> received{0};
    std::atomic<uint64_t> inter_node_sent{0};
    std::atomic<uint64_t> messages{0};
};
Counters g_counters;

uint64_t handle_tag(Channel channel) {
    return kHandleTag | static_cast<uint64_t>(channel);
}

}  // namespace

void read_counters(EmulatorCounters* out) noexcept {
    out->payload_bytes_sent = g_counters.sent;
    out->payload_bytes_received = g_counters.received;
    out->inter_node_bytes_sent = g_counters.inter_node_sent;
    out->messages_sent = g_counters.messages;
}

void Link::tell_handle(const void* handle, size_t bytes) {
    members_.mesh->send(members_.mesh_rank(peer_), members_.comm, handle_tag(channel_), handle,
                        bytes);
}

bool Link::hear_handle(std::vector<char>* handle) {
    return members_.mesh->try_receive(members_.mesh_rank(peer_), members_.comm,
                                      handle_tag(channel_), handle);
}

void Link::count_sent(size_t bytes, size_t on_wire) const noexcept {
    g_counters.sent += bytes;
    g_counters.inter_node_sent += inter_node_ ? on_wire : 0;
    ++g_counters.messages;
}

void Link::count_received(size_t bytes) noexcept {
    g_counters.received += bytes;
}

}  // namespace slimwire::emu
