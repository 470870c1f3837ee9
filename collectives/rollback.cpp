#include "collectives/rollback.h"

#include "codecs/rollback.h"

namespace slimwire {

Status keep_or_take_back(const DeviceApi& api,
                         CommState* state,
                         const Plan& plan,
                         void* residual,
                         KeptCopy* kept,
                         cudaStream_t stream) {
    const uint64_t flags = state->flags->count();
    if (kept->made && kept->flags == flags) {
        // The same step goes on, as far as is known.
        state->stats->unflagged_calls.fetch_add(1, std::memory_order_relaxed);
        kept->given_up |= ++kept->calls >= kMostUnflaggedCalls;
        return {};
    }
    StepFlags::OnDevice flag;
    if (kept->made && !kept->given_up) {
        flag = state->flags->on_device(kept->flags + 1);
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
    kept->made = true;
    kept->given_up = false;
    kept->flags = flags;
    kept->calls = 0;
    return {};
}

}  // namespace slimwire
