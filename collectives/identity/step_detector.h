// Finds the training step in the sequence of a communicator's calls, and says of each call at once
// where in the step it stands. Pure: the answers are a function of the signatures given so far, so
// ranks that make the same calls get the same answers without speaking. No device, no NCCL.
//
// A step is a block of calls that came back to back
//  - at least three times and for at least `learn_calls` calls, if it is of two calls or more:
//    shorter runs are what layers of equal size leave inside a step;
//  - or from the first call of the communicator on (StreamCall::kStartUp aside), so that nothing
//  else
//    is known of the program: three times a single all-reduce, or `young_times` times a block of
//    more than one kind (StreamCall).
// Up to `paths` such blocks are remembered (training, evaluation, other buckets). The state is
//   LEARN   no block is known that the calls follow
//   STABLE  each call was the one that the block has next; only these answers are sure. Broadcasts,
//           integers and single numbers come between (losses that are logged, barriers), unknown
//   PROBE   a call was another one. A known block is taken up again once its calls came for two
//           steps and at least `recall_calls` calls, and for longer where it was soon left again;
//           a new one is learned as before, from the calls since then
// Of a block with reduce-scatters whose longest run of all-gathers there is once, or behind whose
// marks a gather comes, the step begins with that gather: the program gathers its parameters there
// (FSDP, ZeRO-3). Its path is of the kinds of its calls, and their ordinals are occurrences, as
// between marks: both are the same on any number of ranks, whose counts differ. Such steps are
// counted from the first call of the communicator on, by a reduce-scatter, which no evaluation has;
// and where one ended, that gather begins another also behind calls that are of no step.
// The block is found as the border of the calls read backwards (Knuth, Morris and Pratt).
//
// What no detector can tell that sees signatures only and answers at once:
//  - tensors of equal signature in a stream that repeats within the step: all calls equal, or a
//  step
//    of equal halves (taken for two);
//  - a block inside one step that comes back to back for `learn_calls` calls and three times, or a
//    phase that repeats a known block for so long as to recall it, with other tensors;
//  - after a jump (a step cut short, evaluation), calls that are what the block has next: the jump
//    is seen at the first other call.
//
// One thread at a time, as NCCL asks for a communicator. Memory is at most 22 bytes for each call
// of `history` and 16 for each call of a block, which is at most a third of the history; it grows
// with the calls, and when a block is learned. Amortised constant time a call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/call/hash.h"
#include "collectives/call/step_position.h"

namespace slimwire {

// All-reduces of one number that programs make where a step of the optimizer begins: the flag of an
// overflow (a maximum), the norm of all gradients (a sum). A step that has such calls begins behind
// them.
enum class StepMark : uint8_t { kNone = 0, kNorm = 1, kFlag = 2 };
[[nodiscard]] constexpr StepMark step_mark(uint64_t signature) noexcept {
    return static_cast<StepMark>(signature & 3);
}

// Of what ranks agree on; equal on both ends of a message. Also equal between runs and builds. Its
// last two bits are the call's StepMark.
[[nodiscard]] inline uint64_t call_signature(const CallSignature& signature) noexcept {
    const bool message = is_point_to_point(signature.op);
    const auto op = static_cast<uint64_t>(message ? Op::kSend : signature.op);
    const auto root = message ? 0u : static_cast<uint32_t>(signature.root_or_peer);
    const uint64_t kind = op | static_cast<uint64_t>(signature.dtype) << 8 |
                          static_cast<uint64_t>(signature.redop) << 16 |
                          static_cast<uint64_t>(root) << 32;
    const bool one = signature.count == 1 && signature.op == Op::kAllReduce;
    const StepMark mark = one && signature.redop == RedOp::kMax   ? StepMark::kFlag
                          : one && signature.redop == RedOp::kSum ? StepMark::kNorm
                                                                  : StepMark::kNone;
    const uint64_t all = mixed(mixed(kind + 0x9E3779B97F4A7C15ull) ^ signature.count);
    return all << 2 | static_cast<uint64_t>(mark);
}

// What a young stream is judged by.
enum class StreamCall : uint8_t {
    kStartUp,  // broadcasts, integers, single numbers: before the first other call they say nothing
    kAllReduce,
    kReduceScatter,
    kOther,
    kAllGather,  // as kOther, but that a step of gathered parameters begins with the first of them
};
[[nodiscard]] inline StreamCall stream_call(const CallSignature& signature) noexcept {
    const bool integers = signature.dtype != DType::kFloat64 &&
                          signature.dtype != DType::kFloat32 &&
                          signature.dtype != DType::kFloat16 && signature.dtype != DType::kBfloat16;
    if (signature.op == Op::kBroadcast || integers || signature.count <= 1) {
        return StreamCall::kStartUp;
    }
    return signature.op == Op::kAllReduce       ? StreamCall::kAllReduce
           : signature.op == Op::kReduceScatter ? StreamCall::kReduceScatter
           : signature.op == Op::kAllGather     ? StreamCall::kAllGather
                                                : StreamCall::kOther;
}

struct StepLimits {
    uint32_t history = 16384;  // calls looked back on; made a power of two
    // At most `history`. More than layers of equal size leave in a row inside one step: four calls
    // for each of 126 layers are 504.
    uint32_t learn_calls = 512;
    uint32_t recall_calls = 64;
    uint32_t paths = 8;
    uint32_t young_times = 8;
};

// Steps that begin by gathering their parameters.
struct GatheredSteps {
    uint64_t path = 0;   // of the last one that was followed; 0: none was
    uint32_t calls = 0;  // of it
    uint64_t first = 0;  // signature of the gather that begins the next one; 0: it has begun
    // What comes so many times in each of them, how often it came, and steps before it counted.
    uint64_t counter = 0, came = 0, before = 0;
    uint32_t times = 1;
    // That ended so far; right where one begins. 0 until one was found.
    [[nodiscard]] uint64_t steps() const noexcept { return before + came / times; }
};

class StepDetector {
  public:
    explicit StepDetector(const StepLimits& limits = {});

    // The next call of the communicator.
    StepPosition next(uint64_t signature, StreamCall kind = StreamCall::kOther);
    // rewind() makes the calls since mark() never to have been, if they are not more than
    // `history`.
    void mark() { marked_ = now_; }
    void rewind() { now_ = marked_; }

    // The signature of the call that was made so many calls before the last one, within `history`.
    [[nodiscard]] uint64_t before(uint64_t distance) const noexcept { return back(distance); }
    [[nodiscard]] StreamCall kind_before(uint64_t distance) const noexcept {
        return kinds_[(now_.calls - 1 - distance) & (ring_.size() - 1)];
    }
    // Calls of the step that is followed now; 0 unless STABLE.
    [[nodiscard]] uint32_t step_calls() const noexcept {
        return now_.following ? static_cast<uint32_t>(now_.paths[now_.current].block->size()) : 0;
    }
    // The last step that began by gathering its parameters: its calls and path.
    [[nodiscard]] const GatheredSteps& gathered() const noexcept { return now_.gathered; }

  private:
    struct Block {
        std::vector<uint64_t> calls;
        std::vector<uint32_t> occurrence;  // of each: equal ones before it
        std::vector<uint32_t> equals;      // of each: equal ones, itself one
        bool gathered = false;             // it begins where parameters are gathered; then
        uint64_t counter = 0;              // the call that steps are counted by, and
        uint32_t counts = 0;               // how often it comes
        [[nodiscard]] size_t size() const noexcept { return calls.size(); }
    };
    struct Path {
        uint64_t id = 0;
        uint64_t used = 0;                   // calls when it was last followed
        std::shared_ptr<const Block> block;  // from where the step begins
        uint32_t anchor = 0;                 // the call of the block that comes least often
        uint32_t recall_calls = 0;           // so many are needed to take it up again
        // How often the whole block came back to back, up to its anchor here, as far as looked for.
        uint32_t whole = 0;
        uint64_t whole_at = 0;
    };
    // What is known; besides it there is only the ring.
    struct Knowledge {
        std::vector<Path> paths;
        std::vector<uint64_t> anchors;  // of paths
        uint64_t calls = 0;             // in all
        uint64_t turned = 0;            // calls when following or searching began
        uint64_t steps = 0;
        uint32_t unchecked = 0;  // calls since learn() last looked
        uint32_t current = 0;    // of paths
        uint32_t position = 0;   // of the call expected next
        bool following = false;
        // The stream from its first call that is not of start-up on, while it is young.
        uint64_t begin = 0;  // calls before it
        uint32_t young = 0;  // calls since; their borders are young_borders_
        uint32_t kinds = 0;  // of those: a bit for each StreamCall
        GatheredSteps gathered;
    };

    [[nodiscard]] uint64_t back(uint64_t distance) const noexcept {
        return ring_[(now_.calls - 1 - distance) & (ring_.size() - 1)];
    }
    [[nodiscard]] uint32_t least_recall(const Path& path) const noexcept;
    [[nodiscard]] bool came(const Path& path) const noexcept;
    StepPosition follow() noexcept;
    void leave() noexcept;
    bool recall(uint64_t signature) noexcept;
    bool learn();
    bool learn_young(StreamCall kind);
    [[nodiscard]] uint32_t young_repeats() const noexcept;
    void adopt(uint32_t period);
    void choose_counter(Block* made, const std::vector<StreamCall>& kinds) const;
    void count_by(const Block& block) noexcept;

    StepLimits limits_;
    std::vector<uint64_t> ring_;     // twice the history: rewinding brings back what fell out of it
    std::vector<StreamCall> kinds_;  // of those calls
    std::vector<uint32_t> borders_;  // of the history read backwards
    std::vector<uint32_t> young_borders_;
    Knowledge now_, marked_;
};

}  // namespace slimwire
