#include "codecs/ops/sum_rows.h"
#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/learned_code.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

// Blocks that a rank gives, and that it gets: of a sum one.
uint64_t given_blocks(Op op, int ranks) noexcept {
    return op == Op::kAllGather ? 1 : static_cast<uint64_t>(ranks);
}
uint64_t got_blocks(Op op, int ranks) noexcept {
    return op == Op::kReduceScatter ? 1 : static_cast<uint64_t>(ranks);
}

// Slots of the ranks that this one gets, those that it gives but its own, the slot of their sum;
// the gradients of E and D, and of one block; sums of runs.
struct SharedMap {
    SharedMap(const Layout& layout, const CallSignature& signature, int ranks) {
        constexpr uint64_t kApart = 256;
        const LowRankLayout& factors = layout.factored->factors;
        const auto slots = static_cast<uint64_t>(ranks);
        slot = aligned(static_cast<uint64_t>(layout.max_slot_bytes), kApart);
        given = slots * slot;
        sum = given + (signature.op == Op::kAllGather ? 0 : slots * slot);
        gradients = sum + (signature.op == Op::kReduceScatter ? slot : 0);
        gradient_bytes = aligned(floats(factors.right_elems), kApart);
        work = gradients + 3 * gradient_bytes;
        bytes = work + aligned(floats(factors.work_elems), kApart);
    }
    uint64_t slot, given, sum, gradients, gradient_bytes, work, bytes;
};

// What is kept of a collective forward: rows, then numbers of each block got.
struct KeptMap {
    KeptMap(const Plan& plan, Op forward, int ranks) noexcept {
        numbers = aligned(
            given_blocks(forward, ranks) * plan.signature.count * dtype_bytes(plan.signature.dtype),
            16);
        bytes = aligned(
            numbers + got_blocks(forward, ranks) * floats(plan.layout.factored->factors.left_elems),
            16);
    }
    uint64_t numbers, bytes;
};

}  // namespace

uint64_t shared_code_scratch(const Layout& layout, const CallSignature& signature, int ranks) {
    return SharedMap(layout, signature, ranks).bytes;
}

uint64_t shared_code_kept(const Plan& plan, int ranks) noexcept {
    return KeptMap(plan, plan.signature.op, ranks).bytes;
}

uint64_t shared_code_step_wire(const Layout& layout, int ranks, int rank) {
    const auto count = static_cast<uint64_t>(layout.factored->factors.right_elems);
    return 2 *
           native_wire_bytes({Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, count}, ranks, rank);
}

char* SharedCode::slot(int block, bool received) const noexcept {
    const SharedMap map(context_.plan.layout, context_.plan.signature, ranks());
    return context_.scratch + (received ? 0 : map.given) + static_cast<uint64_t>(block) * map.slot;
}

char* SharedCode::raw_of(char* slot) const noexcept {
    return slot + aligned(floats(message().factors.left_elems), 16);
}

float* SharedCode::weights(bool encoder) const noexcept {
    return context_.pairs[encoder ? 0 : 1].weights->data();
}

float* SharedCode::gradient(bool encoder) const noexcept {
    const SharedMap map(context_.plan.layout, context_.plan.signature, ranks());
    return reinterpret_cast<float*>(context_.scratch + map.gradients +
                                    (encoder ? 0 : map.gradient_bytes));
}

LowRankArgs SharedCode::args_of(char* slot, bool encoder) const noexcept {
    const SharedMap map(context_.plan.layout, context_.plan.signature, ranks());
    return factor_args(slot, weights(encoder), map.work, ranks());
}

Status SharedCode::copy(void* to, const void* from, uint64_t bytes) {
    return copy_on_device(context_.api, to, from, bytes, context_.work,
                          "what is kept of a collective");
}

Status SharedCode::encode(int block, char* slot) {
    LowRankArgs args = args_of(slot, !answers());
    args.input =
        static_cast<const char*>(context_.call.send) + static_cast<uint64_t>(block) * block_bytes();
    SLIMWIRE_TRY(run(LowRankStep::kMultiplyRight, args));
    return pack_raw(args.input, raw_of(slot));
}

Status SharedCode::sum_slots() {
    const CallSignature& signature = context_.plan.signature;
    const SharedMap map(context_.plan.layout, signature, ranks());
    char* const sum = context_.scratch + map.sum;
    SumRowsArgs args{};
    args.input = slot(0, true);
    args.output = sum;
    args.row_bytes = static_cast<int64_t>(map.slot);
    args.count = message().factors.left_elems;
    args.rows = ranks();
    args.input_dtype = args.output_dtype = DType::kFloat32;
    SLIMWIRE_TRY(enqueue(context_.api, args, context_.work));
    args.input = raw_of(slot(0, true));
    args.output = raw_of(sum);
    args.count = message().raw.count;
    args.input_dtype = args.output_dtype = signature.dtype;
    return args.count == 0 ? Status() : enqueue(context_.api, args, context_.work);
}

Status SharedCode::decode(char* slot, void* output) {
    LowRankArgs args = args_of(slot, answers());
    args.output = output;
    SLIMWIRE_TRY(run(LowRankStep::kRestore, args));
    return unpack_raw(raw_of(slot), output);
}

Status SharedCode::learn(bool encoder, const char* rows, const char* numbers) {
    const SharedMap map(context_.plan.layout, context_.plan.signature, ranks());
    const Op given = encoder ? answered_by(op()) : op();
    // Those of E came just now, one behind the other as slots, those of D are kept without gaps.
    const uint64_t apart = encoder ? map.slot : floats(message().factors.left_elems);
    for (int block = 0; block < static_cast<int>(given_blocks(given, ranks())); ++block) {
        if (copied(block)) {
            continue;
        }
        const auto at = static_cast<uint64_t>(block);
        LowRankArgs args = args_of(const_cast<char*>(numbers) + at * apart, encoder);
        args.input = rows + at * block_bytes();
        args.product_scale = args.result;  // numbers are below those of the code by it
        args.right =
            reinterpret_cast<float*>(context_.scratch + map.gradients + 2 * map.gradient_bytes);
        SLIMWIRE_TRY(run(LowRankStep::kMultiplyLeft, args));
        LearnArgs step{};
        step.gradient = args.right;
        step.weights = weights(encoder);
        step.count = message().factors.right_elems;
        SLIMWIRE_TRY(enqueue(context_.api, step, context_.work));
    }
    return {};
}

Status SharedCode::sum_gradients() {
    const int64_t count = message().factors.right_elems;
    for (const bool encoder : {true, false}) {
        SLIMWIRE_TRY(all_reduce(context_, weights(encoder) + 3 * count, gradient(encoder),
                                static_cast<size_t>(count), ncclFloat32, ncclSum,
                                "ncclAllReduce of gradients of weights"));
    }
    return {};
}

Status SharedCode::kernels(int phase) {
    if (phase != own_phase()) {
        return {};
    }
    for (int block = 0; block < static_cast<int>(given_blocks(op(), ranks())); ++block) {
        const bool own = op() == Op::kAllGather || block == rank();
        SLIMWIRE_TRY(copied(block) ? Status() : encode(block, slot(own ? rank() : block, own)));
    }
    const PairUse& use = *context_.pairs;
    const auto* const given = static_cast<const char*>(context_.call.send);
    if (answers()) {
        const KeptMap kept(context_.plan, answered_by(op()), ranks());
        const auto* const answered = static_cast<const char*>(use.answered);
        return answered == nullptr ? Status() : learn(false, given, answered + kept.numbers);
    }
    return use.kept == nullptr ? Status()
                               : copy(use.kept, given, given_blocks(op(), ranks()) * block_bytes());
}

Status SharedCode::exchange(int phase) {
    if (phase != own_phase()) {
        return sum_gradients();
    }
    const auto bytes = static_cast<size_t>(context_.plan.layout.max_slot_bytes);
    for (int step = 1; step < ranks(); ++step) {
        const int to = (rank() + step) % ranks(), from = (rank() + ranks() - step) % ranks();
        const char* const sent = op() == Op::kAllGather ? slot(rank(), true) : slot(to, false);
        SLIMWIRE_TRY(send(sent, bytes, to));
        SLIMWIRE_TRY(receive(slot(from, true), bytes, from));
    }
    return {};
}

Status SharedCode::finish(int phase) {
    if (phase != own_phase()) {
        for (const bool encoder : {true, false}) {
            SLIMWIRE_TRY(context_.pairs[encoder ? 0 : 1].weights->step(
                context_.api, context_.plan, gradient(encoder), context_.work));
        }
        return {};
    }
    const SharedMap map(context_.plan.layout, context_.plan.signature, ranks());
    const bool sums = op() == Op::kReduceScatter;
    char* const got = sums ? context_.scratch + map.sum : slot(0, true);
    SLIMWIRE_TRY(sums ? sum_slots() : Status());
    SLIMWIRE_TRY(op() == Op::kAllToAll ? copy_own_block(context_) : Status());
    const PairUse& use = *context_.pairs;
    const KeptMap kept(context_.plan, op(), ranks());
    const uint64_t numbers = floats(message().factors.left_elems);
    for (int block = 0; block < static_cast<int>(got_blocks(op(), ranks())); ++block) {
        if (copied(block)) {
            continue;
        }
        const auto at = static_cast<uint64_t>(block);
        char* const from = got + at * map.slot;
        SLIMWIRE_TRY(decode(from, static_cast<char*>(context_.call.recv) + at * block_bytes()));
        if (!answers() && use.kept != nullptr) {
            SLIMWIRE_TRY(
                copy(static_cast<char*>(use.kept) + kept.numbers + at * numbers, from, numbers));
        }
    }
    return answers() && use.answered != nullptr
               ? learn(true, static_cast<const char*>(use.answered), got)
               : Status();
}

}  // namespace slimwire
