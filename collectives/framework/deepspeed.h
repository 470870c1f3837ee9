// Hears from one communicator's calls which parameters a DeepSpeed engine without ZeRO reduces in
// which all-reduce. When it is made the engine broadcasts each parameter by itself, in the order of
// registration (engine.py, _broadcast_model); after each step it flattens the gradients in that
// order and reduces them in parts of at least so many elements (allreduce_no_retain). The first
// tells how many elements each parameter has, the second is found from the counts of the
// all-reduces. Shapes are not told.
//
// Of an engine with ZeRO it never says anything. Stages 1 and 2 (stage_1_and_2.py, average_tensor)
// fill buckets as gradients become ready and cut each where a rank's part of the optimizer's state
// ends: that depends on the optimizer's parameter groups, on round robin and on padding, of which
// no call tells, so even the sizes of what is reduced are no sums of parameters. Stage 3 broadcasts
// none. A pipeline's engine tells the shapes of activations (pipe/engine.py, _send_tensor_meta),
// but rules for parameters have no part in messages.
//
// It says nothing rather than guess: where the counts would also be those of parts taken from the
// last parameter down (one or two parts always are), which is how gradients become ready and ZeRO's
// stages 1 and 2 fill their buckets, with an order inside that nothing tells; where parameters are
// left out (frozen); where two engines share the communicator; and where DDP was made on it, which
// has a listener of its own (ddp.h).
//
// What it hears are facts of collectives, equal on all ranks; so are its answers. One thread at a
// time. Copies share what is known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/call.h"
#include "collectives/framework/buckets.h"
#include "collectives/framework/ddp.h"

namespace slimwire {

class DeepSpeedListener {
  public:
    static constexpr size_t kMostParameters = 8192;
    static constexpr uint32_t kModelNumber = 0x80000000u;  // in BucketPlace, apart from DDP's

    // Every collective, in order.
    void hear(const CallFacts& facts);
    // The next all-reduce of floating point elements, after hear(). The model's parameters have as
    // many elements as counts() says and no shapes.
    BucketPlace next(uint64_t count);
    // Elements of each parameter; null while not known.
    [[nodiscard]] const std::vector<uint64_t>* counts() const noexcept { return counts_.get(); }

  private:
    struct Run {
        int32_t root = 0;
        DType dtype = DType::kFloat32;
        std::vector<uint64_t> counts;
    };
    void end_run();

    Run run_;                // of broadcasts, up to the last call
    bool begun_ = false;     // something was summed
    bool gathered_ = false;  // one int64 of each rank, by the last call
    bool hopeless_ = false;  // what it would say might be wrong
    std::shared_ptr<const std::vector<uint64_t>> counts_;
    std::shared_ptr<const DdpModel> model_;
    std::optional<BucketsFromCounts> upward_;
    std::optional<BucketSequence> sequence_;
};

}  // namespace slimwire
