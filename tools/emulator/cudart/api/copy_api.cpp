// Copies and fills. An asynchronous copy is an operation of its stream; what touches pageable host
// memory behaves as the CUDA Runtime documents: the source is taken at the call, the destination is
// complete at return; captured, it is read and written by each replay. Synchronous copies go
// through the legacy stream.
#include <limits>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/operations.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

enum class Place : uint8_t { kDevice, kPinned, kPageable, kBad };

struct Side {
    Place place = Place::kBad;
    void* view = nullptr;  // where the emulator reaches it
};

// A rectangle of memory: `rows` rows of `width` bytes, `pitch` apart.
struct Rectangle {
    size_t pitch;
    size_t width;
    size_t rows;
    [[nodiscard]] size_t span_bytes() const { return (rows - 1) * pitch + width; }
};

Side look_up(Runtime& runtime, const void* pointer, const Rectangle& shape) {
    if (pointer == nullptr) {
        return {};
    }
    if (runtime.memory.contains(pointer)) {
        const auto allocation = runtime.memory.find(pointer);
        const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
        if (!allocation || shape.span_bytes() > allocation->base + allocation->bytes - address) {
            return {};
        }
        return {Place::kDevice, runtime.memory.alias(pointer)};
    }
    return {runtime.host_memory.find(pointer) ? Place::kPinned : Place::kPageable,
            const_cast<void*>(pointer)};
}

bool may_be(Place place, bool device) {
    switch (place) {
        case Place::kDevice:
            return device;
        case Place::kPinned:  // reachable from both sides
            return true;
        case Place::kPageable:
            return !device;
        case Place::kBad:
            return false;
    }
    return false;
}

cudaError_t check_kind(cudaMemcpyKind kind, Place dst, Place src) {
    if (dst == Place::kBad || src == Place::kBad) {
        return cudaErrorInvalidValue;
    }
    bool fits = false;
    switch (kind) {
        case cudaMemcpyHostToHost:
            fits = may_be(dst, false) && may_be(src, false);
            break;
        case cudaMemcpyHostToDevice:
            fits = may_be(dst, true) && may_be(src, false);
            break;
        case cudaMemcpyDeviceToHost:
            fits = may_be(dst, false) && may_be(src, true);
            break;
        case cudaMemcpyDeviceToDevice:
            fits = may_be(dst, true) && may_be(src, true);
            break;
        case cudaMemcpyDefault:
            fits = true;
            break;
        default:
            return cudaErrorInvalidMemcpyDirection;
    }
    return fits ? cudaSuccess : cudaErrorInvalidValue;
}

// Waits for an operation just enqueued and reports what became of it.
cudaError_t finish(Stream& stream, uint64_t ticket) {
    stream.wait(ticket);
    return stream.device().sticky();
}

cudaError_t copy(Runtime& runtime,
                 Stream& stream,
                 void* dst,
                 size_t dst_pitch,
                 const void* src,
                 size_t src_pitch,
                 size_t width,
                 size_t rows,
                 cudaMemcpyKind kind,
                 bool blocking) {
    if (width == 0 || rows == 0) {
        return cudaSuccess;
    }
    if (width > dst_pitch || width > src_pitch) {
        return cudaErrorInvalidPitchValue;
    }
    const Side to = look_up(runtime, dst, {dst_pitch, width, rows});
    const Side from = look_up(runtime, src, {src_pitch, width, rows});
    if (const cudaError_t error = check_kind(kind, to.place, from.place); error != cudaSuccess) {
        return error;
    }
    if (stream.capturing()) {
        if (blocking) {
            return runtime.captures.refuse(stream);
        }
        return submit(
            runtime, stream, cudaGraphNodeTypeMemcpy,
            std::make_shared<CopyOperation>(to.view, dst_pitch, from.view, src_pitch, width, rows));
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
    OperationRef operation;
    if (!blocking && from.place == Place::kPageable) {
        std::vector<unsigned char> staged(width * rows);
        for (size_t row = 0; row < rows; ++row) {
            std::memcpy(staged.data() + row * width,
                        static_cast<const unsigned char*>(from.view) + row * src_pitch, width);
        }
        operation =
            std::make_shared<CopyOperation>(to.view, dst_pitch, std::move(staged), width, rows);
    } else {
        operation =
            std::make_shared<CopyOperation>(to.view, dst_pitch, from.view, src_pitch, width, rows);
    }
    const uint64_t ticket = stream.enqueue(std::move(operation));
    return blocking ? finish(stream, ticket) : cudaSuccess;
}

cudaError_t fill(Runtime& runtime,
                 Stream& stream,
                 void* dst,
                 size_t pitch,
                 int value,
                 size_t width,
                 size_t rows,
                 bool may_block) {
    if (width == 0 || rows == 0) {
        return cudaSuccess;
    }
    if (width > pitch) {
        return cudaErrorInvalidPitchValue;
    }
    const Side to = look_up(runtime, dst, {pitch, width, rows});
    if (to.place == Place::kBad || to.place == Place::kPageable) {
        return cudaErrorInvalidValue;
    }
    auto operation = std::make_shared<FillOperation>(to.view, pitch, value, width, rows);
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
        return copy(runtime, stream, dst, count, src, count, count, 1, kind, true);
    });
}

cudaError_t cudaMemcpyAsync(
    void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return copy(runtime, target, dst, count, src, count, count, 1, kind, false);
    });
}

cudaError_t cudaMemcpy2D(void* dst,
                         size_t dpitch,
                         const void* src,
                         size_t spitch,
                         size_t width,
                         size_t height,
                         cudaMemcpyKind kind) {
    return sync_call([&](Runtime& runtime, Stream& stream) {
        return copy(runtime, stream, dst, dpitch, src, spitch, width, height, kind, true);
    });
}

cudaError_t cudaMemcpy2DAsync(void* dst,
                              size_t dpitch,
                              const void* src,
                              size_t spitch,
                              size_t width,
                              size_t height,
                              cudaMemcpyKind kind,
                              cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return copy(runtime, target, dst, dpitch, src, spitch, width, height, kind, false);
    });
}

cudaError_t cudaMemset(void* device_pointer, int value, size_t count) {
    return sync_call([&](Runtime& runtime, Stream& stream) {
        return fill(runtime, stream, device_pointer, count, value, count, 1, true);
    });
}

cudaError_t cudaMemsetAsync(void* device_pointer, int value, size_t count, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return fill(runtime, target, device_pointer, count, value, count, 1, false);
    });
}

cudaError_t cudaMemset2D(
    void* device_pointer, size_t pitch, int value, size_t width, size_t height) {
    return sync_call([&](Runtime& runtime, Stream& stream) {
        return fill(runtime, stream, device_pointer, pitch, value, width, height, true);
    });
}

cudaError_t cudaMemset2DAsync(void* device_pointer,
                              size_t pitch,
                              int value,
                              size_t width,
                              size_t height,
                              cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return fill(runtime, target, device_pointer, pitch, value, width, height, false);
    });
}
