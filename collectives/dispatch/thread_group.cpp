#include "collectives/dispatch/thread_group.h"

#include <algorithm>
#include <atomic>

#include "collectives/call/per_thread.h"
#include "collectives/communicator/lifecycle.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/dispatch/shadow/observer.h"

namespace slimwire {

void ThreadGroup::keep() noexcept {
    journal.clear();
    number = 0;
}

void ThreadGroup::undo() noexcept {
    journal.undo();
    number = 0;
}

ThreadGroup& thread_group() noexcept {
    return per_thread<ThreadGroup>();
}

uint64_t group_number() noexcept {
    static std::atomic<uint64_t> numbers{0};
    if (!in_group()) {
        return 0;
    }
    uint64_t& number = thread_group().number;
    number = number != 0 ? number : ++numbers;
    return number;
}

CallSite site_of(const Runtime& runtime,
                 const CollectiveCall& call,
                 Session* state,
                 const StepPosition& place) noexcept {
    return {runtime.api(), *state, state->progress,
            call,          place,  in_group() ? &thread_group().journal : nullptr};
}

void forget_queued(const Session& state) noexcept {
    if (in_group()) {
        std::erase_if(thread_group().queued,
                      [&](const QueuedCall& item) { return item.state == &state; });
        thread_group().journal.forget(state);
    }
}

void group_started(const RealNccl& nccl) noexcept {
    thread_group().nccl = &nccl;
    ++t_group_depth;
}

void enter_groups_of(const RealNccl& nccl) {
    struct Aside {
        int depth;
        ThreadGroup group;
    };
    std::vector<Aside>& aside = per_thread<std::vector<Aside>>();
    ThreadGroup& group = thread_group();
    if (group.nccl == &nccl) {
        return;
    }
    if (in_group()) {
        aside.push_back({t_group_depth, std::move(group)});
    }
    group = {};
    t_group_depth = 0;
    const auto back = std::find_if(aside.begin(), aside.end(),
                                   [&](const Aside& other) { return other.group.nccl == &nccl; });
    if (back != aside.end()) {
        group = std::move(back->group);
        t_group_depth = back->depth;
        aside.erase(back);
    }
    group.nccl = &nccl;
}

void group_dropped(const RealNccl& nccl) noexcept {
    ThreadGroup& group = thread_group();
    t_group_depth = std::max(0, t_group_depth - 1);
    if (!in_group()) {
        group.queued.clear();
        group.has_native = false;
        group.failed = ncclSuccess;
        group.undo();
        drop_group_creations(nccl);
        const Runtime* const runtime = Runtime::peek();
        if (runtime != nullptr && dispatch_state(*runtime).observer != nullptr) {
            dispatch_state(*runtime).observer->group_dropped();
        }
    }
}

}  // namespace slimwire
