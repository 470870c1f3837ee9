#include "collectives/communicator/registry.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "collectives/call/per_thread.h"

namespace slimwire {

constinit std::atomic<CommUse::User*> CommUse::g_users{nullptr};
constinit thread_local CommUse::User* CommUse::t_user = nullptr;

// Of a thread, until it ends.
struct CommUse::Member {
    Member() {
        for (user = g_users.load(std::memory_order_acquire); user != nullptr; user = user->next) {
            if (!user->taken.exchange(true, std::memory_order_acquire)) {
                return;
            }
        }
        user = new User;
        user->next = g_users.load(std::memory_order_relaxed);
        while (!g_users.compare_exchange_weak(user->next, user, std::memory_order_release,
                                              std::memory_order_relaxed)) {
        }
    }
    ~Member() {
        t_user = nullptr;
        user->depth = 0;
        user->busy.store(false, std::memory_order_release);
        user->taken.store(false, std::memory_order_release);
    }
    User* user = nullptr;
};

CommUse::User* CommUse::join() noexcept {
    return per_thread<Member>().user;
}

bool CommUse::by_no_other() noexcept {
    const auto barrier = [](int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; };
    if (!barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) ||
        !barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
        return false;
    }
    for (User* user = g_users.load(std::memory_order_acquire); user != nullptr; user = user->next) {
        if (user != t_user && user->busy.load(std::memory_order_acquire)) {
            return false;
        }
    }
    return true;
}

void CommUse::begin_child() noexcept {
    for (User* user = g_users.load(std::memory_order_relaxed); user != nullptr; user = user->next) {
        if (user != t_user) {
            user->depth = 0;
            user->busy.store(false, std::memory_order_relaxed);
            user->taken.store(false, std::memory_order_relaxed);
        }
    }
}

constinit thread_local CommRegistry::LastLookup CommRegistry::t_last;

Communicator* CommRegistry::look_up(ncclComm_t comm) noexcept {
    std::lock_guard lock(mutex_);
    const auto found = states_.find(comm);
    t_last = {comm, found == states_.end() ? nullptr : found->second.get(),
              generation_.load(std::memory_order_relaxed)};
    return t_last.state;
}

Communicator* CommRegistry::add(std::unique_ptr<Communicator> state) {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    auto& slot = states_[state->comm];
    slot = std::move(state);
    return slot.get();
}

std::unique_ptr<Communicator> CommRegistry::remove(ncclComm_t comm) {
    std::lock_guard lock(mutex_);
    const auto found = states_.find(comm);
    if (found == states_.end()) {
        return nullptr;
    }
    generation_.fetch_add(1, std::memory_order_release);
    std::unique_ptr<Communicator> state = std::move(found->second);
    states_.erase(found);
    return state;
}

void CommRegistry::retire(Aborted aborted) {
    std::lock_guard lock(mutex_);
    retired_.push_back(std::move(aborted));
}

std::vector<CommRegistry::Aborted> CommRegistry::take_retired() noexcept {
    std::lock_guard lock(mutex_);
    return !retired_.empty() && CommUse::by_no_other() ? std::exchange(retired_, {})
                                                       : std::vector<Aborted>();
}

uint64_t CommRegistry::next_ordinal(uint64_t members_hash) {
    std::lock_guard lock(mutex_);
    return ordinals_[members_hash]++;
}

}  // namespace slimwire
