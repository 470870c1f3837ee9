#include "collectives/gated_exchange.h"

#include "collectives/underway.h"

namespace slimwire {

Status NativeExchange::exchange(int /*phase*/) {
    const RealNccl& nccl = context_.nccl;
    const CollectiveCall& call = context_.call;
    const uint64_t count = call.facts.count;
    const int root = call.facts.root_or_peer;
    const ncclDataType_t type = call.nccl_dtype;
    const cudaStream_t stream = context_.work;
    switch (call.facts.op) {
        case Op::kAllReduce:
            return nccl_status(
                nccl,
                nccl.AllReduce(call.send, call.recv, count, type, call.nccl_op, call.comm, stream),
                "ncclAllReduce");
        case Op::kReduceScatter:
            return nccl_status(nccl,
                               nccl.ReduceScatter(call.send, call.recv, count, type, call.nccl_op,
                                                  call.comm, stream),
                               "ncclReduceScatter");
        case Op::kReduce:
            return nccl_status(nccl,
                               nccl.Reduce(call.send, call.recv, count, type, call.nccl_op, root,
                                           call.comm, stream),
                               "ncclReduce");
        case Op::kAllGather:
            return nccl_status(nccl,
                               nccl.AllGather(call.send, call.recv, count, type, call.comm, stream),
                               "ncclAllGather");
        case Op::kBroadcast:
            return nccl_status(
                nccl, nccl.Broadcast(call.send, call.recv, count, type, root, call.comm, stream),
                "ncclBroadcast");
        case Op::kAllToAll:
            return nccl_status(nccl,
                               nccl.AlltoAll(call.send, call.recv, count, type, call.comm, stream),
                               "ncclAlltoAll");
        case Op::kGather:
            return nccl_status(
                nccl, nccl.Gather(call.send, call.recv, count, type, root, call.comm, stream),
                "ncclGather");
        case Op::kScatter:
            return nccl_status(
                nccl, nccl.Scatter(call.send, call.recv, count, type, root, call.comm, stream),
                "ncclScatter");
        case Op::kSend:
        case Op::kRecv:
            break;
    }
    return {Code::kInternalError, "a gate before a message"};
}

Status NativeExchange::finish(int /*phase*/) {
    const RealNccl& nccl = context_.nccl;
    if (nccl.CommGetAsyncError == nullptr) {
        return {};
    }
    bool launching = true;
    for (Patience patience; launching; patience.pause()) {
        SLIMWIRE_TRY(still_alive(nccl, context_.state, &launching));
    }
    return {};
}

Status GatedExchange::kernels(int phase) {
    if (phase > 0) {
        return call_->kernels(phase - 1);
    }
    const DeviceApi& api = context_.api;
    const size_t bytes = words() * sizeof(float);
    return cuda_status(api,
                       gated_.at.tells
                           ? api.memcpy_async(context_.scratch, gated_.gate->words, bytes,
                                              cudaMemcpyHostToDevice, context_.work)
                           : api.memset_async(context_.scratch, 0, bytes, context_.work),
                       "times of a gate");
}

Status GatedExchange::exchange(int phase) {
    if (phase > 0) {
        return call_->exchange(phase - 1);
    }
    return nccl_status(
        context_.nccl,
        context_.nccl.AllReduce(context_.scratch, context_.scratch, words(), ncclFloat32, ncclMax,
                                context_.state.exchange_comm, context_.work),
        "ncclAllReduce of a gate");
}

Status GatedExchange::finish(int phase) {
    const DeviceApi& api = context_.api;
    GatedPlan* const gate = gated_.gate;
    if (phase == 0) {
        if (gated_.at.tells) {
            SLIMWIRE_TRY(cuda_status(
                api,
                api.memcpy_async(gate->words + GatedPlan::kSlots, context_.scratch,
                                 words() * sizeof(float), cudaMemcpyDeviceToHost, context_.work),
                "times of a gate"));
            SLIMWIRE_TRY(
                cuda_status(api, api.event_record(gate->heard, context_.work), "times of a gate"));
            gate->told = true;
            return {};
        }
        began_us_ = steady_us();
        return cuda_status(
            api,
            api.event_record(gate->times[static_cast<size_t>(gated_.at.slot)].begin, context_.work),
            "begin of a timed call");
    }
    SLIMWIRE_TRY(call_->finish(phase - 1));
    if (gated_.at.slot >= 0 && phase == call_->phases()) {
        GatedPlan::Times& times = gate->times[static_cast<size_t>(gated_.at.slot)];
        SLIMWIRE_TRY(
            cuda_status(api, api.event_record(times.end, context_.work), "end of a timed call"));
        times.timed = true;
        times.host_s = static_cast<float>(steady_us() - began_us_) * 1e-6f;
    }
    return {};
}

}  // namespace slimwire
