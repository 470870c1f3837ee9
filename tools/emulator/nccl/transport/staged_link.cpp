#include "tools/emulator/nccl/transport/staged_link.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tools/emulator/nccl/bootstrap/log.h"

namespace slimwire::emu {
namespace {

constexpr size_t kPage = 4096;
constexpr int kMaxGrouped = 8;
constexpr size_t kPending = SIZE_MAX;

}  // namespace

Status StagedLink::checked(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) {
        return {};
    }
    const Code code = result == ncclRemoteError || result == ncclSystemError ? Code::kRemoteError
                                                                             : Code::kInternalError;
    return {code, std::string(net_.table->name) + " network: " + what + " rank " +
                      std::to_string(peer_) + " failed with " + std::to_string(result) + ": " +
                      last_error()};
}

Status StagedLink::connect_step() {
    if (handle_.empty() && !hear_handle(&handle_)) {
        return {};
    }
    if (handle_.size() != static_cast<size_t>(net::kNetHandleBytes)) {
        return {Code::kInternalError, "connection handle of the wrong size"};
    }
    return checked(net_.table->connect(net_.context, net_.device, handle_.data(), &comm_, nullptr),
                   "connecting to");
}

Status StagedLink::listen_step() {
    if (listener_ == nullptr) {
        char handle[net::kNetHandleBytes] = {};
        SLIMWIRE_TRY(checked(net_.table->listen(net_.context, net_.device, handle, &listener_),
                             "listening for"));
        tell_handle(handle, sizeof handle);
    }
    SLIMWIRE_TRY(checked(net_.table->accept(listener_, &comm_, nullptr), "accepting"));
    if (comm_ != nullptr) {
        net_.table->close_listen(listener_);
        listener_ = nullptr;
    }
    return {};
}

size_t StagedLink::largest_message(Protocol protocol) const noexcept {
    return net_.buffers.capacity(protocol, channel_ == Channel::kPointToPoint);
}

Status StagedLink::open_pool(Protocol protocol, Pool* pool) {
    const auto p = static_cast<size_t>(protocol);
    const bool p2p = channel_ == Channel::kPointToPoint && protocol == Protocol::kSimple;
    pool->slot_bytes = p2p ? net_.buffers.p2p_message_bytes : net_.buffers.message_bytes[p];
    pool->slots = p2p ? net_.buffers.p2p_messages : net_.buffers.messages[p];
    const size_t bytes = pool->slot_bytes * static_cast<size_t>(pool->slots);
    void* const memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    if (memory == nullptr) {
        return {Code::kOutOfMemory, "no host memory for network buffers"};
    }
    pool->memory = static_cast<unsigned char*>(memory);
    if (protocol != Protocol::kSimple) {
        memset(pool->memory, 0, bytes);  // no message has the number 0
    }
    const ncclResult_t result =
        net_.table->reg_mr(comm_, memory, bytes, net::kPtrHost, &pool->mhandle);
    if (result != ncclSuccess) {
        std::free(memory);
        *pool = {};
        return checked(result, "registering memory for");
    }
    return {};
}

// The network may still write into a slot until its connection is closed.
StagedLink::~StagedLink() {
    if (listener_ != nullptr) {
        net_.table->close_listen(listener_);
    }
    for (const Pool& pool : pools_) {
        if (pool.memory != nullptr && comm_ != nullptr) {
            (void)net_.table->dereg_mr(comm_, pool.mhandle);
        }
    }
    if (comm_ != nullptr) {
        sending_ ? net_.table->close_send(comm_) : net_.table->close_recv(comm_);
    }
    for (const Pool& pool : pools_) {
        std::free(pool.memory);
    }
}

void StagedLink::set_attributes(const WireOperation& operation) {
    if (net_.table->set_net_attr == nullptr) {
        return;
    }
    net::NetAttrV11 wanted = net_.attributes;
    (sending_ ? wanted.send : wanted.recv) = {1, 1, 1, 1};
    wanted.op = 1u << operation.function;
    // Of sends and receives NCCL leaves what was there.
    if (channel_ == Channel::kCollective) {
        wanted.algo = 1u << 1;  // the ring
        wanted.proto = 1u << static_cast<unsigned>(operation.protocol);
    }
    if (memcmp(&wanted, &net_.attributes, sizeof wanted) != 0) {
        net_.attributes = wanted;
        (void)net_.table->set_net_attr(net_.context, &wanted);
    }
}

Status StagedLink::start(
    void* data, size_t bytes, const WireOperation& operation, Transfer* transfer, bool* started) {
    *started = false;
    if (comm_ == nullptr) {
        SLIMWIRE_TRY(sending_ ? connect_step() : listen_step());
        if (comm_ == nullptr) {
            return {};
        }
    }
    const Protocol protocol = operation.protocol;
    Pool& pool = pool_of(protocol);
    if (pool.memory == nullptr) {
        SLIMWIRE_TRY(open_pool(protocol, &pool));
    }
    if (pool.started - pool.done >= static_cast<uint64_t>(pool.slots)) {
        return {};
    }
    const size_t offset = pool.offset(pool.started);
    set_attributes(operation);
    ncclResult_t result = ncclSuccess;
    void* request = nullptr;
    size_t on_wire = wire_bytes(protocol, bytes);
    void* memory = pool.memory + offset;
    if (sending_) {
        if (!pool.prepared) {
            encode_message(protocol, pool.started + 1, data, bytes, pool.memory + offset);
            pool.prepared = true;
        }
        result = net_.table->isend(comm_, memory, on_wire, members_.rank, pool.mhandle, nullptr,
                                   &request);
    } else {
        // More than will come, unless the operation has no more.
        size_t room = std::min(pool.slot_bytes, wire_bytes(protocol, operation.bytes));
        int tag = peer_;
        if (protocol != Protocol::kSimple && net_.optional_completion) {
            request = net::kOptionalReceiveCompletion;
        }
        result =
            net_.table->irecv(comm_, 1, &memory, &room, &tag, &pool.mhandle, nullptr, &request);
        if (result == ncclSuccess && request == net::kOptionalReceiveCompletion) {
            return {Code::kInternalError,
                    std::string(net_.table->name) + " network: irecv left no request behind"};
        }
    }
    SLIMWIRE_TRY(checked(result, sending_ ? "sending to" : "receiving from"));
    if (request == nullptr) {
        return {};
    }
    *started = true;
    *transfer = {};
    transfer->request = request;
    transfer->protocol = protocol;
    transfer->data = static_cast<unsigned char*>(data);
    transfer->bytes = bytes;
    transfer->number = pool.started++;
    pool.prepared = false;
    if (sending_) {
        count_sent(bytes, on_wire);
    }
    return {};
}

// With flags: takes the data when all of it has come, whether or not the network has said so.
void StagedLink::deliver(Transfer& transfer, const Pool& pool) noexcept {
    const Protocol protocol = transfer.protocol;
    const unsigned char* slot = pool.memory + pool.offset(transfer.number);
    transfer.lines +=
        lines_arrived(protocol, transfer.number + 1, slot, transfer.bytes, transfer.lines);
    if (transfer.lines == lines_of(protocol, transfer.bytes)) {
        decode_message(protocol, slot, transfer.bytes, transfer.data);
        transfer.delivered = true;
    }
}

Status StagedLink::ask(Transfer& transfer) {
    int finished = 0;
    int sizes[kMaxGrouped] = {};
    SLIMWIRE_TRY(checked(net_.table->test(transfer.request, &finished, sizes),
                         sending_ ? "sending to" : "receiving from"));
    if (finished != 0) {
        transfer.request = nullptr;
        transfer.arrived = static_cast<size_t>(sizes[0]);
    }
    return {};
}

// The network says that a message with flags has come. One whose receive it may report early counts
// when its flags are there; then its size is not known either.
Status StagedLink::finish_flagged(Transfer& transfer, const Pool& pool, size_t* bytes) {
    const Protocol protocol = transfer.protocol;
    if (!transfer.delivered) {
        deliver(transfer, pool);
    }
    const size_t expected = wire_bytes(protocol, transfer.bytes);
    const bool early = net_.optional_completion && transfer.arrived == 0;
    if (!early && transfer.arrived != expected) {
        *bytes = payload_bytes(protocol, transfer.arrived);  // the caller says what is wrong
        return {};
    }
    if (!transfer.delivered && !early) {
        return {Code::kInternalError, std::string(net_.table->name) +
                                          " network: a message from rank " + std::to_string(peer_) +
                                          " is done, but its flags are not there"};
    }
    *bytes = transfer.delivered ? transfer.bytes : kPending;
    return {};
}

Status StagedLink::test(Transfer* transfer, bool* done, size_t* bytes) {
    *done = false;
    const Protocol protocol = transfer->protocol;
    Pool& pool = pool_of(protocol);
    const bool flags = !sending_ && protocol != Protocol::kSimple;
    if (flags && !transfer->delivered) {
        deliver(*transfer, pool);
    }
    if (transfer->request != nullptr) {
        SLIMWIRE_TRY(ask(*transfer));
    }
    if (transfer->request != nullptr) {
        return {};
    }
    if (sending_) {
        *bytes = transfer->bytes;
    } else {
        if (!flags) {
            const size_t count = std::min(transfer->arrived, transfer->bytes);
            decode_message(protocol, pool.memory + pool.offset(transfer->number), count,
                           transfer->data);
            *bytes = transfer->arrived;
        } else {
            SLIMWIRE_TRY(finish_flagged(*transfer, pool, bytes));
            if (*bytes == kPending) {
                return {};
            }
        }
        count_received(*bytes);
    }
    ++pool.done;
    *done = true;
    return {};
}

}  // namespace slimwire::emu
