// What a training step does on the wire: the parameters and gradients of all buckets on both sides
// of the bus, and the two ways to keep ranks together.
//   replicated: every rank holds all parameters; gradients are averaged by one all-reduce a bucket
//   sharded:    every rank owns 1/size of each bucket; parameters are all-gathered before they are
//               used, forward and again backward, and gradients are reduce-scattered (as FSDP does)
// The trainer calls in this order, a step: begin_step, need() for each layer forward, end_forward,
// need() for each layer backward, reduce() of each bucket as it becomes ready, then update() of
// each bucket in the same order. All calls are asynchronous but need() and update(). One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tools/demo_train/communicator.h"
#include "tools/demo_train/model.h"

namespace demo {

class Exchange {
  public:
    Exchange(Communicator& communicator, const BucketLayout& layout, SgdSettings sgd);
    virtual ~Exchange() = default;

    float* parameters() { return parameters_.get(); }  // host, layout.flat_elems
    float* gradients() { return gradients_.get(); }

    // Rank 0's parameters on every rank; before the first step.
    virtual void broadcast_parameters();
    virtual void begin_step() {}
    virtual void need(size_t /*bucket*/) {}
    virtual void end_forward() {}
    virtual void reduce(size_t bucket) = 0;
    virtual void update(size_t bucket, float rate) = 0;
    // Makes parameters() the current ones of all ranks: for tests and at the end.
    virtual void gather_parameters() {}

    // Time of this step's collectives by stream events around each call, milliseconds, in the order
    // of their enqueueing. After the last update().
    std::vector<float> step_times();
    // Bytes of the buffers that this step's collectives were called with.
    size_t dense_bytes_per_step() const { return dense_bytes_per_step_; }

  protected:
    // Enqueues `call` between a pair of timing events.
    template <class Call>
    void timed(const char* name, Call call);
    void upload(float* device, const float* host, size_t elems);
    void download(float* host, const float* device, size_t elems);

    Communicator& communicator_;
    const BucketLayout& layout_;
    SgdSettings sgd_;
    PinnedArray<float> parameters_, gradients_;
    DeviceArray<float> device_;    // one flat array: gradients, or gathered parameters
    std::vector<Event> finished_;  // of each bucket: its result is in host memory
    size_t dense_bytes_per_step_ = 0;

  private:
    struct Span {
        Event begin{true}, end{true};
    };
    std::vector<Span> spans_;
    size_t spans_used_ = 0;
};

std::unique_ptr<Exchange> make_replicated_exchange(Communicator& communicator,
                                                   const BucketLayout& layout,
                                                   SgdSettings sgd);
std::unique_ptr<Exchange> make_sharded_exchange(Communicator& communicator,
                                                const BucketLayout& layout,
                                                SgdSettings sgd);

}  // namespace demo
