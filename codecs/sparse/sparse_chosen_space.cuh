// What the kernel of topk and threshold is told and keeps in the workspace: tickets, and for each
// chunk what its thread blocks tell one another. sparse_chosen.cuh says how they work together.
#pragma once

#include <cstddef>

#include "codecs/gpu/look_back.cuh"
#include "codecs/sparse/sparse.cuh"
#include "codecs/sparse/threshold_control.h"

namespace slimwire {
namespace {

constexpr int kDigits = 2048;
constexpr int64_t kPartElems = 2 * kSparseSpan;  // read for one ticket while the cut is looked for
constexpr int64_t kMostSharers = 512;            // tickets of a later round
// Chunks above it are sampled, so that one reading of them leaves a list of candidates.
constexpr int64_t kSampledElems = 1 << 17;
constexpr int64_t kSampleEights = 512;
constexpr int64_t kMostListed = 2048;               // candidates of a part
constexpr int64_t kMostCounted = int64_t{1} << 31;  // elements in a block's 32-bit counts
constexpr int kChosenBlocks = 4;                    // thread blocks of a multiprocessor
constexpr int kEliasLows = kSparseSpan / 32 + 32;   // words of shared memory for a tile's bits

// Rounds of tickets. Only topk has those before kSend: they find the cut digit by digit.
enum ChosenRound : int { kPrepare, kFilter, kRefine, kSend = kRefine + 3, kChosenRounds };

// Words of one chunk. `round`: nonce + rounds that are over; the cut is final with kSend.
struct ChosenState {
    unsigned long long lost;  // nonce + 1: something non-finite found no room
    unsigned long long round;
    unsigned long long done[kSend];  // tickets of each round that are done, see count_up()
    unsigned long long at_least;     // elements not below the cut
    uint32_t low;                    // the cut lies in [low, high)
    uint32_t high;
    uint32_t wanted;  // of those in it; after the last digit: ties
    uint32_t guess;   // lists of candidates hold all that is not below it
    int shift;        // of the digit that is counted
    unsigned long long digits[kDigits];
};

// The workspace of a chunk: state, look-back, the parts' candidates as fp32 magnitudes; for integer
// values what is sent as fp32, its position, and the values of each block of 64 that are there.
struct ChosenSpace {
    int64_t states;
    int64_t counts;
    int64_t lists;
    int64_t room;  // candidates of a part; 0: no lists
    int64_t blocks;
    int64_t positions;
    int64_t sent;
    int64_t bytes;

    __host__ __device__ static int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }
    __host__ __device__ static int64_t tiles(const SparsePlan& plan) {
        return (plan.count + kSparseSpan - 1) / kSparseSpan;
    }
    __host__ __device__ static int64_t parts(const SparsePlan& plan) {
        return (plan.count + kPartElems - 1) / kPartElems;
    }
    __host__ __device__ static ChosenSpace of(const SparsePlan& plan) {
        const bool top = plan.kind == SparseKind::kTopK;
        ChosenSpace space = {};
        space.states = aligned(
            static_cast<int64_t>(top ? sizeof(ChosenState) : offsetof(ChosenState, digits)));
        space.counts =
            aligned(space.states + tiles(plan) * static_cast<int64_t>(sizeof(LookBackState)));
        if (top && plan.count > kSampledElems && plan.capacity <= plan.count / 8) {
            const int64_t room = 64 + 4 * plan.capacity * kPartElems / plan.count;
            space.room = room < kMostListed ? room / 32 * 32 : kMostListed;
        }
        const int64_t lists = space.room > 0 ? parts(plan) : 0;
        space.lists = aligned(space.counts + lists * 4);
        space.blocks = aligned(space.lists + lists * space.room * 4);
        const int64_t blocks = plan.format == ValueFormat::kNative
                                   ? 0
                                   : (plan.capacity + kSparseBlock - 1) / kSparseBlock;
        space.positions = aligned(space.blocks + blocks * 8);
        space.sent = space.positions + blocks * kSparseBlock * 8;
        space.bytes = space.sent + blocks * kSparseBlock * 4;
        return space;
    }
};

// What one launch does: encodes, or looks for the exact thresholds of threshold_control.h.
enum class ChosenTask : uint8_t { kThreshold, kTopK, kAdapt };

// What the kernel is told.
struct ChosenArgs {
    EncodeArgs encode;
    ThresholdRun* thresholds;  // null but for kAdapt
    SparseWork work;
    ChosenSpace space;  // of a chunk
    ChosenSpace last_space;
    int64_t tickets[kChosenRounds];  // of a chunk, for each round
    int64_t first_tile;              // ticket
    uint64_t nonce;
    unsigned most_pending;  // tickets that may be counted for before counts could overflow
    bool as_is;  // 16-bit elements without a factor or a residual; nothing below the second digit
};

// What the threads of a block share.
struct ChosenShared {
    union {
        alignas(16) float p[kSparseSpan];  // of a tile, where marked
        uint32_t digits[kDigits];          // counted and not yet added to the chunk's
        uint32_t elias[kEliasLows + kSparseSpan / 8 + 8];  // bits and half bytes of a tile
    };
    uint32_t marks[kThreads];  // a bit for every element of a tile
    int sums[kThreads / kWarpThreads];
    uint64_t wide_sums[kThreads / kWarpThreads];
    unsigned listed;
    unsigned full;  // segments
    bool last;
    // The ticket: its chunk, round and number in them; -1: no more.
    int64_t chunk;
    int round;
    int64_t item;
    // The cut of the chunk, as the ticket needs it.
    uint32_t low;
    uint32_t high;
    uint32_t wanted;
    uint32_t guess;
    uint32_t least16;
    int shift;
    int over;  // rounds that are over
    uint64_t before;
    const uint8_t* ahead;  // what the next ticket reads
    int64_t ahead_bytes;
};

// The elements that a launch looks at: all of a chunk, or groups of them.
template <class Element>
struct WholeSource : UserSource<Element> {
    using ElementType = Element;
    static constexpr bool kContiguous = true;
};
template <class Element>
struct SampledSource {
    using ElementType = Element;
    static constexpr bool kContiguous = false;

    const uint8_t* input;
    const float* residual;
    int64_t count;   // of the sample
    int64_t stride;  // ThresholdSample::stride
    float factor;

    __device__ __forceinline__ void eight(int64_t i, Eight& p) const {
        const int64_t at = i / kSampleGroup * stride + i % kSampleGroup;
        const int64_t end = at + (count - i);  // may be before `at`
        UserSource<Element>{input, residual, end, factor}.eight(at, p);
    }
};

// One chunk, as a thread block sees it: in shared memory, which spares registers.
template <class Source>
struct SourcedChunk {
    using Element = typename Source::ElementType;

    SparsePlan plan;
    ChosenSpace space;
    Source source;
    uint8_t* output;
    float* residual;
    uint8_t* workspace;

    // By one thread.
    __device__ void set(const ChosenArgs& args, int64_t chunk, float factor) {
        const EncodeArgs& encode = args.encode;
        const int64_t at = chunk * args.work.chunk_elems;
        plan = args.work.plan(chunk);
        space = chunk + 1 == args.work.chunks ? args.last_space : args.space;
        residual = encode.residual != nullptr ? encode.residual + at : nullptr;
        const auto* const input = static_cast<const uint8_t*>(encode.input) + at * Element::kBytes;
        if constexpr (Source::kContiguous) {
            source = {{input, residual, plan.count, factor}};
        } else {
            ThresholdSample sample = {plan.count, kSampleGroup, plan.capacity};
            if (!finds_exact(*args.thresholds, encode.params.refresh)) {
                sample = threshold_sample(plan.count, plan.capacity);
            }
            source = {input, residual, sample.elems, sample.stride, factor};
            plan.count = sample.elems;
            plan.capacity = sample.wanted;
            space = ChosenSpace::of(plan);
        }
        output = static_cast<uint8_t*>(encode.output) + chunk * encode.slot_bytes;
        workspace = static_cast<uint8_t*>(encode.workspace) + 8 * kLookBackCounters +
                    chunk * args.space.bytes;
    }

    __device__ ChosenState& state() const { return *reinterpret_cast<ChosenState*>(workspace); }
    __device__ LookBackState* states() const {
        return reinterpret_cast<LookBackState*>(workspace + space.states);
    }
    __device__ uint32_t* header() const { return reinterpret_cast<uint32_t*>(output); }
    // Elements that find room, of so many above the cut and equal to it.
    __device__ int64_t sent_before(uint64_t above, uint32_t ties, uint32_t most) const {
        const int64_t sent = static_cast<int64_t>(above) + (ties < most ? ties : most);
        return sent < plan.capacity ? sent : plan.capacity;
    }
};
template <class Element>
using ChosenChunk = SourcedChunk<WholeSource<Element>>;

}  // namespace
}  // namespace slimwire
