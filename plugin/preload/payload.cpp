// Exported NCCL functions that move payload, made from nccl_api.def: each packs its arguments into
// a CollectiveCall and lets dispatch() decide; what it does not take goes to the real function
// unchanged. Any thread; streams and buffers are the program's.
//
// The twins of NCCL 2.31 take a configuration of the call too. Native calls get it untouched; under
// an NCCL without the twins they go to the plain function, because its members are hints. Only its
// event is not: slimwire records it in front of what NCCL does not launch by the twin.
//
// One-sided calls are forwarded and counted.
#include <nccl_later.h>

#include <cstddef>

#include "collectives/call/nccl_types.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/shadow/observer.h"
#include "plugin/preload/funnel.h"

namespace slimwire::preload {
namespace {

// Arguments of a call that moves payload; the last columns of nccl_api.def fill it.
struct Payload {
    const void* send = nullptr;
    void* recv = nullptr;
    size_t count = 0;
    ncclDataType_t type = ncclFloat32;
    ncclRedOp_t redop = ncclSum;
    int root = 0;  // or peer
};

CollectiveCall make_call(Op op,
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

// Lets slimwire have a call that it has a say in; `forward_it` calls the real function.
template <class Forward>
ncclResult_t offer_or_forward(Runtime* runtime,
                              const CollectiveCall& call,
                              const Forward& forward_it) {
    const DataCall here(*runtime);
    const bool known = known_dtype(call.nccl_dtype);
    if (dispatch_state(*runtime).observer != nullptr) {  // a native call under its eyes
        if (!known) {
            return forward_it();
        }
        Observation observation(*runtime, call);
        return observation.end(forward_it());
    }
    if (runtime->config.active && known) {
        if (const auto taken = dispatch(*runtime, call); taken.has_value()) {
            return *taken;
        }
    }
    const ncclResult_t result = forward_it();
    return runtime->config.listens ? call_forwarded(*runtime, call.comm, result) : result;
}

// NCCL says what is wrong with others.
bool made_by_initializer(const ncclCollConfig_t* config) noexcept {
    constexpr ncclCollConfig_t kInitial = NCCL_COLLCONFIG_INITIALIZER;
    return config == nullptr ||
           (config->magic == kInitial.magic && config->size >= offsetof(ncclCollConfig_t, ext));
}

cudaEvent_t launch_event(const ncclCollConfig_t* config) noexcept {
    const bool has =
        config != nullptr && config->size >= sizeof(*config) && made_by_initializer(config);
    return has ? config->launchCompletionEvent : nullptr;
}

template <class Twin, class Plain, class... Args>
ncclResult_t forward_configured(Runtime* runtime,
                                const CollectiveCall& call,
                                Twin* twin,
                                Plain* plain,
                                const ncclCollConfig_t* config,
                                Args... args) noexcept {
    if (twin != nullptr) {
        return forward(twin, args..., config);
    }
    if (call.launched != nullptr &&
        (!runtime->device().ok() ||
         runtime->api().event_record(call.launched, call.stream) != cudaSuccess)) {
        return ncclUnhandledCudaError;
    }
    return forward(plain, args...);
}

}  // namespace
}  // namespace slimwire::preload

using namespace slimwire;
using namespace slimwire::preload;

#define SLIMWIRE_LIST(...) __VA_ARGS__
#define SLIMWIRE_NCCL_PAYLOAD(name, op, parameters, arguments, payload)                       \
    ncclResult_t nccl##name(SLIMWIRE_LIST parameters, ncclComm_t comm, cudaStream_t stream) { \
        SLIMWIRE_ENTER(comm, name, SLIMWIRE_LIST arguments, comm, stream)                     \
        return offer_or_forward(                                                              \
            rt, make_call(Op::k##op, {SLIMWIRE_LIST payload}, comm, stream),                  \
            [&] { return forward(nccl->name, SLIMWIRE_LIST arguments, comm, stream); });      \
    }
#define SLIMWIRE_NCCL_COLLECTIVE(name, op, parameters, arguments, payload)                 \
    SLIMWIRE_NCCL_PAYLOAD(name, op, parameters, arguments, payload)                        \
    ncclResult_t nccl##name##Config(SLIMWIRE_LIST parameters, ncclComm_t comm,             \
                                    cudaStream_t stream, const ncclCollConfig_t* config) { \
        SLIMWIRE_ENTER(comm, name##Config, SLIMWIRE_LIST arguments, comm, stream, config)  \
        CollectiveCall call = make_call(Op::k##op, {SLIMWIRE_LIST payload}, comm, stream); \
        call.launched = launch_event(config);                                              \
        const auto forward_it = [&] {                                                      \
            return forward_configured(rt, call, nccl->name##Config, nccl->name, config,    \
                                      SLIMWIRE_LIST arguments, comm, stream);              \
        };                                                                                 \
        return nccl->name##Config == nullptr || made_by_initializer(config)                \
                   ? offer_or_forward(rt, call, forward_it)                                \
                   : forward_it();                                                         \
    }
#define SLIMWIRE_NCCL_ONE_SIDED(name, operation, parameters, arguments, data)                 \
    ncclResult_t nccl##name(SLIMWIRE_LIST parameters, ncclComm_t comm, cudaStream_t stream) { \
        SLIMWIRE_ENTER(comm, name, SLIMWIRE_LIST arguments, comm, stream)                     \
        count_one_sided(*rt, comm, #operation, SLIMWIRE_LIST data);                           \
        return forward(nccl->name, SLIMWIRE_LIST arguments, comm, stream);                    \
    }

#pragma GCC visibility push(default)
extern "C" {
#include "collectives/call/nccl_api.def"
}  // extern "C"
#pragma GCC visibility pop
