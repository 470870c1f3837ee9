// The threads and blocks of the modelled GPU, what threads wait in, and the texts that name them.
// Plain data of machine.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cuda_on_host/fiber.h"

namespace cuda_on_host {

using Where = std::source_location;
constexpr unsigned kWarp = 32;

// What a thread waits in. Those that wait together must be in the same call: a divergent one is an
// error.
struct Call {
    const char* name = "";
    unsigned mask = 0;     // lanes that take part; 0: all threads of the block
    unsigned uniform = 0;  // an argument that must be the same in all of them
    Where where;

    bool operator==(const Call& other) const {
        return mask == other.mask && uniform == other.uniform &&
               where.line() == other.where.line() && where.column() == other.where.column() &&
               same(name, other.name) && same(where.file_name(), other.where.file_name());
    }

  private:
    // Nearly always one literal.
    static bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
};

// What the lanes of a warp brought to one call.
struct Brought {
    unsigned mask = 0;
    std::array<uint64_t, kWarp> value{};
    std::array<unsigned, kWarp> argument{};
};
// What `lane` gets; it may throw a text.
using Finish = uint64_t (*)(const Brought& brought, unsigned lane);

enum class State : uint8_t { kReady, kCollective, kBarrier, kDone };

struct Thread {
    Fiber fiber;
    unsigned index = 0;
    State state = State::kDone;
    Call call;
    uint64_t value = 0;  // brought, then got
    unsigned argument = 0;

    unsigned lane() const { return index % kWarp; }
};

// Threads that can go on, in the order of their turns. One is taken in constant time: that of its
// end, which is the nearer one, takes its place.
class Ready {
  public:
    bool empty() const { return first_ == threads_.size(); }
    size_t size() const { return threads_.size() - first_; }
    void clear() {
        threads_.clear();
        first_ = 0;
    }
    void push(unsigned thread) { threads_.push_back(thread); }
    void push_front(unsigned thread) {
        if (first_ == 0) {
            threads_.insert(threads_.begin(), thread);
        } else {
            threads_[--first_] = thread;
        }
    }
    unsigned take(size_t at) {
        const unsigned thread = threads_[first_ + at];
        if (at < size() / 2) {
            threads_[first_ + at] = threads_[first_];
            ++first_;
        } else {
            threads_[first_ + at] = threads_.back();
            threads_.pop_back();
        }
        if (first_ == kMostGone) {
            threads_.erase(threads_.begin(), threads_.begin() + kMostGone);
            first_ = 0;
        }
        return thread;
    }

  private:
    static constexpr size_t kMostGone = 4096;
    std::vector<unsigned> threads_;
    size_t first_ = 0;
};

struct Block {
    uint64_t index = 0;
    std::vector<std::unique_ptr<Thread>> threads;
    Ready ready;
    size_t done = 0;
    size_t at_barrier = 0;
    std::unique_ptr<uint8_t[]> dynamic;
    std::vector<uint8_t> shared;  // its static shared memory while another block runs
};

inline std::string describe(const Call& call) {
    const std::string file = call.where.file_name();
    char mask[24] = "";
    if (call.mask != 0) {
        std::snprintf(mask, sizeof(mask), " mask %08x", call.mask);
    }
    return std::string(call.name) + mask + " at " + file.substr(file.rfind('/') + 1) + ":" +
           std::to_string(call.where.line());
}

// "thread 5 of block 0, lane 5, in __shfl_sync mask ffffffff at block_int.cuh:140"
inline std::string describe(const Thread& thread, const Block& block) {
    return "thread " + std::to_string(thread.index) + " of block " + std::to_string(block.index) +
           ", lane " + std::to_string(thread.lane()) + ", in " + describe(thread.call);
}

// Who of a block waits where when nobody can go on.
inline std::string describe_deadlock(const Block& block) {
    std::vector<std::pair<std::string, size_t>> groups;
    std::vector<std::string> examples;
    for (const auto& thread : block.threads) {
        const std::string where = thread->state == State::kDone
                                      ? "came to the end of the kernel"
                                      : "wait in " + describe(thread->call);
        const auto found = std::find_if(groups.begin(), groups.end(),
                                        [&](const auto& group) { return group.first == where; });
        if (found != groups.end()) {
            ++found->second;
        } else {
            groups.emplace_back(where, 1);
            examples.push_back(std::to_string(thread->index));
        }
    }
    std::string text = "threads of block " + std::to_string(block.index) +
                       " wait for others that left or diverged:";
    for (size_t i = 0; i < groups.size(); ++i) {
        text += (i == 0 ? " " : "; ") + std::to_string(groups[i].second) + " (thread " +
                examples[i] + (groups[i].second > 1 ? ", ...) " : ") ") + groups[i].first;
    }
    return text;
}

}  // namespace cuda_on_host
