// What calls of an NCCL group changed and what takes it back. The calls of a group that does not
// run never were, on any rank; so its entries are undone, the newest first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace slimwire {

struct Communicator;

class UndoJournal {
  public:
    // The words are those of the entry: a pointer, a number, whatever the function makes of them.
    using Undo = void (*)(Communicator* state, uint64_t first, uint64_t second) noexcept;

    void add(Communicator* state, Undo undo, uint64_t first = 0, uint64_t second = 0) {
        entries_.push_back({state, undo, first, second});
    }
    void undo() noexcept {
        for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
            entry->undo(entry->state, entry->first, entry->second);
        }
        entries_.clear();
    }
    // The changes stand.
    void clear() noexcept { entries_.clear(); }
    // Of a communicator that is being destroyed.
    void forget(const Communicator& state) noexcept {
        std::erase_if(entries_, [&](const Entry& entry) { return entry.state == &state; });
    }

    [[nodiscard]] bool has(const Communicator* state, Undo undo) const noexcept {
        return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
            return entry.state == state && entry.undo == undo;
        });
    }
    // The communicators with entries, or with entries of this function, each once.
    [[nodiscard]] std::vector<Communicator*> communicators() const { return with(nullptr); }
    [[nodiscard]] std::vector<Communicator*> with(Undo undo) const {
        std::vector<Communicator*> found;
        for (const Entry& entry : entries_) {
            if ((undo == nullptr || entry.undo == undo) &&
                std::find(found.begin(), found.end(), entry.state) == found.end()) {
                found.push_back(entry.state);
            }
        }
        return found;
    }

  private:
    struct Entry {
        Communicator* state;
        Undo undo;
        uint64_t first, second;
    };
    std::vector<Entry> entries_;
};

[[nodiscard]] inline uint64_t word_of(const void* pointer) noexcept {
    return reinterpret_cast<uintptr_t>(pointer);
}
template <class T>
[[nodiscard]] T* pointer_of(uint64_t word) noexcept {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(word));
}

}  // namespace slimwire
