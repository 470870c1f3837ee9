#include "collectives/communicator/graph_memory.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <vector>

namespace slimwire {
Result<bool> capturing(const DeviceApi& api, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SLIMWIRE_TRY(
        cuda_status(api, api.stream_is_capturing(stream, &status), "capture of the stream"));
    return status != cudaStreamCaptureStatusNone;
}

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
};

struct GraphMemory::Block {
    void* memory;
    uint64_t bytes;
    int device;
    Returned* returned;
};

GraphMemory::GraphMemory(MemoryBudget* budget, DeviceMemory* memory)
    : returned_(new Returned), budget_(budget), memory_(memory) {}

void GraphMemory::give_back(void* block) {
    std::unique_ptr<Block> owned(static_cast<Block*>(block));
    Returned& returned = *owned->returned;
    const std::lock_guard lock(returned.mutex);
    returned.blocks.push_back(std::move(owned));
}

Result<void*> GraphMemory::allocate(const DeviceApi& api,
                                    cudaGraph_t graph,
                                    int device,
                                    uint64_t bytes) {
    free_returned(api, device);
    auto block = std::make_unique<Block>(Block{nullptr, bytes, device, returned_});
    if (const cudaError_t error = memory_->allocate(api, device, bytes, &block->memory);
        error != cudaSuccess) {
        Status failed = cuda_status(api, error, "scratch of a captured call");
        return Status(Code::kOutOfMemory,
                      failed.message() + "; " + std::to_string(bytes) + " bytes were asked for");
    }
    budget_->take(device, bytes);
    void* memory = block->memory;
    cudaUserObject_t object = nullptr;
    Status status = cuda_status(
        api,
        api.user_object_create(&object, block.get(), give_back, 1, cudaUserObjectNoDestructorSync),
        "owner of a graph's scratch");
    if (!status.ok()) {
        memory_->free(api, device, memory);
        budget_->give_back(device, block->bytes);
        return status;
    }
    (void)block.release();  // the object's from here on
    status =
        cuda_status(api, api.graph_retain_user_object(graph, object, 1, cudaGraphUserObjectMove),
                    "scratch retained by a graph");
    if (!status.ok()) {
        tolerate(api, api.user_object_release(object, 1));
        return status;
    }
    return memory;
}

void GraphMemory::free_returned(const DeviceApi& api, int device) {
    std::vector<std::unique_ptr<Block>> blocks;
    {
        const std::lock_guard lock(returned_->mutex);
        const auto others =
            std::stable_partition(returned_->blocks.begin(), returned_->blocks.end(),
                                  [&](const auto& block) { return block->device != device; });
        blocks.assign(std::make_move_iterator(others),
                      std::make_move_iterator(returned_->blocks.end()));
        returned_->blocks.erase(others, returned_->blocks.end());
    }
    for (const std::unique_ptr<Block>& block : blocks) {
        memory_->free(api, device, block->memory);
        budget_->give_back(device, block->bytes);
    }
}

}  // namespace slimwire
