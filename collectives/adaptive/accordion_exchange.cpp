#include "collectives/adaptive/accordion_exchange.h"

#include "codecs/ops/sketch.h"

namespace slimwire {

Status PacedExchange::kernels(int phase) {
    return phase < call_->phases() ? call_->kernels(phase) : Status();
}

Status PacedExchange::exchange(int phase) {
    if (phase < call_->phases()) {
        return call_->exchange(phase);
    }
    const RealNccl& nccl = context_.nccl;
    SketchState& sums = *paced_.tensor->sums;
    const ncclComm_t comm = context_.state.exchange_comm;
    SLIMWIRE_TRY(nccl_status(nccl,
                             nccl.AllReduce(sums.cells, sums.cells, kSketchCells, ncclFloat32,
                                            ncclSum, comm, context_.work),
                             "ncclAllReduce of sketches"));
    return nccl_status(
        nccl,
        nccl.AllReduce(&sums.buffers, &sums.buffers, 1, ncclUint32, ncclSum, comm, context_.work),
        "ncclAllReduce of sketches");
}

Status PacedExchange::finish(int phase) {
    if (phase < call_->phases()) {
        SLIMWIRE_TRY(call_->finish(phase));
        if (phase + 1 == call_->phases()) {
            SLIMWIRE_TRY(add_result());
        }
    }
    return paced_.at.last && phase + 1 == phases() ? send_to_host() : Status();
}

uint64_t PacedExchange::control_bytes() const noexcept {
    constexpr CallSignature kSums{Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0,
                                  kSketchCells + 1};
    return sums_over_ranks()
               ? native_wire_bytes(kSums, context_.state.shape.ranks, context_.state.rank)
               : 0;
}

Status PacedExchange::add_result() {
    const DeviceApi& api = context_.api;
    const CallSignature& signature = context_.plan.signature;
    SketchState* const sums = paced_.tensor->sums;
    if (paced_.at.first) {
        SLIMWIRE_TRY(cuda_status(api, api.memset_async(sums, 0, sizeof(SketchState), context_.work),
                                 "a window's begin"));
    }
    const auto count = static_cast<int64_t>(signature.count);
    const bool part = signature.op == Op::kReduceScatter;
    return enqueue(api,
                   SketchArgs{.input = context_.call.recv,
                              .state = sums,
                              .workspace = context_.scratch,
                              .count = count,
                              .first_row = part ? context_.state.rank * sketch_rows(count) : 0,
                              .dtype = signature.dtype},
                   context_.work);
}

Status PacedExchange::send_to_host() {
    const DeviceApi& api = context_.api;
    AccordionTensor& tensor = *paced_.tensor;
    SLIMWIRE_TRY(cuda_status(api,
                             api.memcpy_async(tensor.copy, tensor.sums, sizeof(SketchState),
                                              cudaMemcpyDeviceToHost, context_.work),
                             "a window's end"));
    SLIMWIRE_TRY(
        cuda_status(api, api.event_record(tensor.copied, context_.work), "a window's end"));
    tensor.under_way = true;
    return {};
}

}  // namespace slimwire
