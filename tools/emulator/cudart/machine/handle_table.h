// Opaque handles that may be checked without being dereferenced: a destroyed or invented
// cudaStream_t is an error, not a crash. A handle is a number that is never given out twice. Any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace slimwire::emulator {

// `Handle` is the CUDA Runtime's pointer type, `kKind` keeps the kinds of handles apart.
template <class Handle, class T, uint64_t kKind>
class HandleTable {
  public:
    Handle add(std::shared_ptr<T> object) {
        const std::unique_lock lock(mutex_);
        const uint64_t value = (kKind << 40) | (++last_id_ << 4);
        objects_.emplace(value, std::move(object));
        return reinterpret_cast<Handle>(value);
    }

    // Null for a handle that is not, or no longer, in the table.
    [[nodiscard]] std::shared_ptr<T> find(Handle handle) const {
        const std::shared_lock lock(mutex_);
        const auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
        return found == objects_.end() ? nullptr : found->second;
    }

    std::shared_ptr<T> remove(Handle handle) {
        const std::unique_lock lock(mutex_);
        const auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
        if (found == objects_.end()) {
            return nullptr;
        }
        std::shared_ptr<T> object = std::move(found->second);
        objects_.erase(found);
        return object;
    }

    template <class Predicate>
    void remove_if(Predicate predicate) {
        const std::unique_lock lock(mutex_);
        std::erase_if(objects_, [&](const auto& entry) { return predicate(*entry.second); });
    }

  private:
    mutable std::shared_mutex mutex_;
    std::unordered_map<uint64_t, std::shared_ptr<T>> objects_;
    uint64_t last_id_ = 0;
};

}  // namespace slimwire::emulator
