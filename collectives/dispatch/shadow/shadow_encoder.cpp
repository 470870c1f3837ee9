#include "collectives/dispatch/shadow/shadow_encoder.h"

#include <algorithm>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/call/log.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/feedback/residual_store.h"

namespace slimwire {
namespace {

// Blocks of the plan's layout in what a rank gives.
uint64_t blocks_given(const Plan& plan, int ranks) noexcept {
    uint64_t in_block = 0;
    for (const Slice& slice : plan.layout.slices) {
        in_block += static_cast<uint64_t>(slice.raw.count);
        for (const Piece& piece : slice.pieces) {
            in_block += static_cast<uint64_t>(piece.count);
        }
    }
    return in_block == 0 ? 0 : elements_given(plan.signature, ranks) / in_block;
}

// Encodings of what a rank gives, at most.
uint64_t parts_given(const Plan& plan, int ranks) noexcept {
    uint64_t pieces = 0;
    for (const Slice& slice : plan.layout.slices) {
        pieces += slice.pieces.size();
    }
    return pieces * blocks_given(plan, ranks);
}

// Whether there is something to rehearse: what this rank gives, in the type that is encoded.
bool gives(const Plan& plan, int rank) noexcept {
    return plan.encoded_dtype() == plan.signature.dtype && plan.algorithm != Algorithm::kLowRank &&
           descriptor_of(plan.algorithm).encodes(plan.signature, rank);
}

// Where a rehearsal's parts of the scratch lie.
struct Rooms {
    uint64_t workspace = 0, decoded = 0, bytes = 0;
};

Rooms rooms_of(const Plan& plan, int ranks) {
    const uint64_t element = dtype_bytes(plan.signature.dtype);
    Rooms rooms;
    uint64_t largest = static_cast<uint64_t>(plan.layout.largest_piece());
    if (ShadowEncoder::stands_in(plan)) {
        int64_t slots = 0, workspace = 0;
        for (const Slice& slice : plan.layout.slices) {
            for (const Piece& piece : slice.pieces) {
                const int64_t chunks = (piece.count + piece.chunk_elems - 1) / piece.chunk_elems;
                slots = std::max(slots, chunks * slice.slot_bytes);
                workspace =
                    std::max(workspace, piece.codec.workspace_bytes(
                                            plan.signature.dtype, piece.count, piece.chunk_elems));
            }
        }
        rooms.workspace = aligned(static_cast<uint64_t>(slots));
        rooms.decoded = rooms.workspace + aligned(static_cast<uint64_t>(workspace));
    } else {
        // Blocks of one slice may be encoded together.
        if (plan.algorithm == Algorithm::kDirect && plan.layout.slices.size() == 1) {
            largest = elements_given(plan.signature, ranks);
        }
        rooms.decoded = aligned(plan.scratch.bytes);
    }
    rooms.bytes = rooms.decoded + aligned(largest * element);
    return rooms;
}

}  // namespace

// What a call's rehearsal is to find out.
struct ShadowEncoder::Wish {
    bool measured = false, timed = false, fed = false;
    RandomKey random;
    uint64_t every_part = 1;  // of which one is compared
};

// Decodes beside what is encoded, and compares.
class ShadowTrial final : public EncodingListener {
  public:
    ShadowTrial(const DeviceApi& api, cudaStream_t stream, void* decoded)
        : api_(api), stream_(stream), decoded_(decoded) {}
    // One part in `every` goes to `batch`; `later`: not before compare_rest().
    void compare(Samples* errors, Samples::Batch* batch, uint64_t every, bool later) {
        errors_ = errors;
        batch_ = batch;
        every_ = every;
        later_ = later;
    }
    void compare_rest() {
        if (waiting_) {
            errors_->add(api_, batch_, rest_, stream_);
        }
    }

    Status encoded(const CodecSpec& codec, const EncodeArgs& args) override {
        DecodeArgs decode{};
        decode.input = args.output;
        decode.output = decoded_;
        decode.count = args.count;
        decode.chunk_elems = args.chunk_elems;
        decode.slot_bytes = args.slot_bytes;
        decode.params = args.params;
        decode.dtype = args.dtype;
        decode.workspace = args.workspace;
        SLIMWIRE_TRY(enqueue(api_, codec, decode, stream_));
        if (batch_ == nullptr || part_++ % every_ != 0) {
            return {};
        }
        MeasureArgs look{};
        look.input = args.input;
        look.other = decoded_;
        look.scale_ptr = args.scale_ptr;
        look.scale = args.scale;
        look.count = args.count;
        look.dtype = args.dtype;
        if (later_) {
            rest_ = look;
            waiting_ = true;
        } else {
            errors_->add(api_, batch_, look, stream_);
        }
        return {};
    }

  private:
    const DeviceApi& api_;
    cudaStream_t stream_;
    void* decoded_;
    Samples* errors_ = nullptr;
    Samples::Batch* batch_ = nullptr;  // null: nothing is compared
    uint64_t every_ = 1, part_ = 0;
    bool later_ = false, waiting_ = false;
    MeasureArgs rest_{};
};

ShadowEncoder::ShadowEncoder(Runtime& runtime, Session* state, Samples* errors, Trace* trace)
    : runtime_(runtime), state_(state), errors_(errors), trace_(trace) {}

bool ShadowEncoder::stands_in(const Plan& plan) noexcept {
    return !encodes_contributions(plan);
}

void ShadowEncoder::run(const Call& call) noexcept {
    state_->users.fetch_add(1);
    try {
        const Status status = state_->ended ? Status() : rehearse(call);
        if (!status.ok()) {
            refuse(status.message());
        }
    } catch (const std::exception& error) {
        refuse(error.what());
    }
    state_->users.fetch_sub(1);
}

void ShadowEncoder::refuse(const std::string& why) noexcept {
    if (!std::exchange(refused_, true)) {
        log_line(LogLevel::kWarn, log_prefix(*state_) + ": no more rehearsals: " + why +
                                      " (SLIMWIRE_MODE=shadow); the job goes on");
    }
}

Status ShadowEncoder::rehearse(const Call& call) {
    const Plan& plan = *call.item.plan;
    Wish wish;
    wish.random = plan.draws.key;
    wish.random.rank = static_cast<uint32_t>(state_->rank);
    if (plan.draws.any) {  // as many as in mode on, whatever comes of it here
        wish.random.step = state_->random.here[is_point_to_point(plan.signature.op) ? 1 : 0]++;
    }
    const uint32_t every = runtime_.config.settings.trace_sample;
    if (refused_ || every == 0 || !gives(plan, state_->rank)) {
        return {};
    }
    const uint64_t parts = parts_given(plan, state_->shape.ranks);
    wish.measured = call.occurrence % every == 0 && can_measure(plan.signature.dtype);
    wish.timed =
        (call.occurrence < 8 || call.occurrence % 16 == 0) && (!wish.measured || parts == 1);
    wish.fed = !stands_in(plan) && plan.residual.bytes > 0 && keeps_residual(plan, state_->rank);
    wish.every_part = std::max<uint64_t>(1, (parts + kParts - 1) / kParts);
    if (!wish.measured && !wish.timed && !wish.fed) {
        return {};
    }
    const DeviceApi& api = runtime_.api();
    // An error of the program's own would be taken for ours, and lost.
    if (api.peek_at_last_error() != cudaSuccess || !on_device(api, call.item.call.send)) {
        return {};
    }
    const DeviceScope device(api, state_->device);
    times_.read(api, trace_);
    return enqueue_all(call, wish);
}

Result<void*> ShadowEncoder::residual_of(const Call& call) {
    const Plan& plan = *call.item.plan;
    // As in mode on; of no job that is gone on with.
    const TensorUse use = identify(state_->state_key, call.item.call, plan.needs_slot,
                                   call.item.place, state_->models.count());
    ResidualStore& residuals = dispatch_state(runtime_).residuals;
    SLIMWIRE_TRY_ASSIGN(
        const Residual residual,
        residuals.get({runtime_.api(), &state_->objects, call.item.call.stream}, state_->device,
                      use, plan.residual.bytes, {0, plan.residual.shape}));
    if (residual.origin != ResidualOrigin::kKept) {
        const ResidualStore::Held held = residuals.held(state_->state_key);
        state_->stats->residual_bytes = held.bytes;
        state_->stats->residual_tensors = held.tensors;
    } else if (residual.buffer == nullptr) {
        state_->stats->calls_without_residual.fetch_add(1, std::memory_order_relaxed);
        say_no_room(call, "is rehearsed without its residual", plan.residual.bytes);
    }
    if (residual.buffer != nullptr) {
        SLIMWIRE_TRY(follow_loss_scale(runtime_.api(), plan, residual, call.item.call.stream));
    }
    return residual.buffer;
}

Result<bool> ShadowEncoder::make_room(uint64_t bytes) {
    if (bytes <= scratch_bytes_) {
        return true;
    }
    const DeviceApi& api = runtime_.api();
    // What is outgrown is not freed, which would wait for the device, so it may not come to much.
    uint64_t wanted = std::max(bytes, 2 * scratch_bytes_);
    if (!runtime_.memory.reserve(state_->device, wanted)) {
        wanted = bytes;
        if (!runtime_.memory.reserve(state_->device, wanted)) {
            return false;
        }
    }
    void* memory = nullptr;
    if (Status status =
            cuda_status(api, runtime_.device_memory.allocate(api, state_->device, wanted, &memory),
                        "room for rehearsals");
        !status.ok()) {
        runtime_.memory.give_back(state_->device, wanted);
        return status;
    }
    if (scratch_ != nullptr) {
        outgrown_.push_back(scratch_);
    }
    scratch_ = static_cast<char*>(memory);
    scratch_bytes_ = wanted;
    held_bytes_ += wanted;
    state_->stats->scratch_bytes = held_bytes_;
    return true;
}

void ShadowEncoder::say_no_room(const Call& call, const char* what, uint64_t bytes) {
    if (!std::exchange(state_->granted.lack_is_told, true)) {
        const CallSignature& signature = call.item.plan->signature;
        log_line(LogLevel::kWarn,
                 log_prefix(*state_) + ": " + op_name(signature.op) + " count " +
                     std::to_string(signature.count) + " " + what + ": " + std::to_string(bytes) +
                     " bytes more than the " +
                     std::to_string(runtime_.memory.held(state_->device)) +
                     " held exceed SLIMWIRE_MAX_MEMORY=" + std::to_string(runtime_.memory.limit()) +
                     " on device " + std::to_string(state_->device));
    }
}

Status ShadowEncoder::encode_stand_in(const Call& call, ShadowTrial* trial) {
    const Plan& plan = *call.item.plan;
    const Rooms rooms = rooms_of(plan, state_->shape.ranks);
    const uint64_t blocks = blocks_given(plan, state_->shape.ranks);
    const uint64_t element = dtype_bytes(plan.signature.dtype);
    const uint64_t block_elems =
        blocks == 0 ? 0 : elements_given(plan.signature, state_->shape.ranks) / blocks;
    for (uint64_t block = 0; block < blocks; ++block) {
        for (const Slice& slice : plan.layout.slices) {
            for (const Piece& piece : slice.pieces) {
                EncodeArgs args{};
                args.input = static_cast<const char*>(call.item.call.send) +
                             (block * block_elems + piece.offset_elems) * element;
                args.output = scratch_;
                args.scale = 1.0f;
                args.count = piece.count;
                args.chunk_elems = piece.chunk_elems;
                args.slot_bytes = slice.slot_bytes;
                args.params = piece.codec.params;
                args.dtype = plan.signature.dtype;
                args.random = plan.draws.key;
                args.random.tensor += static_cast<uint32_t>(block);
                args.workspace = scratch_ + rooms.workspace;
                SLIMWIRE_TRY(enqueue(runtime_.api(), piece.codec, args, call.item.call.stream));
                SLIMWIRE_TRY(trial->encoded(piece.codec, args));
            }
        }
    }
    return {};
}

Status ShadowEncoder::enqueue_all(const Call& call, const Wish& wish) {
    const DeviceApi& api = runtime_.api();
    const Plan& plan = *call.item.plan;
    const cudaStream_t stream = call.item.call.stream;
    const Rooms rooms = rooms_of(plan, state_->shape.ranks);
    SLIMWIRE_TRY_ASSIGN(const bool room, make_room(rooms.bytes));
    if (!room) {
        say_no_room(call, "is not rehearsed", rooms.bytes);
        return {};
    }
    if (chain_ == nullptr) {
        SLIMWIRE_TRY(cuda_status(api, api.event_create_with_flags(&chain_, cudaEventDisableTiming),
                                 "end of a rehearsal"));
    }
    if (chained_) {
        SLIMWIRE_TRY(cuda_status(api, api.stream_wait_event(stream, chain_, 0),
                                 "wait for the rehearsal before"));
    }
    void* residual = nullptr;
    if (wish.fed) {
        SLIMWIRE_TRY_ASSIGN(residual, residual_of(call));
    }
    Samples::Batch batch;
    if (wish.measured) {
        batch = errors_->begin(state_->device,
                               {call.call, call.comm, call.tensor, plan.signature.dtype});
    }
    ShadowTrial trial(api, stream, scratch_ + rooms.decoded);
    if (!batch.empty()) {
        trial.compare(errors_, &batch, wish.every_part, wish.timed);
    }
    CallTimes::Timing* const timing = wish.timed ? times_.start(api, stream) : nullptr;
    Status done;
    if (stands_in(plan)) {
        done = encode_stand_in(call, &trial);
    } else {
        ExchangeContext context{api, *state_->nccl, *state_, plan, call.item.call};
        context.work = stream;
        context.scratch = scratch_;
        context.residual = residual;
        context.scalar = call.item.scalar.has_value() ? &*call.item.scalar : nullptr;
        context.random = wish.random;
        context.listener = wish.timed || wish.measured ? &trial : nullptr;
        ExchangeRoom exchange;
        done = descriptor_of(context.plan.algorithm).make(context, &exchange)->rehearse();
    }
    if (timing != nullptr && done.ok()) {
        timing->kind = TraceKind::kCodecTime;
        timing->call = call.call;
        CallTimes::end(api, timing, stream);
    }
    if (done.ok()) {
        trial.compare_rest();
    }
    Samples::commit(&batch);
    // Also after a failure: what was enqueued uses the memory.
    Status chained = cuda_status(api, api.event_record(chain_, stream), "end of a rehearsal");
    chained_ = chained_ || chained.ok();
    SLIMWIRE_TRY(std::move(done));
    return chained;
}

void ShadowEncoder::end() noexcept {
    const DeviceApi& api = runtime_.api();
    const DeviceScope device(api, state_->device);
    times_.read(api, trace_);
    times_.clear(api);
    runtime_.memory.give_back(state_->device, std::exchange(held_bytes_, 0));
    Retirement left(&runtime_.device_memory, api, state_->device);
    left.add(std::exchange(scratch_, nullptr));
    for (void* memory : std::exchange(outgrown_, {})) {
        left.add(memory);
    }
    dispatch_state(runtime_).residuals.take(state_->state_key, &left);
    if (chain_ != nullptr) {
        left.after(chain_);
        tolerate(api, api.event_destroy(std::exchange(chain_, nullptr)));
    }
}

}  // namespace slimwire
