#include "collectives/dispatch/thread_group.h"

#include <algorithm>
#include <atomic>

#include "codecs/base/device_scope.h"
#include "collectives/call/per_thread.h"
#include "collectives/communicator/graph_memory.h"
#include "collectives/communicator/lifecycle.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/dispatch/shadow/observer.h"

namespace slimwire {

void ThreadGroup::keep(ncclResult_t result) noexcept {
    journal.clear();
    tell_types(std::exchange(claimed, {}));
    for (const auto& [state, window] : std::exchange(windows, {})) {
        if (result == ncclSuccess || result == ncclInProgress) {
            state->windows.add(window);
        }
        if (result == ncclSuccess) {
            state->windows.ready();
        }
    }
    number = 0;
}

void ThreadGroup::undo() noexcept {
    journal.undo();
    untell_types(std::exchange(claimed, {}));
    windows.clear();
    number = 0;
}

ThreadGroup& thread_group() noexcept {
    return per_thread<ThreadGroup>();
}

uint64_t number_of_group() noexcept {
    static std::atomic<uint64_t> numbers{0};
    uint64_t& number = thread_group().number;
    number = number != 0 ? number : ++numbers;
    return number;
}

namespace {

template <class T>
void add_once(const T& one, std::vector<T>* all) {
    if (std::find(all->rbegin(), all->rend(), one) == all->rend()) {
        all->push_back(one);
    }
}

Status wait_for(const DeviceApi& api, Session* state, cudaStream_t waiting, cudaStream_t other) {
    SLIMWIRE_TRY(cuda_status(api, api.event_record(state->objects.fork, other), "streams"));
    return cuda_status(api, api.stream_wait_event(waiting, state->objects.fork, 0), "streams");
}

Status join(const DeviceApi& api, Session* state, const std::vector<cudaStream_t>& streams) {
    const InUse use(state);
    if (state->ended) {
        return {};  // who runs its calls says so
    }
    const DeviceScope device(api, state->device);
    SLIMWIRE_TRY_ASSIGN(const StreamCapture first, capture_of(api, streams.front()));
    for (const cudaStream_t stream : streams) {
        SLIMWIRE_TRY_ASSIGN(const StreamCapture capture, capture_of(api, stream));
        if (capture.active != first.active || (first.active && capture.id != first.id)) {
            return {Code::kInvalidUsage,
                    log_prefix(*state) +
                        ": streams that a group gives to one communicator must "
                        "all be captured into one graph, or none of them"};
        }
    }
    SLIMWIRE_TRY(prepare_device_objects(api, state, 0));
    for (size_t i = 1; i < streams.size(); ++i) {
        SLIMWIRE_TRY(wait_for(api, state, streams.front(), streams[i]));
    }
    for (size_t i = 1; i < streams.size(); ++i) {
        SLIMWIRE_TRY(wait_for(api, state, streams[i], streams.front()));
    }
    return {};
}

}  // namespace

void note_native(const CollectiveCall& call, Session* state) {
    ThreadGroup& group = thread_group();
    group.has_native = true;
    // NCCL forgets a collective of no elements.
    if (call.signature.count > 0 || is_point_to_point(call.signature.op)) {
        add_once(std::pair(state, call.stream), &group.native_streams);
    }
}

GroupStreams several_streams(const ThreadGroup& group) {
    GroupStreams streams;
    for (const QueuedCall& item : group.queued) {
        add_once(item.call.stream, &streams[item.state]);
    }
    for (const auto& [state, stream] : group.native_streams) {
        if (const auto found = streams.find(state); found != streams.end()) {
            add_once(stream, &found->second);
        }
    }
    std::erase_if(streams, [](const auto& of_one) { return of_one.second.size() == 1; });
    return streams;
}

Status join_streams(Runtime& runtime, const GroupStreams& several) {
    for (const auto& [state, streams] : several) {
        SLIMWIRE_TRY(join(runtime.api(), state, streams));
    }
    return {};
}

void forget_queued(const Session& state) noexcept {
    if (in_group()) {
        std::erase_if(thread_group().queued,
                      [&](const QueuedCall& item) { return item.state == &state; });
        std::erase_if(thread_group().native_streams,
                      [&](const auto& use) { return use.first == &state; });
        std::erase_if(thread_group().windows,
                      [&](const auto& window) { return window.first == &state; });
        std::erase_if(thread_group().claimed,
                      [&](const ClaimedCall& call) { return call.state == &state; });
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
        group.native_streams.clear();
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
