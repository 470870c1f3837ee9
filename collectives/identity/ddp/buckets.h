// Which parameters each all-reduce of a DistributedDataParallel model carries. Pure values: no
// device, no NCCL. All of it is a function of what all ranks see alike. Copies share what does not
// change, so they are cheap.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/identity/ddp/parameters.h"

namespace slimwire {

// The gradients of some parameters, one after another in one flat buffer.
struct Bucket {
    struct Range {
        uint32_t parameter = 0;  // index among the model's parameters
        uint64_t offset = 0;     // elements
        uint64_t count = 0;
        bool operator==(const Range&) const = default;
    };
    std::vector<Range> ranges;  // ascending and without gaps
    uint64_t count = 0;         // elements

    bool operator==(const Bucket&) const = default;
};

// After its first step DDP sorts its buckets by when gradients became ready, and rank 0 broadcasts
// two int32 tensors: the parameters' indices bucket after bucket and then the number of buckets;
// and how many parameters are in each bucket (reducer.cpp, sync_bucket_indices). Empty where these
// are no buckets of all these parameters, each in one of them.
[[nodiscard]] std::optional<std::vector<Bucket>> read_buckets(
    std::span<const int64_t> indices,
    std::span<const int64_t> sizes,
    std::span<const ParameterShape> parameters);

// Before that, and for good where DDP looks for unused parameters, bucket after bucket takes the
// parameters from the last to the first, in the model's order inside a bucket; how many is a
// setting. This finds them out from the counts of the all-reduces.
class BucketsFromCounts {
  public:
    static constexpr uint32_t kMostBetween = 64;

    explicit BucketsFromCounts(std::span<const ParameterShape> parameters);

    // The next all-reduce. True once all parameters came in one division, and again in the same
    // one. Others may come between, up to kMostBetween in a row the second time.
    bool next(uint64_t count);
    // The buckets found, in the order of their all-reduces.
    [[nodiscard]] std::vector<Bucket> buckets() const;

  private:
    static constexpr size_t kMostBegun = 16;
    struct Division {
        std::vector<uint32_t> firsts;  // first parameter of each bucket
        std::vector<uint64_t> counts;  // of the buckets
    };
    bool extend(Division* division, uint64_t count) const;
    bool confirm(uint64_t count);

    std::shared_ptr<const std::vector<uint64_t>> parameter_counts_;
    // Begun at different all-reduces: another tensor's count may be that of some last parameters.
    std::vector<Division> begun_;
    Division found_;        // the first that came to its end; empty before
    size_t confirmed_ = 0;  // of its buckets, those that came again
    uint32_t passed_ = 0;   // others since
};

// Follows the all-reduces of one model: in each step one for each bucket, in order. Others may come
// between. Wrong only for a call that is no bucket and has the count of the very one expected.
class BucketSequence {
  public:
    explicit BucketSequence(std::vector<Bucket> buckets);

    // The bucket of the next all-reduce. Null for another tensor, and while the order is lost:
    // after a bucket that was not the expected one, until all came once in order; for good if they
    // are of one order with itself turned round (equal counts).
    const Bucket* next(uint64_t count);
    [[nodiscard]] const std::vector<Bucket>& buckets() const noexcept { return *buckets_; }

  private:
    bool find_turn() noexcept;

    std::shared_ptr<const std::vector<Bucket>> buckets_;
    std::vector<uint64_t> seen_;  // counts since the order was lost, as many as there are buckets
    size_t expected_ = 0;
    bool lost_ = false;
};

}  // namespace slimwire
