// Messages by a linear autoencoder that learns with the network around it (linear_ae;
// codecs/low_rank/learn.h): forward the sender's E makes `width` numbers of each row, of which the
// receiver's D makes a row again; backward the gradient travels as the gradient of those numbers,
// and both ends learn from it behind the message. Elements of no row travel as they are.
//
// The sender keeps the rows of messages forward until their answers come, the receiver their
// numbers (held_masks.h). A step is made where an answer comes for the last one that waits, so that
// each goes by the same weights both ways. An answer whose message the sender does not hold teaches
// it nothing, and is counted; the gradient is right all the same.
//
// Kernels, one NCCL group, kernels, on the codec stream.
#pragma once

#include "codecs/low_rank/learn.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/held_masks.h"

namespace slimwire {

// Whether the call goes so, or would if its direction were known.
[[nodiscard]] bool learns_code(const AlgorithmRequest& request);
// Of one matrix; with the bytes of a frame: numbers of the rows, other elements, trailer.
[[nodiscard]] Layout learned_code_layout(const AlgorithmRequest& request);
[[nodiscard]] bool is_learned(const Layout& layout) noexcept;
[[nodiscard]] uint64_t learned_code_scratch(const Layout& layout, const CallSignature& signature);
// What is kept of a message forward at its sender, or its receiver: bytes, a multiple of 16.
[[nodiscard]] uint64_t learned_code_kept(const Plan& plan, bool at_sender) noexcept;

// E or D of the messages forward to or from one peer with what Adam knows of it, in device memory.
class CodeWeights {
  public:
    // Begins the weights on the first call; without room there are none. Errors: of CUDA.
    Status prepare(const BeforeCall& before, Communicator* state, const Plan& plan);
    [[nodiscard]] float* data() const noexcept { return weights_; }
    // Makes `args` a step, the next one.
    void step(float rate, LearnArgs* args) noexcept;

    void release(Communicator* state, Retirement* left) noexcept;

  private:
    float* weights_ = nullptr;  // LearnArgs::weights
    uint64_t bytes_ = 0;
    double first_decay_ = 1, second_decay_ = 1;  // 0.9 and 0.999 to the number of steps
    bool asked_ = false;
};

class LearnedCode final : public Exchange {
  public:
    explicit LearnedCode(const ExchangeContext& context);

    [[nodiscard]] int phases() const noexcept override { return 1; }
    [[nodiscard]] bool exchanges(int) const noexcept override { return true; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] bool sends() const noexcept { return context_.plan.signature.op == Op::kSend; }
    [[nodiscard]] bool answers() const noexcept {
        return context_.plan.signature.direction == Direction::kBackward;
    }
    [[nodiscard]] const FactoredMessage& message() const noexcept {
        return *context_.plan.layout.factored;
    }
    [[nodiscard]] char* trailer() const noexcept;
    [[nodiscard]] LowRankArgs args() const noexcept;
    Status run(LowRankStep step, const LowRankArgs& args);
    Status move_raw(void* buffer, bool to_frame);
    Status find_weights();
    // From the rows and numbers of the message that is answered, or an answer to it.
    Status learn(const void* rows, float* numbers);

    ExchangeContext context_;
    float* weights_ = nullptr;
};

}  // namespace slimwire
