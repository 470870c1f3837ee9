// Hears from one communicator's calls which DistributedDataParallel models it serves, and which of
// their buckets an all-reduce carries. What it hears is the result of collectives, equal on all
// ranks, and their order; so are its answers, if all ranks hand in the values before the same call.
// No device, no NCCL: who reads the values, and when, is the caller's.
//
// One thread at a time, as NCCL asks for a communicator. Memory is bounded by the model's own
// parameters and kMaxModels. Copies share the models, so that a state is cheap to keep.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/identity/ddp/buckets.h"
#include "collectives/identity/ddp/parameters.h"

namespace slimwire {

struct DdpModel {
    std::vector<ParameterShape> parameters;  // in the order of registration
};

// Which gradients an all-reduce carries. Pointers are valid until the next call of the listener.
struct BucketPlace {
    const DdpModel* model = nullptr;  // null: not known
    const Bucket* bucket = nullptr;
    uint32_t model_number = 0;  // as they were made
    uint32_t division = 0;      // 1 as the model was made, 2 once rebuilt
    uint32_t number = 0;        // of the bucket in its step
    uint32_t occurrence = 0;    // of those before it, as many have its count
};

class DdpListener {
  public:
    static constexpr uint64_t kMaxValues = uint64_t{1} << 17;  // of one tensor; larger are not read
    static constexpr size_t kMaxModels = 64;  // further ones take the place of the oldest

    // Of every collective that the communicator makes, in order: how many elements of
    // signature.dtype to read from its result and to hand to read(); 0 for nearly all.
    [[nodiscard]] uint64_t wanted(const CallSignature& signature, int ranks) noexcept;
    // The results asked for, in the order of their calls. Of an all-gather that no broadcast which
    // was asked for follows directly, none is needed.
    void read(const CallSignature& signature, std::span<const int64_t> values);
    // The next all-reduce of floating point elements.
    BucketPlace next(uint64_t count);

    // Models known now.
    [[nodiscard]] size_t models() const noexcept { return models_.size(); }

  private:
    struct Entry {
        std::shared_ptr<const DdpModel> model;
        bool rebuilt = false;  // its buckets were broadcast
        uint32_t number = 0;
        BucketsFromCounts counts;  // until the buckets are known
        std::optional<BucketSequence> sequence;
    };
    [[nodiscard]] bool may_be_indices(uint64_t count) const noexcept;
    void found_model(std::vector<ParameterShape> shapes);
    void found_indices(std::span<const int64_t> values);

    // By facts alone, ahead of the values.
    enum class Expects : uint8_t { kNothing, kShapes, kBucketSizes };
    Expects expects_ = Expects::kNothing;
    uint32_t unread_ = 0;  // broadcasts asked for and not read
    // By values.
    uint64_t parameters_ = 0;       // that the shapes to come are of; 0: none to come
    std::vector<int64_t> indices_;  // a tensor that may be of bucket indices
    std::vector<Entry> models_;
    uint32_t numbers_ = 0;
};

}  // namespace slimwire
