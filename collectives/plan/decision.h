// What the policy decides about a call: one action for the message, and where rules ask for
// parameters, which parts of it travel with which codec or as they are. Pure, of rank-equal facts;
// asked once a plan.
#pragma once

#include <string>
#include <vector>

#include "codecs/low_rank/low_rank.h"
#include "collectives/plan/layout.h"
#include "collectives/policy/parameter_ranges.h"
#include "collectives/policy/policy.h"

namespace slimwire {

struct PlanShape;

// Remedies (CallStats::remedy) that several rooms name.
inline constexpr char kMeasureOrSay[] =
    "a min_bytes in bytes, or SLIMWIRE_CALIBRATION with what slimwire calibrate measured";
inline constexpr char kMoreMemory[] = "a larger SLIMWIRE_MAX_MEMORY";
inline constexpr char kMoreScratch[] =
    "a smaller slice_bytes, a larger SLIMWIRE_MAX_MEMORY, or fewer communicators that compress";
inline constexpr char kMarkSteps[] =
    "slimwire_mark_step in each step; else a place is known after three steps and 512 calls";
inline constexpr char kMoreMessages[] =
    "more messages between the two ranks, of which not the first group goes both ways";

inline constexpr char kTellRows[] =
    "row= in the codec, or shapes in front of messages, as Megatron-LM (variable_seq_lengths) and "
    "DeepSpeed's pipeline send them";

struct Decision {
    // Of the message; without a codec: native. Where several rules share a message: codec,
    // algorithm, intra_codec of the rule with a codec that has most elements; kind, type and
    // tensors of error feedback of the one with most among those that have it; the latest start.
    Action action;
    // Ascending, without gaps; empty: the whole call with action.codec.
    std::vector<Segment> segments;
    // Of a codec of low rank: what travels as factors, ascending; the rest goes raw, and there are
    // no segments.
    std::vector<MatrixShape> matrices;
    // With most elements among those with a codec, also where that takes none of them; empty where
    // none decided.
    std::string rule;
    std::string reason;            // which rules, what of them gave way, or why native
    const char* remedy = nullptr;  // of Plan, as the next
    bool lacks_row = false;
    std::vector<std::string> beside;  // other rules with a codec that parts of the message have
};

// Codec segments of a message beyond which those of fewer elements than kSmallSegment travel raw,
// the smallest first: every one costs three launches a slice, raw ranges together do.
inline constexpr size_t kManySegments = 64;
inline constexpr uint64_t kSmallSegment = 16384;

// The ordinals, ascending and with 0, from which on rules decide otherwise about such calls, of
// which no ordinal is known; empty where no rule that may decide asks.
[[nodiscard]] std::vector<uint32_t> ordinals_asked(const CallSignature& signature,
                                                   const PlanShape& shape,
                                                   const Policy& policy);

// The first rule that may decide about a call whose direction is not known, and goes by that: asks
// for it, or has pair=mask; null for none.
[[nodiscard]] const Rule* direction_asked(const CallSignature& signature,
                                          const PlanShape& shape,
                                          const Policy& policy);

// The first rule with a codec that may decide about a part of such a call; null for none.
[[nodiscard]] const Rule* first_with_codec(const CallSignature& signature,
                                           const PlanShape& shape,
                                           const Policy& policy);

// Of a call that can be compressed at all. `parameters`: null where not known.
[[nodiscard]] Decision decide(const CallSignature& signature,
                              const PlanShape& shape,
                              const Policy& policy,
                              const ParameterRanges* parameters);

}  // namespace slimwire
