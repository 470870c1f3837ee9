#include "tests/e2e/conformance/player.h"

#include <algorithm>
#include <cstring>

#include "tests/e2e/conformance/oracle.h"
#include "tests/support/nccl_program.h"

namespace conformance {
namespace {

constexpr size_t kMargin = 64;
constexpr int kPoison = 0xa5;

uint64_t digest_bytes(uint64_t digest, const char* bytes, size_t count) {
    for (; count >= 8; bytes += 8, count -= 8) {
        uint64_t word;
        std::memcpy(&word, bytes, 8);
        digest = (digest ^ word) * 0x9e3779b97f4a7c15ull;
        digest ^= digest >> 32;
    }
    for (; count > 0; ++bytes, --count) {
        digest = (digest ^ static_cast<uint8_t>(*bytes)) * 0x9e3779b97f4a7c15ull;
    }
    return digest ^ digest >> 29;
}

bool poisoned(const char* bytes, size_t count) {
    return std::all_of(bytes, bytes + count,
                       [](char byte) { return static_cast<uint8_t>(byte) == kPoison; });
}

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

Player::Player(int device, ncclComm_t world, ncclComm_t split, const Rules& rules, size_t max_elems)
    : device_(device), rules_(rules) {
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
    const size_t bytes = (max_elems + 64) * 8 + 16 * (2 * kMargin + 64);
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&inputs_), bytes));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&results_), bytes));
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
    for (char* memory : {inputs_, results_, scalars_}) {
        CHECK_CUDA(cudaFree(memory));
    }
    CHECK_NCCL(ncclCommDestroy(members_[1].comm));
}

cudaStream_t Player::stream_of(const Call& call) const {
    return streams_[static_cast<int>(call.stream)];
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
        const size_t first = result_end + kMargin + shift;
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
        result_end = (first + content + kMargin + 15) / 16 * 16;
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
    CHECK_CUDA(cudaMemsetAsync(results_ + placed.region, kPoison, placed.region_bytes, stream));
    if (!call.has_input(member.ranks, member.rank)) {
        return;
    }
    char* staging = call.in_place ? host_results_.data() : host_inputs_.data();
    char* target = call.in_place ? results_ : inputs_;
    oracle.write_input(staging + placed.input);
    if (placed.input_bytes > 0) {
        CHECK_CUDA(cudaMemcpyAsync(target + placed.input, staging + placed.input,
                                   placed.input_bytes, cudaMemcpyHostToDevice, stream));
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
    end(batch);
}

void Player::download(const Batch& batch) {
    for (size_t i = 0; i < batch.calls.size(); ++i) {
        const Placed& placed = placed_[i];
        CHECK_CUDA(cudaMemcpyAsync(host_results_.data() + placed.region, results_ + placed.region,
                                   placed.region_bytes, cudaMemcpyDeviceToHost,
                                   stream_of(batch.calls[i])));
    }
    for (const Call& call : batch.calls) {
        CHECK_CUDA(cudaStreamSynchronize(stream_of(call)));
    }
}

void Player::fail(const Batch& batch, size_t index, uint64_t number, const std::string& what) {
    std::fprintf(stderr, "rank %d, batch %llu, call %zu of %zu (%s%s): %s\n  %s\n",
                 members_[0].rank, static_cast<unsigned long long>(number), index,
                 batch.calls.size(),
                 batch.grouping == Grouping::kOneByOne ? "one by one"
                 : batch.grouping == Grouping::kGroup  ? "group"
                                                       : "nested groups",
                 batch.repeat ? ", repeated" : "", batch.calls[index].text().c_str(), what.c_str());
    std::fflush(nullptr);
    std::_Exit(5);
}

void Player::check(const Batch& batch, uint64_t number) {
    before_.clear();
    for (const Placed& placed : placed_) {
        before_.emplace_back(host_results_.data() + placed.output,
                             host_results_.data() + placed.output + placed.output_bytes);
    }
    for (size_t i = 0; i < batch.calls.size(); ++i) {
        const Call& call = batch.calls[i];
        const Placed& placed = placed_[i];
        const Member& member = member_of(call);
        const char* region = host_results_.data() + placed.region;
        const char* output = host_results_.data() + placed.output;
        // What is no part of input or result stays as it was.
        const size_t first = std::min(placed.output, call.in_place ? placed.input : placed.output);
        const size_t last = std::max(placed.output + placed.output_bytes,
                                     call.in_place ? placed.input + placed.input_bytes : 0);
        if (!poisoned(region, first - placed.region) ||
            !poisoned(host_results_.data() + last, placed.region + placed.region_bytes - last)) {
            fail(batch, i, number, "memory beside the result was written");
        }
        if (!placed.result_here) {
            // In place, the input stands inside the unused output.
            const char* input = host_results_.data() + placed.input;
            const bool clean =
                call.in_place
                    ? poisoned(output, static_cast<size_t>(input - output)) &&
                          poisoned(input + placed.input_bytes,
                                   static_cast<size_t>(output + placed.output_bytes - input) -
                                       placed.input_bytes)
                    : poisoned(output, placed.output_bytes);
            if (!clean) {
                fail(batch, i, number, "a result of another rank was written here");
            }
            continue;
        }
        const Oracle oracle(call, rules_.of(call, member.ranks), member.ranks, member.rank);
        if (const std::string wrong = oracle.check(output); !wrong.empty()) {
            fail(batch, i, number, wrong);
        }
        own_digest_ = digest_bytes(own_digest_, output, placed.output_bytes);
        if (call.equal_on_all_ranks()) {
            Member& counted = members_[static_cast<int>(call.communicator)];
            counted.digest = digest_bytes(counted.digest, output, placed.output_bytes);
        }
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

void Player::compare_with_before(const Batch& batch, uint64_t number) {
    for (size_t i = 0; i < placed_.size(); ++i) {
        const Call& call = batch.calls[i];
        const Member& member = member_of(call);
        const Codec& codec = rules_.of(call, member.ranks);
        const bool draws =
            codec.stochastic && Oracle(call, codec, member.ranks, member.rank).compressible();
        if (placed_[i].result_here && !draws && !before_[i].empty() &&
            std::memcmp(before_[i].data(), host_results_.data() + placed_[i].output,
                        before_[i].size()) != 0) {
            fail(batch, i, number, "the same call, grouped in another way, gave other bits");
        }
    }
}

void Player::play(const Batch& batch, uint64_t number) {
    issue(batch, batch.grouping);
    check(batch, number);
    if (batch.repeat) {
        issue(batch, regrouped(batch));
        compare_with_before(batch, number);
    }
}

void Player::begin_digest(int member, uint64_t number) {
    const uint64_t mine[2] = {members_[member].digest, number};
    CHECK_CUDA(cudaMemcpy(inputs_, mine, sizeof(mine), cudaMemcpyHostToDevice));
}

void Player::gather_digests(int member) {
    CHECK_NCCL(ncclAllGather(inputs_, results_, 2, ncclUint64, members_[member].comm, nullptr));
}

void Player::check_digests(int which, uint64_t number) {
    const Member& member = members_[which];
    const auto ranks = static_cast<size_t>(member.ranks);
    std::vector<uint64_t> all(2 * ranks);
    CHECK_CUDA(
        cudaMemcpy(all.data(), results_, all.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost));
    for (size_t rank = 0; rank < ranks; ++rank) {
        EXPECT_THAT(all[2 * rank] == member.digest && all[2 * rank + 1] == number,
                    "ranks %d and %zu have different results before batch %llu", member.rank, rank,
                    static_cast<unsigned long long>(number));
    }
}

void Player::compare_digests(uint64_t number) {
    for (const int member : {0, 1}) {
        begin_digest(member, number);
        gather_digests(member);
        check_digests(member, number);
    }
}

}  // namespace conformance
