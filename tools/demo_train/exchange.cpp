#include "tools/demo_train/exchange.h"

#include <algorithm>

namespace demo {

Exchange::Exchange(Communicator& communicator, const BucketLayout& layout, SgdSettings sgd)
    : communicator_(communicator),
      layout_(layout),
      sgd_(sgd),
      parameters_(make_pinned_array<float>(layout.flat_elems)),
      gradients_(make_pinned_array<float>(layout.flat_elems)),
      device_(make_device_array<float>(layout.flat_elems)) {
    for (size_t i = 0; i < layout.buckets.size(); ++i) {
        finished_.emplace_back(false);
    }
}

void Exchange::broadcast_parameters() {
    for (size_t i = 0; i < layout_.buckets.size(); ++i) {
        const Bucket& bucket = layout_.buckets[i];
        float* host = parameters_.get() + bucket.offset;
        float* device = device_.get() + bucket.offset;
        upload(device, host, bucket.elems);
        DEMO_NCCL(ncclBroadcast(device, device, bucket.elems, ncclFloat32, 0, communicator_.nccl(),
                                communicator_.stream()));
        download(host, device, bucket.elems);
        communicator_.record(finished_[i]);
    }
    communicator_.wait(finished_.back());
}

std::vector<float> Exchange::step_times() {
    std::vector<float> times(spans_used_);
    for (size_t i = 0; i < spans_used_; ++i) {
        DEMO_CUDA(cudaEventElapsedTime(&times[i], spans_[i].begin.get(), spans_[i].end.get()));
    }
    spans_used_ = 0;
    return times;
}

template <class Call>
void Exchange::timed(const char* name, Call call) {
    if (spans_used_ == spans_.size()) {
        spans_.emplace_back();
    }
    const Span& span = spans_[spans_used_++];
    communicator_.record(span.begin);
    check_nccl(call(), name);
    communicator_.record(span.end);
}

void Exchange::upload(float* device, const float* host, size_t elems) {
    DEMO_CUDA(cudaMemcpyAsync(device, host, elems * sizeof(float), cudaMemcpyHostToDevice,
                              communicator_.stream()));
}

void Exchange::download(float* host, const float* device, size_t elems) {
    DEMO_CUDA(cudaMemcpyAsync(host, device, elems * sizeof(float), cudaMemcpyDeviceToHost,
                              communicator_.stream()));
}

namespace {

class ReplicatedExchange final : public Exchange {
  public:
    ReplicatedExchange(Communicator& communicator, const BucketLayout& layout, SgdSettings sgd)
        : Exchange(communicator, layout, sgd), velocity_(layout.flat_elems) {
        for (const Bucket& bucket : layout.buckets) {
            dense_bytes_per_step_ += bucket.elems * sizeof(float);
        }
    }

    void reduce(size_t index) override {
        const Bucket& bucket = layout_.buckets[index];
        float* host = gradients_.get() + bucket.offset;
        float* device = device_.get() + bucket.offset;
        upload(device, host, bucket.elems);
        timed("ncclAllReduce", [&] {
            return ncclAllReduce(device, device, bucket.elems, ncclFloat32, ncclAvg,
                                 communicator_.nccl(), communicator_.stream());
        });
        download(host, device, bucket.elems);
        communicator_.record(finished_[index]);
    }

    void update(size_t index, float rate) override {
        const Bucket& bucket = layout_.buckets[index];
        communicator_.wait(finished_[index]);
        sgd_update(sgd_, rate, gradients_.get() + bucket.offset, velocity_.data() + bucket.offset,
                   parameters_.get() + bucket.offset, bucket.elems);
    }

  private:
    std::vector<float> velocity_;
};

class ShardedExchange final : public Exchange {
  public:
    ShardedExchange(Communicator& communicator, const BucketLayout& layout, SgdSettings sgd)
        : Exchange(communicator, layout, sgd) {
        size_t elems = 0;
        for (const Bucket& bucket : layout.buckets) {
            shards_.push_back(
                {elems, bucket.padded_elems / static_cast<size_t>(communicator.size())});
            elems += shards_.back().elems;
            // Gathered forward and reduce-scattered; all but bucket 0 gathered again for backward.
            const size_t passes = &bucket == &layout.buckets.front() ? 2 : 3;
            dense_bytes_per_step_ += passes * bucket.padded_elems * sizeof(float);
        }
        parameter_shards_ = make_pinned_array<float>(elems);
        gradient_shards_ = make_pinned_array<float>(elems);
        device_shards_ = make_device_array<float>(elems);
        velocity_.resize(elems);
        gathering_.resize(layout.buckets.size());
    }

    void broadcast_parameters() override {
        Exchange::broadcast_parameters();
        for (size_t i = 0; i < shards_.size(); ++i) {
            const float* own = parameters_.get() + layout_.buckets[i].offset +
                               shards_[i].elems * static_cast<size_t>(communicator_.rank());
            std::copy_n(own, shards_[i].elems, parameter_shards_.get() + shards_[i].offset);
        }
    }

    // Forward uses the buckets from the last to the first.
    void begin_step() override {
        for (size_t i = shards_.size(); i-- > 0;) {
            gather(i);
        }
    }

    // Bucket 0 was used last and is used next: it stays. The others are gathered again, in the
    // order of their use.
    void end_forward() override {
        for (size_t i = 1; i < shards_.size(); ++i) {
            gather(i);
        }
    }

    void need(size_t index) override {
        if (gathering_[index]) {
            communicator_.wait(finished_[index]);
            gathering_[index] = false;
        }
    }

    void reduce(size_t index) override {
        const Bucket& bucket = layout_.buckets[index];
        const Shard& shard = shards_[index];
        float* device = device_.get() + bucket.offset;
        float* device_shard = device_shards_.get() + shard.offset;
        upload(device, gradients_.get() + bucket.offset, bucket.padded_elems);
        timed("ncclReduceScatter", [&] {
            return ncclReduceScatter(device, device_shard, shard.elems, ncclFloat32, ncclAvg,
                                     communicator_.nccl(), communicator_.stream());
        });
        download(gradient_shards_.get() + shard.offset, device_shard, shard.elems);
        communicator_.record(finished_[index]);
    }

    void update(size_t index, float rate) override {
        const Shard& shard = shards_[index];
        communicator_.wait(finished_[index]);
        sgd_update(sgd_, rate, gradient_shards_.get() + shard.offset,
                   velocity_.data() + shard.offset, parameter_shards_.get() + shard.offset,
                   shard.elems);
    }

    void gather_parameters() override {
        begin_step();
        for (size_t i = 0; i < shards_.size(); ++i) {
            need(i);
        }
        step_times();
    }

  private:
    struct Shard {
        size_t offset = 0;  // in the arrays of shards
        size_t elems = 0;
    };

    void gather(size_t index) {
        const Bucket& bucket = layout_.buckets[index];
        const Shard& shard = shards_[index];
        float* device = device_.get() + bucket.offset;
        float* device_shard = device_shards_.get() + shard.offset;
        upload(device_shard, parameter_shards_.get() + shard.offset, shard.elems);
        timed("ncclAllGather", [&] {
            return ncclAllGather(device_shard, device, shard.elems, ncclFloat32,
                                 communicator_.nccl(), communicator_.stream());
        });
        download(parameters_.get() + bucket.offset, device, bucket.padded_elems);
        communicator_.record(finished_[index]);
        gathering_[index] = true;
    }

    std::vector<Shard> shards_;
    PinnedArray<float> parameter_shards_, gradient_shards_;
    DeviceArray<float> device_shards_;
    std::vector<float> velocity_;
    std::vector<bool> gathering_;
};

}  // namespace

std::unique_ptr<Exchange> make_replicated_exchange(Communicator& communicator,
                                                   const BucketLayout& layout,
                                                   SgdSettings sgd) {
    return std::make_unique<ReplicatedExchange>(communicator, layout, sgd);
}

std::unique_ptr<Exchange> make_sharded_exchange(Communicator& communicator,
                                                const BucketLayout& layout,
                                                SgdSettings sgd) {
    return std::make_unique<ShardedExchange>(communicator, layout, sgd);
}

}  // namespace demo
