#include "tests/e2e/conformance/messages.h"

#include <algorithm>
#include <cmath>

#include "tests/e2e/conformance/oracle.h"
#include "tests/support/nccl_program.h"

namespace conformance {
namespace {

constexpr size_t kMaxMessages = 12;
constexpr size_t kMargin = 64;
constexpr int kPoison = 0x5a;
constexpr int kWrongCalls = 6;

size_t message_elems(const Weights& weights) {
    return std::min<size_t>(weights.max_count / kMaxMessages, 60000);
}

bool poisoned(const char* begin, const char* end) {
    return std::all_of(begin, end, [](char byte) { return byte == kPoison; });
}

}  // namespace

Traffic draw_traffic(Chance& chance, const Weights& weights, int world_ranks) {
    constexpr ncclDataType_t kCompressible[] = {ncclFloat32, ncclFloat16, ncclBfloat16};
    const auto most = static_cast<double>(message_elems(weights));
    Traffic traffic;
    traffic.grouping = chance.next();
    traffic.repeat = chance.below(6) == 0;
    const auto messages = 1 + static_cast<size_t>(chance.below(kMaxMessages));
    for (size_t i = 0; i < messages; ++i) {
        Message message;
        Call& call = message.call;
        call.kind = Kind::kSendRecv;
        call.type = chance.below(100) < weights.compressible_percent
                        ? kCompressible[chance.below(3)]
                        : static_cast<ncclDataType_t>(chance.below(ncclNumTypes));
        call.communicator = chance.below(4) == 0 ? Communicator::kSplit : Communicator::kWorld;
        call.count = static_cast<size_t>(std::exp(chance.unit() * std::log(most + 1))) -
                     static_cast<size_t>(chance.below(2));
        call.count = std::max(call.count, std::min(weights.min_count, message_elems(weights)));
        call.root = chance.below(world_ranks);
        message.from = chance.below(world_ranks);
        if (i > 0 && chance.below(2) == 0) {
            // The way of the one before, or back.
            const Message& before = traffic.messages.back();
            call.communicator = before.call.communicator;
            call.root = before.call.root;
            message.from = before.from;
            if (chance.below(2) == 0) {
                message.from = before.from + before.call.root;
                call.root = world_ranks - call.root % world_ranks;
            }
        }
        call.misalignment = chance.below(4);
        call.shape = chance.below(3) == 0 ? Shape::kSparse : Shape::kSpread;
        call.data = chance.next();
        if (facts_of(call.type).floating && call.count > 0 && chance.below(25) == 0) {
            call.special = true;
            call.infinity = chance.below(2) == 0 && facts_of(call.type).bytes > 1;
            call.special_rank = message.from;
            call.special_index = chance.next();
        }
        traffic.messages.push_back(message);
    }
    if (chance.below(2) == 0) {
        Weights small = weights;
        small.max_count = std::min<size_t>(weights.max_count, 200000);
        traffic.batch = draw_batch(chance, small, world_ranks);
        // Ranks name the communicators in orders of their own, so these must not share a stream:
        // NCCL launches them one after the other.
        const bool both = std::any_of(
            traffic.batch.calls.begin(), traffic.batch.calls.end(), [&](const Call& call) {
                return call.communicator != traffic.batch.calls.front().communicator;
            });
        for (Call& call : traffic.batch.calls) {
            if (both) {
                call.stream = call.communicator == Communicator::kWorld ? StreamChoice::kNonBlocking
                                                                        : StreamChoice::kOther;
            }
        }
        traffic.shared_begin = static_cast<size_t>(chance.below(static_cast<int>(messages)));
        traffic.shared_end =
            traffic.shared_begin + 1 +
            static_cast<size_t>(chance.below(static_cast<int>(messages - traffic.shared_begin)));
    }
    return traffic;
}

Messenger::Messenger(Player* player, const Rules& rules, const Weights& weights)
    : player_(player),
      members_(player->members()),
      rules_(rules),
      alike_(weights.alike),
      arena_bytes_(kMaxMessages * (message_elems(weights) * 8 + 2 * kMargin + 64)),
      host_inputs_(arena_bytes_),
      host_results_(arena_bytes_) {
    for (cudaStream_t& stream : streams_) {
        CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    inputs_ = allocate(arena_bytes_, player->pinned());
    results_ = allocate(arena_bytes_, player->pinned());
}

Messenger::~Messenger() {
    player_->select();
    for (cudaStream_t stream : streams_) {
        CHECK_CUDA(cudaStreamDestroy(stream));
    }
    release(inputs_, player_->pinned());
    release(results_, player_->pinned());
}

const Member& Messenger::member_of(const Message& message) const {
    return members_[static_cast<int>(message.call.communicator)];
}

// This rank's ends, in the common order, with the data of what it sends on its way to the device.
void Messenger::place(const Traffic& traffic) {
    ends_.clear();
    size_t input_end = 0, result_end = 0;
    for (size_t i = 0; i < traffic.messages.size(); ++i) {
        const Message& message = traffic.messages[i];
        const Member& member = member_of(message);
        const size_t elem = facts_of(message.call.type).bytes;
        const int from = message.from % member.ranks;
        const int to = (from + message.call.root) % member.ranks;
        End end;
        end.message = i;
        end.bytes = message.call.count * elem;
        // NCCL launches the parts of a group on their communicators one after the other, so on one
        // stream the second would wait for the first.
        end.stream = streams_[static_cast<int>(message.call.communicator)];
        const size_t shift = static_cast<size_t>(message.call.misalignment) * elem;
        if (member.rank == from) {
            end.sends = true;
            end.offset = input_end + shift;
            input_end = (end.offset + end.bytes + 15) / 16 * 16;
            Oracle(message.call, rules_.of(message.call, member.ranks), member.ranks, from)
                .write_input(host_inputs_.data() + end.offset);
            CHECK_CUDA(cudaMemcpyAsync(inputs_ + end.offset, host_inputs_.data() + end.offset,
                                       end.bytes, cudaMemcpyDefault, end.stream));
            ends_.push_back(end);
        }
        if (member.rank == to) {
            end.sends = false;
            end.offset = result_end + kMargin + shift;
            result_end = (end.offset + end.bytes + kMargin + 15) / 16 * 16;
            ends_.push_back(end);
        }
    }
    EXPECT_THAT(input_end <= arena_bytes_ && result_end <= arena_bytes_,
                "the arenas are too small");
    CHECK_CUDA(cudaMemset(results_, kPoison, arena_bytes_));
    CHECK_CUDA(cudaDeviceSynchronize());
}

void Messenger::make(const Traffic& traffic, const End& end) {
    const Message& message = traffic.messages[end.message];
    const Member& member = member_of(message);
    const int from = message.from % member.ranks;
    const int to = (from + message.call.root) % member.ranks;
    if (end.sends) {
        CHECK_NCCL(ncclSend(inputs_ + end.offset, message.call.count, message.call.type, to,
                            member.comm, end.stream));
    } else {
        CHECK_NCCL(ncclRecv(results_ + end.offset, message.call.count, message.call.type, from,
                            member.comm, end.stream));
    }
}

// Where message `message` begins among this rank's ends.
size_t Messenger::first_end(size_t message) const {
    return static_cast<size_t>(
        std::find_if(ends_.begin(), ends_.end(),
                     [&](const End& end) { return end.message >= message; }) -
        ends_.begin());
}

// Groups as it likes, and the one that all ranks make.
void Messenger::issue(const Traffic& traffic, Chance& own) {
    Chance before(own.next()), between(own.next()), after(own.next());
    if (traffic.batch.calls.empty()) {
        issue_cut(traffic, 0, traffic.messages.size(), before);
        return;
    }
    issue_cut(traffic, 0, traffic.shared_begin, before);
    CHECK_NCCL(ncclGroupStart());
    make_mixed(traffic, first_end(traffic.shared_begin), first_end(traffic.shared_end), between);
    CHECK_NCCL(ncclGroupEnd());
    issue_cut(traffic, traffic.shared_end, traffic.messages.size(), after);
}

void Messenger::make_mixed(const Traffic& traffic, size_t begin, size_t last, Chance& own) {
    const std::vector<Call>& calls = traffic.batch.calls;
    // Before which message each call is made. NCCL makes messages of some collectives, and those to
    // one peer keep their order on both sides, so there all ranks have one.
    const bool messages = std::any_of(calls.begin(), calls.end(), [](const Call& call) {
        return call.kind == Kind::kAllToAll || call.kind == Kind::kSendRecv ||
               call.kind == Kind::kGather || call.kind == Kind::kScatter;
    });
    Chance common(traffic.grouping);
    std::vector<size_t> before;
    for (size_t i = 0; i < calls.size(); ++i) {
        before.push_back(static_cast<size_t>(
            (messages ? common : own).below(static_cast<int>(traffic.messages.size()) + 1)));
    }
    std::sort(before.begin(), before.end());
    size_t call = 0;
    while (begin < last || call < calls.size()) {
        const bool nested = own.below(4) == 0;
        if (nested) {
            CHECK_NCCL(ncclGroupStart());
        }
        if (call < calls.size() && (begin == last || before[call] <= ends_[begin].message)) {
            player_->call(traffic.batch, call++);
        } else {
            make(traffic, ends_[begin++]);
        }
        if (nested) {
            CHECK_NCCL(ncclGroupEnd());
        }
    }
}

void Messenger::make_all(const Traffic& traffic, Chance& own) {
    make_mixed(traffic, 0, ends_.size(), own);
}

// Cuts messages [begin, last) into groups, some of them nested, some single calls without a group.
// Every rank draws the same numbers from the same state.
void Messenger::issue_cut(const Traffic& traffic, size_t begin, size_t last, Chance& own) {
    const int style = own.below(4);  // single calls; one group; runs; runs with inner groups
    while (begin < last) {
        const auto left = static_cast<int>(last - begin);
        const size_t end =
            begin + static_cast<size_t>(style == 0   ? 1
                                        : style == 1 ? left
                                                     : 1 + own.below(std::min(left, 5)));
        const size_t first = first_end(begin), behind = first_end(end);
        const bool alone_in_group = own.below(3) == 0;
        const size_t inner =
            first_end(begin + static_cast<size_t>(own.below(static_cast<int>(end - begin))));
        const bool group = behind - first > 1 || alone_in_group;  // both ends of one to oneself
        const bool nested = group && style == 3 && inner < behind;
        if (group) {
            CHECK_NCCL(ncclGroupStart());
        }
        for (size_t i = first; i < behind; ++i) {
            if (nested && i == inner) {
                CHECK_NCCL(ncclGroupStart());
            }
            make(traffic, ends_[i]);
        }
        if (nested) {
            CHECK_NCCL(ncclGroupEnd());
        }
        if (group) {
            CHECK_NCCL(ncclGroupEnd());
        }
        begin = end;
    }
}

ncclResult_t Messenger::make_wrong(const Traffic& traffic, int kind) {
    const Member& member = member_of(traffic.messages.front());
    const size_t count = 4000;  // codecs take it
    void* host = host_results_.data();
    switch (kind) {
        case 0:
            return ncclSend(inputs_, count, ncclFloat32, member.ranks, member.comm, streams_[0]);
        case 1:
            return ncclRecv(results_, count, ncclFloat32, -1, member.comm, streams_[0]);
        case 2:
            return ncclSend(nullptr, count, ncclFloat32, 0, member.comm, streams_[0]);
        case 3:
            return ncclBroadcast(results_, results_, count, ncclFloat32, member.ranks, member.comm,
                                 streams_[0]);
        case 4:
            return ncclAllReduce(host, host, count, ncclFloat32, ncclSum, member.comm, streams_[0]);
        default:
            return ncclAllReduce(results_, results_, count, ncclFloat32,
                                 static_cast<ncclRedOp_t>(ncclNumOps + 1000), member.comm,
                                 streams_[0]);
    }
}

void Messenger::try_in_vain(const Traffic& traffic, Chance& own) {
    const int way = own.below(24);
    if (way == 1 && alike_) {
        return;
    }
    if (way == 0) {
        EXPECT_THAT(make_wrong(traffic, own.below(kWrongCalls)) != ncclSuccess,
                    "NCCL took a wrong call");
    } else if (way == 1 || way == 2) {
        const int wrong = own.below(kWrongCalls);
        CHECK_NCCL(ncclGroupStart());
        make_all(traffic, own);
        if (way == 1) {
            ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
            CHECK_NCCL(ncclGroupSimulateEnd(&info));
            return;
        }
        EXPECT_THAT(make_wrong(traffic, wrong) != ncclSuccess, "NCCL took wrong call %d", wrong);
        EXPECT_THAT(ncclGroupEnd() != ncclSuccess, "a group with wrong call %d ended well", wrong);
    }
}

void Messenger::check(const Traffic& traffic, uint64_t number, bool judged) {
    CHECK_CUDA(cudaMemcpy(host_results_.data(), results_, arena_bytes_, cudaMemcpyDefault));
    size_t clean_until = 0;
    for (const End& end : ends_) {
        if (end.sends) {
            continue;
        }
        const Message& message = traffic.messages[end.message];
        const Member& member = member_of(message);
        const Codec& codec = rules_.of(message.call, member.ranks);
        const Oracle oracle(message.call, codec, member.ranks, member.rank);
        std::string wrong = judged ? oracle.check(host_results_.data() + end.offset) : "";
        if (wrong.empty() &&
            !poisoned(host_results_.data() + clean_until, host_results_.data() + end.offset)) {
            wrong = "memory before the message was written";
        }
        clean_until = end.offset + end.bytes;
        EXPECT_THAT(wrong.empty(), "rank %d, traffic %llu, message %zu of %zu from %d: %s\n  %s",
                    members_[0].rank, static_cast<unsigned long long>(number), end.message,
                    traffic.messages.size(), message.from % member.ranks,
                    message.call.text().c_str(), wrong.c_str());
    }
    EXPECT_THAT(poisoned(host_results_.data() + clean_until, host_results_.data() + arena_bytes_),
                "traffic %llu: memory behind the messages was written",
                static_cast<unsigned long long>(number));
}

void Messenger::begin(const Traffic& traffic) {
    place(traffic);
    player_->begin(traffic.batch);
}

void Messenger::end(const Traffic& traffic, uint64_t number, int round, bool judged) {
    for (cudaStream_t stream : streams_) {
        CHECK_CUDA(cudaStreamSynchronize(stream));
    }
    player_->end(traffic.batch);
    check(traffic, number, judged);
    if (!judged) {
        player_->check(traffic.batch, number, Player::take_all);
    } else if (round == 0) {
        player_->check(traffic.batch, number);
    } else {
        player_->compare_with_before(traffic.batch, number);
        compare_with_before(traffic, number);
    }
    before_ = host_results_;
}

void Messenger::compare_with_before(const Traffic& traffic, uint64_t number) const {
    for (const End& end : ends_) {
        const Call& call = traffic.messages[end.message].call;
        const Member& member = member_of(traffic.messages[end.message]);
        EXPECT_THAT(
            end.sends || rules_.of(call, member.ranks).stochastic ||
                std::equal(host_results_.begin() + static_cast<ptrdiff_t>(end.offset),
                           host_results_.begin() + static_cast<ptrdiff_t>(end.offset + end.bytes),
                           before_.begin() + static_cast<ptrdiff_t>(end.offset)),
            "traffic %llu: grouped in another way, the same messages gave other bits",
            static_cast<unsigned long long>(number));
    }
}

void Messenger::play(const Traffic& traffic, uint64_t number, bool judged) {
    const int rank = alike_ ? 0 : members_[0].rank;
    Chance own(traffic.grouping + 0x9e37 * static_cast<uint64_t>(rank));
    for (int round = 0; round < (traffic.repeat ? 2 : 1); ++round) {
        begin(traffic);
        Chance in_vain(own.next());
        try_in_vain(traffic, in_vain);
        issue(traffic, own);
        end(traffic, number, round, judged);
    }
}

}  // namespace conformance
