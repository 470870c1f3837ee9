#include "collectives/dispatch/parameter_moves.h"

#include <utility>

#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/session.h"

namespace slimwire {
namespace {

// Has move(StepAhead&, Session&) done for the first session that can.
template <class Move>
Result<bool> move_parameter(Runtime& runtime, const Move& move) {
    bool done = false;
    Status status;
    for_each_session(runtime, [&](Session& state) {
        if (!done && status.ok() && state.step_ahead != nullptr) {
            const Result<bool> moved = move(*state.step_ahead, state);
            status = moved.status();
            done = moved.ok() && moved.value();
        }
    });
    SLIMWIRE_TRY(std::move(status));
    return done;
}

}  // namespace

Result<bool> move_ahead(Runtime& runtime, const StepAhead::Moved& what, cudaStream_t stream) {
    const ReentryGuard guard;
    return move_parameter(runtime, [&](StepAhead& step_ahead, Session& state) {
        return step_ahead.ahead(runtime.api(), &state, dispatch_state(runtime).residuals, what,
                                stream);
    });
}

Result<bool> move_back(Runtime& runtime, void* parameter, cudaStream_t stream) {
    const ReentryGuard guard;
    return move_parameter(runtime, [&](StepAhead& step_ahead, Session& state) {
        return step_ahead.back(runtime.api(), state, parameter, stream);
    });
}

}  // namespace slimwire
