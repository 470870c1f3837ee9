#include "collectives/dispatch/parameter_moves.h"

#include <utility>

#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/session.h"

namespace slimwire {
namespace {

// Has move(CallHook&, Session&) done by the first that can.
template <class Move>
Result<bool> move_parameter(Runtime& runtime, const Move& move) {
    bool done = false;
    Status status;
    for_each_session(runtime, [&](Session& state) {
        for (const std::unique_ptr<CallHook>& hook : state.hooks) {
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
    return move_parameter(runtime, [&](CallHook& hook, Session& state) {
        return hook.move_parameter(runtime.api(), &state, dispatch_state(runtime).residuals, what,
                                   stream);
    });
}

Result<bool> move_back(Runtime& runtime, void* parameter, cudaStream_t stream) {
    const ReentryGuard guard;
    return move_parameter(runtime, [&](CallHook& hook, Session& state) {
        return hook.return_parameter(runtime.api(), state, parameter, stream);
    });
}

}  // namespace slimwire
