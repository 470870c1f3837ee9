#include "tests/e2e/conformance/player.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/e2e/conformance/oracle.h"
#include "tests/support/nccl_program.h"

namespace conformance {
namespace {

constexpr size_t kPlayerMargin = 64;

}  // namespace

void split_worlds(const std::vector<ncclComm_t>& worlds, std::vector<ncclComm_t>* splits) {
    splits->resize(worlds.size());
    CHECK_NCCL(ncclGroupStart());
    for (size_t i = 0; i < worlds.size(); ++i) {
        int rank = 0;
        CHECK_NCCL(ncclCommUserRank(worlds[i], &rank));
        CHECK_NCCL(ncclCommSplit(worlds[i], rank % 2, rank, &(*splits)[i], nullptr));
    }
    CHECK_NCCL(ncclGroupEnd());
}

char* allocate(size_t bytes, bool pinned) {
    char* memory = nullptr;
    void** const to = reinterpret_cast<void**>(&memory);
    CHECK_CUDA(pinned ? cudaMallocHost(to, bytes) : cudaMalloc(to, bytes));
    return memory;
}

void release(char* memory, bool pinned) {
    CHECK_CUDA(pinned ? cudaFreeHost(memory) : cudaFree(memory));
}

Player::Player(int device,
               ncclComm_t world,
               ncclComm_t split,
               const Rules& rules,
               size_t max_elems,
               bool pinned)
    : device_(device), pinned_(pinned), rules_(rules) {
    select();
    members_[0].comm = world;
    members_[1].comm = split;
    for (Member& member : members_) {
        CHECK_NCCL(ncclCommCount(member.comm, &member.ranks));
        CHECK_NCCL(ncclCommUserRank(member.comm, &member.rank));
    }
    CHECK_CUDA(cudaStreamCreate(&streams_[static_cast<int>(StreamChoice::kBlocking)]));
    for (const StreamChoice choice : {StreamChoice::kNonBlocking, StreamChoice::kOther}) {
        CHECK_CUDA(
            cudaStreamCreateWithFlags(&streams_[static_cast<int>(choice)], cudaStreamNonBlocking));
    }
    streams_[static_cast<int>(StreamChoice::kPerThread)] = cudaStreamPerThread;
    // Every call of a batch may have margins and a misalignment of its own.
    const size_t bytes = (max_elems + 64) * 8 + 16 * (2 * kPlayerMargin + 64);
    inputs_ = allocate(bytes, pinned_);
    results_ = allocate(bytes, pinned_);
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&scalars_), 16 * 8));
    host_inputs_.resize(bytes);
    host_results_.resize(bytes);
}

void Player::select() const {
    CHECK_CUDA(cudaSetDevice(device_));
}

Player::~Player() {
    select();
    for (const StreamChoice choice :
         {StreamChoice::kBlocking, StreamChoice::kNonBlocking, StreamChoice::kOther}) {
        CHECK_CUDA(cudaStreamDestroy(streams_[static_cast<int>(choice)]));
    }
    release(inputs_, pinned_);
    release(results_, pinned_);
    CHECK_CUDA(cudaFree(scalars_));
    CHECK_NCCL(ncclCommDestroy(members_[1].comm));
}

cudaStream_t Player::stream_of(const Call& call) const {
    return streams_[static_cast<int>(in_graph_ ? StreamChoice::kOther : call.stream)];
}

const Member& Player::member_of(const Call& call) const {
    return members_[static_cast<int>(call.communicator)];
}

void Player::place(const Batch& batch) {
    placed_.clear();
    size_t input_end = 0, result_end = 0;
    for (const Call& call : batch.calls) {
        const Member& member = member_of(call);
        const size_t elem = facts_of(call.type).bytes;
        const size_t shift = static_cast<size_t>(call.misalignment) * elem;
        const auto rank = static_cast<size_t>(member.rank);
        Placed placed;
        placed.input_bytes = call.input_elems(member.ranks) * elem;
        placed.output_bytes = call.output_elems(member.ranks) * elem;
        placed.region = result_end;
        const size_t first = result_end + kPlayerMargin + shift;
        size_t content = placed.output_bytes;
        placed.output = placed.input = first;
        if (call.in_place) {
            if (call.collects_output()) {
                placed.input = first + rank * placed.input_bytes;
            } else if (call.parts_input()) {
                placed.output = first + rank * placed.output_bytes;
            }
            content = std::max(placed.input_bytes, placed.output_bytes);
        } else {
            placed.input = input_end + shift;
            input_end = (placed.input + placed.input_bytes + 15) / 16 * 16;
        }
        placed.result_here = call.has_output(member.ranks, member.rank);
        result_end = (first + content + kPlayerMargin + 15) / 16 * 16;
        placed.region_bytes = result_end - placed.region;
        placed_.push_back(placed);
    }
    EXPECT_THAT(input_end <= host_inputs_.size() && result_end <= host_results_.size(),
                "the arenas are too small");
}

// The stream brings the inputs, so that a call which does not wait for its stream fails.
void Player::upload(const Call& call, const Placed& placed, cudaStream_t stream) {
    const Member& member = member_of(call);
    const Oracle oracle(call, rules_.of(call, member.ranks), member.ranks, member.rank);
    CHECK_CUDA(
        cudaMemsetAsync(results_ + placed.region, kResultPoison, placed.region_bytes, stream));
    if (!call.has_input(member.ranks, member.rank)) {
        return;
    }
    char* staging = call.in_place ? host_results_.data() : host_inputs_.data();
    char* target = call.in_place ? results_ : inputs_;
    oracle.write_input(staging + placed.input);
    if (placed.input_bytes > 0) {
        CHECK_CUDA(cudaMemcpyAsync(target + placed.input, staging + placed.input,
                                   placed.input_bytes, cudaMemcpyDefault, stream));
    }
}

void Player::enqueue(const Call& call, const Placed& placed, ncclRedOp_t op, cudaStream_t stream) {
    const Member& member = member_of(call);
    const int root = call.root % member.ranks;
    const char* send = (call.in_place ? results_ : inputs_) + placed.input;
    char* receive = results_ + placed.output;
    switch (call.kind) {
        case Kind::kAllReduce:
            CHECK_NCCL(
                ncclAllReduce(send, receive, call.count, call.type, op, member.comm, stream));
            return;
        case Kind::kReduceScatter:
            CHECK_NCCL(
                ncclReduceScatter(send, receive, call.count, call.type, op, member.comm, stream));
            return;
        case Kind::kReduce:
            CHECK_NCCL(
                ncclReduce(send, receive, call.count, call.type, op, root, member.comm, stream));
            return;
        case Kind::kAllGather:
            CHECK_NCCL(ncclAllGather(send, receive, call.count, call.type, member.comm, stream));
            return;
        case Kind::kBroadcast:
            CHECK_NCCL(
                ncclBroadcast(send, receive, call.count, call.type, root, member.comm, stream));
            return;
        case Kind::kBcast:
            CHECK_NCCL(ncclBcast(receive, call.count, call.type, root, member.comm, stream));
            return;
        case Kind::kAllToAll:
            CHECK_NCCL(ncclAlltoAll(send, receive, call.count, call.type, member.comm, stream));
            return;
        case Kind::kSendRecv:
            CHECK_NCCL(ncclGroupStart());
            CHECK_NCCL(ncclSend(send, call.count, call.type, (member.rank + root) % member.ranks,
                                member.comm, stream));
            CHECK_NCCL(ncclRecv(receive, call.count, call.type,
                                (member.rank - root + member.ranks) % member.ranks, member.comm,
                                stream));
            CHECK_NCCL(ncclGroupEnd());
            return;
        case Kind::kGather:
            CHECK_NCCL(ncclGather(send, receive, call.count, call.type, root, member.comm, stream));
            return;
        case Kind::kScatter:
            CHECK_NCCL(
                ncclScatter(send, receive, call.count, call.type, root, member.comm, stream));
            return;
    }
}

void Player::begin(const Batch& batch) {
    constexpr ncclRedOp_t kBuiltIn[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
    place(batch);
    ops_.clear();
    for (size_t i = 0; i < batch.calls.size(); ++i) {
        const Call& call = batch.calls[i];
        const Member& member = member_of(call);
        const cudaStream_t stream = stream_of(call);
        upload(call, placed_[i], stream);
        ncclRedOp_t op = kBuiltIn[std::min(static_cast<int>(call.op), 4)];
        if (call.op == Operator::kPreMulHost || call.op == Operator::kPreMulDevice) {
            const Oracle oracle(call, rules_.of(call, member.ranks), member.ranks, member.rank);
            uint64_t scalar = 0;
            std::memcpy(&scalar, oracle.scalar(), facts_of(call.type).bytes);
            if (call.op == Operator::kPreMulHost) {
                CHECK_NCCL(ncclRedOpCreatePreMulSum(&op, &scalar, call.type,
                                                    ncclScalarHostImmediate, member.comm));
                scalar = ~scalar;  // the value counts at creation
            } else {
                char* there = scalars_ + 8 * i;
                CHECK_NCCL(
                    ncclRedOpCreatePreMulSum(&op, there, call.type, ncclScalarDevice, member.comm));
                CHECK_CUDA(cudaMemcpyAsync(there, &scalar, sizeof(scalar), cudaMemcpyHostToDevice,
                                           stream));
                CHECK_CUDA(cudaStreamSynchronize(stream));
            }
        }
        ops_.push_back(op);
    }
}

void Player::call(const Batch& batch, size_t index) {
    enqueue(batch.calls[index], placed_[index], ops_[index], stream_of(batch.calls[index]));
}

void Player::end(const Batch& batch) {
    for (size_t i = 0; i < batch.calls.size(); ++i) {
        if (ops_[i] >= ncclNumOps) {
            CHECK_NCCL(ncclRedOpDestroy(ops_[i], member_of(batch.calls[i]).comm));
        }
    }
    download(batch);
}

void Player::issue(const Batch& batch, Grouping grouping) {
    begin(batch);
    make_calls(batch, grouping);
    end(batch);
}

void Player::make_calls(const Batch& batch, Grouping grouping) {
    const size_t half = batch.calls.size() / 2;
    if (grouping != Grouping::kOneByOne) {
        CHECK_NCCL(ncclGroupStart());
    }
    for (size_t i = 0; i < batch.calls.size(); ++i) {
        if (grouping == Grouping::kNestedGroups && (i == 0 || i == half)) {
            CHECK_NCCL(ncclGroupStart());
        }
        call(batch, i);
        if (grouping == Grouping::kNestedGroups && (i + 1 == half || i + 1 == batch.calls.size())) {
            CHECK_NCCL(ncclGroupEnd());
        }
    }
    if (grouping != Grouping::kOneByOne) {
        CHECK_NCCL(ncclGroupEnd());
    }
}

void Player::download(const Batch& batch) {
    for (size_t i = 0; i < batch.calls.size(); ++i) {
        const Placed& placed = placed_[i];
        CHECK_CUDA(cudaMemcpyAsync(host_results_.data() + placed.region, results_ + placed.region,
                                   placed.region_bytes, cudaMemcpyDefault,
                                   stream_of(batch.calls[i])));
    }
    for (const Call& call : batch.calls) {
        CHECK_CUDA(cudaStreamSynchronize(stream_of(call)));
    }
}

Grouping Player::regrouped(const Batch& batch) {
    const bool both = std::any_of(batch.calls.begin(), batch.calls.end(), [&](const Call& call) {
        return call.communicator != batch.calls.front().communicator;
    });
    // Two communicators stay grouped: one by one they would run side by side, which NCCL forbids.
    return batch.grouping == Grouping::kOneByOne        ? Grouping::kGroup
           : batch.grouping == Grouping::kGroup || both ? Grouping::kNestedGroups
                                                        : Grouping::kOneByOne;
}

void Player::issue_own_way(const Batch& batch, OwnWays* ways) {
    Chance& own = ways->own;
    const Call& first = batch.calls.front();
    bool both = false, messages = false;
    for (const Call& call : batch.calls) {
        both |= call.communicator != first.communicator;
        messages |= call.kind == Kind::kSendRecv || call.kind == Kind::kAllToAll ||
                    call.kind == Kind::kGather || call.kind == Kind::kScatter;
    }
    // NCCL puts a group's messages, and what it makes of messages, behind its collectives.
    const Grouping grouping = messages ? batch.grouping
                              : both   ? static_cast<Grouping>(1 + own.below(2))
                                       : static_cast<Grouping>(own.below(3));
    in_graph_ = ways->graphs.below(3) == 0;
    const auto issue_here = [&] {
        select();
        if (!in_graph_) {
            issue(batch, grouping);
            return;
        }
        const cudaStream_t stream = stream_of(first);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t ready = nullptr;
        begin(batch);
        CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        make_calls(batch, grouping);
        CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
        CHECK_CUDA(cudaGraphLaunch(ready, stream));
        end(batch);
        CHECK_CUDA(cudaGraphExecDestroy(ready));
        CHECK_CUDA(cudaGraphDestroy(graph));
    };
    if (own.below(3) == 0) {
        std::thread(issue_here).join();
    } else {
        issue_here();
    }
    in_graph_ = false;
}

void Player::play_own_way(const Batch& batch, uint64_t number, OwnWays* ways) {
    Batch mine = batch;
    for (Call& call : mine.calls) {
        call.misalignment = ways->own.below(4);
        if (call.kind != Kind::kAllToAll && call.kind != Kind::kSendRecv &&
            call.kind != Kind::kBcast) {
            call.in_place = ways->own.below(2) == 0;
        }
    }
    issue_own_way(mine, ways);
    if (!ways->judged) {
        check(mine, number, take_all);
        return;
    }
    check(mine, number);
    if (batch.repeat) {
        issue_own_way(mine, ways);
        compare_with_before(mine, number);
    }
}

void Player::play(const Batch& batch, uint64_t number, const Judge& judge) {
    issue(batch, batch.grouping);
    check(batch, number, judge);
}

void Player::play(const Batch& batch, uint64_t number) {
    issue(batch, batch.grouping);
    check(batch, number);
    if (batch.repeat) {
        issue(batch, regrouped(batch));
        compare_with_before(batch, number);
    }
}

}  // namespace conformance
