// Values at positions that both ends of a message know: the answer to an encoding of topk, or of
// randomk, carries the elements that this one kept, and no positions (Dynamic Communication
// Thresholding, Gupta et al., KDD 2021, model parallel). Not a codec: what is decoded is an
// encoding again.
//
// Called by the algorithms in collectives/. Host bodies and kernels, equal to the bit; layout:
// FORMAT.md, "Masked values".
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/pair_mode.h"
#include "codecs/sparse/sparse_plan.h"

namespace slimwire {

// Behind an encoding in a message forward, and behind the values of one backward, which are at the
// same distance: four words.
struct MaskTrailer {
    // Backward of the message forward that it answers, kNoMask: of none; forward how many answers
    // more than messages forward there were before it (FORMAT.md).
    uint32_t number;
    uint32_t misses;      // forward: answers so far whose mask the sender did not hold
    uint32_t non_finite;  // backward: not 0 where an element is not finite
    uint32_t zero;
};
inline constexpr uint32_t kNoMask = 0xFFFFFFFFu;

// A message forward, of which one backward is the part from the values on.
struct MaskedFrame {
    SparsePlan plan;
    int64_t trailer;  // offset
    int64_t bytes;
    // Of an answer's encoding the last header word; where an element is not finite, sent or not,
    // the other one, and of the first values the bits to keep and to set.
    uint32_t word, lost, keep, set;

    static MaskedFrame of(const CodecParams& params, DType dtype, int64_t count) {
        const bool runs = params.target == static_cast<uint8_t>(PairMode::kRuns);
        const SparsePlan plan =
            sparse_plan(runs ? SparseKind::kRuns : SparseKind::kTopK, params, dtype, count);
        const int64_t trailer = (plan.bytes + 15) / 16 * 16;
        const int64_t bytes = trailer + static_cast<int64_t>(sizeof(MaskTrailer));
        if (!runs) {
            const auto form = static_cast<uint32_t>(plan.form);
            return {plan, trailer, bytes, form, form | kFlagNonFinite, 0xFFFFFFFFu, 0};
        }
        const uint32_t nan = dtype == DType::kFloat32   ? kNanFloat32
                             : dtype == DType::kFloat16 ? kNanFloat16
                                                        : kNanBfloat16;
        return {plan, trailer, bytes, 0, 0, dtype == DType::kFloat32 ? 0 : 0xFFFF0000u, nan};
    }
    // Header and positions of an encoding, by which an answer goes; of randomk the header alone.
    [[nodiscard]] int64_t mask_bytes() const { return plan.values; }
};

// The elements of `input` at the positions of `mask`, as they are, become the values of `frame`,
// whose bytes from the values on are zero before. The trailer gets `number`, or kNoMask where mask
// is null and no value is sent.
struct GatherMaskedArgs {
    const void* mask;   // null, or MaskedFrame::mask_bytes() of an encoding; 16-byte aligned
    const void* input;  // count elements of `dtype`, aligned to the element size
    void* frame;        // MaskedFrame::bytes; 16-byte aligned
    int64_t count;
    CodecParams params;  // of topk or randomk with pair=mask
    DType dtype;
    uint32_t number;
};

// Puts the mask that the frame's trailer names before the frame's values, so that `frame` is an
// encoding. Where it is none of `masks`, that is one of zeros, and *misses counts it.
struct JoinMaskedArgs {
    static constexpr int kMost = 64;
    void* frame;
    uint32_t* misses;  // a device word
    int64_t count;
    CodecParams params;
    DType dtype;
    int32_t held;
    uint32_t numbers[kMost];
    const void* masks[kMost];
};

SLIMWIRE_OPERATION(gather_masked, GatherMaskedArgs)
SLIMWIRE_OPERATION(join_masked, JoinMaskedArgs)

}  // namespace slimwire
