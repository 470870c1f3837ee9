#include "tests/e2e/conformance/draw.h"

#include <algorithm>
#include <cmath>

namespace conformance {
namespace {

Call draw_call(Chance& chance, const Weights& weights, int world_ranks, size_t max_elems) {
    Call call;
    if (chance.below(100) < weights.compressible_percent) {
        constexpr ncclDataType_t kCompressible[] = {ncclFloat32, ncclFloat16, ncclBfloat16};
        constexpr Operator kSums[] = {Operator::kSum, Operator::kAvg, Operator::kPreMulHost,
                                      Operator::kPreMulDevice};
        if (chance.below(100) >= weights.all_reduce_percent) {
            call.kind = static_cast<Kind>(chance.below(kKinds));
        }
        call.type = kCompressible[chance.below(3)];
        call.op = kSums[chance.below(4)];
    } else {
        call.kind = static_cast<Kind>(chance.below(kKinds));
        call.type = static_cast<ncclDataType_t>(chance.below(ncclNumTypes));
        call.op = static_cast<Operator>(chance.below(7));
    }
    call.in_place =
        chance.below(2) == 0 && call.kind != Kind::kAllToAll && call.kind != Kind::kSendRecv;
    call.in_place |= call.kind == Kind::kBcast;
    const size_t most = call.parts_input() || call.collects_output()
                            ? max_elems / static_cast<size_t>(world_ranks)
                            : max_elems;
    call.count =
        static_cast<size_t>(std::exp(chance.unit() * std::log(static_cast<double>(most) + 1))) -
        (chance.below(2) == 0 ? 1 : 0);
    call.count = std::max(call.count, std::min(weights.min_count, most));
    call.root = chance.below(world_ranks);
    call.misalignment = chance.below(4);
    call.scalar = chance.next() % Table::kElems;
    call.data = chance.next();
    switch (call.op) {
        case Operator::kProd:
            call.shape = Shape::kFactors;
            break;
        case Operator::kAvg:
            call.shape = facts_of(call.type).floating ? Shape::kSpread : Shape::kSmall;
            break;
        default:
            call.shape = chance.below(3) == 0 ? Shape::kSparse : Shape::kSpread;
            break;
    }
    const bool sums =
        call.op != Operator::kProd && call.op != Operator::kMax && call.op != Operator::kMin;
    if (facts_of(call.type).floating && (sums || !call.reduces()) && call.count > 0 &&
        chance.below(25) == 0) {
        call.special = true;
        // Conversions to 8-bit floats saturate infinities.
        call.infinity = chance.below(2) == 0 && facts_of(call.type).bytes > 1;
        call.special_rank = chance.below(world_ranks);
        call.special_index = chance.next();
    }
    return call;
}

}  // namespace

Batch draw_batch(Chance& chance, const Weights& weights, int world_ranks) {
    Batch batch;
    const int form = chance.below(10);
    const int calls = form < 5 ? 1 : 2 + chance.below(4);
    batch.grouping =
        form < 7 ? Grouping::kOneByOne : (form < 9 ? Grouping::kGroup : Grouping::kNestedGroups);
    batch.repeat = chance.below(8) == 0;
    batch.all_exact = !weights.alike;
    const bool both = batch.grouping != Grouping::kOneByOne && chance.below(2) == 0;
    const auto communicator = chance.below(4) == 0 ? Communicator::kSplit : Communicator::kWorld;
    const auto stream = static_cast<StreamChoice>(chance.below(kStreamChoices));
    const bool two_streams = calls > 1 && chance.below(2) == 0;
    for (int i = 0; i < calls; ++i) {
        Call call =
            draw_call(chance, weights, world_ranks, weights.max_count / static_cast<size_t>(calls));
        call.communicator = both && i % 2 == 1 ? Communicator::kSplit : communicator;
        if (weights.alike && call.communicator == Communicator::kSplit && world_ranks < 4 &&
            call.op >= Operator::kAvg) {
            call.op = Operator::kSum;
        }
        call.stream = stream;
        if (two_streams) {
            call.stream = i % 2 == 0 ? StreamChoice::kNonBlocking : StreamChoice::kOther;
        }
        batch.calls.push_back(call);
    }
    return batch;
}

std::string Call::text() const {
    constexpr const char* kKinds[] = {"AllReduce", "ReduceScatter", "Reduce",   "AllGather",
                                      "Broadcast", "Bcast",         "AlltoAll", "Send/Recv",
                                      "Gather",    "Scatter"};
    constexpr const char* kOperators[] = {"sum",           "prod",           "max", "min", "avg",
                                          "premul (host)", "premul (device)"};
    constexpr const char* kStreams[] = {"null", "blocking", "non-blocking", "other", "per-thread"};
    constexpr const char* kTables[] = {"spread", "sparse", "factors", "small", "nothing"};
    std::string text = kKinds[static_cast<int>(kind)];
    text += std::string(" ") + facts_of(type).name;
    if (reduces()) {
        text += std::string(" ") + kOperators[static_cast<int>(op)];
    }
    text += " count " + std::to_string(count) + (in_place ? " in place" : "") + " root/shift " +
            std::to_string(root) +
            (communicator == Communicator::kWorld ? " on world" : " on split") + ", stream " +
            kStreams[static_cast<int>(stream)] + ", data " + kTables[static_cast<int>(shape)];
    if (special) {
        text += std::string(infinity ? ", infinity" : ", NaN") + " of rank " +
                std::to_string(special_rank) + " at " + std::to_string(special_index) + " (modulo)";
    }
    return text;
}

}  // namespace conformance
