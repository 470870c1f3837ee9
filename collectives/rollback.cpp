#include "collectives/rollback.h"

#include "codecs/rollback.h"

namespace slimwire {

namespace {

// Where the step at hand is the one that the copy is from, nothing is to be done.
bool same_step(CommState* state, KeptCopy* kept, uint64_t now) {
    const bool same = kept->made && kept->step == now;
    if (same) {
        // As far as is known.
        state->stats->unflagged_calls.fetch_add(1, std::memory_order_relaxed);
        kept->given_up |= ++kept->calls >= kMostUnflaggedCalls;
    }
    return same;
}

}  // namespace

Status keep_or_take_back(const DeviceApi& api,
                         CommState* state,
                         const Plan& plan,
                         void* residual,
                         KeptCopy* kept,
                         cudaStream_t stream) {
    const uint64_t now = state->flags->count();
    if (same_step(state, kept, now)) {
        return {};
    }
    StepFlags::OnDevice flag;
    if (kept->made && !kept->given_up) {
        flag = state->flags->on_device(kept->step + 1);
        SLIMWIRE_TRY(state->flags->order_behind(api, stream));
    }
    SLIMWIRE_TRY(
        enqueue(api,
                RollBackArgs{.state = residual,
                             .copy = kept->copy,
                             .flag = flag.word,
                             .bytes = static_cast<int64_t>((plan.residual_bytes + 15) / 16 * 16),
                             .undo = flag.set},
                stream));
    *kept = {.copy = kept->copy, .made = true, .step = now};
    return {};
}

}  // namespace slimwire
