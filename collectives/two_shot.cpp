#include "collectives/two_shot.h"

namespace slimwire {
namespace {

constexpr int kAreas = 3;

uint64_t buffers(const Layout& layout) noexcept {
    return layout.slices.size() > 1 ? 2 : 1;
}

}  // namespace

uint64_t two_shot_wire_bytes(const Layout& layout, int ranks) noexcept {
    return 2 * static_cast<uint64_t>(ranks - 1) * static_cast<uint64_t>(layout.total_slot_bytes);
}

uint64_t two_shot_scratch_bytes(const Layout& layout, int ranks) noexcept {
    return kAreas * buffers(layout) * static_cast<uint64_t>(ranks) *
               static_cast<uint64_t>(layout.max_slot_bytes) +
           static_cast<uint64_t>(layout.workspace_bytes);
}

uint64_t two_shot_residual_bytes(const Layout& layout, uint64_t count) noexcept {
    uint64_t elems = count;
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            elems += static_cast<uint64_t>(piece.chunk_elems);
        }
    }
    return elems * sizeof(float);
}

TwoShot::TwoShot(const DeviceApi& api,
                 const RealNccl& nccl,
                 const CommState& state,
                 const Plan& plan,
                 const CollectiveCall& call,
                 cudaStream_t work,
                 float* residual,
                 const PreMulScalar* scalar)
    : api_(api),
      nccl_(nccl),
      state_(state),
      plan_(plan),
      call_(call),
      work_(work),
      wire_(plan.layout.slices.size() > 1 ? state.exchange_stream : work),
      residual_(residual),
      scalar_(scalar),
      random_(plan.random) {
    random_.rank = static_cast<uint32_t>(state.rank);
}

int TwoShot::phases() const noexcept {
    return static_cast<int>(plan_.layout.slices.size()) + 2;
}

bool TwoShot::has_exchange(int phase) const noexcept {
    return phase <= static_cast<int>(plan_.layout.slices.size());
}

char* TwoShot::area(Area which, int slice) const noexcept {
    const auto slot_area = static_cast<uint64_t>(state_.shape.ranks) *
                           static_cast<uint64_t>(plan_.layout.max_slot_bytes);
    const uint64_t index = static_cast<uint64_t>(which) * buffers(plan_.layout) +
                           static_cast<uint64_t>(slice) % buffers(plan_.layout);
    return static_cast<char*>(state_.scratch) + index * slot_area;
}

// Behind the areas; one is enough, because all kernels run on one stream.
void* TwoShot::workspace() const noexcept {
    const Layout& layout = plan_.layout;
    return layout.workspace_bytes == 0 ? nullptr
                                       : static_cast<char*>(state_.scratch) +
                                             (two_shot_scratch_bytes(layout, state_.shape.ranks) -
                                              static_cast<uint64_t>(layout.workspace_bytes));
}

RandomKey TwoShot::random_of(int slice, size_t piece) const noexcept {
    RandomKey key = random_;
    key.tensor += static_cast<uint32_t>(slice) * 0x9E3779B9u + static_cast<uint32_t>(piece);
    return key;
}

Status TwoShot::encode(int slice) {
    const Slice& cut = plan_.layout.slices[static_cast<size_t>(slice)];
    for (const Piece& piece : cut.pieces) {
        EncodeArgs args{};
        args.input = static_cast<const char*>(call_.send) +
                     piece.offset_elems * dtype_bytes(plan_.facts.dtype);
        args.output = area(Area::kSend, slice) + piece.slot_offset;
        args.residual = residual_ == nullptr ? nullptr : residual_ + piece.offset_elems;
        args.scale_ptr = scalar_ == nullptr ? nullptr : scalar_->device;
        args.scale = scalar_ == nullptr ? 1.0f : scalar_->value;
        args.count = piece.count;
        args.chunk_elems = piece.chunk_elems;
        args.slot_bytes = cut.slot_bytes;
        args.params = piece.codec.params;
        args.dtype = plan_.facts.dtype;
        args.random = random_of(slice, static_cast<size_t>(&piece - cut.pieces.data()));
        args.workspace = workspace();
        SLIMWIRE_TRY(enqueue(api_, piece.codec, args, work_));
    }
    return {};
}

Status TwoShot::reduce(int slice) {
    const Slice& cut = plan_.layout.slices[static_cast<size_t>(slice)];
    // Server residuals follow the worker's, chunk after chunk in slice and piece order.
    float* server = residual_ == nullptr ? nullptr : residual_ + plan_.facts.count;
    if (server != nullptr) {
        for (int before = 0; before < slice; ++before) {
            for (const Piece& piece : plan_.layout.slices[static_cast<size_t>(before)].pieces) {
                server += piece.chunk_elems;
            }
        }
    }
    for (const Piece& piece : cut.pieces) {
        DecodeReduceEncodeArgs args{};
        args.input = area(Area::kReceive, slice) + piece.slot_offset;
        args.output = area(Area::kGather, slice) + state_.rank * cut.slot_bytes + piece.slot_offset;
        args.residual = server;
        args.input_stride = cut.slot_bytes;
        args.count = piece.chunk_count(state_.rank);
        args.inputs = state_.shape.ranks;
        args.scale =
            plan_.facts.redop == RedOp::kAvg ? 1.0f / static_cast<float>(state_.shape.ranks) : 1.0f;
        args.params = piece.codec.params;
        args.dtype = plan_.facts.dtype;
        args.random = random_of(slice, static_cast<size_t>(&piece - cut.pieces.data()));
        args.workspace = workspace();
        if (args.count > 0) {
            SLIMWIRE_TRY(enqueue(api_, piece.codec, args, work_));
        }
        server = server == nullptr ? nullptr : server + piece.chunk_elems;
    }
    return {};
}

Status TwoShot::decode(int slice) {
    const Slice& cut = plan_.layout.slices[static_cast<size_t>(slice)];
    for (const Piece& piece : cut.pieces) {
        DecodeArgs args{};
        args.input = area(Area::kGather, slice) + piece.slot_offset;
        args.output =
            static_cast<char*>(call_.recv) + piece.offset_elems * dtype_bytes(plan_.facts.dtype);
        args.count = piece.count;
        args.chunk_elems = piece.chunk_elems;
        args.slot_bytes = cut.slot_bytes;
        args.params = piece.codec.params;
        args.dtype = plan_.facts.dtype;
        args.workspace = workspace();
        SLIMWIRE_TRY(enqueue(api_, piece.codec, args, work_));
    }
    return {};
}

Status TwoShot::kernels(int phase) {
    const int slices = static_cast<int>(plan_.layout.slices.size());
    if (phase < slices) {
        SLIMWIRE_TRY(encode(phase));
    }
    if (sliced() && phase >= 1) {
        SLIMWIRE_TRY(cuda_status(api_,
                                 api_.stream_wait_event(work_, state_.done[(phase - 1) % 2], 0),
                                 "wait for exchange"));
    }
    if (phase >= 1 && phase <= slices) {
        SLIMWIRE_TRY(reduce(phase - 1));
    }
    if (!has_exchange(phase)) {
        return {};
    }
    if (sliced()) {
        const cudaEvent_t ready = state_.ready[phase % 2];
        SLIMWIRE_TRY(cuda_status(api_, api_.event_record(ready, work_), "codec event"));
        SLIMWIRE_TRY(cuda_status(api_, api_.stream_wait_event(wire_, ready, 0), "wait for codec"));
    }
    if (phase < slices) {
        // The own slot of the all-to-all never crosses a wire.
        const int64_t slot_bytes = plan_.layout.slices[static_cast<size_t>(phase)].slot_bytes;
        const int64_t own = state_.rank * slot_bytes;
        SLIMWIRE_TRY(cuda_status(
            api_,
            api_.memcpy_async(area(Area::kReceive, phase) + own, area(Area::kSend, phase) + own,
                              static_cast<size_t>(slot_bytes), cudaMemcpyDeviceToDevice, wire_),
            "own slot"));
    }
    return {};
}

Status TwoShot::exchange(int phase) {
    const int slices = static_cast<int>(plan_.layout.slices.size());
    const int ranks = state_.shape.ranks;
    if (phase < slices) {
        const auto bytes =
            static_cast<size_t>(plan_.layout.slices[static_cast<size_t>(phase)].slot_bytes);
        for (int step = 1; step < ranks; ++step) {
            const int to = (state_.rank + step) % ranks;
            const int from = (state_.rank + ranks - step) % ranks;
            SLIMWIRE_TRY(
                nccl_status(nccl_,
                            nccl_.Send(area(Area::kSend, phase) + static_cast<size_t>(to) * bytes,
                                       bytes, ncclUint8, to, state_.exchange_comm, wire_),
                            "ncclSend of a chunk"));
            SLIMWIRE_TRY(nccl_status(
                nccl_,
                nccl_.Recv(area(Area::kReceive, phase) + static_cast<size_t>(from) * bytes, bytes,
                           ncclUint8, from, state_.exchange_comm, wire_),
                "ncclRecv of a chunk"));
        }
    }
    if (phase >= 1 && phase <= slices) {
        const auto bytes =
            static_cast<size_t>(plan_.layout.slices[static_cast<size_t>(phase - 1)].slot_bytes);
        char* gathered = area(Area::kGather, phase - 1);
        SLIMWIRE_TRY(
            nccl_status(nccl_,
                        nccl_.AllGather(gathered + static_cast<size_t>(state_.rank) * bytes,
                                        gathered, bytes, ncclUint8, state_.exchange_comm, wire_),
                        "ncclAllGather of the sums"));
    }
    return {};
}

Status TwoShot::finish(int phase) {
    if (sliced() && has_exchange(phase)) {
        SLIMWIRE_TRY(
            cuda_status(api_, api_.event_record(state_.done[phase % 2], wire_), "exchange event"));
    }
    if (phase >= 2) {
        SLIMWIRE_TRY(decode(phase - 2));
    }
    return {};
}

}  // namespace slimwire
