// This rank's device, stream and NCCL communicator, and memory on both sides of the bus. Everything
// is enqueued on one stream; waiting polls the event and the communicator's state, so that a rank
// that died elsewhere ends this one with NCCL's error instead of a hang. One thread.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tools/demo_train/error.h"
#include "tools/demo_train/rendezvous.h"

namespace demo {

// Throws TrainError "<call>: <text>" unless the result is a success. `call` is the source text of
// the call; its arguments are cut off in the message.
void check_cuda(cudaError_t error, const char* call);
void check_nccl(ncclResult_t result, const char* call);
#define DEMO_CUDA(call) ::demo::check_cuda((call), #call)
#define DEMO_NCCL(call) ::demo::check_nccl((call), #call)

struct FreeDevice {
    void operator()(void* pointer) const;
};
struct FreePinned {
    void operator()(void* pointer) const;
};
template <class T>
using DeviceArray = std::unique_ptr<T[], FreeDevice>;
template <class T>
using PinnedArray = std::unique_ptr<T[], FreePinned>;

void* allocate_device(size_t bytes);
void* allocate_pinned(size_t bytes);  // zeroed

template <class T>
DeviceArray<T> make_device_array(size_t elems) {
    return DeviceArray<T>(static_cast<T*>(allocate_device(elems * sizeof(T))));
}
template <class T>
PinnedArray<T> make_pinned_array(size_t elems) {
    return PinnedArray<T>(static_cast<T*>(allocate_pinned(elems * sizeof(T))));
}

class Event {
  public:
    explicit Event(bool timing);
    ~Event();
    Event(Event&& other) noexcept;
    Event& operator=(Event&&) = delete;
    cudaEvent_t get() const { return event_; }

  private:
    cudaEvent_t event_ = nullptr;
};

class Communicator {
  public:
    // Chooses device LOCAL_RANK modulo the devices there are; collective over all ranks.
    explicit Communicator(const World& world);
    // Destroys the communicator; aborts it when an exception is on its way.
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    int rank() const { return world_.rank; }
    int size() const { return world_.size; }
    ncclComm_t nccl() const { return comm_; }
    cudaStream_t stream() const { return stream_; }

    void record(const Event& event);
    // Until the event has happened. Throws TrainError when the communicator failed meanwhile.
    void wait(const Event& event);

    // Small collectives on host values, waited for. Types that no codec compresses.
    void sum(std::vector<double>& values);
    void minimum(std::vector<float>& values);
    std::vector<uint64_t> all_gather(uint64_t value);

  private:
    template <class T, class Call>
    void through_device(const T* input, T* output, size_t in_elems, size_t out_elems, Call call);
    void check_async();

    World world_;
    cudaStream_t stream_ = nullptr;
    ncclComm_t comm_ = nullptr;
    int pending_exceptions_ = 0;
};

}  // namespace demo
