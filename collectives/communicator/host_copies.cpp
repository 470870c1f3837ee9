#include "collectives/communicator/host_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace slimwire {
namespace {

constexpr const char* kWhat = "copy by the host";

}  // namespace

// Between ordinary and pinned memory.
struct HostCopies::Piece {
    std::shared_ptr<const void> kept;
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
    std::atomic<bool>* there = nullptr;  // of a value whose last piece it is
};

void HostCopies::run(void* piece) noexcept {
    const std::unique_ptr<Piece> own(static_cast<Piece*>(piece));
    std::memcpy(own->to, own->from, own->bytes);
    if (own->there != nullptr) {
        own->there->store(true, std::memory_order_release);
    }
}

bool HostCopies::prepare(const DeviceApi& api, DeviceMemory* memory, bool may_wait) noexcept {
    if (tolerate(api, api.event_create_with_flags(&end_, cudaEventDisableTiming))) {
        pinned_ = memory->pin(api, kPieceBytes, may_wait);
    }
    return pinned_.memory != nullptr;
}

void HostCopies::release(const DeviceApi& api, Retirement* left) noexcept {
    left->after(end_);
    left->add(std::exchange(pinned_, {}));
    if (end_ != nullptr) {
        tolerate(api, api.event_destroy(std::exchange(end_, nullptr)));
    }
}

cudaError_t HostCopies::query(const DeviceApi& api) const noexcept {
    return end_ != nullptr ? api.event_query(end_) : cudaSuccess;
}

Status HostCopies::enqueue(const DeviceApi& api,
                           std::unique_ptr<Piece> piece,
                           cudaStream_t stream) {
    SLIMWIRE_TRY(cuda_status(api, api.launch_host_func(stream, run, piece.get()), kWhat));
    (void)piece.release();  // run()'s
    return {};
}

template <class Copy>
Status HostCopies::in_pieces(const DeviceApi& api,
                             size_t bytes,
                             cudaStream_t stream,
                             const Copy& copy) const {
    SLIMWIRE_TRY(cuda_status(api, api.stream_wait_event(stream, end_, 0), kWhat));
    Status status;
    for (size_t at = 0; at < bytes && status.ok(); at += kPieceBytes) {
        status = copy(at, std::min(kPieceBytes, bytes - at));
    }
    Status ended = cuda_status(api, api.event_record(end_, stream), kWhat);
    return status.ok() ? ended : status;
}

Status HostCopies::to_host(const DeviceApi& api,
                           const void* from,
                           const std::shared_ptr<HostValue>& value,
                           cudaStream_t stream) const {
    const size_t bytes = value->bytes.size();
    const auto copy = [&](void* to, size_t at, size_t count) {
        return cuda_status(api,
                           api.memcpy_async(to, static_cast<const std::byte*>(from) + at, count,
                                            cudaMemcpyDeviceToHost, stream),
                           kWhat);
    };
    value->there = false;
    if (pinned_.memory == nullptr) {
        SLIMWIRE_TRY(copy(value->bytes.data(), 0, bytes));
        value->there = true;
        return {};
    }
    return in_pieces(api, bytes, stream, [&](size_t at, size_t count) -> Status {
        SLIMWIRE_TRY(copy(pinned_.memory, at, count));
        return enqueue(
            api,
            std::make_unique<Piece>(Piece{value, value->bytes.data() + at, pinned_.memory, count,
                                          at + count == bytes ? &value->there : nullptr}),
            stream);
    });
}

Status HostCopies::to_device(const DeviceApi& api,
                             void* to,
                             const std::shared_ptr<const std::byte[]>& from,
                             size_t bytes,
                             cudaStream_t stream) const {
    const auto copy = [&](const void* source, size_t at, size_t count) {
        return cuda_status(api,
                           api.memcpy_async(static_cast<std::byte*>(to) + at, source, count,
                                            cudaMemcpyHostToDevice, stream),
                           kWhat);
    };
    if (pinned_.memory == nullptr) {
        return copy(from.get(), 0, bytes);
    }
    return in_pieces(api, bytes, stream, [&](size_t at, size_t count) -> Status {
        SLIMWIRE_TRY(enqueue(
            api, std::make_unique<Piece>(Piece{from, pinned_.memory, from.get() + at, count}),
            stream));
        return copy(pinned_.memory, at, count);
    });
}

}  // namespace slimwire
