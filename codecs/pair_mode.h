// What messages backward between stages carry, a parameter of topk, threshold and randomk: in
// CodecParams::target, which these have no other use for.
#pragma once

#include "codecs/args.h"

namespace slimwire {

// Values at the positions of the message that they answer, and no positions. Mask: of the largest;
// runs: of randomk.
enum class PairMode : uint8_t { kNone = 0, kMask = 1, kRuns = 2 };

// Of one of these codecs.
[[nodiscard]] constexpr bool has_pair_mask(const CodecParams& params) noexcept {
    return params.target != static_cast<uint8_t>(PairMode::kNone);
}

// Of linear_ae, in the same place: over communicators of which role copies of a model average what
// it learns, as policy/role.h numbers them; -1: none.
[[nodiscard]] constexpr int averaged_role(const CodecParams& params) noexcept {
    return static_cast<int>(params.target) - 1;
}

}  // namespace slimwire
