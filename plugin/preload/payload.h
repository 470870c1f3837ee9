// What the exported functions that move payload share: a call as collectives/ sees it, and asking
// dispatch() whether to take it.
#pragma once

#include "collectives/call/nccl_types.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/shadow/observer.h"
#include "plugin/preload/funnel.h"

namespace slimwire::preload {

// Arguments of a call that moves payload; the last columns of nccl_api.def fill it.
struct Payload {
    const void* send = nullptr;
    void* recv = nullptr;
    size_t count = 0;
    ncclDataType_t type = ncclFloat32;
    ncclRedOp_t redop = ncclSum;
    int root = 0;  // or peer
};

inline CollectiveCall make_call(Op op,
                                const Payload& payload,
                                ncclComm_t comm,
                                cudaStream_t stream) noexcept {
    CollectiveCall call;
    call.signature.op = op;
    call.signature.dtype = static_cast<DType>(payload.type);
    call.signature.redop = reduces(op) ? redop_of(payload.redop) : RedOp::kNone;
    call.signature.root_or_peer = payload.root;
    call.signature.count = payload.count;
    call.send = payload.send;
    call.recv = payload.recv;
    call.nccl_dtype = payload.type;
    call.nccl_op = payload.redop;
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

// Lets slimwire have a call that it has a say in; `forward_it` calls the real function.
template <class Forward>
ncclResult_t offer_or_forward(Runtime* runtime,
                              const CollectiveCall& call,
                              const Forward& forward_it) {
    const DataCall here(*runtime);
    if (dispatch_state(*runtime).observer != nullptr) {
        return observed(runtime, call, forward_it);
    }
    if (const auto taken = offer(runtime, call); taken.has_value()) {
        return *taken;
    }
    return forwarded(runtime, call.comm, forward_it());
}

}  // namespace slimwire::preload
