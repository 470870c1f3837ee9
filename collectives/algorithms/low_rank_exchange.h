// All-reduce by factors of low rank (PowerSGD: Vogels, Karimireddy, Jaggi 2019): what crosses the
// wire are P (rows x rank) and then Q (columns x rank) of every matrix of the message, in fp32,
// summed by the real all-reduce; elements of no matrix are summed beside P as they are. The result
// is the sum of P Q^T, equal on all ranks because the sums of the factors are.
//
//   phase 0   raw elements packed, Q from the state, P = M Q     all-reduce of P, and of raw ones
//   phase 1   P orthonormal, Q = M^T P                           all-reduce of Q
//   phase 2   result and residual from P and Q, Q becomes the state, raw elements unpacked
//
// A tensor keeps: the state, equal on all ranks, then residuals of all elements (of no use those of
// raw ones) where the call has error feedback. In fp32 with ef14 they are what the operations read
// and write; else they are taken into the scratch for the call.
//
// A linear autoencoder (codec linear_ae) has the same phases with other products: its code Z = M Q,
// and S = M^T Z, which leads Q to the directions in which the sum varies most.
//
//   phase 0   raw elements packed, Q from the state, orthonormal, Z = M Q   all-reduce of Z, raw
//   phase 1   S = M^T Z of the sum's Z                                      all-reduce of S
//   phase 2   result and residual from Z and Q, S becomes the state, raw elements unpacked
//
// Bytes a rank gives to the transport: as for the native operation on both factors and the raw
// elements.
#pragma once

#include "collectives/algorithms/exchange.h"

namespace slimwire {

struct LowRankMap {
    LowRankMap(const Layout& layout, DType dtype);
    ScratchMap scratch;
    uint64_t left, right, next, work, raw;  // next: of an autoencoder, S
};

[[nodiscard]] ExchangeSizes low_rank_sizes(const Layout& layout,
                                           const CallSignature& signature,
                                           const PlanShape& shape);
[[nodiscard]] uint64_t low_rank_wire_bytes(const Layout& layout,
                                           const CallSignature& signature,
                                           int ranks,
                                           int rank) noexcept;

class LowRank : public Exchange {
  public:
    explicit LowRank(const ExchangeContext& context);

    [[nodiscard]] int phases() const noexcept override { return 3; }
    [[nodiscard]] bool exchanges(int phase) const noexcept override { return phase < 2; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int) override { return {}; }

  private:
    // The operations of a phase on the factors; of the last one, that on the result, too.
    virtual Status products(int phase);
    // What the second phase sums.
    [[nodiscard]] virtual float* second() const noexcept { return at(map_.right); }

  protected:
    [[nodiscard]] const FactoredMessage& message() const noexcept {
        return *context_.plan.layout.factored;
    }
    [[nodiscard]] float* at(uint64_t offset) const noexcept {
        return reinterpret_cast<float*>(context_.scratch + offset);
    }
    [[nodiscard]] bool fed() const noexcept;
    [[nodiscard]] StoredResiduals stored() const noexcept;
    [[nodiscard]] LowRankArgs args() const noexcept;
    Status run(std::initializer_list<LowRankStep> steps);
    Status run(LowRankStep step, const LowRankLayout& layout, const LowRankArgs& args);
    Status load_residuals();
    Status store_residuals();
    Status sum(void* elements, int64_t count, DType dtype, bool average, const char* what);

    ExchangeContext context_;
    LowRankMap map_;
};

class Autoencoder final : public LowRank {
  public:
    using LowRank::LowRank;

  private:
    Status products(int phase) override;
    [[nodiscard]] float* second() const noexcept override { return at(map_.next); }
};

}  // namespace slimwire
