// The built-in network: the ncclNet v11 table over UCX tagged messages, with the shaped link in it.
// What lies behind the table's opaque pointers is here; net_ucx_table.cpp makes contexts,
// net_ucx_connect.cpp connections, net_ucx.cpp moves messages.
//
// A message is one header (size, wire times, and the payload itself when small) and, when larger,
// one payload that UCX moves by rendezvous into the receiver's buffer. Connections are
// one-directional; tags are (connection, sequence number, header or payload), so order on the wire
// does not matter.
//
// Thread contract: the context's mutex guards everything below; UCX callbacks run inside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/net/abi/net_v11.h"
#include "tools/emulator/nccl/bootstrap/sockets.h"
#include "tools/emulator/nccl/transport/shaper.h"
#include "tools/emulator/nccl/transport/ucx.h"

namespace slimwire::emu {

[[nodiscard]] const net::NetV11* builtin_net() noexcept;

inline constexpr size_t kInlineBytes = 2048 - 32;

struct WireMessage {
    uint64_t bytes;
    uint64_t start_ns;   // when the first bit left the sender; 0 on an unshaped connection
    uint64_t finish_ns;  // when the last bit left
    uint64_t reserved;
    unsigned char payload[kInlineBytes];
};
inline constexpr size_t kWireHeaderBytes = sizeof(WireMessage) - kInlineBytes;

struct NetComm;

struct NetRequest;

// One UCX operation of a request. UCX may call back before the call that starts it has returned.
struct NetOperation {
    NetRequest* request = nullptr;
    void* handle = nullptr;  // while it is in flight
    bool called_back = false;
};

struct NetRequest {
    NetComm* comm = nullptr;
    bool in_use = false;
    bool failed = false;
    bool header_arrived = false;
    bool withdrawn = false;  // a payload receive that is not needed was taken back
    bool ingress_reserved = false;
    int pending = 0;  // UCX operations in flight
    NetOperation header;
    NetOperation payload;
    unsigned char* data = nullptr;
    size_t capacity = 0;
    uint64_t sequence = 0;
    uint64_t done_at_ns = 0;  // shaped: completion is not reported before
    WireMessage message;
};

struct NetContext {
    const Ucx* ucx = nullptr;
    Shaper* shaper = nullptr;
    std::mutex mutex;
    ucp_worker_h worker = nullptr;  // null until make_worker(), as is its address
    std::vector<unsigned char> address;
    uint64_t next_connection = 1;
    int active = 0;  // requests in use
    bool flushing = false;
    bool flush_again = false;
    // Kept until finalize: UCX may still hold pointers into requests of a failed connection.
    std::vector<std::unique_ptr<NetComm>> comms;
};

// One direction of one connection; `endpoint` is null at the receiving side.
struct NetComm {
    NetContext* context = nullptr;
    uint64_t connection = 0;
    uint64_t next_sequence = 0;
    int own_node = 0;
    bool shaped = false;
    bool closed = false;
    ucp_ep_h endpoint = nullptr;
    uint64_t refused_since_ns = 0;  // a message waits for room in the card's queue since then
    std::array<NetRequest, net::kNetMaxRequests> requests;
};

// Before the context's first connection: a communicator that has none makes no worker, which takes
// a millisecond and shared memory. Takes the context's mutex.
Status make_worker(NetContext& context);

// Lets UCX move what it can. Under the context's mutex.
void progress(NetContext& context);

// --- net_ucx.cpp
ncclResult_t net_isend(void* send_comm,
                       void* data,
                       size_t bytes,
                       int tag,
                       void* mhandle,
                       void* phandle,
                       void** request);
ncclResult_t net_irecv(void* recv_comm,
                       int count,
                       void** data,
                       size_t* bytes,
                       int* tags,
                       void** mhandles,
                       void** phandles,
                       void** request);
ncclResult_t net_test(void* request, int* done, int* bytes);
ncclResult_t net_close(void* comm);

// --- net_ucx_connect.cpp
ncclResult_t net_listen(void* context, int device, void* handle, void** listen_comm);
ncclResult_t net_connect(void* context,
                         int device,
                         void* handle,
                         void** send_comm,
                         net::NetDeviceHandle** device_handle);
ncclResult_t net_accept(void* listen_comm, void** recv_comm, net::NetDeviceHandle** device_handle);
ncclResult_t net_close_listen(void* listen_comm);

// Number of the emulated node in which a network device stands (device i belongs to CUDA device i).
[[nodiscard]] int node_of_net_device(int device) noexcept;

}  // namespace slimwire::emu
