#include "plugin/net/gpu/gpu_bounce.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace slimwire::net {

void GpuBounce::Buffer::run() noexcept {
    if (host != nullptr) {
        std::memcpy(memory, host, bytes);
    } else {
        owner->stream_->add(memory, bytes);
    }
}

void GpuBounce::begin(const uint8_t* host, uint8_t* gpu, size_t bytes, bool hashes, bool lines) {
    for (int i = 0; i < GpuLane::kBounces; ++i) {
        buffers_[static_cast<size_t>(i)].owner = this;
        buffers_[static_cast<size_t>(i)].memory = lane_.bounce(i);
    }
    busy_ = true;
    hashes_ = hashes;
    lines_ = lines;
    host_ = host;
    gpu_ = gpu;
    bytes_ = bytes;
    slices_ = (bytes + lane_.piece_bytes() - 1) / lane_.piece_bytes();
    begun_ = ended_ = 0;
}

void GpuBounce::hash(const uint8_t* gpu, size_t bytes) {
    if (!stream_.has_value()) {
        stream_.emplace();
    }
    stream_->reset();
    begin(nullptr, const_cast<uint8_t*>(gpu), bytes, true, false);
}

void GpuBounce::copy(const uint8_t* host, uint8_t* gpu, size_t bytes, bool lines) {
    begin(host, gpu, bytes, false, lines);
}

size_t GpuBounce::bytes_of(uint64_t slice) const noexcept {
    return std::min(lane_.piece_bytes(), bytes_ - slice * lane_.piece_bytes());
}

Status GpuBounce::begin_slice(uint64_t slice) {
    Buffer& buffer = buffers_[slice % GpuLane::kBounces];
    const size_t at = slice * lane_.piece_bytes();
    buffer.bytes = bytes_of(slice);
    if (hashes_) {
        buffer.host = nullptr;
        SLIMWIRE_TRY(lane_.copy_to_host(buffer.memory, gpu_ + at, buffer.bytes));
        SLIMWIRE_TRY_ASSIGN(buffer.ticket, lane_.mark());
        buffer.phase = Phase::kOnGpu;
    } else {
        buffer.host = host_ + at;
        buffer.phase = Phase::kOnThread;
        pool_.submit(&buffer);
    }
    return {};
}

// The second half of a slice: a checksum takes slices in order, copies take any.
Status GpuBounce::move(uint64_t slice) {
    Buffer& buffer = buffers_[slice % GpuLane::kBounces];
    if (hashes_ && buffer.phase == Phase::kOnGpu && slice == ended_ && lane_.over(buffer.ticket)) {
        buffer.phase = Phase::kOnThread;
        pool_.submit(&buffer);
    } else if (!hashes_ && buffer.phase == Phase::kOnThread && buffer.done() && lane_.room()) {
        SLIMWIRE_TRY(lane_.copy_to_gpu(gpu_ + slice * lane_.piece_bytes(), buffer.memory,
                                       buffer.bytes, lines_));
        SLIMWIRE_TRY_ASSIGN(buffer.ticket, lane_.mark());
        buffer.phase = Phase::kOnGpu;
    }
    return {};
}

Status GpuBounce::advance() {
    if (!busy_) {
        return {};
    }
    while (true) {
        for (uint64_t slice = ended_; slice < begun_; ++slice) {
            SLIMWIRE_TRY(move(slice));
        }
        const uint64_t before = ended_ + begun_;
        if (ended_ < begun_) {
            Buffer& oldest = buffers_[ended_ % GpuLane::kBounces];
            const bool ended = hashes_ ? oldest.phase == Phase::kOnThread && oldest.done()
                                       : oldest.phase == Phase::kOnGpu && lane_.over(oldest.ticket);
            if (ended) {
                oldest.phase = Phase::kFree;
                ++ended_;
            }
        }
        if (begun_ < slices_ && begun_ - ended_ < GpuLane::kBounces && lane_.room()) {
            SLIMWIRE_TRY(begin_slice(begun_));
            ++begun_;
        }
        if (ended_ + begun_ == before) {
            return {};
        }
    }
}

bool GpuBounce::done() noexcept {
    if (!busy_ || ended_ < slices_) {
        return false;
    }
    busy_ = false;
    return true;
}

void GpuBounce::settle() noexcept {
    for (const Buffer& buffer : buffers_) {
        while (buffer.phase == Phase::kOnThread && !buffer.done()) {
            std::this_thread::yield();
        }
    }
}

}  // namespace slimwire::net
