// What a rank claims of the element types of its calls, and hears.
#include "collectives/communicator/agreement/type_claims.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "collectives/call/log.h"
#include "tests/collectives/communicator/agreement/open_communicator.h"

namespace slimwire {
namespace {

CallSignature signature_of(Op op, int peer, DType dtype, uint64_t bytes = 4096) {
    CallSignature signature;
    signature.op = op;
    signature.dtype = dtype;
    signature.root_or_peer = peer;
    signature.count = bytes / dtype_bytes(dtype);
    return signature;
}

const CallSignature kSend = signature_of(Op::kSend, 1, DType::kFloat32);
const CallSignature kRecv = signature_of(Op::kRecv, 0, DType::kFloat32);
const CallSignature kOtherRecv = signature_of(Op::kRecv, 0, DType::kBfloat16);

// Ranks 0 and 1 of a communicator.
struct Two {
    explicit Two(const AgreementAddress& address = open_communicator()) {
        static uint64_t key = 0;
        ++key;
        zero = std::make_shared<TypeClaims>(of(address, 0, key));
        one = std::make_shared<TypeClaims>(of(address, 1, key));
    }
    static TypeClaims::Of of(const AgreementAddress& address, int rank, uint64_t key) {
        return {address, key, 2, rank, ~0u, "rank " + std::to_string(rank), kTimeoutUs};
    }
    // Of the bytes that rank 0 sends as f32 and rank 1 takes for bf16.
    void expect_differ() const {
        for (const auto& [claims, said] : {std::pair{zero, "rank 0: send of 4096 bytes to rank 1"},
                                           {one, "rank 1: recv of 4096 bytes from rank 0"}}) {
            while (!claims->failed()) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            const std::string text = std::string(said) + " is f32 on rank 0 and bf16 on rank 1";
            EXPECT_EQ(claims->error().rfind(text, 0), 0u) << claims->error();
        }
    }
    std::shared_ptr<TypeClaims> zero, one;
};

// As a stream does behind the call.
void await_answer(TypeClaims* claims, const CallSignature& call) {
    if (const std::optional<uint32_t> number = claims->unanswered(call)) {
        claims->wait(*number);
    }
}

TEST(TypeClaims, both_ranks_hear_that_types_differ) {
    const Two ranks;
    ranks.zero->claim(signature_of(Op::kSend, 1, DType::kUint8), false);
    ranks.one->claim(signature_of(Op::kRecv, 0, DType::kUint8), false);
    ranks.zero->claim(kSend, true);
    ranks.one->claim(kOtherRecv, true);
    const std::optional<uint32_t> number = ranks.one->unanswered(kOtherRecv);
    std::thread stream([&] {
        if (number.has_value()) {
            ranks.one->wait(*number);
        }
    });
    ranks.expect_differ();
    ranks.one->end();
    stream.join();
}

TEST(TypeClaims, a_fork_compares_types_too) {
    Two().zero->claim(kSend, true);  // the thread is there
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const Two ranks;
        ranks.zero->claim(kSend, true);
        ranks.one->claim(kOtherRecv, true);
        alarm(kTimeoutUs / 1000000);
        ranks.expect_differ();
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int ended = 0;
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
}

TEST(TypeClaims, a_stream_goes_on_once_types_are_known_to_be_alike) {
    const Two ranks;
    for (const DType type : {DType::kUint8, DType::kBfloat16, DType::kFloat32}) {  // in turn
        ranks.one->claim(signature_of(Op::kRecv, 0, type), true);
    }
    const std::optional<uint32_t> number = ranks.one->unanswered(kRecv);
    ASSERT_TRUE(number.has_value());
    for (const DType type : {DType::kUint8, DType::kBfloat16, DType::kFloat32}) {
        ranks.zero->claim(signature_of(Op::kSend, 1, type), true);
    }
    ranks.one->wait(*number);
    EXPECT_FALSE(ranks.one->unanswered(kRecv).has_value());
    EXPECT_EQ(ranks.one->error(), "");
}

// What calls become later is no other question, whichever rank is ahead: one that asked it in vain
// held its stream up for the whole of its patience.
TEST(TypeClaims, types_that_are_alike_stay_so_when_calls_come_to_be_compressed) {
    const AgreementAddress address = open_communicator();
    // The answer to the first claim may come before the second is sent, or behind it.
    for (int round = 0; round < 40; ++round) {
        const Two ranks(address);
        ranks.zero->claim(kSend, false);
        if (round % 2 == 0) {
            ranks.zero->claim(kSend, true);
        }
        ranks.one->claim(kRecv, false);
        ranks.one->claim(kRecv, true);
        ranks.zero->claim(kSend, true);
        for (const auto& [claims, call] : {std::pair{ranks.zero, kSend}, {ranks.one, kRecv}}) {
            await_answer(claims.get(), call);
            CallSignature alone = call;
            alone.count *= call.op == Op::kSend ? 2 : 3;  // which the other one has no call for
            claims->claim(alone, true);
            EXPECT_TRUE(claims->unanswered(alone).has_value()) << "its patience is at an end";
        }
    }
}

TEST(TypeClaims, calls_that_concern_no_other_rank_or_are_not_compressed_are_not_claimed) {
    TypeClaims::Of of = Two::of(AgreementAddress(), 0, 1);
    of.ops = 1u << static_cast<int>(Op::kSend) | 1u << static_cast<int>(Op::kAllReduce);
    const TypeClaims claims(of);
    EXPECT_TRUE(claims.concerns(kSend));
    for (const CallSignature& other :
         {signature_of(Op::kSend, 0, DType::kUint8), signature_of(Op::kSend, 2, DType::kUint8),
          signature_of(Op::kSend, -1, DType::kUint8), signature_of(Op::kSend, 1, DType::kUint8, 0),
          signature_of(Op::kBroadcast, 1, DType::kUint8),
          signature_of(Op::kAllReduce, 0, DType::kFloat32)}) {
        EXPECT_FALSE(claims.concerns(other));
    }
}

TEST(TypeClaims, more_kinds_than_are_compared_hold_nothing_up) {
    const Two ranks;
    log_configure(LogLevel::kInfo, "");
    testing::internal::CaptureStderr();
    for (size_t i = 1; i <= TypeClaims::kMostClaims + 2; ++i) {
        ranks.zero->claim(signature_of(Op::kSend, 1, DType::kUint8, 8192 + i), true);
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "slimwire: info: rank 0: element types are compared of the first 4096 kinds of "
              "calls; later ones of this rank are not\n");
    log_configure(LogLevel::kWarn, "");
    EXPECT_FALSE(ranks.zero->unanswered(kSend).has_value());
    ranks.one->claim(kRecv, true);
    await_answer(ranks.one.get(), kRecv);
    EXPECT_FALSE(ranks.one->unanswered(kRecv).has_value());
    EXPECT_EQ(ranks.one->error(), "");
}

// Jobs whose counts never repeat have thousands of kinds: an error there is one as well, and only
// the first kinds wait for answers.
TEST(TypeClaims, types_of_the_thousandth_kind_differ_too) {
    const Two ranks;
    for (size_t i = 1; i <= 1000; ++i) {
        ranks.zero->claim(signature_of(Op::kSend, 1, DType::kUint8, 16384 + i), true);
        ranks.one->claim(signature_of(Op::kRecv, 0, DType::kUint8, 16384 + i), true);
    }
    ranks.one->claim(kOtherRecv, true);
    EXPECT_FALSE(ranks.one->unanswered(kOtherRecv).has_value());
    ranks.zero->claim(kSend, true);
    ranks.expect_differ();
    EXPECT_FALSE(ranks.zero->unanswered(signature_of(Op::kSend, 1, DType::kUint8, 16384 + 999)));
}

TEST(TypeClaims, a_server_that_is_gone_is_as_none) {
    AgreementAddress nobody = open_communicator();
    nobody.port = 1;
    const Two ranks(nobody);
    ranks.one->claim(kRecv, true);
    await_answer(ranks.one.get(), kRecv);
    EXPECT_FALSE(ranks.one->unanswered(kRecv).has_value());
    EXPECT_EQ(ranks.one->error(), "");
}

TEST(TypeClaims, the_end_of_a_communicator_lets_streams_go_on) {
    const Two ranks;
    ranks.one->claim(kRecv, true);
    const std::optional<uint32_t> number = ranks.one->unanswered(kRecv);
    ASSERT_TRUE(number.has_value());
    std::thread stream([&] { ranks.one->wait(*number); });
    ranks.one->end();
    stream.join();
    EXPECT_FALSE(ranks.one->unanswered(kRecv).has_value());
}

}  // namespace
}  // namespace slimwire
