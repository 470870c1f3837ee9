#include "plugin/net/gpu/gpu.h"

#include <algorithm>

#include "codecs/base/device_scope.h"
#include "codecs/codec.h"
#include "codecs/copy_lines.h"
#include "plugin/net/engine/piece.h"
#include "plugin/net/gpu/gpu_lane.h"

namespace slimwire::net {

Result<std::unique_ptr<Gpu>> Gpu::open(const DeviceApi& api, const EngineSettings& settings) {
    int devices = 0;
    if (!tolerate(api, api.get_device_count(&devices)) || devices == 0) {
        return Status(Code::kUnsupported, "no GPU was found");
    }
    int device = 0;
    SLIMWIRE_TRY(cuda_status(api, api.get_device(&device), "asking for the current GPU"));
    const DeviceScope scope(api, device);
    for (const cudaDeviceAttr attribute :
         {cudaDevAttrUnifiedAddressing, cudaDevAttrCanMapHostMemory}) {
        int has = 0;
        SLIMWIRE_TRY(cuda_status(api, api.device_get_attribute(&has, attribute, device),
                                 "asking what the GPU can"));
        if (has == 0) {
            return Status(Code::kUnsupported, "the GPU cannot reach pinned host memory by itself");
        }
    }
    std::unique_ptr<Gpu> made(new Gpu(api, settings));
    SLIMWIRE_TRY_ASSIGN(std::unique_ptr<GpuLane> lane, made->make_lane(device));
    made->give_back(std::move(lane));
    return made;
}

Gpu::Gpu(const DeviceApi& api, const EngineSettings& settings) : api_(api), settings_(settings) {}
// Only in tests; the process's own is kept with its engine.
Gpu::~Gpu() = default;

Result<std::unique_ptr<GpuLane>> Gpu::make_lane(int device) {
    const DeviceScope scope(api_, device);
    Status status = load_kernels(api_, piece_codec());
    status = status.ok() ? load_copy_lines(api_) : status;
    if (!status.ok()) {
        announced_ = false;
        return status;
    }
    Result<std::unique_ptr<GpuLane>> lane = GpuLane::make(*this, device);
    if (!lane.ok()) {
        announced_ = false;
    }
    return lane;
}

Result<int> Gpu::device_of(const void* data) const {
    cudaPointerAttributes attributes{};
    SLIMWIRE_TRY(cuda_status(api_, api_.pointer_get_attributes(&attributes, data),
                             "asking where GPU memory lies"));
    const bool on_gpu =
        attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
    if (!on_gpu || attributes.device < 0 || attributes.device >= static_cast<int>(kMostDevices)) {
        return Status(Code::kInvalidArgument,
                      "memory registered as CUDA that is no memory of a GPU");
    }
    return attributes.device;
}

Result<std::unique_ptr<GpuLane>> Gpu::lane_at(const void* data) {
    SLIMWIRE_TRY_ASSIGN(const int device, device_of(data));
    {
        const std::lock_guard lock(mutex_);
        const auto kept = std::find_if(kept_.begin(), kept_.end(),
                                       [&](const auto& lane) { return lane->device() == device; });
        if (kept != kept_.end()) {
            std::unique_ptr<GpuLane> lane = std::move(*kept);
            kept_.erase(kept);
            return lane;
        }
    }
    return make_lane(device);
}

void Gpu::give_back(std::unique_ptr<GpuLane> lane) noexcept {
    const std::lock_guard lock(mutex_);
    try {
        (lane->reusable() ? kept_ : left_alone_).push_back(std::move(lane));
    } catch (const std::bad_alloc&) {
        static_cast<void>(lane.release());
    }
}

int Gpu::take_blocks(int device, int most) noexcept {
    std::atomic<int>& blocks = blocks_[static_cast<size_t>(device)];
    int used = blocks.load(std::memory_order_relaxed);
    int taken;
    do {
        taken = std::clamp(settings_.gpu_blocks - used, 1, std::max(most, 1));
    } while (!blocks.compare_exchange_weak(used, used + taken, std::memory_order_relaxed));
    return taken;
}

void Gpu::give_blocks(int device, int blocks) noexcept {
    blocks_[static_cast<size_t>(device)].fetch_sub(blocks, std::memory_order_relaxed);
}

}  // namespace slimwire::net
