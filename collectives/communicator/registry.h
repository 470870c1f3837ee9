// From NCCL handles to communicators. Thread-safe; a look-up takes no lock on a repeat.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "collectives/communicator/communicator.h"

namespace slimwire {

// Whether threads may be using communicators that they have found. A thread says so for itself, at
// the cost of two stores; who wants to know makes all of them pass a barrier first.
class CommUse {
  public:
    CommUse() noexcept { begin(); }
    ~CommUse() { end(false); }
    CommUse(const CommUse&) = delete;
    CommUse& operator=(const CommUse&) = delete;
    // A thread's uses nest. `goes_on`: what it has queued uses some behind the last one's end.
    static void begin() noexcept {
        if (t_user == nullptr) {
            t_user = join();
        }
        if (t_user->depth++ == 0) {
            t_user->busy.store(true, std::memory_order_relaxed);
            std::atomic_signal_fence(std::memory_order_seq_cst);
        }
    }
    static void end(bool goes_on) noexcept {
        if (--t_user->depth == 0) {
            t_user->busy.store(goes_on, std::memory_order_release);
        }
    }
    // That no other thread uses one that find() did not find any more before. False where the
    // system has no such barrier.
    [[nodiscard]] static bool by_no_other() noexcept;
    // In the child of a fork, which has this thread alone.
    static void begin_child() noexcept;

  private:
    struct User {
        std::atomic<bool> busy{false}, taken{true};
        int depth = 0;
        User* next = nullptr;
    };
    struct Member;
    static User* join() noexcept;
    static constinit std::atomic<User*> g_users;  // never freed; a new thread takes an ended one's
    static constinit thread_local User* t_user;
};

class CommRegistry {
  public:
    // Null for a handle that slimwire does not know. No lock and no allocation when the thread's
    // last look-up was for the same handle and no communicator came or went since. What it finds is
    // for use within a CommUse, unless nobody may abort it meanwhile.
    [[nodiscard]] Communicator* find(ncclComm_t comm) noexcept {
        const bool again =
            t_last.comm == comm && t_last.generation == generation_.load(std::memory_order_acquire);
        return again ? t_last.state : look_up(comm);
    }
    Communicator* add(std::unique_ptr<Communicator> state);
    // Takes the state out; null when unknown.
    std::unique_ptr<Communicator> remove(ncclComm_t comm);
    // Keeps the state of an aborted communicator: another thread may still be looking at it.
    // `released`: what it had on the device is given back.
    struct Aborted {
        std::unique_ptr<Communicator> state;
        bool released = false;
    };
    void retire(Aborted aborted);
    // All of them, if no other thread looks at any.
    [[nodiscard]] std::vector<Aborted> take_retired() noexcept;
    // Calls use(Communicator&) of each, with nothing coming or going meanwhile.
    template <class Use>
    void for_each(const Use& use) {
        const std::lock_guard lock(mutex_);
        for (const auto& [comm, state] : states_) {
            use(*state);
        }
    }
    // Number of communicators made so far with these members; makes the key of the next distinct.
    uint64_t next_ordinal(uint64_t members_hash);

  private:
    Communicator* look_up(ncclComm_t comm) noexcept;

    struct LastLookup {
        ncclComm_t comm = nullptr;
        Communicator* state = nullptr;
        uint64_t generation = 0;
    };
    static constinit thread_local LastLookup t_last;
    std::mutex mutex_;
    std::atomic<uint64_t> generation_{1};
    std::unordered_map<ncclComm_t, std::unique_ptr<Communicator>> states_;
    std::unordered_map<uint64_t, uint64_t> ordinals_;
    std::vector<Aborted> retired_;
};

}  // namespace slimwire
