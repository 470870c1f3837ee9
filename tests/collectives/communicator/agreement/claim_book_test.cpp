// What the server makes of claims, of types, of graphs and of splits, over connections too.
#include "collectives/communicator/agreement/claim_book.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/communicator/agreement/type_claims.h"
#include "tests/collectives/communicator/agreement/open_communicator.h"

namespace slimwire {
namespace {

using agreement_wire::Claiming;
using agreement_wire::ClaimRecord;
using agreement_wire::Matched;
using agreement_wire::MatchRecord;

ClaimRecord claim_of(Op op, int rank, int root_or_peer, DType dtype, bool compressed = true) {
    ClaimRecord record{};
    record.magic = agreement_wire::kClaimMagic;
    record.version = kAgreementVersion;
    record.what = Claiming::kType;
    record.op = op;
    record.dtype = dtype;
    record.compressed = compressed ? 1 : 0;
    record.token = 5;
    record.comm_key = 77;
    record.bytes = 4096;
    record.number = static_cast<uint32_t>(rank) + 1;
    record.ranks = 3;
    record.rank = rank;
    record.root_or_peer = root_or_peer;
    return record;
}
ClaimRecord sent(DType dtype, bool compressed = true) {
    return claim_of(Op::kSend, 0, 1, dtype, compressed);
}
ClaimRecord received(DType dtype, bool compressed = true) {
    return claim_of(Op::kRecv, 1, 0, dtype, compressed);
}
ClaimRecord as(ClaimRecord record, Claiming what) {
    record.what = what;
    return record;
}

// A book whose ranks have the connections 1, 2 and so on.
struct Book {
    ClaimBook book;
    uint64_t now_us = 1;

    // What comes of a claim, as "rank:answer" in the order of ranks.
    std::string take(const ClaimRecord& record) {
        std::vector<ClaimBook::Answer> answers;
        EXPECT_TRUE(book.take(static_cast<uint64_t>(record.rank) + 1, record, now_us, &answers));
        std::string text;
        for (const ClaimBook::Answer& answer : answers) {
            EXPECT_EQ(answer.to, answer.record.number) << "numbers are those of connections here";
            text += (text.empty() ? "" : " ") + std::to_string(answer.to - 1) + ":";
            switch (answer.record.matched) {
                case Matched::kAlike:
                    text += "alike";
                    break;
                case Matched::kSoFar:
                    text += "so far";
                    break;
                case Matched::kUnknown:
                case Matched::kPart:
                    text += "unknown";
                    break;
                case Matched::kDiffer:
                    for (const int i : {0, 1}) {
                        text += (i == 0 ? "" : "/") + std::to_string(answer.record.ranks[i]) +
                                dtype_name(answer.record.dtypes[i]);
                    }
                    break;
            }
        }
        return text;
    }
};

TEST(ClaimBook, ends_of_a_message_are_compared_and_forgotten) {
    Book book;
    EXPECT_EQ(book.take(sent(DType::kFloat32)), "");
    EXPECT_EQ(book.take(received(DType::kFloat32)), "0:alike 1:alike");
    EXPECT_EQ(book.book.claims(), 0u);
    EXPECT_EQ(book.take(received(DType::kBfloat16)), "");
    EXPECT_EQ(book.take(sent(DType::kFloat32)), "0:0f32/1bf16 1:0f32/1bf16");
    EXPECT_EQ(book.book.claims(), 0u);
}

// Of `ranks`, by color and key; those that hear, as "rank:its part in brief".
std::string split(ClaimBook* book, int ranks, const std::function<std::pair<int, int>(int)>& told) {
    std::vector<ClaimBook::Answer> answers;
    for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(answers.empty()) << "before all told";
        ClaimRecord record = claim_of(Op::kSend, rank, told(rank).first, DType::kFloat32);
        record.what = Claiming::kSplit;
        record.ranks = ranks;
        record.bytes = static_cast<uint64_t>(told(rank).second);
        record.number = record.root_or_peer < 0 ? 0 : static_cast<uint32_t>(rank) + 1;
        EXPECT_TRUE(book->take(static_cast<uint64_t>(rank) + 1, record, 1, &answers));
    }
    std::string text;
    for (const ClaimBook::Answer& answer : answers) {
        EXPECT_EQ(answer.record.matched, Matched::kPart);
        EXPECT_EQ(static_cast<size_t>(answer.record.ranks[0]), answer.part.size());
        text += (text.empty() ? "" : " ") + std::to_string(answer.to - 1) + ":";
        for (const int32_t number : answer.part) {
            text += std::to_string(number) + ",";
        }
    }
    return text;
}

TEST(ClaimBook, ranks_of_a_split_hear_who_is_in_their_part) {
    ClaimBook book;
    EXPECT_EQ(
        split(&book, 5,
              [](int rank) { return std::pair(rank == 1 ? -1 : rank % 2, rank == 4 ? -7 : 3); }),
        "4:4,0,2, 0:4,0,2, 2:4,0,2, 3:3,");
    EXPECT_EQ(split(&book, 48, [](int) { return std::pair(0, 0); }).substr(0, 12), "0:0,48,1, 1:");
    EXPECT_EQ(book.claims(), 0u);
}

TEST(ClaimBook, ranks_in_brief_are_all_of_them_or_none) {
    const std::vector<int32_t> kGrid = {1,  2,  3,  5,  6,  7,  17, 18, 19, 21, 22, 23,
                                        65, 66, 67, 69, 70, 71, 81, 82, 83, 85, 86, 87};
    std::vector<int32_t> backwards, odd = kGrid, cut = kGrid;
    for (int32_t rank = 99; rank >= 0; rank -= 3) {
        backwards.push_back(rank);
    }
    std::swap(odd[4], odd[5]);
    cut.pop_back();
    const auto brief = [](const std::vector<int32_t>& ranks) {
        return agreement_wire::brief_ranks(ranks);
    };
    EXPECT_EQ(brief(kGrid), (std::vector<int32_t>{1, 3, 1, 2, 4, 2, 16, 2, 64}));
    EXPECT_EQ(brief(odd), std::vector<int32_t>());
    EXPECT_EQ(brief(cut), std::vector<int32_t>());
    for (const auto& ranks : {kGrid, backwards, {4, 2}, {7, 1, 5, 0, 3, 9, 8, 6, 4, 2}}) {
        EXPECT_EQ(agreement_wire::ranks_in_brief(brief(ranks), ranks.size()), ranks);
    }
    EXPECT_EQ(agreement_wire::ranks_in_brief(brief(kGrid), 25), std::vector<int32_t>());
    EXPECT_EQ(agreement_wire::ranks_in_brief({0, 1 << 30, 1, 1 << 30, 1}, 12).size(), 12u);
}

TEST(ClaimBook, other_calls_are_no_other_end) {
    const std::function<void(ClaimRecord*)> kOthers[] = {
        [](ClaimRecord* other) { other->bytes *= 2; },
        [](ClaimRecord* other) { other->comm_key += 1; },
        [](ClaimRecord* other) { other->token += 1; },
        [](ClaimRecord* other) { other->nth += 1; },
        [](ClaimRecord* other) { other->root_or_peer = 2; },
        [](ClaimRecord* other) { other->op = Op::kSend; },
        [](ClaimRecord* other) { other->op = Op::kBroadcast; },
    };
    for (const auto& change : kOthers) {
        Book book;
        ClaimRecord other = received(DType::kBfloat16);
        change(&other);
        EXPECT_EQ(book.take(sent(DType::kFloat32)), "");
        EXPECT_EQ(book.take(other), "");
        EXPECT_EQ(book.book.claims(), 2u);
    }
}

TEST(ClaimBook, native_calls_may_differ_until_one_is_compressed) {
    Book book;
    EXPECT_EQ(book.take(sent(DType::kFloat32, false)), "");
    EXPECT_EQ(book.take(received(DType::kUint8, false)), "");
    EXPECT_EQ(book.take(sent(DType::kFloat32, true)), "0:0f32/1u8 1:0f32/1u8");
    EXPECT_EQ(book.take(sent(DType::kFloat32, false)), "");
    EXPECT_EQ(book.take(received(DType::kFloat32, true)), "0:alike 1:alike");
}

// Of calls that are native in graphs alone, all ranks capture the same one first.
TEST(ClaimBook, calls_of_graphs_are_counted_alike) {
    Book book;
    const auto told_of = [&](Op op, int rank, int peer, uint32_t calls, uint32_t captured) {
        ClaimRecord record = claim_of(op, rank, peer, DType::kFloat32, false);
        record.what = Claiming::kGraphs;
        record.calls = calls;
        record.captured = captured;
        return book.take(record);
    };
    const auto told = [&](int rank, uint32_t calls, uint32_t captured) {
        return told_of(Op::kAllReduce, rank, 0, calls, captured);
    };
    EXPECT_EQ(told(0, 5, 0), "0:alike");
    EXPECT_EQ(told(1, 6, 6), "1:alike") << "rank 0 has not made the sixth";
    EXPECT_EQ(told(2, 4, 0), "2:alike");
    EXPECT_EQ(told(0, 6, 6), "0:alike");
    EXPECT_EQ(told(2, 5, 0), "2:alike");
    EXPECT_EQ(told(2, 6, 0), "2:0i8/2i8");
    EXPECT_EQ(told(1, 6, 6), "1:0i8/2i8");
    EXPECT_EQ(told(2, 7, 7), "2:0i8/2i8") << "the sixth it made outside";
    EXPECT_EQ(book.take(as(claim_of(Op::kAllReduce, 2, 0, DType::kFloat32), Claiming::kEnd)), "");
    EXPECT_EQ(told(1, 9, 6), "1:alike");
    // What is old says nothing, and is forgotten.
    EXPECT_EQ(told(2, 7, 0), "2:0i8/2i8");
    book.now_us += 2 * ClaimBook::kKeptUs;
    EXPECT_EQ(told(0, 6, 0), "0:alike");
    // Messages by sender and receiver.
    EXPECT_EQ(told_of(Op::kSend, 0, 1, 3, 3), "0:alike");
    EXPECT_EQ(told_of(Op::kRecv, 0, 1, 3, 0), "0:alike");
    EXPECT_EQ(told_of(Op::kRecv, 1, 2, 3, 0), "1:alike");
    EXPECT_EQ(told_of(Op::kRecv, 1, 0, 3, 0), "1:0i8/1i8");
}

// Of calls that were captured early, a graph is replayed as they were.
TEST(ClaimBook, calls_of_graphs_that_were_captured_early_are_known_when_others_went_on) {
    constexpr uint8_t kStage = 2;
    struct Told {
        uint32_t calls = 0, early = 0;
        uint8_t way = 0, early_way = kStage;
        uint32_t kind = 1;
    };
    Book book;
    const auto told = [&](int rank, const Told& what) {
        ClaimRecord record = claim_of(Op::kAllReduce, rank, 0, DType::kFloat32, false);
        record.what = Claiming::kGraphs;
        record.kind = what.kind;
        record.calls = what.calls;
        record.early = what.early;
        record.early_way = what.early_way;
        record.way = what.way;
        return book.take(record);
    };
    const auto end = [&](int rank) {
        EXPECT_EQ(book.take(as(claim_of(Op::kAllReduce, rank, 0, DType::kFloat32), Claiming::kEnd)),
                  "");
    };
    EXPECT_EQ(told(0, {5, 3, kStage}), "0:alike");
    EXPECT_EQ(told(1, {9, 0, 0, kStage, 2}), "1:alike") << "of another kind";
    EXPECT_EQ(told(1, {9, 0, kStage}), "1:alike") << "it does as the graph does";
    EXPECT_EQ(told(1, {2, 0}), "1:alike") << "it has not come so far";
    EXPECT_EQ(told(1, {5, 0}), "1:alike") << "it made no more calls";
    EXPECT_EQ(told(1, {9, 3}), "1:alike") << "it has the same one in a graph";
    book.now_us += 3 * agreement_wire::kStuckUs;
    EXPECT_EQ(told(1, {9, 0}), "1:alike") << "the other went on meanwhile";
    EXPECT_EQ(told(0, {5, 3, kStage}), "0:0i8/1i8");
    EXPECT_EQ(told(1, {9, 0}), "1:0i8/1i8");
    EXPECT_EQ(told(2, {5, 0}), "2:0i8/1i8");
    end(0);
    EXPECT_EQ(told(1, {9, 0}), "1:alike");
    // The same call without a place.
    EXPECT_EQ(told(2, {8, 0, TypeClaims::kUnplaced}), "2:alike");
    EXPECT_EQ(told(2, {9, 0, TypeClaims::kUnplaced}), "2:2i8/1i8");
    EXPECT_EQ(told(1, {9, 0}), "1:2i8/1i8");
}

TEST(ClaimBook, all_are_compared_with_the_root) {
    Book book;
    const auto of = [](int rank, DType dtype) {
        return claim_of(Op::kBroadcast, rank, 1, dtype, rank == 1);
    };
    EXPECT_EQ(book.take(of(0, DType::kFloat32)), "");
    EXPECT_EQ(book.take(of(1, DType::kFloat32)), "0:so far");
    EXPECT_EQ(book.take(of(2, DType::kFloat32)), "0:alike 1:alike 2:alike");
    EXPECT_EQ(book.book.claims(), 0u);
    EXPECT_EQ(book.take(of(1, DType::kFloat32)), "");
    EXPECT_EQ(book.take(of(0, DType::kFloat32)), "0:so far");
    EXPECT_EQ(book.take(of(2, DType::kUint8)), "0:1f32/2u8 1:1f32/2u8 2:1f32/2u8");
    EXPECT_EQ(book.book.claims(), 0u);
    EXPECT_EQ(book.take(of(1, DType::kFloat32)), "");
    EXPECT_EQ(book.take(of(2, DType::kUint8)), "1:1f32/2u8 2:1f32/2u8");
    EXPECT_EQ(book.take(of(0, DType::kFloat32)), "0:1f32/2u8") << "who comes late hears it, too";
    EXPECT_EQ(book.book.claims(), 0u);
}

TEST(ClaimBook, all_are_compared_where_all_give) {
    Book book;
    const auto of = [](int rank, DType dtype) { return claim_of(Op::kAllGather, rank, 0, dtype); };
    EXPECT_EQ(book.take(of(2, DType::kFloat16)), "");
    EXPECT_EQ(book.take(of(0, DType::kFloat16)), "");
    EXPECT_EQ(book.take(of(1, DType::kFloat16)), "0:alike 1:alike 2:alike");
    EXPECT_EQ(book.take(of(0, DType::kFloat16)), "");
    EXPECT_EQ(book.take(of(2, DType::kBfloat16)), "0:0f16/2bf16 2:0f16/2bf16");
    EXPECT_EQ(book.take(of(1, DType::kFloat16)), "1:0f16/2bf16");
    EXPECT_EQ(book.book.claims(), 0u);
}

TEST(ClaimBook, a_rank_that_claims_nothing_more_is_waited_for_no_longer) {
    Book book;
    EXPECT_EQ(book.take(sent(DType::kFloat32)), "");
    EXPECT_EQ(book.take(as(received(DType::kFloat32), Claiming::kNoMore)), "0:unknown");
    ClaimRecord later = sent(DType::kFloat32);
    later.bytes = 8192;
    EXPECT_EQ(book.take(later), "0:unknown");
    // What it said before still counts.
    EXPECT_EQ(book.take(claim_of(Op::kRecv, 2, 0, DType::kUint8)), "");
    EXPECT_EQ(book.take(as(claim_of(Op::kRecv, 2, 0, DType::kUint8), Claiming::kNoMore)), "");
    EXPECT_EQ(book.take(claim_of(Op::kSend, 0, 2, DType::kFloat32)), "0:0f32/2u8 2:0f32/2u8");
}

TEST(ClaimBook, claims_of_who_left_are_kept_for_a_time) {
    for (const bool closed : {true, false}) {
        Book book;
        EXPECT_EQ(book.take(sent(DType::kFloat32)), "");
        if (closed) {
            book.book.gone(1, book.now_us);
        } else {
            EXPECT_EQ(book.take(as(sent(DType::kFloat32), Claiming::kEnd)), "");
        }
        book.now_us += ClaimBook::kKeptUs;
        EXPECT_EQ(book.take(received(DType::kUint8)), "1:0f32/1u8");
        EXPECT_EQ(book.take(sent(DType::kFloat32)), "");
        book.book.gone(1, book.now_us);
        book.now_us += ClaimBook::kKeptUs + 1;
        EXPECT_EQ(book.take(received(DType::kUint8)), "");
        EXPECT_EQ(book.book.claims(), 1u);
    }
}

TEST(ClaimBook, keeps_no_more_than_it_may) {
    Book book;
    ClaimRecord record = sent(DType::kFloat32);
    for (size_t i = 0; i < ClaimBook::kMostClaims; ++i) {
        record.bytes += 4;
        ASSERT_EQ(book.take(record), "");
    }
    record.bytes += 4;
    EXPECT_EQ(book.take(record), "0:unknown");
    record.comm_key += 1;
    EXPECT_EQ(book.take(record), "0:unknown");
    EXPECT_EQ(book.book.claims(), ClaimBook::kMostClaims);
    book.book.gone(1, book.now_us);
    book.now_us += 2 * ClaimBook::kKeptUs;
    EXPECT_EQ(book.take(record), "");
    EXPECT_EQ(book.book.claims(), 1u);

    Book comms;
    for (size_t i = 0; i <= ClaimBook::kMostComms; ++i) {
        ClaimRecord of_comm = sent(DType::kFloat32);
        of_comm.comm_key = i;
        ASSERT_EQ(comms.take(of_comm), i < ClaimBook::kMostComms ? "" : "0:unknown");
    }
}

const std::function<void(ClaimRecord*)> kBreak[] = {
    [](ClaimRecord* record) { record->magic += 1; },
    [](ClaimRecord* record) { record->version -= 1; },
    [](ClaimRecord* record) { record->what = static_cast<Claiming>(5); },
    [](ClaimRecord* record) { record->op = static_cast<Op>(kOpCount); },
    [](ClaimRecord* record) { record->op = Op::kAllReduce; },
    [](ClaimRecord* record) { record->dtype = static_cast<DType>(kDTypeCount); },
    [](ClaimRecord* record) { record->compressed = 2; },
    [](ClaimRecord* record) { record->bytes = 0; },
    [](ClaimRecord* record) { record->bytes += 1; },
    [](ClaimRecord* record) { record->ranks = 1; },
    [](ClaimRecord* record) { record->ranks = -3; },
    [](ClaimRecord* record) { record->rank = -1; },
    [](ClaimRecord* record) { record->rank = record->ranks; },
    [](ClaimRecord* record) { record->root_or_peer = -1; },
    [](ClaimRecord* record) { record->root_or_peer = record->ranks; },
    [](ClaimRecord* record) { record->root_or_peer = record->rank; },
    [](ClaimRecord* record) { record->nth = kDTypeCount; },
    [](ClaimRecord* record) { record->reserved[0] = 1; },
    [](ClaimRecord* record) { record->reserved[1] = 1; },
};

TEST(ClaimBook, refuses_what_is_malformed) {
    for (size_t i = 0; i < std::size(kBreak); ++i) {
        ClaimBook book;
        ClaimRecord record = sent(DType::kFloat32);
        kBreak[i](&record);
        std::vector<ClaimBook::Answer> answers;
        EXPECT_FALSE(book.take(1, record, 1, &answers)) << i;
        EXPECT_TRUE(answers.empty());
        EXPECT_EQ(book.claims(), 0u);
    }
    ClaimBook book;
    std::vector<ClaimBook::Answer> answers;
    ClaimRecord other = received(DType::kFloat32);
    other.ranks = 4;
    EXPECT_TRUE(book.take(1, sent(DType::kFloat32), 1, &answers));
    EXPECT_FALSE(book.take(2, other, 1, &answers)) << "of a communicator of another size";
}

struct Connection {
    explicit Connection(const AgreementAddress& address)
        : deadline_us(agreement_wire::now_us() + kTimeoutUs),
          socket(agreement_wire::connect_to(address, deadline_us, {}).value()) {}
    ~Connection() { close(socket); }
    void say(const void* bytes, size_t count) const {
        EXPECT_TRUE(agreement_wire::write_all(socket, bytes, count, deadline_us));
    }
    // False: the server closed it.
    bool hear(MatchRecord* record) const {
        return agreement_wire::read_all(socket, record, sizeof(*record), deadline_us, {});
    }
    const uint64_t deadline_us;
    const int socket;
};

TEST(ClaimConnections, answers_ranks_and_drops_others) {
    const AgreementAddress address = open_communicator();
    ClaimRecord one = sent(DType::kFloat32), other = received(DType::kUint8);
    one.token = other.token = address.token;
    MatchRecord answer{};
    for (size_t i = 0; i <= std::size(kBreak); ++i) {
        const Connection stranger(address);
        ClaimRecord broken = one;
        broken.comm_key += 1;
        stranger.say(&broken, sizeof(broken));
        i == 0 ? void(broken.token += 1) : kBreak[i - 1](&broken);
        stranger.say(&broken, sizeof(broken));
        EXPECT_FALSE(stranger.hear(&answer)) << i;
    }
    const Connection first(address), second(address);
    // In pieces, of which the server has the first when the second comes, and two at a time.
    first.say(&one, 60);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    first.say(reinterpret_cast<const char*>(&one) + 60, sizeof(one) - 60);
    ClaimRecord both[2] = {other, other};
    both[1].bytes = 64;
    second.say(both, sizeof(both));
    for (const Connection* rank : {&first, &second}) {
        ASSERT_TRUE(rank->hear(&answer));
        EXPECT_EQ(answer.matched, Matched::kDiffer);
        EXPECT_EQ(answer.ranks[1], 1);
        EXPECT_EQ(answer.dtypes[1], DType::kUint8);
    }
    EXPECT_EQ(answer.number, other.number);
}

TEST(ClaimConnections, lives_on_when_ranks_are_gone) {
    const AgreementAddress address = open_communicator();
    ClaimRecord one = sent(DType::kFloat32), other = received(DType::kUint8);
    one.token = other.token = address.token;
    MatchRecord answer{};
    {
        const Connection gone(address), half(address);
        gone.say(&one, sizeof(one));
        half.say(&one, 40);
    }
    const Connection rank(address);
    rank.say(&other, sizeof(other));
    ASSERT_TRUE(rank.hear(&answer));
    EXPECT_EQ(answer.matched, Matched::kDiffer);
}

}  // namespace
}  // namespace slimwire
