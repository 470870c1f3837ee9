// Names that a program gave to pieces of memory (slimwire.h): labels for traces, reports and log
// lines, and what a saved state has tensors by. Local knowledge: what ranks must decide alike does
// not go by it. One table a process.
//
// Thread-safe. find() takes no lock where a thread asks again for a buffer and no name came or went
// since.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "codecs/base/status.h"
#include "collectives/call/call.h"

namespace slimwire {

inline constexpr size_t kMostNames = 65536;

// 1 to 255 printable ASCII characters without quotation mark and backslash: may stand in any
// record as they are.
Status check_name(const char* name);

class TensorNames {
  public:
    static TensorNames& instance();

    // An error where the memory or the name cannot be, or kMostNames were given. Names of memory
    // that overlaps are forgotten.
    Status add(const void* buffer, uint64_t bytes, const char* name);
    // False where no named memory begins at `buffer`.
    bool forget(const void* buffer);
    // The name of the memory that holds the address; null without one. Valid for ever.
    [[nodiscard]] const char* find(const void* address) noexcept;
    // How many pieces of memory have the name, of those that find() gives; 0 of null.
    [[nodiscard]] uint64_t pieces(const char* name);
    // By the process's table; one load where no name was ever given.
    [[nodiscard]] static const char* of(const CollectiveCall& call) noexcept {
        return any_given_.load(std::memory_order_relaxed) ? instance().find(call) : nullptr;
    }
    // Of the call's result, else of what it sends.
    [[nodiscard]] const char* find(const CollectiveCall& call) noexcept {
        const char* name = call.recv != nullptr ? find(call.recv) : nullptr;
        return name != nullptr || call.send == nullptr ? name : find(call.send);
    }

  private:
    struct Range {
        uintptr_t end;  // one behind
        const char* name;
    };
    const char* kept(std::string_view name);

    inline static std::atomic<bool> any_given_{false};  // to any table
    std::atomic<uint64_t> generation_{0};               // 0: no name was given yet
    std::mutex mutex_;
    std::map<uintptr_t, Range> ranges_;           // by their begins; no two overlap
    std::set<std::string, std::less<>> spelled_;  // every name ever given
};

}  // namespace slimwire
