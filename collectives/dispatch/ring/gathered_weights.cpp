// Of jobs that mark no steps: tells the ring of SLIMWIRE_STATE where a step begins that gathers its
// parameters, and by which values (weights.h). Behind such a gather what it brought is measured on
// its stream; nobody waits for it here. That is in the chain of compressed calls, and works in
// their scratch, which all ranks have or none.
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/ops/measure.h"
#include "collectives/call/training.h"
#include "collectives/communicator/device_objects.h"
#include "collectives/dispatch/ring/state_ring.h"
#include "collectives/dispatch/session.h"

namespace slimwire {
namespace {

struct Room {
    MeasureWork work;
    Measured found;
};

class GatheredWeights final : public CallHook {
  public:
    explicit GatheredWeights(StateRing* ring) noexcept : ring_(*ring) {}

    Status follow(const CallSite& site, const PlanEntry*) override {
        const CallSignature& signature = site.call.signature;
        if (signature.op != Op::kAllGather || signature.count == 0 ||
            !can_measure(signature.dtype) || !training_state().training() ||
            training_state().marks.load(std::memory_order_acquire) > 0) {
            return {};
        }
        Session* const state = &session(&site.communicator);
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        auto value = std::make_shared<GatheredValue>();
        value->failed =
            state->objects.reserve == nullptr ||
            !why_no_scratch(sizeof(Room), state->shape).empty() ||
            !tolerate(site.api, site.api.stream_is_capturing(site.call.stream, &capture)) ||
            capture != cudaStreamCaptureStatusNone;
        if (value->failed && !state->recalls) {
            return {};
        }
        if (ring_.gathers(state, site.place, value) && !value->failed) {
            wanted_.push_back({std::move(value), site.call.recv,
                               static_cast<int64_t>(signature.count) * state->shape.ranks,
                               signature.dtype, site.call.stream});
        }
        return {};
    }
    Status launched(const DeviceApi& api, Communicator* communicator, ResidualStore*) override {
        const DeviceScope scope(api, communicator->device);
        Status status;
        for (const Wanted& one : std::exchange(wanted_, {})) {
            const Status measured = measure(api, &communicator->objects, one);
            one.value->failed = !measured.ok();
            // Where ranks go by it they would go on without this one; else it is no error of the
            // program's.
            if (!measured.ok() && session(communicator).recalls) {
                status = measured;
            } else if (!measured.ok()) {
                (void)api.get_last_error();
            }
        }
        return status;
    }
    void forget() noexcept override {
        for (const Wanted& one : wanted_) {
            one.value->failed = true;
        }
        wanted_.clear();
    }
    void release(const DeviceApi&, Communicator*, Retirement*) noexcept override { forget(); }

  private:
    struct Wanted {
        std::shared_ptr<GatheredValue> value;
        const void* from;
        int64_t count;
        DType dtype;
        cudaStream_t stream;
    };

    static Status measure(const DeviceApi& api, DeviceObjects* objects, const Wanted& one) {
        constexpr const char* kWhat = "measure of what was gathered";
        Room* const room = static_cast<Room*>(objects->reserve);
        if (objects->chained) {
            SLIMWIRE_TRY(
                cuda_status(api, api.stream_wait_event(one.stream, objects->chain, 0), kWhat));
        }
        SLIMWIRE_TRY(cuda_status(
            api, api.memset_async(&room->work, 0, sizeof room->work, one.stream), kWhat));
        MeasureArgs args{};
        args.input = one.from;
        args.work = &room->work;
        args.result = &room->found;
        args.count = one.count;
        args.scale = 1;
        args.dtype = one.dtype;
        args.mark = 1;
        const std::shared_ptr<HostValue> to(one.value, &one.value->measured);
        Status status = enqueue(api, args, one.stream);
        status = status.ok() ? objects->copies.to_host(api, &room->found, to, one.stream) : status;
        const cudaError_t recorded = api.event_record(objects->chain, one.stream);
        objects->chained |= recorded == cudaSuccess;
        return status.ok() ? cuda_status(api, recorded, kWhat) : status;
    }

    StateRing& ring_;
    std::vector<Wanted> wanted_;
};

}  // namespace

std::unique_ptr<CallHook> make_gathered_weights(StateRing* ring) {
    return std::make_unique<GatheredWeights>(ring);
}

}  // namespace slimwire
