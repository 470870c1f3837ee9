#include "plugin/net/gpu/gpu_lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "codecs/base/device_scope.h"
#include "codecs/codec.h"
#include "codecs/copy_lines.h"
#include "codecs/palette_format.h"
#include "plugin/net/engine/clock.h"
#include "plugin/net/engine/piece.h"
#include "plugin/net/gpu/gpu.h"

namespace slimwire::net {
namespace {

constexpr size_t kTailBytes = 8;
constexpr size_t kStatusBytes = 64;
// Out of the range that any device has: CUDA takes the nearest, its highest priority.
constexpr int kHighestPriority = -1000;
constexpr uint64_t kSettleNs = 10'000'000'000;

size_t round_up(size_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
}

}  // namespace

GpuLane::GpuLane(Gpu& gpu, int device)
    : gpu_(gpu),
      api_(gpu.api()),
      device_(device),
      piece_bytes_(gpu.settings().piece_bytes),
      slot_bytes_(piece_capacity(gpu.settings().piece_bytes)) {}

Result<std::unique_ptr<GpuLane>> GpuLane::make(Gpu& gpu, int device) {
    std::unique_ptr<GpuLane> made(new GpuLane(gpu, device));
    SLIMWIRE_TRY(made->allocate());
    return made;
}

Status GpuLane::allocate() {
    const DeviceScope scope(api_, device_);
    const size_t slots = round_up(kSlots * slot_bytes_);
    const size_t bounces = kBounces * piece_bytes_;
    const size_t smalls = kSmalls * kSmallBytes;
    pinned_bytes_ = slots + bounces + smalls + round_up(kSlots * (kTailBytes + kStatusBytes));
    void* memory = nullptr;
    if (!tolerate(api_, api_.host_alloc(&memory, pinned_bytes_,
                                        cudaHostAllocPortable | cudaHostAllocMapped))) {
        return {Code::kOutOfMemory, "no " + std::to_string(pinned_bytes_) +
                                        " bytes of pinned memory for a connection of GPU " +
                                        std::to_string(device_)};
    }
    pinned_ = static_cast<uint8_t*>(memory);
    bounces_ = pinned_ + slots;
    smalls_ = bounces_ + bounces;
    statuses_ = smalls_ + smalls;
    tails_ = statuses_ + kSlots * kStatusBytes;
    const auto elements = static_cast<int64_t>(piece_bytes_);
    const auto workspace = static_cast<size_t>(
        piece_codec().workspace_bytes(DType::kUint8, kBatch * elements, elements));
    SLIMWIRE_TRY(cuda_status(api_, api_.malloc(&workspace_, workspace), "memory of the encoder"));
    SLIMWIRE_TRY(cuda_status(
        api_, api_.stream_create_with_priority(&stream_, cudaStreamNonBlocking, kHighestPriority),
        "a stream"));
    for (cudaEvent_t& event : events_) {
        SLIMWIRE_TRY(cuda_status(api_, api_.event_create_with_flags(&event, cudaEventDisableTiming),
                                 "an event"));
    }
    return {};
}

GpuLane::~GpuLane() {
    const DeviceScope scope(api_, device_);
    for (const cudaEvent_t event : events_) {
        if (event != nullptr) {
            tolerate(api_, api_.event_destroy(event));
        }
    }
    if (stream_ != nullptr) {
        tolerate(api_, api_.stream_destroy(stream_));
    }
    if (workspace_ != nullptr) {
        tolerate(api_, api_.free(workspace_));
    }
    if (pinned_ != nullptr) {
        tolerate(api_, api_.free_host(pinned_));
    }
}

Status GpuLane::keep(Status status) {
    if (failure_.ok()) {
        failure_ = status;
    }
    return status;
}

// No more than a launch over so many bytes has work for.
int GpuLane::blocks_for(size_t bytes) {
    if (blocks_ == 0) {
        blocks_ = gpu_.take_blocks(device_, gpu_.settings().gpu_blocks);
    }
    const size_t most = std::max<size_t>(1, (bytes + kPaletteBlock - 1) / kPaletteBlock);
    pending_ = true;
    return static_cast<int>(std::min(static_cast<size_t>(blocks_), most));
}

void GpuLane::give_blocks() noexcept {
    gpu_.give_blocks(device_, blocks_);
    blocks_ = 0;
}

Status GpuLane::encode(
    DType element, const uint8_t* source, size_t bytes, size_t piece_bytes, int slot) {
    const DeviceScope scope(api_, device_);
    EncodeArgs args =
        piece_encode_args(element, source, bytes, piece_bytes, this->slot(slot), slot_bytes_);
    args.workspace = workspace_;
    args.max_blocks = blocks_for(bytes);
    SLIMWIRE_TRY(keep(enqueue(api_, piece_codec(), args, stream_)));
    const size_t tail = bytes % dtype_bytes(element);
    if (tail == 0) {
        return {};
    }
    const auto last = static_cast<size_t>(slot) + (bytes - 1) / piece_bytes;
    return copy_to_host(tails_ + last * kTailBytes, source + bytes - tail, tail);
}

size_t GpuLane::finished(DType element, int slot, size_t bytes) const noexcept {
    return finish_piece(element, this->slot(slot), bytes,
                        tails_ + static_cast<size_t>(slot) * kTailBytes);
}

Status GpuLane::decode(DType element,
                       int slot,
                       size_t last_encoded,
                       uint8_t* output,
                       size_t bytes,
                       size_t piece_bytes) {
    const DeviceScope scope(api_, device_);
    DecodeArgs args =
        piece_decode_args(element, this->slot(slot), slot_bytes_, output, bytes, piece_bytes);
    uint8_t* const status = statuses_ + static_cast<size_t>(slot) * kStatusBytes;
    std::memset(status, 0, sizeof(uint32_t));
    args.status = reinterpret_cast<uint32_t*>(status);
    args.max_blocks = blocks_for(bytes);
    SLIMWIRE_TRY(keep(enqueue(api_, piece_codec(), args, stream_)));
    const size_t tail = bytes % dtype_bytes(element);
    if (tail == 0) {
        return {};
    }
    const int last = slot + static_cast<int>((bytes - 1) / piece_bytes);
    return copy_to_gpu(output + bytes - tail, this->slot(last) + last_encoded, tail, false);
}

bool GpuLane::corrupt(int slot) const noexcept {
    uint32_t status;
    std::memcpy(&status, statuses_ + static_cast<size_t>(slot) * kStatusBytes, sizeof status);
    return status != 0;
}

Status GpuLane::copy_to_host(uint8_t* pinned, const uint8_t* source, size_t bytes) {
    const DeviceScope scope(api_, device_);
    pending_ = true;
    return keep(
        cuda_status(api_, api_.memcpy_async(pinned, source, bytes, cudaMemcpyDeviceToHost, stream_),
                    "copying from GPU memory"));
}

Status GpuLane::copy_to_gpu(uint8_t* output, const uint8_t* pinned, size_t bytes, bool lines) {
    const DeviceScope scope(api_, device_);
    pending_ = true;
    if (lines) {
        const CopyLinesArgs args{.input = pinned,
                                 .output = output,
                                 .bytes = static_cast<int64_t>(bytes),
                                 .max_blocks = blocks_for(bytes)};
        return keep(enqueue(api_, args, stream_));
    }
    return keep(
        cuda_status(api_, api_.memcpy_async(output, pinned, bytes, cudaMemcpyHostToDevice, stream_),
                    "copying into GPU memory"));
}

Status GpuLane::copy_to_slots(int slot, const uint8_t* source, size_t bytes) {
    const size_t pieces = bytes / piece_bytes_;
    const size_t whole = pieces * piece_bytes_;
    if (pieces > 1) {
        const DeviceScope scope(api_, device_);
        pending_ = true;
        SLIMWIRE_TRY(keep(
            cuda_status(api_,
                        api_.memcpy_2d_async(this->slot(slot), slot_bytes_, source, piece_bytes_,
                                             piece_bytes_, pieces, cudaMemcpyDeviceToHost, stream_),
                        "copying from GPU memory")));
    } else if (pieces == 1) {
        SLIMWIRE_TRY(copy_to_host(this->slot(slot), source, whole));
    }
    return whole == bytes ? Status()
                          : copy_to_host(this->slot(slot + static_cast<int>(pieces)),
                                         source + whole, bytes - whole);
}

Status GpuLane::copy_from_slots(uint8_t* output, int slot, size_t bytes, bool lines) {
    const size_t pieces = bytes / piece_bytes_;
    size_t whole = pieces * piece_bytes_;
    if (!lines && pieces > 1) {
        const DeviceScope scope(api_, device_);
        pending_ = true;
        SLIMWIRE_TRY(keep(
            cuda_status(api_,
                        api_.memcpy_2d_async(output, piece_bytes_, this->slot(slot), slot_bytes_,
                                             piece_bytes_, pieces, cudaMemcpyHostToDevice, stream_),
                        "copying into GPU memory")));
    } else {
        whole = 0;
    }
    for (; whole < bytes; whole += piece_bytes_) {
        SLIMWIRE_TRY(copy_to_gpu(output + whole,
                                 this->slot(slot + static_cast<int>(whole / piece_bytes_)),
                                 std::min(piece_bytes_, bytes - whole), lines));
    }
    return {};
}

Result<GpuLane::Ticket> GpuLane::mark() {
    const DeviceScope scope(api_, device_);
    SLIMWIRE_TRY(keep(cuda_status(api_, api_.event_record(events_[marked_ % kEvents], stream_),
                                  "marking work of the GPU")));
    pending_ = false;
    return ++marked_;
}

Status GpuLane::poll() {
    if (!failure_.ok() || idle()) {
        return failure_;
    }
    const DeviceScope scope(api_, device_);
    while (over_ < marked_) {
        const cudaError_t error = api_.event_query(events_[over_ % kEvents]);
        if (error == cudaErrorNotReady) {
            tolerate(api_, error);
            break;
        }
        if (error != cudaSuccess) {
            return keep(cuda_status(api_, error, "work of the GPU"));
        }
        ++over_;
    }
    if (idle() && !pending_) {
        give_blocks();
    }
    return {};
}

bool GpuLane::settle() noexcept {
    if (idle() && !pending_) {
        return true;
    }
    const DeviceScope scope(api_, device_);
    const uint64_t begin = now_ns();
    // Asked of the stream, not of events: after a failure the last calls may have no event.
    while (true) {
        const cudaError_t error = api_.stream_query(stream_);
        tolerate(api_, error);
        if (error != cudaErrorNotReady) {
            break;  // all is over, or a GPU with an error, on which nothing runs any more
        }
        if (now_ns() - begin > kSettleNs) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    over_ = marked_;
    give_blocks();
    pending_ = false;
    return true;
}

}  // namespace slimwire::net
