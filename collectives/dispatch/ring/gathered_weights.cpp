// Of jobs that mark no steps: tells the ring of SLIMWIRE_STATE where a step begins that gathers its
// parameters, and by which values (weights.h). Behind such a gather what it brought is measured on
// its stream; nobody waits for it here.
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

    void made(const DeviceApi& api, Communicator* communicator) override {
        void* memory = nullptr;
        if (tolerate(api, api.event_create_with_flags(&end_, cudaEventDisableTiming)) &&
            tolerate(api, communicator->device_memory->allocate_anyhow(
                              api, communicator->device, sizeof(Room), &memory,
                              communicator->objects.home))) {
            room_ = static_cast<Room*>(memory);
        }
    }
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
            room_ == nullptr ||
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
        for (const Wanted& one : std::exchange(wanted_, {})) {
            const bool measured = measure(api, communicator->objects.copies, one);
            (measured ? one.value->enqueued : one.value->failed) = true;
        }
        return {};
    }
    void forget() noexcept override {
        for (const Wanted& one : wanted_) {
            one.value->failed = true;
        }
        wanted_.clear();
    }
    void release(const DeviceApi& api, Communicator*, Retirement* left) noexcept override {
        forget();
        left->after(used_ ? end_ : nullptr);
        left->add(std::exchange(room_, nullptr));
        if (end_ != nullptr) {
            tolerate(api, api.event_destroy(std::exchange(end_, nullptr)));
        }
    }

  private:
    struct Wanted {
        std::shared_ptr<GatheredValue> value;
        const void* from;
        int64_t count;
        DType dtype;
        cudaStream_t stream;
    };

    // What fails is no error of the program's.
    bool measure(const DeviceApi& api, const HostCopies& copies, const Wanted& one) {
        if ((used_ && !tolerate(api, api.stream_wait_event(one.stream, end_, 0))) ||
            !tolerate(api, api.memset_async(&room_->work, 0, sizeof room_->work, one.stream))) {
            return false;
        }
        MeasureArgs args{};
        args.input = one.from;
        args.work = &room_->work;
        args.result = &room_->found;
        args.count = one.count;
        args.scale = 1;
        args.dtype = one.dtype;
        args.mark = 1;
        const std::shared_ptr<HostValue> to(one.value, &one.value->measured);
        Status status = enqueue(api, args, one.stream);
        status = status.ok() ? copies.to_host(api, &room_->found, to, one.stream) : status;
        if (!status.ok()) {
            (void)api.get_last_error();
        }
        used_ = tolerate(api, api.event_record(end_, one.stream));
        return status.ok() && used_;
    }

    StateRing& ring_;
    Room* room_ = nullptr;  // on the device
    cudaEvent_t end_ = nullptr;
    bool used_ = false;
    std::vector<Wanted> wanted_;
};

}  // namespace

std::unique_ptr<CallHook> make_gathered_weights(StateRing* ring) {
    return std::make_unique<GatheredWeights>(ring);
}

}  // namespace slimwire
