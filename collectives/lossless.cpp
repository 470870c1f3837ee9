#include "collectives/lossless.h"

#include <algorithm>

#include "collectives/plan.h"

namespace slimwire {
namespace {

constexpr uint64_t kWordBytes = 256;  // of scratch, so that what follows is aligned

CallFacts word_facts() noexcept {
    CallFacts facts;
    facts.op = Op::kAllReduce;
    facts.dtype = DType::kUint32;
    facts.redop = RedOp::kMax;
    facts.count = 1;
    return facts;
}

uint64_t chunk_bytes(const CallFacts& facts, int ranks) noexcept {
    if (facts.op != Op::kAllReduce) {
        return 0;
    }
    const uint64_t bytes = lossless_facts(facts, ranks).count * dtype_bytes(facts.dtype);
    return (bytes + kWordBytes - 1) / kWordBytes * kWordBytes;
}

CollectiveCall half_of(const CollectiveCall& call, const CallFacts& facts, char* chunk) noexcept {
    CollectiveCall half = call;
    half.facts = facts;
    half.send = call.facts.op == Op::kAllReduce ? chunk : call.send;
    return half;
}

ExchangeContext inner_context(const ExchangeContext& context,
                              const CollectiveCall& half,
                              uint32_t* overflow) noexcept {
    ExchangeContext inner{context.api, context.nccl, context.state,
                          context.plan.half != nullptr ? *context.plan.half : context.plan, half};
    inner.work = context.work;
    inner.scratch =
        context.scratch + kWordBytes + chunk_bytes(context.plan.facts, context.state.shape.ranks);
    inner.random = context.random;
    inner.status = overflow;
    return inner;
}

}  // namespace

CallFacts lossless_facts(const CallFacts& facts, int ranks) noexcept {
    if (facts.op != Op::kAllReduce) {
        return facts;
    }
    CallFacts half = facts;
    half.op = Op::kAllGather;
    half.redop = RedOp::kNone;
    half.count = facts.count / static_cast<uint64_t>(ranks);
    return half;
}

uint64_t lossless_wire_bytes(const Layout& layout,
                             const CallFacts& facts,
                             int ranks,
                             int rank) noexcept {
    const CallFacts half = lossless_facts(facts, ranks);
    uint64_t bytes =
        direct_wire_bytes(layout, half, ranks, rank) + native_wire_bytes(word_facts(), ranks, rank);
    if (facts.op == Op::kAllReduce) {
        CallFacts part = facts;
        part.op = Op::kReduceScatter;
        part.count = half.count;
        bytes += native_wire_bytes(part, ranks, rank);
        part.op = Op::kAllReduce;
        part.count = facts.count - half.count * static_cast<uint64_t>(ranks);
        bytes += native_wire_bytes(part, ranks, rank);
    }
    return bytes;
}

ExchangeSizes lossless_sizes(const Layout& layout, const CallFacts& facts, const PlanShape& shape) {
    const CallFacts half = lossless_facts(facts, shape.ranks);
    ExchangeSizes sizes = direct_sizes(layout, half, shape);
    sizes.wire_bytes = 0;
    for (int rank = 0; rank < shape.ranks; ++rank) {
        sizes.wire_bytes =
            std::max(sizes.wire_bytes, lossless_wire_bytes(layout, facts, shape.ranks, rank));
    }
    sizes.scratch_bytes += kWordBytes + chunk_bytes(facts, shape.ranks);
    sizes.residual_elems = sizes.residual_runs = sizes.largest_run = 0;
    return sizes;
}

Lossless::Lossless(const ExchangeContext& context)
    : context_(context),
      overflow_(reinterpret_cast<uint32_t*>(context.scratch)),
      chunk_(context.scratch + kWordBytes),
      half_(half_of(
          context.call, lossless_facts(context.plan.facts, context.state.shape.ranks), chunk_)),
      direct_(inner_context(context, half_, overflow_)),
      given_up_(context.plan.overflows >= kMaxOverflows) {}

Course Lossless::course() const noexcept {
    return given_up_ ? Course::kRaw : overflowed_ ? Course::kSentAgain : Course::kCompressed;
}

int Lossless::phases() const noexcept {
    // Sums, direct's, and the raw message where it is needed.
    return (sums() ? 1 : 0) + (given_up_ ? 0 : direct_.phases()) + 1;
}

bool Lossless::exchanges(int phase) const noexcept {
    const int inner = inner_phase(phase);
    if (inner < 0) {
        return true;
    }
    if (inner == (given_up_ ? 0 : direct_.phases())) {
        return given_up_ || overflowed_;
    }
    return direct_.exchanges(inner) || agrees(inner);
}

// With the last slices, or after them: the words of all ranks, whose encodings were enqueued
// before.
bool Lossless::agrees(int inner) const noexcept {
    return inner == direct_.phases() - 2;
}

Status Lossless::kernels(int phase) {
    const int inner = inner_phase(phase);
    if (given_up_) {
        return inner == 0 ? direct_.copy_own_block() : Status();
    }
    if (inner == 0) {
        SLIMWIRE_TRY(
            cuda_status(context_.api,
                        context_.api.memset_async(overflow_, 0, sizeof(*overflow_), context_.work),
                        "overflow word"));
    }
    return inner >= 0 && inner < direct_.phases() ? direct_.kernels(inner) : Status();
}

Status Lossless::exchange(int phase) {
    const int inner = inner_phase(phase);
    if (inner < 0) {
        return sum_chunks();
    }
    if (inner == (given_up_ ? 0 : direct_.phases())) {
        return given_up_ || overflowed_ ? send_raw() : Status();
    }
    if (direct_.exchanges(inner)) {
        SLIMWIRE_TRY(direct_.exchange(inner));
    }
    if (agrees(inner)) {
        return nccl_status(context_.nccl,
                           context_.nccl.AllReduce(overflow_, overflow_, 1, ncclUint32, ncclMax,
                                                   context_.state.exchange_comm, context_.work),
                           "ncclAllReduce of the overflow words");
    }
    return {};
}

Status Lossless::finish(int phase) {
    const int inner = inner_phase(phase);
    if (given_up_ || inner < 0 || inner >= direct_.phases()) {
        return {};
    }
    SLIMWIRE_TRY(direct_.finish(inner));
    if (inner < direct_.phases() - 1) {
        return {};
    }
    const DeviceApi& api = context_.api;
    uint32_t word = 0;
    SLIMWIRE_TRY(cuda_status(
        api,
        api.memcpy_async(&word, overflow_, sizeof(word), cudaMemcpyDeviceToHost, context_.work),
        "overflow word"));
    SLIMWIRE_TRY(cuda_status(api, api.stream_synchronize(context_.work), "wait for the overflow"));
    overflowed_ = word != 0;
    return {};
}

Status Lossless::sum_chunks() {
    const CallFacts& facts = context_.plan.facts;
    const RealNccl& nccl = context_.nccl;
    const ncclComm_t comm = context_.state.exchange_comm;
    const auto dtype = static_cast<ncclDataType_t>(facts.dtype);
    const ncclRedOp_t op = facts.redop == RedOp::kAvg ? ncclAvg : ncclSum;
    SLIMWIRE_TRY(nccl_status(nccl,
                             nccl.ReduceScatter(context_.call.send, chunk_, half_.facts.count,
                                                dtype, op, comm, context_.work),
                             "ncclReduceScatter of chunks"));
    const uint64_t whole = half_.facts.count * static_cast<uint64_t>(context_.state.shape.ranks);
    const uint64_t offset = whole * dtype_bytes(facts.dtype);
    return whole == facts.count
               ? Status()
               : nccl_status(nccl,
                             nccl.AllReduce(static_cast<const char*>(context_.call.send) + offset,
                                            static_cast<char*>(context_.call.recv) + offset,
                                            facts.count - whole, dtype, op, comm, context_.work),
                             "ncclAllReduce of the rest");
}

Status Lossless::send_raw() {
    const RealNccl& nccl = context_.nccl;
    const ncclComm_t comm = context_.state.exchange_comm;
    const CallFacts& facts = half_.facts;
    const auto dtype = static_cast<ncclDataType_t>(facts.dtype);
    const int root = facts.root_or_peer;
    const int own = context_.state.rank;
    if (facts.op == Op::kAllGather) {
        return nccl_status(
            nccl, nccl.AllGather(half_.send, half_.recv, facts.count, dtype, comm, context_.work),
            "ncclAllGather of what did not fit");
    }
    if (facts.op == Op::kBroadcast) {
        return nccl_status(nccl,
                           nccl.Broadcast(own == root ? half_.send : half_.recv, half_.recv,
                                          facts.count, dtype, root, comm, context_.work),
                           "ncclBroadcast of what did not fit");
    }
    // All-to-all, gather and scatter: a block to or from each peer that there is.
    const bool all = facts.op == Op::kAllToAll;
    const size_t block = facts.count * dtype_bytes(facts.dtype);
    for (int peer = 0; peer < context_.state.shape.ranks; ++peer) {
        if (peer == own) {
            continue;
        }
        const auto at = static_cast<size_t>(peer) * block;
        const bool sends = all || (facts.op == Op::kGather ? peer == root : own == root);
        const bool receives = all || (facts.op == Op::kGather ? own == root : peer == root);
        if (sends) {
            const char* from = static_cast<const char*>(half_.send);
            SLIMWIRE_TRY(nccl_status(nccl,
                                     nccl.Send(facts.op == Op::kGather ? from : from + at,
                                               facts.count, dtype, peer, comm, context_.work),
                                     "ncclSend of what did not fit"));
        }
        if (receives) {
            char* to = static_cast<char*>(half_.recv);
            SLIMWIRE_TRY(nccl_status(nccl,
                                     nccl.Recv(facts.op == Op::kScatter ? to : to + at, facts.count,
                                               dtype, peer, comm, context_.work),
                                     "ncclRecv of what did not fit"));
        }
    }
    return {};
}

}  // namespace slimwire
