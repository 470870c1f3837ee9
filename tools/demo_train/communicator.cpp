#include "tools/demo_train/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace demo {
namespace {

constexpr std::chrono::seconds kRendezvousTimeout{60};

std::string function_of(const char* call) {
    const std::string_view text(call);
    return std::string(text.substr(0, text.find('(')));
}

}  // namespace

void check_cuda(cudaError_t error, const char* call) {
    if (error == cudaSuccess) {
        return;
    }
    throw TrainError(function_of(call) + ": " + cudaGetErrorString(error) + " (" +
                     cudaGetErrorName(error) + ")");
}

void check_nccl(ncclResult_t result, const char* call) {
    if (result == ncclSuccess) {
        return;
    }
    std::string text = function_of(call) + ": " + ncclGetErrorString(result);
    const char* detail = ncclGetLastError(nullptr);
    if (detail != nullptr && *detail != '\0') {
        text += std::string(": ") + detail;
    }
    throw TrainError(text);
}

void FreeDevice::operator()(void* pointer) const {
    static_cast<void>(cudaFree(pointer));
}
void FreePinned::operator()(void* pointer) const {
    static_cast<void>(cudaFreeHost(pointer));
}

void* allocate_device(size_t bytes) {
    void* pointer = nullptr;
    DEMO_CUDA(cudaMalloc(&pointer, bytes));
    return pointer;
}

void* allocate_pinned(size_t bytes) {
    void* pointer = nullptr;
    DEMO_CUDA(cudaHostAlloc(&pointer, bytes, cudaHostAllocDefault));
    std::memset(pointer, 0, bytes);
    return pointer;
}

Event::Event(bool timing) {
    DEMO_CUDA(
        cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming));
}

Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

Event::~Event() {
    if (event_ != nullptr) {
        static_cast<void>(cudaEventDestroy(event_));
    }
}

Communicator::Communicator(const World& world)
    : world_(world), pending_exceptions_(std::uncaught_exceptions()) {
    int devices = 0;
    DEMO_CUDA(cudaGetDeviceCount(&devices));
    if (devices == 0) {
        throw TrainError("cudaGetDeviceCount: no device");
    }
    DEMO_CUDA(cudaSetDevice(world_.local_rank % devices));
    DEMO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));

    ncclUniqueId id{};
    if (world_.rank == 0) {
        DEMO_NCCL(ncclGetUniqueId(&id));
    }
    exchange_from_rank0(world_, std::as_writable_bytes(std::span(id.internal)), kRendezvousTimeout);
    DEMO_NCCL(ncclCommInitRank(&comm_, world_.size, id, world_.rank));
}

Communicator::~Communicator() {
    const bool failing = std::uncaught_exceptions() > pending_exceptions_;
    if (comm_ != nullptr) {
        static_cast<void>(failing ? ncclCommAbort(comm_) : ncclCommDestroy(comm_));
    }
    if (stream_ != nullptr) {
        static_cast<void>(cudaStreamDestroy(stream_));
    }
}

void Communicator::record(const Event& event) {
    DEMO_CUDA(cudaEventRecord(event.get(), stream_));
}

void Communicator::check_async() {
    ncclResult_t state = ncclSuccess;
    DEMO_NCCL(ncclCommGetAsyncError(comm_, &state));
    if (state != ncclInProgress) {
        check_nccl(state, "communicator");
    }
}

void Communicator::wait(const Event& event) {
    // Short sleeps: on a machine with fewer cores than ranks a busy wait would slow the others
    // down.
    constexpr std::chrono::microseconds kShortest{20};
    constexpr std::chrono::microseconds kLongest{200};
    for (auto pause = kShortest;; pause = std::min(pause * 2, kLongest)) {
        const cudaError_t state = cudaEventQuery(event.get());
        check_async();
        if (state == cudaSuccess) {
            return;
        }
        if (state != cudaErrorNotReady) {
            check_cuda(state, "cudaEventQuery");
        }
        std::this_thread::sleep_for(pause);
    }
}

template <class T, class Call>
void Communicator::through_device(
    const T* input, T* output, size_t in_elems, size_t out_elems, Call call) {
    const auto host = make_pinned_array<T>(in_elems + out_elems);
    const auto device = make_device_array<T>(in_elems + out_elems);
    std::copy_n(input, in_elems, host.get());
    DEMO_CUDA(cudaMemcpyAsync(device.get(), host.get(), in_elems * sizeof(T),
                              cudaMemcpyHostToDevice, stream_));
    check_nccl(call(device.get(), device.get() + in_elems), "collective on statistics");
    DEMO_CUDA(cudaMemcpyAsync(host.get() + in_elems, device.get() + in_elems, out_elems * sizeof(T),
                              cudaMemcpyDeviceToHost, stream_));
    const Event done(false);
    record(done);
    wait(done);
    std::copy_n(host.get() + in_elems, out_elems, output);
}

void Communicator::sum(std::vector<double>& values) {
    through_device(values.data(), values.data(), values.size(), values.size(),
                   [&](const double* in, double* out) {
                       return ncclAllReduce(in, out, values.size(), ncclFloat64, ncclSum, comm_,
                                            stream_);
                   });
}

void Communicator::minimum(std::vector<float>& values) {
    through_device(values.data(), values.data(), values.size(), values.size(),
                   [&](const float* in, float* out) {
                       return ncclAllReduce(in, out, values.size(), ncclFloat32, ncclMin, comm_,
                                            stream_);
                   });
}

std::vector<uint64_t> Communicator::all_gather(uint64_t value) {
    std::vector<uint64_t> values(static_cast<size_t>(size()));
    through_device(&value, values.data(), 1, values.size(), [&](const uint64_t* in, uint64_t* out) {
        return ncclAllGather(in, out, 1, ncclUint64, comm_, stream_);
    });
    return values;
}

}  // namespace demo
