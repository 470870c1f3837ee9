#include "collectives/residuals.h"

namespace slimwire {
namespace {

// Zeroes memory on a stream that no capture knows, and waits.
Status reset_now(const DeviceApi& api, void* buffer, uint64_t bytes) {
    cudaStream_t stream = nullptr;
    SLIMWIRE_TRY(cuda_status(api, api.stream_create_with_flags(&stream, cudaStreamNonBlocking),
                             "residual reset"));
    Status status = cuda_status(api, api.memset_async(buffer, 0, bytes, stream), "residual reset");
    if (status.ok()) {
        status = cuda_status(api, api.stream_synchronize(stream), "residual reset");
    }
    tolerate(api, api.stream_destroy(stream));
    return status;
}

Status zero(
    const DeviceApi& api, void* buffer, uint64_t bytes, cudaStream_t stream, bool captured) {
    return captured
               ? reset_now(api, buffer, bytes)
               : cuda_status(api, api.memset_async(buffer, 0, bytes, stream), "residual reset");
}

}  // namespace

TensorKey identify(uint64_t comm_key,
                   const CollectiveCall& call,
                   TensorBy by,
                   const StepPlace& place) noexcept {
    if (by == TensorBy::kStep) {
        return {comm_key, call.facts, nullptr, place.slot, place.ordinal};
    }
    return {comm_key, call.facts, call.recv != nullptr ? call.recv : call.send};
}

Result<void*> ResidualStore::get(const DeviceApi& api,
                                 int device,
                                 const TensorKey& key,
                                 uint64_t path,
                                 uint64_t bytes,
                                 cudaStream_t stream,
                                 bool captured,
                                 bool* made) {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    *made = found == entries_.end();
    if (!*made) {
        Entry& entry = found->second;
        if (entry.path != path) {
            SLIMWIRE_TRY(zero(api, entry.buffer, entry.bytes, stream, captured));
            entry.path = path;
        }
        return entry.buffer;
    }
    if (!budget_->reserve(device, bytes)) {
        *made = false;
        return nullptr;
    }
    void* buffer = nullptr;
    Status status = cuda_status(api, api.malloc(&buffer, bytes), "residual allocation");
    if (status.ok()) {
        status = zero(api, buffer, bytes, stream, captured);
        if (!status.ok()) {
            tolerate(api, api.free(buffer));
        }
    }
    if (!status.ok()) {
        budget_->give_back(device, bytes);
        return status;
    }
    entries_.emplace(key, Entry{buffer, bytes, path, device});
    return buffer;
}

uint64_t ResidualStore::forget(const DeviceApi& api, uint64_t comm_key) {
    std::lock_guard lock(mutex_);
    uint64_t freed = 0;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
        if (entry->first.comm_key == comm_key) {
            freed += entry->second.bytes;
            budget_->give_back(entry->second.device, entry->second.bytes);
            tolerate(api, api.free(entry->second.buffer));
            entry = entries_.erase(entry);
        } else {
            ++entry;
        }
    }
    return freed;
}

void ResidualStore::take(uint64_t comm_key, std::vector<void*>* memory) {
    std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const auto& entry) {
        if (entry.first.comm_key != comm_key) {
            return false;
        }
        memory->push_back(entry.second.buffer);
        budget_->give_back(entry.second.device, entry.second.bytes);
        return true;
    });
}

ResidualStore::Held ResidualStore::held(uint64_t comm_key) const {
    std::lock_guard lock(mutex_);
    Held held;
    for (const auto& [key, entry] : entries_) {
        if (key.comm_key == comm_key) {
            held.bytes += entry.bytes;
            ++held.tensors;
        }
    }
    return held;
}

}  // namespace slimwire
