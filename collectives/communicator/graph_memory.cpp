#include "collectives/communicator/graph_memory.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/communicator/communicator.h"

namespace slimwire {

Status keep_with_graph(const DeviceApi& api, cudaGraph_t graph, std::shared_ptr<void> held) {
    using Held = std::shared_ptr<void>;
    auto owned = std::make_unique<Held>(std::move(held));
    cudaUserObject_t owner = nullptr;
    SLIMWIRE_TRY(
        cuda_status(api,
                    api.user_object_create(
                        &owner, owned.get(), [](void* mine) { delete static_cast<Held*>(mine); }, 1,
                        cudaUserObjectNoDestructorSync),
                    "owner of what a graph keeps"));
    (void)owned.release();  // the object's from here on, and that the graph's
    Status status =
        cuda_status(api, api.graph_retain_user_object(graph, owner, 1, cudaGraphUserObjectMove),
                    "memory retained by a graph");
    if (!status.ok()) {
        tolerate(api, api.user_object_release(owner, 1));
    }
    return status;
}

struct GraphMemory::Returned {
    std::mutex mutex;
    std::vector<std::unique_ptr<Block>> blocks;
};

struct GraphMemory::Block {
    void* memory;
    uint64_t bytes;
    int device;
    bool reserve = false;  // a communicator's
};

GraphMemory::GraphMemory(MemoryBudget* budget, DeviceMemory* memory)
    : returned_(new Returned), budget_(budget), memory_(memory) {}

std::shared_ptr<void> GraphMemory::hold(const Block& block) {
    return {new Block(block), [returned = returned_](Block* last) {
                const std::lock_guard lock(returned->mutex);
                returned->blocks.emplace_back(last);
            }};
}

Result<void*> GraphMemory::allocate(const DeviceApi& api,
                                    cudaGraph_t graph,
                                    int device,
                                    uint64_t bytes) {
    free_returned(api, device);
    void* memory = nullptr;
    if (const cudaError_t error = memory_->allocate(api, device, bytes, &memory);
        error != cudaSuccess) {
        Status failed = cuda_status(api, error, "scratch of a captured call");
        return Status(Code::kOutOfMemory,
                      failed.message() + "; " + std::to_string(bytes) + " bytes were asked for");
    }
    budget_->take(device, bytes);
    SLIMWIRE_TRY(keep_with_graph(api, graph, hold({memory, bytes, device})));
    return memory;
}

Status GraphMemory::keep_reserve(const DeviceApi& api, cudaGraph_t graph, Communicator* state) {
    DeviceObjects& objects = state->objects;
    if (objects.reserve_owner == nullptr) {
        objects.reserve_owner = hold({objects.reserve, objects.reserve_bytes, state->device, true});
    }
    return keep_with_graph(api, graph, objects.reserve_owner);
}

void GraphMemory::free_returned(const DeviceApi& api, int device) {
    std::vector<std::unique_ptr<Block>> blocks;
    {
        const std::lock_guard lock(returned_->mutex);
        const auto others = std::stable_partition(
            returned_->blocks.begin(), returned_->blocks.end(),
            [&](const auto& block) { return device >= 0 && block->device != device; });
        blocks.assign(std::make_move_iterator(others),
                      std::make_move_iterator(returned_->blocks.end()));
        returned_->blocks.erase(others, returned_->blocks.end());
    }
    for (const std::unique_ptr<Block>& block : blocks) {
        memory_->free(api, block->device, block->memory);
        if (block->reserve) {
            budget_->give_back_scratch(block->device, block->bytes);
        } else {
            budget_->give_back(block->device, block->bytes);
        }
    }
}

}  // namespace slimwire
