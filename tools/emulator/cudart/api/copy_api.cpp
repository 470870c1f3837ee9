// Copies and fills. An asynchronous copy is an operation of its stream; what touches pageable host
// memory behaves as the CUDA Runtime documents: the source is taken at the call, the destination is
// complete at return; captured, it is read and written by each replay. Synchronous copies go
// through the legacy stream.
#include <cstring>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

enum class Place : uint8_t { kDevice, kPinned, kPageable, kBad };

struct Side {
    Place place = Place::kBad;
    void* view = nullptr;  // where the emulator reaches it
};

Side look_up(Runtime& runtime, const void* pointer, size_t bytes) {
    if (pointer == nullptr) {
        return {};
    }
    if (runtime.memory.contains(pointer)) {
        const auto allocation = runtime.memory.find(pointer);
        const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
        if (!allocation || bytes > allocation->base + allocation->bytes - address) {
            return {};
        }
        return {Place::kDevice, runtime.memory.alias(pointer)};
    }
    return {runtime.host_memory.find(pointer) ? Place::kPinned : Place::kPageable,
            const_cast<void*>(pointer)};
}

// Pinned memory is reachable from both sides.
bool fits(Place place, bool on_device) {
    return place == Place::kPinned || (place == Place::kDevice) == on_device;
}

cudaError_t check_kind(cudaMemcpyKind kind, Place dst, Place src) {
    if (dst == Place::kBad || src == Place::kBad) {
        return cudaErrorInvalidValue;
    }
    if (kind > cudaMemcpyDefault) {
        return cudaErrorInvalidMemcpyDirection;
    }
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return kind == cudaMemcpyDefault || (fits(dst, to_device) && fits(src, from_device))
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

// Waits for an operation just enqueued and reports what became of it.
cudaError_t finish(Stream& stream, uint64_t ticket) {
    stream.wait(ticket);
    return stream.device().sticky();
}

// memmove: a copy onto itself is legal for the CUDA Runtime.
OperationRef copy_operation(const Side& to, const Side& from, size_t bytes) {
    return make_operation("cudaMemcpy", [=] { std::memmove(to.view, from.view, bytes); });
}

// The same of what the source has now.
OperationRef staged_copy(const Side& to, const Side& from, size_t bytes) {
    const auto* const source = static_cast<const unsigned char*>(from.view);
    return make_operation("cudaMemcpy",
                          [to, staged = std::vector<unsigned char>(source, source + bytes)] {
                              std::memcpy(to.view, staged.data(), staged.size());
                          });
}

cudaError_t copy(Runtime& runtime,
                 Stream& stream,
                 void* dst,
                 const void* src,
                 size_t bytes,
                 cudaMemcpyKind kind,
                 bool blocking) {
    if (bytes == 0) {
        return cudaSuccess;
    }
    const Side to = look_up(runtime, dst, bytes);
    const Side from = look_up(runtime, src, bytes);
    SLIMWIRE_EMU_TRY(check_kind(kind, to.place, from.place));
    if (stream.capturing()) {
        if (blocking) {
            return runtime.captures.refuse(stream);
        }
        return submit(runtime, stream, cudaGraphNodeTypeMemcpy, copy_operation(to, from, bytes));
    }
    blocking = blocking || to.place == Place::kPageable;
    if (blocking && Stream::on_worker()) {
        return cudaErrorNotPermitted;
    }
    if (from.place == Place::kPageable || to.place == Place::kPageable) {
        wait_for_device(runtime, "a copy of pageable memory");
    } else if (blocking) {
        may_wait(runtime, "a synchronous copy");
    }
    const bool staged = !blocking && from.place == Place::kPageable;
    const uint64_t ticket =
        stream.enqueue(staged ? staged_copy(to, from, bytes) : copy_operation(to, from, bytes));
    return blocking ? finish(stream, ticket) : cudaSuccess;
}

cudaError_t fill(
    Runtime& runtime, Stream& stream, void* dst, int value, size_t bytes, bool may_block) {
    if (bytes == 0) {
        return cudaSuccess;
    }
    const Side to = look_up(runtime, dst, bytes);
    if (to.place == Place::kBad || to.place == Place::kPageable) {
        return cudaErrorInvalidValue;
    }
    OperationRef operation =
        make_operation("cudaMemset", [=] { std::memset(to.view, value, bytes); });
    if (stream.capturing()) {
        return submit(runtime, stream, cudaGraphNodeTypeMemset, std::move(operation));
    }
    const uint64_t ticket = stream.enqueue(std::move(operation));
    // As on a GPU: cudaMemset of device memory does not wait, of pinned memory it does.
    return may_block && to.place == Place::kPinned && !Stream::on_worker() ? finish(stream, ticket)
                                                                           : cudaSuccess;
}

// A synchronous copy or fill: through the legacy stream, and nothing a capture would see.
template <class Body>
cudaError_t sync_call(Body&& body, const char* function = __builtin_FUNCTION()) {
    return work_call(
        cudaStreamLegacy,
        [&](Runtime& runtime, Stream& stream) {
            const cudaError_t error = runtime.captures.forbid_unsafe();
            return error != cudaSuccess ? error : body(runtime, stream);
        },
        function);
}

}  // namespace

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
    return sync_call([&](Runtime& runtime, Stream& stream) {
        return copy(runtime, stream, dst, src, count, kind, true);
    });
}

cudaError_t cudaMemcpyAsync(
    void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return copy(runtime, target, dst, src, count, kind, false);
    });
}

cudaError_t cudaMemset(void* device_pointer, int value, size_t count) {
    return sync_call([&](Runtime& runtime, Stream& stream) {
        return fill(runtime, stream, device_pointer, value, count, true);
    });
}

cudaError_t cudaMemsetAsync(void* device_pointer, int value, size_t count, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return fill(runtime, target, device_pointer, value, count, false);
    });
}
