#include "collectives/communicator/bootstrap_gather.h"

#include <algorithm>
#include <utility>

#include "codecs/base/device_scope.h"

namespace slimwire {
namespace {

// Waits for what is on `stream`; an all-gather on it never ends by itself when a rank is gone.
Status await_stream(const DeviceApi& api, cudaStream_t stream, AbortWatch* watch) {
    bool busy = false;
    for (Backoff backoff;; backoff.pause()) {
        const cudaError_t error = api.stream_query(stream);
        if (error == cudaSuccess) {
            return {};
        }
        if (error != cudaErrorNotReady) {
            return cuda_status(api, error, "identity copy");
        }
        (void)api.get_last_error();  // not being ready is no error of the program
        SLIMWIRE_TRY(watch->look(&busy));
    }
}

}  // namespace

AllGathering::AllGathering(Runtime& runtime, std::vector<Part> parts)
    : runtime_(runtime), parts_(std::move(parts)), exchanges_(parts_.size()) {}

AllGathering::~AllGathering() {
    release();
}

char* AllGathering::own(size_t i) const noexcept {
    return exchanges_[i].memory + static_cast<size_t>(parts_[i].rank) * parts_[i].mine.size();
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
        void* memory = nullptr;
        SLIMWIRE_TRY(cuda_status(
            api, runtime_.device_memory.allocate(api, of.device, of.all.size(), &memory),
            "identity buffer"));
        exchange.memory = static_cast<char*>(memory);
        SLIMWIRE_TRY(
            cuda_status(api, api.stream_create_with_flags(&exchange.stream, cudaStreamNonBlocking),
                        "identity stream"));
        SLIMWIRE_TRY(cuda_status(api,
                                 api.memcpy_async(own(i), of.mine.data(), of.mine.size(),
                                                  cudaMemcpyHostToDevice, exchange.stream),
                                 "identity copy"));
        SLIMWIRE_TRY(cuda_status(api, api.stream_synchronize(exchange.stream), "identity copy"));
    }
    SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
    for (size_t i = 0; i < parts_.size(); ++i) {
        const Part& of = parts_[i];
        const ncclResult_t result = nccl.AllGather(own(i), exchanges_[i].memory, of.mine.size(),
                                                   ncclUint8, of.comm, exchanges_[i].stream);
        if (result != ncclSuccess && result != ncclInProgress) {
            (void)nccl.GroupEnd();
            return nccl_status(nccl, result, "ncclAllGather of identities");
        }
    }
    launched_ = nccl.GroupEnd();
    return nccl_status(nccl, launched_, "ncclGroupEnd");
}

Status AllGathering::finish(AbortWatch* watch) {
    const DeviceApi& api = runtime_.api();
    SLIMWIRE_TRY(watch->settle());
    for (const Part& of : parts_) {
        ncclResult_t state = launched_;  // of one that `watch` need not know
        for (Backoff backoff; state == ncclInProgress; backoff.pause()) {
            bool busy = false;
            SLIMWIRE_TRY(watch->look(&busy));
            SLIMWIRE_TRY(nccl_status(*of.nccl, of.nccl->CommGetAsyncError(of.comm, &state),
                                     "ncclAllGather of identities"));
        }
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
        const Part& of = parts_[i];
        const DeviceScope device(api, of.device);
        // First: a copy to pageable memory is waited for by CUDA itself.
        SLIMWIRE_TRY(await_stream(api, exchanges_[i].stream, watch));
        SLIMWIRE_TRY(
            cuda_status(api,
                        api.memcpy_async(of.all.data(), exchanges_[i].memory, of.all.size(),
                                         cudaMemcpyDeviceToHost, exchanges_[i].stream),
                        "identity copy"));
        SLIMWIRE_TRY(await_stream(api, exchanges_[i].stream, watch));
    }
    release();
    return {};
}

void AllGathering::release() noexcept {
    for (size_t i = 0; i < parts_.size(); ++i) {
        Exchange& exchange = exchanges_[i];
        if (exchange.memory == nullptr && exchange.stream == nullptr) {
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
        if (known && memory != nullptr) {
            runtime_.device_memory.retire(api, parts_[i].device, end, {memory});
        } else if (end != nullptr) {
            tolerate(api, api.event_destroy(end));
        }
        if (exchange.stream != nullptr) {
            tolerate(api, api.stream_destroy(std::exchange(exchange.stream, nullptr)));
        }
    }
}

std::optional<size_t> other_rank(const std::vector<uint64_t>& told, uint64_t mine) {
    const auto other =
        std::find_if(told.begin(), told.end(), [&](uint64_t value) { return value != mine; });
    return other == told.end() ? std::nullopt
                               : std::optional<size_t>(static_cast<size_t>(other - told.begin()));
}

}  // namespace slimwire
