#include "collectives/algorithms/learned_code.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codecs/pair_mode.h"
#include "codecs/sparse/masked_values.h"
#include "collectives/call/log.h"
#include "collectives/communicator/device_memory.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/plan/plan.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {
namespace {

constexpr uint64_t kTrailer = sizeof(MaskTrailer);

// The frame; weights where there is no room for those of the pair; the gradient of weights; sums of
// runs; the rows of the message that is answered.
struct CodeMap {
    CodeMap(const Layout& layout, const CallSignature& signature) {
        constexpr uint64_t kApart = 256;
        const LowRankLayout& factors = layout.factored->factors;
        raw = aligned(floats(factors.left_elems), 16);
        trailer = static_cast<uint64_t>(layout.max_slot_bytes) - kTrailer;
        start = aligned(static_cast<uint64_t>(layout.max_slot_bytes), kApart);
        gradient = start + aligned(floats(factors.right_elems), kApart);
        work = gradient + aligned(floats(factors.right_elems), kApart);
        rows = work + aligned(floats(factors.work_elems), kApart);
        bytes = rows + aligned(signature.count * dtype_bytes(signature.dtype), kApart);
    }
    uint64_t raw, trailer, start, gradient, work, rows, bytes;
};

// Draws orthonormal columns: the same for all pairs of ranks of a job. `zeros`: as many floats.
Status draw_weights(
    const DeviceApi& api, const Plan& plan, float* weights, float* zeros, cudaStream_t stream) {
    const FactoredMessage& message = *plan.layout.factored;
    SLIMWIRE_TRY(clear_on_device(api, zeros, floats(message.factors.right_elems), stream,
                                 "weights to begin with"));
    LowRankArgs args{};
    args.right = args.left = weights;
    args.state = zeros;
    args.scale = args.mean = args.result = 1.0f;
    args.dtype = plan.signature.dtype;
    args.rank = args.state_rank = static_cast<int32_t>(message.codec.params.kept);
    args.random.seed = plan.draws.key.seed + message.codec.params.seed;
    SLIMWIRE_TRY(enqueue(api, LowRankStep::kBegin, message.factors, args, stream));
    return enqueue(api, LowRankStep::kOrthogonalise, message.transposed, args, stream);
}

}  // namespace

bool learns_code(const AlgorithmRequest& request) {
    return learns_from_answers(request.action, request.signature.op);
}

Layout learned_code_layout(const AlgorithmRequest& request) {
    const CodecSpec& codec = *request.action.codec;
    Layout layout = factored_layout(codec, static_cast<int>(codec.params.kept),
                                    {request.matrices.begin(), request.matrices.end()},
                                    request.signature.count);
    const uint64_t raw = static_cast<uint64_t>(layout.factored->raw.chunk_elems) *
                         dtype_bytes(request.signature.dtype);
    const uint64_t trailer = is_point_to_point(request.signature.op) ? kTrailer : 0;
    layout.max_slot_bytes = layout.total_slot_bytes = static_cast<int64_t>(
        aligned(floats(layout.factored->factors.left_elems), 16) + aligned(raw, 16) + trailer);
    return layout;
}

bool is_learned(const Layout& layout) noexcept {
    return layout.factored != nullptr && layout.max_slot_bytes > 0 &&
           autoencodes(layout.factored->codec);
}

uint64_t learned_code_scratch(const Layout& layout, const CallSignature& signature) {
    return CodeMap(layout, signature).bytes;
}

uint64_t learned_code_kept(const Plan& plan, bool at_sender) noexcept {
    return aligned(at_sender ? plan.signature.count * dtype_bytes(plan.signature.dtype)
                             : floats(plan.layout.factored->factors.left_elems),
                   16);
}

LastingTensor CodeWeights::steps_of(LastingTensor tensor) noexcept {
    tensor.path = mix_key(tensor.path, stable_hash("steps")) | 1;
    return tensor;
}

Status CodeWeights::prepare(const BeforeCall& before,
                            Communicator* state,
                            const Plan& plan,
                            const LastingTensor& tensor,
                            Progress* progress) {
    if (std::exchange(asked_, true)) {
        return {};
    }
    tensor_ = tensor;
    const int64_t elems = plan.layout.factored->factors.right_elems;
    const int role = averaged_role(plan.layout.factored->codec.params);
    const bool shared = !is_point_to_point(plan.signature.op) || role >= 0;
    SLIMWIRE_TRY_ASSIGN(void* const memory,
                        allocate_held(before, state, 4 * floats(elems), shared));
    if (memory == nullptr) {
        return {};
    }
    bytes_ = 4 * floats(elems);
    weights_ = static_cast<float*>(memory);
    if (role >= 0) {
        const uint64_t kind =
            mix_key(mix_key(tensor.path, tensor.ordinal),
                    mix_key(tensor.signature.count, static_cast<uint64_t>(tensor.signature.op)));
        // With the moments.
        copies_ = std::make_shared<AveragedCode>(kind, weights_, 3 * floats(elems));
        if (copies_->prepare(before.api)) {
            AveragedCodes::instance().add(state->device, role, copies_);
        } else {
            log_once(LogLevel::kWarn, "no events for averages",
                     "an autoencoder of 'average=' has no events here: copies of a model do not "
                     "average it");
            Retirement left(state->device_memory, before.api, state->device);
            std::exchange(copies_, nullptr)->end(before.api, &left);
        }
    }
    return begin(before, state, plan, progress);
}

Status CodeWeights::begin(const BeforeCall& before,
                          Communicator* state,
                          const Plan& plan,
                          Progress* progress) {
    const std::vector<std::byte> steps = progress->take(steps_of(tensor_), StateKind::kMessages);
    const std::vector<std::byte> loaded = progress->take(tensor_, StateKind::kMessages);
    if (RecordReader counts(steps); loaded.size() == bytes_ && counts.get(&steps_)) {
        (void)counts.get(&answers_);
        const std::shared_ptr<std::byte[]> kept(new std::byte[bytes_]);
        std::copy(loaded.begin(), loaded.end(), kept.get());
        return state->objects.copies.to_device(before.api, weights_, kept, bytes_, before.stream);
    }
    SLIMWIRE_TRY(
        clear_on_device(before.api, weights_, bytes_, before.stream, "weights of messages"));
    return draw_weights(before.api, plan, weights_,
                        weights_ + plan.layout.factored->factors.right_elems, before.stream);
}

bool CodeWeights::take_left(uint64_t mark) noexcept {
    return mark != mark_ && std::exchange(answers_, 0) > 0;
}

void CodeWeights::count_answer(uint64_t mark) {
    mark_ = mark;
    if (++answers_ == MessagePairing::kMostOpen) {
        log_once(LogLevel::kWarn, "autoencoder without a step",
                 "an autoencoder does not learn: " + std::to_string(answers_) +
                     " answers came, and always something waits for one; slimwire_mark_step in "
                     "each step says where none comes any more");
    }
}

void CodeWeights::step(float rate, LearnArgs* args) noexcept {
    ++steps_;
    answers_ = 0;
    constexpr uint64_t kSteps = 32;  // averages begin with the fifth
    if (copies_ != nullptr && ++own_steps_ == kSteps && !copies_->was_averaged()) {
        log_once(LogLevel::kWarn, "autoencoder without an average",
                 "the copies of a model do not average an autoencoder of 'average=': " +
                     std::to_string(kSteps) +
                     " steps went without a collective of several ranks that the rule's role names "
                     "(ncclConfig_t.commName), or slimwire_mark_step in each step");
    }
    const auto scale = [&](double decay) {
        double power = 1;  // decay to the number of steps
        for (uint64_t left = steps_; left > 0; left /= 2, decay *= decay) {
            power *= left % 2 == 1 ? decay : 1;
        }
        return static_cast<float>(1 / (1 - power));
    };
    args->rate = rate;
    args->first_scale = scale(0.9);
    args->second_scale = scale(0.999);
}

Status CodeWeights::step(const DeviceApi& api,
                         const Plan& plan,
                         const float* gradient,
                         cudaStream_t stream) {
    const FactoredMessage& message = *plan.layout.factored;
    LearnArgs args{};
    args.gradient = gradient;
    args.weights = weights_;
    args.count = message.factors.right_elems;
    SLIMWIRE_TRY(clear_on_device(api, weights_ + 3 * args.count, floats(args.count), stream,
                                 "sums of gradients"));
    step(message.codec.params.threshold, &args);
    return enqueue(api, args, stream);
}

Result<uint64_t> CodeWeights::begin_use(const DeviceApi& api, cudaStream_t stream) {
    return copies_ == nullptr ? Result<uint64_t>(0) : copies_->take(api, stream);
}

Status CodeWeights::end_use(const DeviceApi& api, cudaStream_t stream) {
    return copies_ == nullptr ? Status() : copies_->used(api, stream);
}

Result<float*> AveragedCode::begin(const DeviceApi& api, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    for (const cudaEvent_t last : {used_, averaged_}) {
        if (last != nullptr) {  // one that was never recorded holds nothing up
            SLIMWIRE_TRY(
                cuda_status(api, api.stream_wait_event(stream, last, 0), "use of weights"));
        }
    }
    return weights_;
}

bool AveragedCode::prepare(const DeviceApi& api) noexcept {
    return tolerate(api, api.event_create_with_flags(&used_, cudaEventDisableTiming)) &&
           tolerate(api, api.event_create_with_flags(&averaged_, cudaEventDisableTiming));
}

Status AveragedCode::averaged(const DeviceApi& api, cudaStream_t stream, uint64_t wire_bytes) {
    const std::lock_guard lock(mutex_);
    if (weights_ == nullptr) {
        return {};
    }
    wire_bytes_ += wire_bytes;
    was_averaged_ = true;
    return cuda_status(api, api.event_record(averaged_, stream), "average of weights");
}

bool AveragedCode::was_averaged() {
    const std::lock_guard lock(mutex_);
    return was_averaged_;
}

Result<uint64_t> AveragedCode::take(const DeviceApi& api, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    if (was_averaged_) {
        SLIMWIRE_TRY(
            cuda_status(api, api.stream_wait_event(stream, averaged_, 0), "average of weights"));
    }
    return std::exchange(wire_bytes_, 0);
}

Status AveragedCode::used(const DeviceApi& api, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    return cuda_status(api, api.event_record(used_, stream), "use of weights");
}

void AveragedCode::end(const DeviceApi& api, Retirement* left) noexcept {
    const std::lock_guard lock(mutex_);
    weights_ = nullptr;
    for (cudaEvent_t* const event : {&used_, &averaged_}) {
        if (*event != nullptr) {
            left->after(*event);
            tolerate(api, api.event_destroy(std::exchange(*event, nullptr)));
        }
    }
}

AveragedCodes& AveragedCodes::instance() {
    // Never destroyed: static objects of the program may end its communicators.
    static auto* const codes = new AveragedCodes;
    return *codes;
}

void AveragedCodes::add(int device, int role, std::shared_ptr<AveragedCode> code) {
    const std::lock_guard lock(mutex_);
    codes_.push_back({device, role, std::move(code)});
}

void AveragedCodes::remove(const std::shared_ptr<AveragedCode>& code) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(codes_, [&](const One& one) { return one.code == code; });
}

std::vector<std::shared_ptr<AveragedCode>> AveragedCodes::of(int device, int role) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<AveragedCode>> found;
    for (const One& one : codes_) {
        if (one.device == device && one.role == role) {
            found.push_back(one.code);
        }
    }
    return found;
}

void CodeWeights::release(const DeviceApi& api, Communicator* state, Retirement* left) noexcept {
    if (copies_ != nullptr) {
        AveragedCodes::instance().remove(copies_);
        copies_->end(api, left);
    }
    left->add(std::exchange(weights_, nullptr));
    if (bytes_ > 0) {
        state->memory->give_back(state->device, std::exchange(bytes_, 0));
    }
}

char* LearnedCode::trailer() const noexcept {
    return context_.scratch + CodeMap(context_.plan.layout, context_.plan.signature).trailer;
}

LowRankArgs LearnedCode::args() const noexcept {
    const CodeMap map(context_.plan.layout, context_.plan.signature);
    LowRankArgs args = factor_args(context_.scratch, weights_, map.work, 1);
    args.input = context_.call.send;
    args.output = context_.call.recv;
    return args;
}

char* LearnedCode::raw() const noexcept {
    return context_.scratch + CodeMap(context_.plan.layout, context_.plan.signature).raw;
}

Status LearnedCode::find_weights() {
    const Plan& plan = context_.plan;
    const CodeMap map(plan.layout, plan.signature);
    weights_ = context_.pairs == nullptr ? nullptr : context_.pairs->weights->data();
    if (weights_ != nullptr) {
        return {};
    }
    weights_ = reinterpret_cast<float*>(context_.scratch + map.start);
    return draw_weights(context_.api, plan, weights_,
                        reinterpret_cast<float*>(context_.scratch + map.gradient), context_.work);
}

Status LearnedCode::learn(const void* rows, float* numbers) {
    const Plan& plan = context_.plan;
    const CodeMap map(plan.layout, plan.signature);
    CodeWeights& weights = *context_.pairs->weights;
    if (weights.data() == nullptr) {
        return {};
    }
    LowRankArgs of_gradient = args();
    of_gradient.input = rows;
    of_gradient.left = numbers;
    of_gradient.product_scale = of_gradient.result;  // numbers are below those of the code by it
    of_gradient.right = reinterpret_cast<float*>(context_.scratch + map.gradient);
    SLIMWIRE_TRY(run(LowRankStep::kMultiplyLeft, of_gradient));
    LearnArgs step{};
    step.gradient = of_gradient.right;
    step.weights = weights.data();
    step.count = message().factors.right_elems;
    if (context_.pairs->last) {
        weights.step(message().codec.params.threshold, &step);
    }
    return enqueue(context_.api, step, context_.work);
}

Status LearnedCode::make_step() {
    const Plan& plan = context_.plan;
    CodeWeights& weights = *context_.pairs->weights;
    if (weights.data() == nullptr) {
        return {};
    }
    const int64_t count = message().factors.right_elems;
    void* const gradient = context_.scratch + CodeMap(plan.layout, plan.signature).gradient;
    SLIMWIRE_TRY(copy_on_device(context_.api, gradient, weights.data() + 3 * count, floats(count),
                                context_.work, "sums of gradients"));
    return weights.step(context_.api, plan, static_cast<const float*>(gradient), context_.work);
}

Status LearnedCode::kernels(int) {
    const PairUse* const use = context_.pairs;
    SLIMWIRE_TRY(use != nullptr && use->first ? make_step() : Status());
    SLIMWIRE_TRY(find_weights());
    if (!sends()) {
        return {};
    }
    const void* const rows = context_.call.send;
    SLIMWIRE_TRY(run(LowRankStep::kMultiplyRight, args()));
    SLIMWIRE_TRY(pack_raw(rows, raw()));
    SLIMWIRE_TRY(write_trailer(context_, use, trailer(), answers()));
    if (!answers()) {
        return keep_forward(context_, use, rows, block_bytes(), trailer());
    }
    if (use == nullptr || use->answered == nullptr) {
        return use != nullptr && use->last ? make_step() : Status();
    }
    return learn(rows, const_cast<float*>(static_cast<const float*>(use->answered)));
}

Status LearnedCode::exchange(int) {
    const auto bytes = static_cast<size_t>(context_.plan.layout.max_slot_bytes);
    const int peer = context_.plan.signature.root_or_peer;
    return sends() ? send(context_.scratch, bytes, peer) : receive(context_.scratch, bytes, peer);
}

Status LearnedCode::finish(int) {
    if (sends()) {
        return {};
    }
    SLIMWIRE_TRY(run(LowRankStep::kRestore, args()));
    SLIMWIRE_TRY(unpack_raw(raw(), context_.call.recv));
    if (!answers()) {
        return keep_forward(context_, context_.pairs, context_.scratch,
                            floats(message().factors.left_elems), trailer());
    }
    const CodeMap map(context_.plan.layout, context_.plan.signature);
    void* const rows = context_.scratch + map.rows;
    SLIMWIRE_TRY(take_answered(context_, trailer(), rows, block_bytes()));
    return context_.pairs == nullptr ? Status()
                                     : learn(rows, reinterpret_cast<float*>(context_.scratch));
}

}  // namespace slimwire
