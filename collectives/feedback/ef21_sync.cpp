#include "collectives/feedback/ef21_sync.h"

#include <bit>

#include "codecs/ops/sum_rows.h"
#include "codecs/residual/estimate.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

// M: all its bytes are equal, so that memory is set to it.
constexpr int kByte = 0x7f;
constexpr float kLarge = std::bit_cast<float>(0x7f7f7f7fu);
static_assert(kLarge < 3.4e38f && kLarge > 3.3e38f);

}  // namespace

uint64_t moment_of(const Communicator& state, const Progress& progress) noexcept {
    return progress.replicated_calls == 0 ? 0
                                          : mix_key(state.comm_key, progress.replicated_calls) | 1;
}

Status EstimatesOfAll::kernels(int phase) {
    if (phase > 0) {
        return call_->kernels(phase - 1);
    }
    // Filled on the device, as a graph would fill them again.
    const auto fill = [&](size_t first, size_t count, bool set) {
        return cuda_status(context_.api,
                           context_.api.memset_async(told() + first, set ? kByte : 0,
                                                     count * sizeof(float), context_.work),
                           "moment of saved estimates");
    };
    SLIMWIRE_TRY(fill(0, kMomentBits, false));
    SLIMWIRE_TRY(fill(kMomentBits, kMomentBits, true));
    for (size_t bit = 0; bit < kMomentBits; ++bit) {
        if ((snapshot_id_.value_or(0) >> bit & 1) != 0) {
            SLIMWIRE_TRY(fill(bit, 1, true));
            SLIMWIRE_TRY(fill(kMomentBits + bit, 1, false));
        }
    }
    return {};
}

Status EstimatesOfAll::exchange(int phase) {
    return phase > 0 ? call_->exchange(phase - 1)
                     : all_reduce(context_, told(), told(), 2 * kMomentBits, ncclFloat32, ncclMax,
                                  "ncclAllReduce of the moments of saved estimates");
}

Status EstimatesOfAll::finish(int phase) {
    if (phase > 0) {
        return call_->finish(phase - 1);
    }
    const DeviceApi& api = context_.api;
    const Plan& plan = context_.plan;
    float* const both = told() + 2 * kMomentBits;
    auto* const mark = reinterpret_cast<uint32_t*>(context_.scratch + plan.scratch.marks_offset);
    SLIMWIRE_TRY(enqueue(api,
                         SumRowsArgs{.input = told(),
                                     .output = both,
                                     .row_bytes = kMomentBits * sizeof(float),
                                     .count = kMomentBits,
                                     .rows = 2,
                                     .input_dtype = DType::kFloat32,
                                     .output_dtype = DType::kFloat32},
                         context_.work));
    SLIMWIRE_TRY(
        clear_on_device(api, mark, sizeof *mark, context_.work, "mark of saved estimates"));
    SLIMWIRE_TRY(enqueue(
        api,
        MarkArgs{.estimate = both, .marks = mark, .count = kMomentBits, .chunk_elems = kMomentBits},
        context_.work));
    const auto elems = static_cast<int64_t>(plan.residual.shared_elems);
    return enqueue(api,
                   SettleArgs{.estimate = static_cast<float*>(context_.residual),
                              .output = nullptr,
                              .marks = mark,
                              .count = elems,
                              .chunk_elems = elems,
                              .dtype = DType::kFloat32},
                   context_.work);
}

}  // namespace slimwire
