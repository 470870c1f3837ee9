#include "collectives/feedback/ef21_sync.h"

#include <bit>
#include <cstring>
#include <memory>

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

SnapshotRows snapshot_rows(uint64_t snapshot_id) noexcept {
    SnapshotRows rows;
    for (size_t bit = 0; bit < kMomentBits; ++bit) {
        const bool set = (snapshot_id >> bit & 1) != 0;
        rows[bit] = set ? kLarge : 0.0f;
        rows[kMomentBits + bit] = set ? 0.0f : kLarge;
    }
    return rows;
}

Status EstimatesOfAll::kernels(int phase) {
    if (phase > 0) {
        return call_->kernels(phase - 1);
    }
    const DeviceApi& api = context_.api;
    constexpr size_t kRow = kMomentBits * sizeof(float);
    if (snapshot_id_.has_value()) {
        const SnapshotRows rows = snapshot_rows(*snapshot_id_);
        const std::shared_ptr<std::byte[]> kept(new std::byte[sizeof rows]);
        std::memcpy(kept.get(), rows.data(), sizeof rows);
        return context_.state.objects.copies.to_device(api, told(), kept, sizeof rows,
                                                       context_.work);
    }
    SLIMWIRE_TRY(cuda_status(api, api.memset_async(told(), 0, kRow, context_.work),
                             "no moment of saved estimates"));
    return cuda_status(api, api.memset_async(told() + kMomentBits, kByte, kRow, context_.work),
                       "no moment of saved estimates");
}

Status EstimatesOfAll::exchange(int phase) {
    return phase > 0 ? call_->exchange(phase - 1)
                     : nccl_status(context_.nccl,
                                   context_.nccl.AllReduce(
                                       told(), told(), 2 * kMomentBits, ncclFloat32, ncclMax,
                                       context_.state.exchange_comm, context_.work),
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
                                     .scale = 1.0f,
                                     .input_dtype = DType::kFloat32,
                                     .output_dtype = DType::kFloat32},
                         context_.work));
    SLIMWIRE_TRY(cuda_status(api, api.memset_async(mark, 0, sizeof *mark, context_.work),
                             "mark of saved estimates"));
    SLIMWIRE_TRY(enqueue(
        api,
        MarkArgs{.estimate = both, .marks = mark, .count = kMomentBits, .chunk_elems = kMomentBits},
        context_.work));
    const auto elems = static_cast<int64_t>(plan.residual.shared_elems);
    return enqueue(api,
                   SettleArgs{.estimate = static_cast<float*>(context_.residual),
                              .own = nullptr,
                              .output = nullptr,
                              .marks = mark,
                              .count = elems,
                              .chunk_elems = elems,
                              .dtype = DType::kFloat32},
                   context_.work);
}

}  // namespace slimwire
