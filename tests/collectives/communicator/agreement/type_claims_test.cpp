// What a rank claims of the element types of its calls, and hears.
#include "collectives/communicator/agreement/type_claims.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "collectives/call/log.h"
#include "tests/collectives/communicator/agreement/open_communicator.h"

namespace slimwire {
namespace {

TypeClaims::Of own_claims(const AgreementAddress& address, int rank, uint64_t key) {
    return {address, key, 2, rank, ~0u, "rank " + std::to_string(rank), kTimeoutUs};
}

CallSignature signature_of(Op op, int peer, DType dtype, uint64_t bytes) {
    CallSignature signature;
    signature.op = op;
    signature.dtype = dtype;
    signature.root_or_peer = peer;
    signature.count = bytes / dtype_bytes(dtype);
    return signature;
}

// Of 4096 bytes that rank 0 sends as f32 and rank 1 takes for bf16.
void expect_differ(TypeClaims& zero, TypeClaims& one) {
    for (const auto& [claims, said] :
         {std::pair{&zero,
                    "rank 0: send of 4096 bytes to rank 1 is f32 on rank 0 and bf16 on rank 1"},
          {&one, "rank 1: recv of 4096 bytes from rank 0 is f32 on rank 0 and bf16 on rank 1"}}) {
        while (claims->error().empty()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_EQ(claims->error().rfind(said, 0), 0u) << claims->error();
    }
}

TEST(TypeClaims, a_fork_compares_types_too) {
    const auto before = std::make_shared<TypeClaims>(own_claims(open_communicator(), 0, 7));
    before->claim(signature_of(Op::kSend, 1, DType::kFloat32, 4096), true);  // the thread is there
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const AgreementAddress address = open_communicator();
        const auto zero = std::make_shared<TypeClaims>(own_claims(address, 0, 8));
        const auto one = std::make_shared<TypeClaims>(own_claims(address, 1, 8));
        zero->claim(signature_of(Op::kSend, 1, DType::kFloat32, 4096), true);
        one->claim(signature_of(Op::kRecv, 0, DType::kBfloat16, 4096), true);
        alarm(kTimeoutUs / 1000000);
        expect_differ(*zero, *one);
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int ended = 0;
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
}

// What calls become later is no other question, whichever rank is ahead: one that asked it in vain
// held its stream up for the whole of its patience.
TEST(TypeClaims, types_that_are_alike_stay_so_when_calls_come_to_be_compressed) {
    const AgreementAddress address = open_communicator();
    const CallSignature send = signature_of(Op::kSend, 1, DType::kFloat32, 4096);
    const CallSignature recv = signature_of(Op::kRecv, 0, DType::kFloat32, 4096);
    // The answer to the first claim may come before the second is sent, or behind it.
    for (uint64_t round = 0; round < 40; ++round) {
        const auto zero = std::make_shared<TypeClaims>(own_claims(address, 0, 21 + round));
        const auto one = std::make_shared<TypeClaims>(own_claims(address, 1, 21 + round));
        zero->claim(send, false);
        if (round % 2 == 0) {
            zero->claim(send, true);
        }
        one->claim(recv, false);
        one->claim(recv, true);
        zero->claim(send, true);
        for (const auto& [claims, call] : {std::pair{zero, send}, {one, recv}}) {
            if (const std::optional<uint32_t> number = claims->unanswered(call)) {
                claims->wait(*number);
            }
            CallSignature alone = call;
            alone.count *= call.op == Op::kSend ? 2 : 3;  // which the other one has no call for
            claims->claim(alone, true);
            EXPECT_TRUE(claims->unanswered(alone).has_value()) << "its patience is at an end";
        }
    }
}

TEST(TypeClaims, calls_that_concern_no_other_rank_or_are_not_compressed_are_not_claimed) {
    TypeClaims::Of of = own_claims(open_communicator(), 0, 3);
    of.ops = 1u << static_cast<int>(Op::kSend) | 1u << static_cast<int>(Op::kAllReduce);
    const TypeClaims claims(of);
    EXPECT_TRUE(claims.concerns(signature_of(Op::kSend, 1, DType::kUint8, 4)));
    for (const CallSignature& other : {signature_of(Op::kSend, 0, DType::kUint8, 4),
                                       signature_of(Op::kSend, 2, DType::kUint8, 4),
                                       signature_of(Op::kSend, -1, DType::kUint8, 4),
                                       signature_of(Op::kSend, 1, DType::kUint8, 0),
                                       signature_of(Op::kBroadcast, 1, DType::kUint8, 4),
                                       signature_of(Op::kAllReduce, 0, DType::kFloat32, 4)}) {
        EXPECT_FALSE(claims.concerns(other));
    }
}

TEST(TypeClaims, more_kinds_than_are_compared_hold_nothing_up) {
    const AgreementAddress address = open_communicator();
    const auto zero = std::make_shared<TypeClaims>(own_claims(address, 0, 4));
    const auto one = std::make_shared<TypeClaims>(own_claims(address, 1, 4));
    log_configure(LogLevel::kInfo, "");
    testing::internal::CaptureStderr();
    for (size_t i = 1; i <= TypeClaims::kMostClaims + 2; ++i) {
        zero->claim(signature_of(Op::kSend, 1, DType::kUint8, i), true);
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "slimwire: info: rank 0: element types are compared of the first 4096 kinds of "
              "calls; "
              "later ones of this rank are not\n");
    log_configure(LogLevel::kWarn, "");
    const CallSignature recv = signature_of(Op::kRecv, 0, DType::kUint8, 1 << 20);
    EXPECT_FALSE(zero->unanswered(signature_of(Op::kSend, 1, DType::kUint8, 1 << 20)).has_value());
    one->claim(recv, true);
    if (const auto number = one->unanswered(recv); number.has_value()) {
        one->wait(*number);
    }
    EXPECT_FALSE(one->unanswered(recv).has_value());
    EXPECT_EQ(one->error(), "");
}

// Jobs whose counts never repeat have thousands of kinds: an error there is one as well, and only
// the first kinds wait for answers.
TEST(TypeClaims, types_of_the_thousandth_kind_differ_too) {
    const AgreementAddress address = open_communicator();
    const auto zero = std::make_shared<TypeClaims>(own_claims(address, 0, 9));
    const auto one = std::make_shared<TypeClaims>(own_claims(address, 1, 9));
    for (size_t i = 1; i <= 1000; ++i) {
        zero->claim(signature_of(Op::kSend, 1, DType::kUint8, 16384 + i), true);
        one->claim(signature_of(Op::kRecv, 0, DType::kUint8, 16384 + i), true);
    }
    const CallSignature recv = signature_of(Op::kRecv, 0, DType::kBfloat16, 4096);
    one->claim(recv, true);
    EXPECT_FALSE(one->unanswered(recv).has_value());
    zero->claim(signature_of(Op::kSend, 1, DType::kFloat32, 4096), true);
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(kTimeoutUs);
    while (!(zero->failed() && one->failed()) && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    expect_differ(*zero, *one);
    EXPECT_FALSE(zero->unanswered(signature_of(Op::kSend, 1, DType::kUint8, 16384 + 999)));
}

TEST(TypeClaims, a_server_that_is_gone_is_as_none) {
    AgreementAddress nobody = open_communicator();
    nobody.port = 1;
    const auto claims = std::make_shared<TypeClaims>(own_claims(nobody, 1, 5));
    const CallSignature recv = signature_of(Op::kRecv, 0, DType::kFloat32, 4096);
    claims->claim(recv, true);
    if (const auto number = claims->unanswered(recv); number.has_value()) {
        claims->wait(*number);
    }
    EXPECT_FALSE(claims->unanswered(recv).has_value());
    EXPECT_EQ(claims->error(), "");
}

TEST(TypeClaims, the_end_of_a_communicator_lets_streams_go_on) {
    const auto claims = std::make_shared<TypeClaims>(own_claims(open_communicator(), 1, 6));
    const CallSignature recv = signature_of(Op::kRecv, 0, DType::kFloat32, 4096);
    claims->claim(recv, true);
    const std::optional<uint32_t> number = claims->unanswered(recv);
    ASSERT_TRUE(number.has_value());
    std::thread stream([&] { claims->wait(*number); });
    claims->end();
    stream.join();
    EXPECT_FALSE(claims->unanswered(recv).has_value());
}

}  // namespace
}  // namespace slimwire
