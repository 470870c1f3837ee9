// What the exported functions that move payload share: a call as collectives/ sees it, and asking
// dispatch() whether to take it.
#pragma once

#include "collectives/call/nccl_types.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/shadow/observer.h"
#include "plugin/preload/funnel.h"

namespace slimwire::preload {

inline CollectiveCall make_call(Op op,
                                ncclDataType_t type,
                                ncclRedOp_t redop,
                                bool reduces,
                                int root_or_peer,
                                size_t count,
                                const void* send,
                                void* recv,
                                ncclComm_t comm,
                                cudaStream_t stream) noexcept {
    CollectiveCall call;
    call.signature.op = op;
    call.signature.dtype = static_cast<DType>(type);
    call.signature.redop = reduces ? redop_of(redop) : RedOp::kNone;
    call.signature.root_or_peer = root_or_peer;
    call.signature.count = count;
    call.send = send;
    call.recv = recv;
    call.nccl_dtype = type;
    call.nccl_op = redop;
    call.comm = comm;
    call.stream = stream;
    return call;
}

// dispatch() for an active slimwire and a type we know; empty: forward.
inline std::optional<ncclResult_t> offer(Runtime* runtime, const CollectiveCall& call) noexcept {
    if (!runtime->config.active || !known_dtype(call.nccl_dtype)) {
        return std::nullopt;
    }
    return dispatch(*runtime, call);
}

// After a call that was offered and then forwarded.
inline ncclResult_t forwarded(Runtime* runtime, ncclComm_t comm, ncclResult_t result) noexcept {
    return runtime->config.listens ? call_forwarded(*runtime, comm, result) : result;
}

// Does a native call under the eyes of a mode that observes.
template <class Forward>
ncclResult_t observed(Runtime* runtime, const CollectiveCall& call, const Forward& forward) {
    if (!known_dtype(call.nccl_dtype)) {
        return forward();
    }
    Observation observation(*runtime, call);
    return observation.end(forward());
}

}  // namespace slimwire::preload
