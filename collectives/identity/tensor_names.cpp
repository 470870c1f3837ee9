#include "collectives/identity/tensor_names.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

namespace slimwire {
namespace {

constexpr size_t kLongestName = 255;

// What a thread found last, by address.
struct Found {
    uint64_t generation = 0;
    uintptr_t address = 0;
    const char* name = nullptr;
};
constexpr size_t kRemembered = 64;
thread_local constinit std::array<Found, kRemembered> t_found{};

// Of all tables, so that a thread takes nothing from one for another's.
constinit std::atomic<uint64_t> g_generations{0};

}  // namespace

Status check_name(const char* name) {
    if (name == nullptr) {
        return {Code::kInvalidArgument, "the name is null"};
    }
    const size_t length = ::strnlen(name, kLongestName + 1);
    const std::string_view text(name, length);
    bool plain = length >= 1 && length <= kLongestName;
    for (const char c : text) {
        plain &= c >= ' ' && c <= '~' && c != '"' && c != '\\';
    }
    if (!plain) {
        return {Code::kInvalidArgument,
                "a name is 1 to 255 printable ASCII characters without quotation mark and "
                "backslash"};
    }
    return {};
}

TensorNames& TensorNames::instance() {
    static TensorNames* const names = new TensorNames;  // calls may outlive main
    return *names;
}

// Kept as long as this is: traces and counters point to it.
const char* TensorNames::kept(std::string_view name) {
    if (const auto found = spelled_.find(name); found != spelled_.end()) {
        return found->c_str();
    }
    return spelled_.size() >= kMostNames ? nullptr : spelled_.emplace(name).first->c_str();
}

Status TensorNames::add(const void* buffer, uint64_t bytes, const char* name) {
    SLIMWIRE_TRY(check_name(name));
    const auto begin = reinterpret_cast<uintptr_t>(buffer);
    if (begin == 0 || bytes == 0 || bytes > std::numeric_limits<uintptr_t>::max() - begin) {
        return {Code::kInvalidArgument, "memory of " + std::to_string(bytes) + " bytes at " +
                                            (begin == 0 ? std::string("null") : "that address") +
                                            " cannot be named"};
    }
    const std::lock_guard lock(mutex_);
    const char* const text = kept(name);
    if (text == nullptr) {
        return {Code::kOutOfMemory, std::to_string(kMostNames) + " different names were given"};
    }
    const uintptr_t end = begin + bytes;
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second.end > begin) {
        --next;
    }
    while (next != ranges_.end() && next->first < end) {
        next = ranges_.erase(next);
    }
    ranges_.emplace(begin, Range{end, text});
    generation_.store(++g_generations, std::memory_order_release);
    any_given_.store(true, std::memory_order_relaxed);
    return {};
}

bool TensorNames::forget(const void* buffer) {
    const std::lock_guard lock(mutex_);
    const bool forgot = ranges_.erase(reinterpret_cast<uintptr_t>(buffer)) == 1;
    if (forgot) {
        generation_.store(++g_generations, std::memory_order_release);
    }
    return forgot;
}

uint64_t TensorNames::pieces(const char* name) {
    if (name == nullptr) {
        return 0;
    }
    const std::lock_guard lock(mutex_);
    return static_cast<uint64_t>(std::count_if(
        ranges_.begin(), ranges_.end(), [&](const auto& one) { return one.second.name == name; }));
}

const char* TensorNames::find(const void* address) noexcept {
    const uint64_t generation = generation_.load(std::memory_order_acquire);
    if (generation == 0) {
        return nullptr;
    }
    const auto at = reinterpret_cast<uintptr_t>(address);
    // Buffers lie at multiples of 256 bytes and more.
    Found& found = t_found[(at >> 8 ^ at >> 16 ^ at >> 24) % kRemembered];
    if (found.generation != generation || found.address != at) {
        const std::lock_guard lock(mutex_);
        auto range = ranges_.upper_bound(at);
        const bool inside = range != ranges_.begin() && at < (--range)->second.end;
        found = {generation_.load(std::memory_order_relaxed), at,
                 inside ? range->second.name : nullptr};
    }
    return found.name;
}

}  // namespace slimwire
