#include "collectives/dispatch/thread_group.h"

#include <algorithm>
#include <atomic>

#include "collectives/communicator/lifecycle.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/dispatch/shadow/observer.h"
#include "collectives/identity/parameter_tracker.h"

namespace slimwire {

void ThreadGroup::end_counting(bool ran) noexcept {
    for (Session* state : heard) {
        state->tracker->group_ends(ran);
    }
    for (Session* state : flagged) {
        state->skipped_steps->dropped();
    }
    counted.clear();
    granted.clear();
    paced.clear();
    averaged.clear();
    ahead.clear();
    flagged.clear();
    heard.clear();
    number = 0;
}

void ThreadGroup::uncount() noexcept {
    for (const auto& [state, plan] : counted) {
        if (plan != nullptr) {
            --plan->calls;
            state->progress.replicated_calls -= is_point_to_point(plan->signature.op) ? 0 : 1;
        } else {
            state->places->drop(number);
        }
    }
    for (const auto& [state, tensor] : paced) {
        tensor->control.uncount();
        --state->progress.replicated_calls;
    }
    for (const auto& [state, pending] : ahead) {
        state->step_ahead->lose();
    }
    for (const auto& [state, tensor] : averaged) {
        --tensor->calls;
        --state->progress.replicated_calls;
    }
    for (auto place = granted.rbegin(); place != granted.rend(); ++place) {
        ungrant_place(place->first, place->second);
    }
    end_counting(false);
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

void forget_queued(const Session& state) noexcept {
    if (in_group()) {
        std::erase_if(thread_group().queued,
                      [&](const QueuedCall& item) { return item.state == &state; });
        std::erase_if(thread_group().counted,
                      [&](const auto& counted) { return counted.first == &state; });
        std::erase_if(thread_group().granted,
                      [&](const auto& granted) { return granted.first == &state; });
        std::erase_if(thread_group().paced,
                      [&](const auto& paced) { return paced.first == &state; });
        std::erase_if(thread_group().averaged,
                      [&](const auto& averaged) { return averaged.first == &state; });
        std::erase_if(thread_group().ahead,
                      [&](const auto& pending) { return pending.first == &state; });
        std::erase(thread_group().heard, &state);
        std::erase(thread_group().flagged, &state);
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
        group.uncount();
        drop_group_creations();
        const Runtime* const runtime = Runtime::peek();
        if (runtime != nullptr && dispatch_state(*runtime).observer != nullptr) {
            dispatch_state(*runtime).observer->group_dropped();
        }
    }
}

}  // namespace slimwire
