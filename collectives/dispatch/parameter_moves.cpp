#include "collectives/dispatch/parameter_moves.h"

#include <utility>

#include "collectives/communicator/graph_memory.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/session.h"

namespace slimwire {
namespace {

// Moves belong to steps, and wait for events that no graph knows.
Status outside_graphs(const DeviceApi& api, cudaStream_t stream) {
    SLIMWIRE_TRY_ASSIGN(const bool captured, capturing(api, stream));
    return captured ? Status(Code::kInvalidArgument,
                             "the stream is being captured; parameters are moved outside of graphs")
                    : Status();
}

// Has move(CallHook&, Session&) done by the first that can.
template <class Move>
Result<bool> move_parameter(Runtime& runtime, cudaStream_t stream, const Move& move) {
    bool done = false;
    Status status;
    for_each_session(runtime, [&](Session& state) {
        for (const std::unique_ptr<CallHook>& hook : state.hooks) {
            status = !done && status.ok() ? outside_graphs(runtime.api(), stream) : status;
            if (!done && status.ok()) {
                const Result<bool> moved = move(*hook, state);
                status = moved.status();
                done = moved.ok() && moved.value();
            }
        }
    });
    SLIMWIRE_TRY(std::move(status));
    return done;
}

}  // namespace

Result<bool> move_ahead(Runtime& runtime, const ParameterMove& what, cudaStream_t stream) {
    const ReentryGuard guard;
    return move_parameter(runtime, stream, [&](CallHook& hook, Session& state) {
        return hook.move_parameter(runtime.api(), &state, dispatch_state(runtime).residuals, what,
                                   stream);
    });
}

Result<bool> move_back(Runtime& runtime, void* parameter, cudaStream_t stream) {
    const ReentryGuard guard;
    return move_parameter(runtime, stream, [&](CallHook& hook, Session& state) {
        return hook.return_parameter(runtime.api(), state, parameter, stream);
    });
}

}  // namespace slimwire
