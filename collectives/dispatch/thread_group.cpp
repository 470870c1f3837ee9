#include "collectives/dispatch/thread_group.h"

#include <algorithm>
#include <atomic>

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
    static thread_local ThreadGroup group;
    return group;
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

void group_started() noexcept {
    ++t_group_depth;
}

void group_dropped() noexcept {
    ThreadGroup& group = thread_group();
    t_group_depth = std::max(0, t_group_depth - 1);
    if (!in_group()) {
        group.queued.clear();
        group.has_native = false;
        group.failed = ncclSuccess;
        group.undo();
        drop_group_creations();
        const Runtime* const runtime = Runtime::peek();
        if (runtime != nullptr && dispatch_state(*runtime).observer != nullptr) {
            dispatch_state(*runtime).observer->group_dropped();
        }
    }
}

}  // namespace slimwire
