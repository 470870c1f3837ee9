// One compressed call under way: the phases that dispatch runs, and what all algorithms share.
//
// A phase is kernels on the codec stream, one real NCCL group, and what follows it. dispatch()
// drives the phases of several communicators side by side; an algorithm says what each holds.
// Derived classes: one file an algorithm; algorithm.h finds them.
#pragma once

#include <utility>

#include "codecs/base/device.h"
#include "codecs/numeric.h"
#include "codecs/residual/load_store.h"
#include "collectives/call/real_nccl.h"
#include "collectives/communicator/communicator.h"
#include "collectives/plan/plan.h"

namespace slimwire {

struct PairUse;  // held_masks.h

// Hears of every encoding of what this rank gives, before anything follows it on the stream.
class EncodingListener {
  public:
    virtual Status encoded(const CodecSpec& codec, const EncodeArgs& args) = 0;

  protected:
    ~EncodingListener() = default;
};

// What a call works with. All of it outlives the exchange.
struct ExchangeContext {
    const DeviceApi& api;
    const RealNccl& nccl;
    const Communicator& state;  // with streams and events made
    const Plan& plan;
    CollectiveCall call;
    cudaStream_t work = nullptr;  // of the codec
    // plan.scratch.bytes of device memory, 256-byte aligned, and unless `alone` those of a group.
    char* scratch = nullptr;
    void* residual = nullptr;              // null, or the tensor's residuals as they are stored
    const PreMulScalar* scalar = nullptr;  // null unless a pre-multiplied sum
    // Nothing else is in the program's group, so phases may wait for the peer one after the other.
    bool alone = true;
    RandomKey random = {};  // rank and step are this call's
    // Where `random` is equal on all ranks but for rank: what its step lacks of this rank's draws.
    uint32_t drawn_before = 0;
    EncodingListener* listener = nullptr;  // only in a rehearsal
    // With pair=mask: of a message its own; of a collective two for each rank, of the messages
    // whose forward ones go to it, and come from it; by an autoencoder two (PairUse). Null in a
    // rehearsal.
    const PairUse* pairs = nullptr;
};

// Bytes from one place of the device to another, and zeros; `what` names them in an error.
Status copy_on_device(const DeviceApi& api,
                      void* to,
                      const void* from,
                      size_t bytes,
                      cudaStream_t stream,
                      const char* what);
Status clear_on_device(
    const DeviceApi& api, void* at, size_t bytes, cudaStream_t stream, const char* what);
// NCCL's operations on the private communicator: bytes of a message, and an all-reduce on the codec
// stream.
Status send_bytes(
    const ExchangeContext& context, const void* from, size_t bytes, int to, cudaStream_t stream);
Status receive_bytes(
    const ExchangeContext& context, void* to, size_t bytes, int from, cudaStream_t stream);
Status all_reduce(const ExchangeContext& context,
                  const void* from,
                  void* to,
                  size_t count,
                  ncclDataType_t type,
                  ncclRedOp_t op,
                  const char* what);

class Exchange {
  public:
    virtual ~Exchange() = default;
    // Phases must be run in order: for each, kernels(), then exchange() inside a real NCCL group,
    // then finish() after that group was closed. Without exchanges(phase) there is no group; it is
    // asked after kernels().
    [[nodiscard]] virtual int phases() const noexcept = 0;
    [[nodiscard]] virtual bool exchanges(int phase) const noexcept = 0;
    virtual Status kernels(int phase) = 0;
    virtual Status exchange(int phase) = 0;
    virtual Status finish(int phase) = 0;
    // Instead of all phases: encodes what this rank gives, as the phases would, and nothing else.
    virtual Status rehearse();
};

// Where a run of residuals begins in a store of the type, and the elements of a store of `elems`
// residuals in `runs` runs. `first` residuals are in the `index` runs before it; of a type in
// blocks every run begins at one, and no two share one.
[[nodiscard]] int64_t stored_begin(ResidualType type, int64_t first, int64_t index) noexcept;
[[nodiscard]] uint64_t stored_elems(ResidualType type, uint64_t elems, uint64_t runs) noexcept;

// What makes the sum of all ranks' contributions an average, by one of two ways, or keeps a codec's
// roundings from making a sum infinite, whose `mean` is 1.
struct Average {
    float mean = 1.0f;  // 1 / ranks: a contribution is multiplied by it before it is encoded
    // Each contribution is multiplied by `input_scale` as it is added, so that no partial sum
    // overflows where the result does not, and the sum by `sum_scale`: of averages
    // 1 / (ranks * input_scale), else 1 / input_scale.
    float input_scale = 1.0f;  // a power of two, so that bits are lost below 2^-100 only
    float sum_scale = 1.0f;
    // Times `sum_scale` the largest number, where roundings may lift sums above it.
    SumLimit sum_limit = {};
};
// `in_float32`: where partial sums are, else in the call's type. Those of fp16 in fp32 cannot
// overflow: `input_scale` is 1. `codec`: of the contributions, whose roundings make no sum that is
// no average infinite either; null: they are as they were.
[[nodiscard]] Average average_of(const ExchangeContext& context,
                                 bool in_float32 = true,
                                 const CodecSpec* codec = nullptr) noexcept;
// The same of `addends` that were multiplied by `mean` before they were encoded.
[[nodiscard]] Average sum_of_means(const ExchangeContext& context,
                                   int addends,
                                   bool in_float32 = true,
                                   const CodecSpec* codec = nullptr) noexcept;

// Elements of a raw part, on the codec stream: those of `buffer` into chunks of `chunk_elems` at
// `chunks`, `stride` bytes apart, multiplied by the call's scalar; or from them into `buffer`.
Status move_raw_part(const ExchangeContext& context,
                     const RawPart& raw,
                     void* buffer,
                     char* chunks,
                     int64_t chunk_elems,
                     int64_t stride,
                     bool to_chunks);

// What a plan asks for. Equal on all ranks, so each is that of the neediest rank.
struct ExchangeSizes {
    uint64_t wire_bytes = 0;       // given to the transport by the rank that sends most
    uint64_t node_wire_bytes = 0;  // that leave the node that sends most
    uint64_t scratch_bytes = 0;
    uint64_t grouped_bytes = 0;  // ScratchLayout's
    // Of one tensor with error feedback: elements, the runs that they are encoded in, and the
    // elements of the largest of these.
    uint64_t residual_elems = 0;
    uint64_t residual_runs = 0;
    uint64_t largest_run = 0;
    // With kEf21 instead: elements of all estimates and of what is owed, and where among them the
    // copies begin of what another rank, or all of them, made.
    uint64_t estimate_elems = 0;
    uint64_t shared_begin = 0;
    uint64_t state_elems = 0;  // with kLowRank: floats that ranks share, in front of the residuals
};

// The usual course: every slice is encoded, crosses a wire in one or more hops (with between()
// before each but the first), and is decoded. With one slice a hop is a phase. With several the
// exchanges run on the communicator's exchange stream and a slice rests a phase between two hops,
// so that the codec prepares a phase while the wire is at the one before, and neither waits: phase
// p waits for the exchange of phase p-2, decodes slice p-2*hops, runs between() of hop h of slice
// p-2h, the last hop first, encodes slice p, and exchanges all of them in one NCCL group. What a
// slice leaves in a buffer is so read before the next but one overwrites it.
class SlicedExchange : public Exchange {
  public:
    [[nodiscard]] int phases() const noexcept final {
        return overlapped_ ? slices() + lag() * hops_ : 1;
    }
    [[nodiscard]] bool exchanges(int phase) const noexcept final {
        return !overlapped_ || phase < phases() - lag();
    }
    Status kernels(int phase) final;
    Status exchange(int phase) final;
    Status finish(int phase) final;
    Status rehearse() final;

  protected:
    // `overlapped`: slices in phases; otherwise everything is one phase and there is one hop.
    SlicedExchange(const ExchangeContext& context, int hops, bool overlapped);

    virtual Status encode(int slice) = 0;
    // On the wire stream before the exchange: what reaches its place without crossing a wire.
    virtual Status place_own(int slice);
    // On the codec stream before hop 1, 2, ...
    virtual Status between(int hop, int slice);
    // Inside a NCCL group; on wire().
    virtual Status send(int hop, int slice) = 0;
    virtual Status decode(int slice) = 0;

    [[nodiscard]] int slices() const noexcept {
        return static_cast<int>(context_.plan.layout.slices.size());
    }
    [[nodiscard]] int ranks() const noexcept { return context_.state.shape.ranks; }
    [[nodiscard]] int rank() const noexcept { return context_.state.rank; }
    [[nodiscard]] cudaStream_t wire() const noexcept { return wire_; }
    [[nodiscard]] const Slice& slice_at(int slice) const noexcept {
        return context_.plan.layout.slices[static_cast<size_t>(slice)];
    }
    [[nodiscard]] size_t slot_bytes(int slice) const noexcept {
        return static_cast<size_t>(slice_at(slice).slot_bytes);
    }
    // Chunks of an operation, as the argument structs of codecs/args.h say.
    struct Run {
        int64_t count;
        int64_t chunk_elems;
        int64_t slot_bytes;
    };
    // Where a piece lies in the call's buffers, and the run that its operations take.
    [[nodiscard]] const char* contribution(const Piece& piece) const noexcept {
        return static_cast<const char*>(context_.call.send) +
               static_cast<int64_t>(piece.offset_elems) * element_bytes();
    }
    [[nodiscard]] char* result(const Piece& piece) const noexcept {
        return static_cast<char*>(context_.call.recv) +
               static_cast<int64_t>(piece.offset_elems) * element_bytes();
    }
    [[nodiscard]] Run run_of(int slice, const Piece& piece) const noexcept {
        return {piece.count, piece.chunk_elems, slice_at(slice).slot_bytes};
    }
    // A run of the tensor's residuals: where it begins and which one it is, among all runs in the
    // order of their begins.
    struct ResidualSpan {
        int64_t first;
        int64_t index;
        bool has_residual = true;  // else there are none, whatever the message has

        // Moves on behind `elems` residuals of a piece, if it has some.
        void pass(const Piece& piece, int64_t elems) noexcept {
            first += piece.has_residual ? elems : 0;
            index += piece.has_residual ? 1 : 0;
        }
    };
    // Enqueues operation(residual) with the `count` residuals of the run in fp32, which it replaces
    // by what it leaves; null where the call has none.
    template <class Operation>
    Status with_residual(const ResidualSpan& span, int64_t count, const Operation& operation) {
        if (!has_residual() || !span.has_residual) {
            return operation(static_cast<float*>(nullptr));
        }
        if (!context_.plan.residual.staged) {
            return operation(static_cast<float*>(context_.residual) + span.first);
        }
        SLIMWIRE_TRY_ASSIGN(float* const residual, load_residual(span, count));
        SLIMWIRE_TRY(operation(residual));
        return store_residual(span, count);
    }
    // Enqueues the encoding of the run, by thresholds of its own where the codec has such.
    Status enqueue_encoding(const CodecSpec& codec, EncodeArgs args, const ResidualSpan& span);
    // Of a run of the piece without its input, unscaled.
    [[nodiscard]] EncodeArgs encode_args(const Piece& piece,
                                         const RandomKey& random,
                                         void* output,
                                         const Run& run) const noexcept;
    // Codec operations on the codec stream, on elements of the piece's type. Encoding applies
    // `factor` and the call's scalar.
    Status encode_run(const Piece& piece,
                      const RandomKey& random,
                      const void* input,
                      const ResidualSpan& span,
                      void* output,
                      const Run& run,
                      float factor = 1.0f);
    Status decode_run(const Piece& piece,
                      const void* input,
                      void* output,
                      const Run& run,
                      bool accumulate,
                      float scale = 1.0f,
                      SumLimit sum_limit = {});
    // EF21 (estimates.cpp), on the codec stream. Encodes what the call's elements at `input`, times
    // `factor` and the call's scalar, differ by from the estimate.
    Status encode_difference(const Piece& piece,
                             const RandomKey& random,
                             const void* input,
                             const float* estimate,
                             void* output,
                             const Run& run,
                             float factor = 1.0f);
    // The estimate, by `codec`, goes into the call's type at `output`, if not null; then chunks of
    // it that hold a value which is not finite begin anew from zero, and `own`'s, if not null, with
    // them. At most as many chunks as ranks; marks() tells which until the next.
    Status deliver_estimate(const CodecSpec& codec,
                            float* estimate,
                            float* own,
                            void* output,
                            int64_t count,
                            int64_t chunk_elems);
    // Adds what was sent to an estimate, which ends at the largest fp32; one of sums that are no
    // average becomes infinite.
    Status take_up(
        const Piece& piece, const void* input, const Run& run, bool of_sums, float* estimate);
    [[nodiscard]] uint32_t* marks() const noexcept;
    [[nodiscard]] float* estimates() const noexcept {  // of the tensor, as the algorithm lays them
        return static_cast<float*>(context_.residual);
    }
    // The sum of `inputs` encodings of one piece, in their order, or what `average` makes of it,
    // into the piece's type: in fp32 and rounded once where the codec can, else decoded and added
    // one after the other, without `sum_scale`. Nothing is cut: the piece is one chunk.
    Status sum_slots(const Piece& piece,
                     const char* input,
                     int64_t stride,
                     int inputs,
                     int64_t count,
                     void* output,
                     const Average& average);
    // decode_reduce_encode of one piece, for a codec that lacks it: decoded and added in its type,
    // in `sum` of args.count elements.
    Status reduce_decoded(const Piece& piece,
                          const DecodeReduceEncodeArgs& args,
                          const ResidualSpan& span,
                          void* sum);
    // The raw part of a slice, if it has one, on the codec stream: its elements, multiplied by the
    // call's scalar, into chunks of `chunk_elems` at `chunks`, `stride` bytes apart; and the
    // inverse, into the call's result.
    Status pack_raw(int slice, char* chunks, int64_t chunk_elems, int64_t stride);
    Status unpack_raw(int slice, const char* chunks, int64_t chunk_elems, int64_t stride);
    // The sum of `rows` runs of elements of the call's type, `stride` bytes apart, in their order,
    // in fp32 and rounded once, or what `average` makes of it. No element: nothing.
    Status sum_raw(const void* input,
                   int64_t stride,
                   int rows,
                   int64_t count,
                   const Average& average,
                   void* output);
    // What piece `piece` of a slice draws: every piece is a tensor of its own to the generator, and
    // so is every `lane` of one.
    [[nodiscard]] RandomKey random_of(int slice, const Piece& piece, uint32_t lane) const noexcept {
        RandomKey key = context_.random;
        const auto index = static_cast<uint32_t>(&piece - slice_at(slice).pieces.data());
        key.tensor += static_cast<uint32_t>(slice) * 0x9E3779B9u + index + lane * 0x85EBCA6Bu;
        return key;
    }
    [[nodiscard]] int64_t element_bytes() const noexcept {
        return static_cast<int64_t>(dtype_bytes(context_.plan.signature.dtype));
    }
    // Pairwise bytes: the slots of `from` go to their ranks, those of `to` come from theirs.
    Status all_to_all(char* from, char* to, size_t bytes);
    // The slot of each rank, `bytes` long, to all; `all` has those of all ranks.
    Status all_gather(char* all, size_t bytes, const char* what);
    Status send_bytes(const void* from, size_t bytes, int to) {
        return slimwire::send_bytes(context_, from, bytes, to, wire_);
    }
    Status receive_bytes(void* to, size_t bytes, int from) {
        return slimwire::receive_bytes(context_, to, bytes, from, wire_);
    }

    ExchangeContext context_;
    // Layout::workspace_bytes of scratch; one is enough, because all kernels run on one stream.
    void* workspace_ = nullptr;

  private:
    [[nodiscard]] bool staged() const noexcept { return overlapped_ && slices() > 1; }
    [[nodiscard]] bool has_residual() const noexcept {  // the call has residuals
        return context_.residual != nullptr && context_.plan.error_feedback != ErrorFeedback::kNone;
    }
    [[nodiscard]] StoredResiduals stored(const ResidualSpan& span) const noexcept;
    Result<float*> load_residual(const ResidualSpan& span, int64_t count);
    Status store_residual(const ResidualSpan& span, int64_t count);
    // Phases from one hop of a slice to the next.
    [[nodiscard]] int lag() const noexcept { return staged() ? 2 : 1; }
    // The slice whose hop `hop` belongs to this phase, or -1; hop `hops` is decoding.
    [[nodiscard]] int slice_of(int phase, int hop) const noexcept {
        const int slice = phase - lag() * hop;
        return slice >= 0 && slice < slices() ? slice : -1;
    }

    int hops_;
    bool overlapped_;
    cudaStream_t wire_;
};

// Where parts of a scratch buffer begin: areas of `slots` slots of the current slice, doubled
// when there are several slices, and single buffers behind them.
class ScratchMap {
  public:
    explicit ScratchMap(const Layout& layout) noexcept : layout_(layout) {}
    // Offset of the area; `bytes()` grows by it.
    uint64_t add_slots(int slots) noexcept { return add_bytes(slots_bytes(slots) * halves()); }
    uint64_t add_bytes(uint64_t bytes) noexcept {
        return std::exchange(bytes_, bytes_ + aligned(bytes));
    }
    // `parts` areas of `part_bytes`, used in turn where slices are several; one otherwise.
    uint64_t add_parts(int parts, uint64_t part_bytes) noexcept {
        return add_bytes((halves() > 1 ? static_cast<uint64_t>(parts) : 1) * part_bytes);
    }
    [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
    // Offset of slice `slice`'s half of an area of `slots` slots at `area`.
    [[nodiscard]] uint64_t half(uint64_t area, int slots, int slice) const noexcept {
        return area + static_cast<uint64_t>(slice) % halves() * slots_bytes(slots);
    }
    // Offset of slice `slice`'s part of add_parts(parts, part_bytes) at `area`.
    [[nodiscard]] static uint64_t part(uint64_t area,
                                       int parts,
                                       uint64_t part_bytes,
                                       int slice) noexcept {
        return area + static_cast<uint64_t>(slice % parts) * part_bytes;
    }

  private:
    [[nodiscard]] uint64_t halves() const noexcept { return layout_.slices.size() > 1 ? 2 : 1; }
    [[nodiscard]] uint64_t slots_bytes(int slots) const noexcept {
        return static_cast<uint64_t>(slots) * static_cast<uint64_t>(layout_.max_slot_bytes);
    }

    const Layout& layout_;
    uint64_t bytes_ = 0;
};

}  // namespace slimwire
