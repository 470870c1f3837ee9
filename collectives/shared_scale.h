// All-reduce of levels on a scale that all ranks agree on (codec thc, codecs/thc.h): the real
// all-reduce sums their integers, so nothing is quantised twice and the result is equal on all
// ranks because the sums are.
//
//   phase 0   largest magnitudes of rotated groups           all-reduce MAX, uint32
//   phase 1   levels in fields of words, and the residuals   all-reduce SUM, uint64
//   phase 2   result from the sums
//
// The input is read in phases 0 and 1 and the result written in phase 2, so both may be one buffer.
// Signs of the rotation are drawn alike on all ranks, which count compressed collectives alike. In
// fp32 with ef14 residuals are what the operations read and write; else they are taken into the
// scratch for the call.
//
// Bytes a rank gives to the transport: as for the native operations on scales and words.
#pragma once

#include "codecs/thc.h"
#include "collectives/exchange.h"

namespace slimwire {

struct SharedScaleMap {
    SharedScaleMap(const Layout& layout, const CallFacts& facts, int ranks);
    ScratchMap scratch;
    int64_t groups, words;  // elements of the two all-reduces
    uint64_t scales, sums;  // areas
};

// One piece of all elements, which has no bytes of its own.
[[nodiscard]] Layout shared_scale_layout(const CodecSpec& codec, const CallFacts& facts);
[[nodiscard]] ExchangeSizes shared_scale_sizes(const Layout& layout,
                                               const CallFacts& facts,
                                               const PlanShape& shape);
[[nodiscard]] uint64_t shared_scale_wire_bytes(const Layout& layout,
                                               const CallFacts& facts,
                                               int ranks,
                                               int rank) noexcept;

class SharedScale final : public Exchange {
  public:
    explicit SharedScale(const ExchangeContext& context);

    [[nodiscard]] int phases() const noexcept override { return 3; }
    [[nodiscard]] bool exchanges(int phase) const noexcept override { return phase < 2; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int) override { return {}; }

  private:
    // Residuals that lie in the scratch for the call.
    [[nodiscard]] bool apart() const noexcept;
    [[nodiscard]] float* window() const noexcept;
    [[nodiscard]] StoredResiduals stored() const noexcept;
    [[nodiscard]] ThcArgs args() const noexcept;
    Status take_residuals();
    Status put_residuals();

    ExchangeContext context_;
    SharedScaleMap map_;
};

}  // namespace slimwire
