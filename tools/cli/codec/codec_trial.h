// One codec on one tensor, on the host and on one thread: what `slimwire codec` and `slimwire bench
// codec` run and time. Buffers are touched before anything is timed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "codecs/codec.h"

namespace slimwire::cli {

// Page-aligned memory, written once, so that no page fault is timed.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(int64_t bytes);
    [[nodiscard]] uint8_t* data() const { return data_.get(); }

  private:
    struct Free {
        void operator()(uint8_t* p) const;
    };
    std::unique_ptr<uint8_t, Free> data_;
};

// A codec's operations on one tensor in one slot: their arguments, here and on a device.
struct TrialArgs {
    CodecSpec spec;
    DType dtype;
    int64_t count;
    int32_t inputs;  // of the reductions
    int64_t bytes = count * static_cast<int64_t>(dtype_bytes(dtype));
    int64_t slot = (spec.encoded_bytes(dtype, count) + 15) / 16 * 16;

    [[nodiscard]] EncodeArgs encode(const void* input, void* output, float* residual) const;
    [[nodiscard]] DecodeArgs decode(const void* input, void* output, bool accumulate) const;
    [[nodiscard]] DecodeReduceEncodeArgs reduce(const void* sources, void* output) const;
    [[nodiscard]] DecodeReduceArgs sum(const void* sources, void* output) const;
};

class CodecTrial {
  public:
    // `input`: count elements that outlive this. `inputs`: of the reductions; source k is the
    // encoding of the input rotated by k parts of `inputs`. 0: no reduction.
    CodecTrial(
        const CodecSpec& spec, DType dtype, int64_t count, const uint8_t* input, int32_t inputs);

    void encode();
    void encode_residual();
    void decode(bool accumulate) { decode_from(encoded_.data(), accumulate); }
    void decode_reduce_encode();
    void decode_reduce();

    // Bytes that the encoding of the last encode() takes, or what is wrong with it.
    [[nodiscard]] Result<int64_t> encoded_size() const;
    // Relative L2 error of the last decode(false), of the last decode_reduce_encode(), and of the
    // last decode_reduce().
    [[nodiscard]] double error() const;
    [[nodiscard]] double reduced_error();
    [[nodiscard]] double summed_error() const;
    // Whether the last decode(false) gave the input's bits.
    [[nodiscard]] bool exact() const;
    // OperationStatus bits of all operations so far.
    [[nodiscard]] uint32_t status() const { return status_; }

    [[nodiscard]] int64_t bytes() const { return args_.bytes; }
    [[nodiscard]] const uint8_t* encoding() const { return encoded_.data(); }
    [[nodiscard]] uint8_t* output() const { return output_.data(); }

  private:
    void encode_into(const uint8_t* input, uint8_t* output, float* residual);
    void decode_from(const uint8_t* input, bool accumulate);

    template <class Args>
    Args with_status(Args args) {
        args.status = &status_;
        return args;
    }

    TrialArgs args_;
    const uint8_t* input_;
    Buffer output_, encoded_, residual_, sources_, reduced_;
    uint32_t status_ = 0;
};

// --- Time

// Of `body` and of `baseline` in the same run, in turn: medians over `rounds` of the seconds of one
// call, each round at least 10 ms. Processor time of this thread, so that other programs cost
// little.
struct Timing {
    double seconds = 0;
    double baseline_seconds = 0;
};
[[nodiscard]] Timing time_in_turn(const std::function<void()>& body,
                                  const std::function<void()>& baseline,
                                  int rounds);

// Reads every byte once; the baseline of codecs that write next to nothing.
uint64_t read_all(const uint8_t* from, int64_t bytes);

}  // namespace slimwire::cli
