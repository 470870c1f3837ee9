// Two-shot all-reduce: encode, exchange the chunks all to all, decode-sum-encode the own chunk in
// one pass, all-gather, decode. Every value is quantised twice whatever the number of ranks, sums
// are taken in rank order in fp32, and every rank (the owner too) decodes the same bytes.
//
// A large message is cut into slices. Phase p of a call does, on the codec stream, encode(p) and
// the decode-reduce-encode of slice p-1; in one NCCL group the all-to-all of slice p and the
// all-gather of slice p-1; then decode(p-2). With several slices the exchanges run on the
// communicator's exchange stream, so the wire works while the codec does. Wire bytes a rank: 2
// (N-1) * total slot bytes.
#pragma once

#include "codecs/base/device.h"
#include "collectives/comm_state.h"
#include "collectives/layout.h"
#include "collectives/real_nccl.h"

namespace slimwire {

[[nodiscard]] uint64_t two_shot_wire_bytes(const Layout& layout, int ranks) noexcept;
[[nodiscard]] uint64_t two_shot_scratch_bytes(const Layout& layout, int ranks) noexcept;
// Worker residual of the whole message, then the server residual of this rank's chunks; fp32.
[[nodiscard]] uint64_t two_shot_residual_bytes(const Layout& layout, uint64_t count) noexcept;

// One call under way. Phases must be run in order: for each, kernels(), then exchange() inside a
// real NCCL group, then finish() after that group was closed.
class TwoShot {
  public:
    // `work` is the stream of the codec; scratch and streams of `state` must be prepared.
    // `residual` is null or two_shot_residual_bytes() of device memory; `scalar` null unless a
    // pre-multiplied sum.
    TwoShot(const DeviceApi& api,
            const RealNccl& nccl,
            const CommState& state,
            const Plan& plan,
            const CollectiveCall& call,
            cudaStream_t work,
            float* residual,
            const PreMulScalar* scalar);

    [[nodiscard]] int phases() const noexcept;
    Status kernels(int phase);
    Status exchange(int phase);
    Status finish(int phase);

  private:
    [[nodiscard]] bool sliced() const noexcept { return plan_.layout.slices.size() > 1; }
    [[nodiscard]] bool has_exchange(int phase) const noexcept;
    // Scratch areas, double-buffered by slice when sliced: to send, received, gathered.
    enum class Area { kSend, kReceive, kGather };
    [[nodiscard]] char* area(Area which, int slice) const noexcept;
    [[nodiscard]] void* workspace() const noexcept;
    // What piece `piece` of a slice draws: every piece is a tensor of its own to the generator.
    [[nodiscard]] RandomKey random_of(int slice, size_t piece) const noexcept;
    Status encode(int slice);
    Status reduce(int slice);
    Status decode(int slice);

    const DeviceApi& api_;
    const RealNccl& nccl_;
    const CommState& state_;
    const Plan& plan_;
    CollectiveCall call_;
    cudaStream_t work_;
    cudaStream_t wire_;
    float* residual_;
    const PreMulScalar* scalar_;
    RandomKey random_;
};

}  // namespace slimwire
