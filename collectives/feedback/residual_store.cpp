#include "collectives/feedback/residual_store.h"

#include "codecs/base/own_stream.h"
#include "collectives/call/log.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {
namespace {

Status zero(
    const DeviceApi& api, void* buffer, uint64_t bytes, cudaStream_t stream, bool captured) {
    constexpr const char* kWhat = "residual reset";
    const auto reset = [&](cudaStream_t on) {
        return cuda_status(api, api.memset_async(buffer, 0, bytes, on), kWhat);
    };
    return captured ? on_own_stream(api, kWhat, reset) : reset(stream);
}

// A buffer that no work uses.
Status fill(const DeviceApi& api, void* buffer, const void* values, uint64_t bytes) {
    constexpr const char* kWhat = "fill of residuals";
    return on_own_stream(api, kWhat, [&](cudaStream_t own) {
        return cuda_status(
            api, api.memcpy_async(buffer, values, bytes, cudaMemcpyHostToDevice, own), kWhat);
    });
}

// What was loaded for a tensor whose buffer no work uses, and is there now; of null where nothing
// was.
Result<PendingState::Loaded> restore(const DeviceApi& api,
                                     void* buffer,
                                     uint64_t bytes,
                                     const LastingTensor& tensor,
                                     uint64_t shape) {
    PendingState& pending = PendingState::instance();
    PendingState::Loaded loaded;
    if (pending.loaded()) {
        loaded = pending.take(tensor, shape, bytes);
    }
    if (loaded.misfit) {
        log_once(LogLevel::kWarn, "state misfit",
                 std::string("loaded state of ") + op_name(tensor.signature.op) + " count " +
                     std::to_string(tensor.signature.count) +
                     " is of another plan (other nodes?); it begins at zero");
    }
    if (loaded.held != nullptr) {
        SLIMWIRE_TRY(fill(api, buffer, loaded.held.get(), bytes));
    }
    return loaded;
}

}  // namespace

TensorKey identify(uint64_t comm_key,
                   const CollectiveCall& call,
                   TensorBy by,
                   const StepPosition& place) noexcept {
    if (by == TensorBy::kStep) {
        return {comm_key, call.signature, nullptr, place.slot, place.ordinal};
    }
    return {comm_key, call.signature, call.recv != nullptr ? call.recv : call.send};
}

Result<Residual> ResidualStore::get(const DeviceApi& api,
                                    int device,
                                    const TensorKey& key,
                                    uint64_t path,
                                    uint64_t bytes,
                                    const CheckpointSlot& lasting,
                                    cudaStream_t stream,
                                    bool captured) {
    std::lock_guard lock(mutex_);
    const LastingTensor tensor{lasting.comm, key.signature, path, key.ordinal};
    const auto residual_in = [](Entry& entry, ResidualOrigin origin) {
        return Residual{entry.buffer, origin, &entry.loss_scale};
    };
    if (const auto found = entries_.find(key); found != entries_.end()) {
        Entry& entry = found->second;
        const bool goes_on = entry.path == path && !entry.renewed;
        PendingState::Loaded loaded;
        if (entry.renewed) {
            SLIMWIRE_TRY_ASSIGN(loaded,
                                restore(api, entry.buffer, entry.bytes, tensor, lasting.shape));
        }
        // Of a path that takes another's slot nothing is restored: work may be using the buffer.
        if (!goes_on && loaded.held == nullptr) {
            SLIMWIRE_TRY(zero(api, entry.buffer, entry.bytes, stream, captured));
        }
        if (!goes_on) {
            entry.loss_scale = loaded.held != nullptr ? loaded.loss_scale
                                                      : std::numeric_limits<double>::quiet_NaN();
        }
        entry.path = path;
        entry.lasting = lasting;
        entry.renewed = false;
        return residual_in(entry, ResidualOrigin::kKept);
    }
    if (!budget_->reserve(device, bytes)) {
        return Residual{};
    }
    void* buffer = nullptr;
    PendingState::Loaded loaded;
    Status status = cuda_status(api, api.malloc(&buffer, bytes), "residual allocation");
    if (status.ok()) {
        if (key.address == nullptr) {
            Result<PendingState::Loaded> restored =
                restore(api, buffer, bytes, tensor, lasting.shape);
            status = restored.status();
            loaded = restored.ok() ? std::move(restored).value() : PendingState::Loaded();
        }
        if (status.ok() && loaded.held == nullptr) {
            status = zero(api, buffer, bytes, stream, captured);
        }
        if (!status.ok()) {
            tolerate(api, api.free(buffer));
        }
    }
    if (!status.ok()) {
        budget_->give_back(device, bytes);
        return status;
    }
    Entry& entry = entries_[key];
    entry = {.buffer = buffer, .bytes = bytes, .path = path, .device = device, .lasting = lasting};
    ResidualOrigin origin = ResidualOrigin::kMade;
    if (loaded.held != nullptr) {
        origin = ResidualOrigin::kRestored;
        entry.loss_scale = loaded.loss_scale;
    }
    return residual_in(entry, origin);
}

void* ResidualStore::find(const TensorKey& key, uint64_t path) const {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    return found == entries_.end() || found->second.path != path || found->second.renewed
               ? nullptr
               : found->second.buffer;
}

std::vector<ResidualStore::Placed> ResidualStore::placed(uint64_t* by_address) const {
    std::map<LastingTensor, Placed> placed;
    for (const auto& [key, entry] : entries_) {
        if (key.address != nullptr) {
            ++*by_address;
        } else if (entry.lasting.comm != 0 && !entry.renewed) {  // else it is what waits, or zero
            // Of a tensor whose communicator's role became known the later one, which counts now.
            const LastingTensor tensor{entry.lasting.comm, key.signature, entry.path, key.ordinal};
            placed.insert_or_assign(
                tensor, Placed{tensor, entry.lasting.shape, entry.bytes, entry.lasting.shared,
                               entry.buffer, entry.device, entry.loss_scale});
        }
    }
    std::vector<Placed> all;
    for (auto& [tensor, found] : placed) {
        all.push_back(std::move(found));
    }
    return all;
}

void ResidualStore::renew_placed() {
    const std::lock_guard lock(mutex_);
    for (auto& [key, entry] : entries_) {
        entry.renewed |= key.address == nullptr && entry.lasting.comm != 0 && !entry.lasting.shared;
    }
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
