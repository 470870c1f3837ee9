#include "collectives/communicator/bootstrap_gather.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/communicator/device_objects.h"

namespace slimwire {
namespace {

// Looks until look(&done) fails or says that it is done, or the deadline passes; `done` says which.
template <class Look>
Status until(uint64_t deadline_us, bool* done, const Look& look) {
    *done = false;
    for (Backoff backoff;; backoff.pause()) {
        SLIMWIRE_TRY(look(done));
        if (*done || steady_us() >= deadline_us) {
            return {};
        }
    }
}

}  // namespace

AllGathering::AllGathering(Runtime& runtime, std::vector<Part> parts)
    : runtime_(runtime), parts_(std::move(parts)), exchanges_(parts_.size()) {}

AllGathering::~AllGathering() {
    release();
}

size_t AllGathering::own(size_t i) const noexcept {
    return static_cast<size_t>(parts_[i].rank) * parts_[i].mine.size();
}

Status AllGathering::start() {
    if (parts_.empty()) {
        return {};
    }
    const DeviceApi& api = runtime_.api();
    const RealNccl& nccl = *parts_.front().nccl;
    for (size_t i = 0; i < parts_.size(); ++i) {
        const Part& of = parts_[i];
        Exchange& exchange = exchanges_[i];
        const DeviceScope device(api, of.device);
        exchange.host = runtime_.device_memory.pin(api, of.all.size());
        if (exchange.host.memory == nullptr) {
            return {Code::kOutOfMemory, "no pinned memory for the identities of ranks"};
        }
        void* memory = nullptr;
        if (tolerate(api,
                     runtime_.device_memory.allocate(api, of.device, of.all.size(), &memory))) {
            exchange.memory = static_cast<char*>(memory);
        }
        const cudaError_t made = make_internal_stream(api, &exchange.stream);
        if (made != cudaSuccess && of.spare != nullptr) {
            tolerate(api, made);
            exchange.stream = of.spare;
        } else {
            SLIMWIRE_TRY(cuda_status(api, made, "identity stream"));
        }
        // Of pageable memory the copy might wait for the device.
        std::memcpy(exchange.host.as<char>() + own(i), of.mine.data(), of.mine.size());
        if (exchange.memory != nullptr) {
            SLIMWIRE_TRY(cuda_status(
                api,
                api.memcpy_async(exchange.memory + own(i), exchange.host.as<char>() + own(i),
                                 of.mine.size(), cudaMemcpyHostToDevice, exchange.stream),
                "identity copy"));
        }
    }
    SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
    for (size_t i = 0; i < parts_.size(); ++i) {
        const Part& of = parts_[i];
        // Where the device has no memory NCCL takes that of the host.
        const Exchange& exchange = exchanges_[i];
        char* const all = exchange.memory != nullptr ? exchange.memory : exchange.host.as<char>();
        const ncclResult_t result =
            nccl.AllGather(all + own(i), all, of.mine.size(), ncclUint8, of.comm, exchange.stream);
        if (result != ncclSuccess && result != ncclInProgress) {
            (void)nccl.GroupEnd();
            return nccl_status(nccl, result, "ncclAllGather of identities");
        }
    }
    launched_ = nccl.GroupEnd();
    return nccl_status(nccl, launched_, "ncclGroupEnd");
}

Status AllGathering::finish_part(size_t i, AbortWatch* watch, uint64_t deadline_us) {
    const DeviceApi& api = runtime_.api();
    const Part& of = parts_[i];
    Exchange& exchange = exchanges_[i];
    bool done = false;
    SLIMWIRE_TRY(until(deadline_us, &done, [&](bool* launched) -> Status {
        bool busy = false;
        SLIMWIRE_TRY(watch->look(&busy));
        ncclResult_t state = launched_;  // of one that `watch` need not know
        if (state == ncclInProgress) {
            SLIMWIRE_TRY(nccl_status(*of.nccl, of.nccl->CommGetAsyncError(of.comm, &state),
                                     "ncclAllGather of identities"));
        }
        *launched = !busy && state != ncclInProgress;
        return nccl_status(*of.nccl, state, "ncclAllGather of identities");
    }));
    if (!done) {
        return {};
    }
    const DeviceScope device(api, of.device);
    if (exchange.memory != nullptr) {
        SLIMWIRE_TRY(
            cuda_status(api,
                        api.memcpy_async(exchange.host.memory, exchange.memory, of.all.size(),
                                         cudaMemcpyDeviceToHost, exchange.stream),
                        "identity copy"));
    }
    // By itself it never ends when a rank is gone.
    SLIMWIRE_TRY(until(deadline_us, &exchange.arrived, [&](bool* ended) -> Status {
        const cudaError_t error = api.stream_query(exchange.stream);
        *ended = error == cudaSuccess;
        if (error != cudaErrorNotReady) {
            return cuda_status(api, error, "identity copy");
        }
        (void)api.get_last_error();  // not being ready is no error of the program
        bool busy = false;
        return watch->look(&busy);
    }));
    if (exchange.arrived) {
        // It ends, too, where a rank is gone.
        bool busy = false;
        SLIMWIRE_TRY(watch->look(&busy));
        std::memcpy(of.all.data(), exchange.host.memory, of.all.size());
    }
    return {};
}

Status AllGathering::finish(AbortWatch* watch, uint64_t deadline_us) {
    for (size_t i = 0; i < parts_.size(); ++i) {
        SLIMWIRE_TRY(finish_part(i, watch, deadline_us));
    }
    release();
    return {};
}

void AllGathering::release() noexcept {
    for (size_t i = 0; i < parts_.size(); ++i) {
        Exchange& exchange = exchanges_[i];
        if (exchange.host.memory == nullptr && exchange.stream == nullptr) {
            continue;
        }
        const DeviceApi& api = runtime_.api();
        const DeviceScope device(api, parts_[i].device);
        cudaEvent_t end = nullptr;
        bool known = exchange.stream == nullptr || tolerate(api, api.stream_query(exchange.stream));
        if (!known) {  // it goes on for ranks that may be gone
            known = tolerate(api, api.event_create_with_flags(&end, cudaEventDisableTiming)) &&
                    tolerate(api, api.event_record(end, exchange.stream));
        }
        void* const memory = std::exchange(exchange.memory, nullptr);
        const Pinned host = std::exchange(exchange.host, {});
        if (known && host.memory != nullptr) {
            runtime_.device_memory.retire(api, parts_[i].device, end, {memory}, {host});
        } else if (end != nullptr) {
            tolerate(api, api.event_destroy(end));
        }
        const cudaStream_t stream = std::exchange(exchange.stream, nullptr);
        if (stream != nullptr && stream != parts_[i].spare) {
            tolerate(api, api.stream_destroy(stream));
        }
    }
}

Status room_to_tell(Runtime& runtime, const Communicator& state, size_t bytes) {
    if (state.shape.ranks == 1) {
        return {};
    }
    const DeviceApi& api = runtime.api();
    const DeviceScope device(api, state.device);
    const Pinned host =
        runtime.device_memory.pin(api, bytes * static_cast<size_t>(state.shape.ranks));
    if (host.memory == nullptr) {
        return {Code::kOutOfMemory, "no pinned memory for the identities of ranks"};
    }
    runtime.device_memory.retire(api, state.device, nullptr, {}, {host});
    return {};
}

uint64_t creation_deadline_us(const Runtime& runtime) {
    return steady_us() + runtime.config.settings.agree_timeout_us;
}

std::optional<size_t> other_rank(const std::vector<uint64_t>& told, uint64_t mine) {
    const auto other =
        std::find_if(told.begin(), told.end(), [&](uint64_t value) { return value != mine; });
    return other == told.end() ? std::nullopt
                               : std::optional<size_t>(static_cast<size_t>(other - told.begin()));
}

}  // namespace slimwire
