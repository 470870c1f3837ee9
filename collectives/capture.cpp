#include "collectives/capture.h"

#include <atomic>
#include <memory>

#include "codecs/advance.h"
#include "collectives/comm_state.h"

namespace slimwire {

Result<StreamCapture> capture_of(const DeviceApi& api, cudaStream_t stream) {
    StreamCapture capture;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SLIMWIRE_TRY(cuda_status(api,
                             api.stream_get_capture_info(stream, &status, &capture.id,
                                                         &capture.graph, nullptr, nullptr, nullptr),
                             "capture of the stream"));
    if (status == cudaStreamCaptureStatusInvalidated) {
        return Status(Code::kInvalidUsage, "the capture of the stream is already invalid");
    }
    capture.active = status == cudaStreamCaptureStatusActive;
    return capture;
}

struct GraphMemory::Returned {
    std::mutex mutex;
    std::vector<std::unique_ptr<Block>> blocks;
    std::atomic<bool> any{false};
};

struct GraphMemory::Block {
    void* memory;
    int device;
    Returned* returned;
};

GraphMemory::GraphMemory() : returned_(new Returned) {}

void GraphMemory::give_back(void* block) {
    std::unique_ptr<Block> owned(static_cast<Block*>(block));
    Returned& returned = *owned->returned;
    const std::lock_guard lock(returned.mutex);
    returned.blocks.push_back(std::move(owned));
    returned.any.store(true, std::memory_order_release);
}

Result<void*> GraphMemory::allocate(const DeviceApi& api,
                                    cudaGraph_t graph,
                                    int device,
                                    uint64_t bytes) {
    collect(api);
    auto block = std::make_unique<Block>(Block{nullptr, device, returned_});
    if (const cudaError_t error = api.malloc(&block->memory, bytes); error != cudaSuccess) {
        Status failed = cuda_status(api, error, "scratch of a captured call");
        return Status(Code::kOutOfMemory,
                      failed.message() + "; " + std::to_string(bytes) + " bytes were asked for");
    }
    void* memory = block->memory;
    cudaUserObject_t object = nullptr;
    Status status = cuda_status(
        api,
        api.user_object_create(&object, block.get(), give_back, 1, cudaUserObjectNoDestructorSync),
        "owner of a graph's scratch");
    if (!status.ok()) {
        (void)api.free(memory);
        return status;
    }
    (void)block.release();  // the object's from here on
    status =
        cuda_status(api, api.graph_retain_user_object(graph, object, 1, cudaGraphUserObjectMove),
                    "scratch retained by a graph");
    if (!status.ok()) {
        (void)api.user_object_release(object, 1);
        return status;
    }
    return memory;
}

void GraphMemory::collect(const DeviceApi& api) {
    if (!returned_->any.load(std::memory_order_acquire)) {
        return;
    }
    std::vector<std::unique_ptr<Block>> blocks;
    {
        const std::lock_guard lock(returned_->mutex);
        blocks = std::move(returned_->blocks);
        returned_->blocks.clear();
        returned_->any.store(false, std::memory_order_relaxed);
    }
    for (const std::unique_ptr<Block>& block : blocks) {
        const DeviceScope device(api, block->device);
        (void)api.free(block->memory);
    }
}

Status move_steps_to_device(const DeviceApi& api, CommState* state) {
    void* words = nullptr;
    SLIMWIRE_TRY(cuda_status(api, api.malloc(&words, 2 * sizeof(uint32_t)), "device steps"));
    // A stream that no capture knows.
    cudaStream_t stream = nullptr;
    Status status = cuda_status(api, api.stream_create_with_flags(&stream, cudaStreamNonBlocking),
                                "device steps");
    auto* steps = static_cast<uint32_t*>(words);
    if (status.ok()) {
        status = cuda_status(api, api.memset_async(words, 0, 2 * sizeof(uint32_t), stream),
                             "device steps");
    }
    for (int i = 0; status.ok() && i < 2; ++i) {
        status = enqueue(api, AdvanceArgs{steps + i, state->steps[i]}, stream);
    }
    if (status.ok()) {
        status = cuda_status(api, api.stream_synchronize(stream), "device steps");
    }
    if (stream != nullptr) {
        (void)api.stream_destroy(stream);
    }
    if (!status.ok()) {
        (void)api.free(words);
        return status;
    }
    state->device_steps = steps;
    return {};
}

}  // namespace slimwire
