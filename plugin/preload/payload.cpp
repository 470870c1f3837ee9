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

#include "plugin/preload/payload.h"

namespace slimwire::preload {
namespace {

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
