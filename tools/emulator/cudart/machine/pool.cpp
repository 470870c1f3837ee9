#include "tools/emulator/cudart/machine/pool.h"

#include <algorithm>
#include <bit>
#include <new>
#include <vector>

#include "tools/emulator/cudart/machine/memory.h"

namespace slimwire::emulator {

size_t pool_block_bytes(size_t bytes) {
    constexpr size_t kStepBytes = 512;
    const size_t step = std::max(kStepBytes, std::bit_floor(bytes) / 8);
    return (bytes + step - 1) / step * step;
}

OperationRef release_operation(DeviceMemory& memory, void* pointer) {
    return make_operation(
        "cudaFreeAsync", [=, &memory] { memory.release(pointer); }, /*survives_poison=*/true);
}

void* Pool::take_waiting(size_t block_bytes, const Stream& stream) {
    const auto blocks = waiting_.find(block_bytes);
    if (blocks == waiting_.end()) {
        return nullptr;
    }
    for (auto block = blocks->second.begin(); block != blocks->second.end(); ++block) {
        const Dependency& freed_at = block->freed_at;
        if (freed_at.stream.get() == &stream || freed_at.stream->reached(freed_at.ticket)) {
            void* pointer = block->pointer;
            blocks->second.erase(block);
            return pointer;
        }
    }
    return nullptr;
}

void* Pool::allocate(size_t bytes, const std::shared_ptr<Stream>& stream) {
    if (bytes > memory_.device_bytes()) {
        throw std::bad_alloc();
    }
    const size_t block_bytes = pool_block_bytes(bytes);
    const std::lock_guard lock(mutex_);
    void* pointer = take_waiting(block_bytes, *stream);
    if (pointer == nullptr) {
        if (max_bytes_ != 0 && reserved_bytes_ + block_bytes > max_bytes_) {
            throw std::bad_alloc();
        }
        try {
            pointer = memory_.allocate(device_, block_bytes, shared_from_this());
        } catch (const std::bad_alloc&) {
            trim_locked(0);
            pointer = memory_.allocate(device_, block_bytes, shared_from_this());
        }
        reserved_bytes_ += block_bytes;
        reserved_high_ = std::max(reserved_high_, reserved_bytes_);
    }
    memory_.set_live(pointer, true, bytes);
    used_bytes_ += block_bytes;
    used_high_ = std::max(used_high_, used_bytes_);
    return pointer;
}

void Pool::free(void* pointer, size_t block_bytes, const std::shared_ptr<Stream>& stream) {
    bool closed = false;
    {
        const std::lock_guard lock(mutex_);
        memory_.set_live(pointer, false, 0);
        used_bytes_ -= block_bytes;
        closed = closed_;
        if (!closed) {
            waiting_[block_bytes].push_back({pointer, {stream, stream->last_ticket()}});
        }
    }
    if (closed) {
        stream->enqueue(release_operation(memory_, pointer), true);
    }
}

void Pool::close() {
    std::vector<Dependency> pending;
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        for (const auto& [block_bytes, blocks] : waiting_) {
            for (const FreeBlock& block : blocks) {
                pending.push_back(block.freed_at);
            }
        }
    }
    for (const Dependency& freed_at : pending) {
        freed_at.stream->wait(freed_at.ticket);
    }
    trim(0);
}

void Pool::forget(size_t block_bytes) {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= block_bytes;
    reserved_bytes_ -= block_bytes;
}

void Pool::trim(size_t keep_bytes) {
    const std::lock_guard lock(mutex_);
    trim_locked(keep_bytes);
}

void Pool::trim_locked(size_t keep_bytes) {
    for (auto& [block_bytes, blocks] : waiting_) {
        for (auto block = blocks.begin(); block != blocks.end() && reserved_bytes_ > keep_bytes;) {
            if (block->freed_at.stream->reached(block->freed_at.ticket)) {
                memory_.release(block->pointer);
                reserved_bytes_ -= block_bytes;
                block = blocks.erase(block);
            } else {
                ++block;
            }
        }
    }
}

uint64_t Pool::attribute(cudaMemPoolAttr attribute) const {
    const std::lock_guard lock(mutex_);
    return attributes_[attribute];
}

bool Pool::set_attribute(cudaMemPoolAttr attribute, uint64_t value) {
    const std::lock_guard lock(mutex_);
    const bool high =
        attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh;
    if (high && value == 0) {
        attributes_[attribute] = attributes_[attribute - 1];  // the present value
        return true;
    }
    if (attribute < cudaMemPoolReuseFollowEventDependencies ||
        attribute > cudaMemPoolAttrReleaseThreshold) {
        return false;
    }
    attributes_[attribute] = value;
    return true;
}

}  // namespace slimwire::emulator
