// Messages by a linear autoencoder that learns with the network around it (linear_ae;
// codecs/low_rank/learn.h): forward the sender's E makes `width` numbers of each row, of which the
// receiver's D makes a row again; backward the gradient travels as the gradient of those numbers,
// and both ends learn from it behind the message. Elements of no row travel as they are.
//
// The sender keeps the rows of messages forward until their answers come, the receiver their
// numbers (held_masks.h). A step is made where an answer comes for the last one that waits, so that
// each goes by the same weights both ways; where some never are answered, with the first message
// behind the mark of a step, when nothing waits. An answer whose message the sender does not hold
// teaches it nothing, and is counted; the gradient is right all the same.
//
// Kernels, one NCCL group, kernels, on the codec stream.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "codecs/low_rank/learn.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/factored_blocks.h"
#include "collectives/algorithms/held_masks.h"
#include "collectives/state/replicated_progress.h"

namespace slimwire {

// Whether the call goes so, or would if its direction were known.
[[nodiscard]] bool learns_code(const AlgorithmRequest& request);
// Of one matrix; with the bytes of a frame: numbers of the rows, other elements, of messages a
// trailer.
[[nodiscard]] Layout learned_code_layout(const AlgorithmRequest& request);
[[nodiscard]] bool is_learned(const Layout& layout) noexcept;
[[nodiscard]] uint64_t learned_code_scratch(const Layout& layout, const CallSignature& signature);
// What is kept of a message forward at its sender, or its receiver: bytes, a multiple of 16.
[[nodiscard]] uint64_t learned_code_kept(const Plan& plan, bool at_sender) noexcept;

// Weights that copies of a model average (feedback/code_average.cpp): what the thread of their
// messages and that of the averages share. Only events order their work: averages over several
// communicators one after the other, as these are called. A program whose threads make several of
// them at once, or a message, has weights of which some are averaged.
class AveragedCode {
  public:
    // `kind`: equal where copies have the same. `weights`: null of one that is no more; else
    // prepare() comes first.
    AveragedCode(uint64_t kind, float* weights, uint64_t bytes) noexcept
        : kind_(kind), bytes_(bytes), weights_(weights) {}
    // Whether there are events; else copies go without it.
    [[nodiscard]] bool prepare(const DeviceApi& api) noexcept;

    [[nodiscard]] uint64_t kind() const noexcept { return kind_; }
    [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
    // Around an average on `stream`: the weights behind their last use and average; then they are
    // averaged, for `wire_bytes` that this rank gave.
    Result<float*> begin(const DeviceApi& api, cudaStream_t stream);
    Status averaged(const DeviceApi& api, cudaStream_t stream, uint64_t wire_bytes);
    // Around a use on `stream`: behind the last average, whose bytes come back, once. Work on
    // `stream` is behind all uses so far when this one is recorded.
    Result<uint64_t> take(const DeviceApi& api, cudaStream_t stream);
    Status used(const DeviceApi& api, cudaStream_t stream);
    [[nodiscard]] bool was_averaged();
    // They are no more once what uses them is done.
    void end(const DeviceApi& api, Retirement* left) noexcept;

  private:
    const uint64_t kind_, bytes_;
    std::mutex mutex_;  // of the rest
    float* weights_;
    cudaEvent_t used_ = nullptr, averaged_ = nullptr;
    bool was_averaged_ = false;
    uint64_t wire_bytes_ = 0;
};

// Those of this process, in the order in which they began. Thread-safe.
class AveragedCodes {
  public:
    static AveragedCodes& instance();
    void add(int device, int role, std::shared_ptr<AveragedCode> code);
    void remove(const std::shared_ptr<AveragedCode>& code) noexcept;
    // Those that are averaged over the device's communicators of this role (policy/role.h).
    [[nodiscard]] std::vector<std::shared_ptr<AveragedCode>> of(int device, int role) const;

  private:
    struct One {
        int device, role;
        std::shared_ptr<AveragedCode> code;
    };
    mutable std::mutex mutex_;
    std::vector<One> codes_;
};

// E or D of the messages forward to or from one peer with what Adam knows of it, in device memory.
class CodeWeights {
  public:
    // Begins the weights on the first call, with those of `tensor` where the communicator loaded
    // them; without room those of a message are none, unless copies average them. Errors: of CUDA.
    Status prepare(const BeforeCall& before,
                   Communicator* state,
                   const Plan& plan,
                   const LastingTensor& tensor,
                   Progress* progress);
    [[nodiscard]] float* data() const noexcept { return weights_; }
    // What a later process goes on with: `bytes` of device memory, and how many steps were made.
    struct Saved {
        LastingTensor tensor;
        const float* memory = nullptr;  // null: nothing
        uint64_t bytes = 0;
        std::array<uint64_t, 2> counts = {};  // steps; answers since the last
    };
    [[nodiscard]] Saved save() const { return {tensor_, weights_, bytes_, {steps_, answers_}}; }
    // Around a use on `stream`, where copies average them: bytes that the last average took.
    Result<uint64_t> begin_use(const DeviceApi& api, cudaStream_t stream);
    Status end_use(const DeviceApi& api, cudaStream_t stream);
    // Under which the number of steps is.
    [[nodiscard]] static LastingTensor steps_of(LastingTensor tensor) noexcept;
    // Of a call in the step of a mark: whether answers of a step before it are yet to be learnt
    // from, which is the caller's to do.
    [[nodiscard]] bool take_left(uint64_t mark) noexcept;
    // An answer comes whose step has this mark.
    void count_answer(uint64_t mark);
    // Makes `args` a step, the next one.
    void step(float rate, LearnArgs* args) noexcept;
    // A step by `gradient` in the place of the sums, which are cleared.
    Status step(const DeviceApi& api, const Plan& plan, const float* gradient, cudaStream_t stream);

    void release(const DeviceApi& api, Communicator* state, Retirement* left) noexcept;

  private:
    static constexpr uint64_t kAnyMark = ~uint64_t{0};  // of answers of another process

    Status begin(const BeforeCall& before,
                 Communicator* state,
                 const Plan& plan,
                 Progress* progress);

    LastingTensor tensor_;
    std::shared_ptr<AveragedCode> copies_;  // null: they are this rank's alone
    float* weights_ = nullptr;              // LearnArgs::weights
    uint64_t bytes_ = 0;
    uint64_t steps_ = 0;
    uint64_t own_steps_ = 0;    // of this process
    uint64_t answers_ = 0;      // since the last step
    uint64_t mark_ = kAnyMark;  // of the last of them
    bool asked_ = false;
};

class LearnedCode final : public FactorExchange {
  public:
    using FactorExchange::FactorExchange;

    [[nodiscard]] int phases() const noexcept override { return 1; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] bool sends() const noexcept { return op() == Op::kSend; }
    [[nodiscard]] char* trailer() const noexcept;
    [[nodiscard]] char* raw() const noexcept;
    [[nodiscard]] LowRankArgs args() const noexcept;
    Status find_weights();
    // A step by the sums of gradients.
    Status make_step();
    // From the rows and numbers of the message that is answered, or an answer to it.
    Status learn(const void* rows, float* numbers);

    float* weights_ = nullptr;
};

// All-to-alls and the pair of all-gather and reduce-scatter by a linear autoencoder that learns
// with the network around it, as messages do, but by one E and one D of all ranks:
// what a rank gives goes as the numbers of its rows, and ranks make rows of those that they get.
// Numbers of a sum are added, in the order of the ranks, before rows are made of them.
//
// A rank keeps the rows that it gave forward and the numbers that it got, until the answer comes.
// With the answer of the last one that waits, or the first call behind the mark where some waited
// for none, ranks sum the gradients of both matrices and make a step: all have the same weights,
// and know them from no loaded state but one that all loaded.
//
// Kernels, one NCCL group, kernels, on the codec stream; of a step another group.
[[nodiscard]] uint64_t shared_code_scratch(const Layout& layout,
                                           const CallSignature& signature,
                                           int ranks);
// What is kept of a collective forward: bytes, a multiple of 16.
[[nodiscard]] uint64_t shared_code_kept(const Plan& plan, int ranks) noexcept;
// Bytes that a rank gives to the transport for the gradients of both matrices, once a step; without
// `rank` the one that sends most.
[[nodiscard]] uint64_t shared_code_step_wire(const Layout& layout,
                                             int ranks,
                                             int rank = kNeediestRank);

class SharedCode final : public FactorExchange {
  public:
    using FactorExchange::FactorExchange;

    [[nodiscard]] int phases() const noexcept override { return own_phase() + (last() ? 2 : 1); }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    // The phase that is not of a step: one may be in front of it, one behind it.
    [[nodiscard]] int own_phase() const noexcept {
        return context_.pairs != nullptr && context_.pairs->first ? 1 : 0;
    }
    [[nodiscard]] bool last() const noexcept {
        return answers() && context_.pairs != nullptr && context_.pairs->last;
    }
    [[nodiscard]] char* slot(int block, bool received) const noexcept;
    [[nodiscard]] char* raw_of(char* slot) const noexcept;
    // Of E, or D.
    [[nodiscard]] float* weights(bool encoder) const noexcept;
    [[nodiscard]] float* gradient(bool encoder) const noexcept;
    [[nodiscard]] LowRankArgs args_of(char* slot, bool encoder) const noexcept;
    Status encode(int block, char* slot);
    Status sum_slots();
    Status decode(char* slot, void* output);
    Status copy(void* to, const void* from, uint64_t bytes);
    // From blocks of rows and their numbers: one gradient more of E, or D.
    Status learn(bool encoder, const char* rows, const char* numbers);
    Status sum_gradients();
};

}  // namespace slimwire
