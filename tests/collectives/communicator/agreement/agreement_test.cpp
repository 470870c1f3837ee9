// The agreement between ranks: the id's tail, the decision, and the exchange over sockets with
// ranks that differ in every way they can.
#include "collectives/communicator/agreement/agreement.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "collectives/communicator/agreement/claim_book.h"
#include "collectives/communicator/agreement/wire.h"
#include "tests/collectives/communicator/agreement/open_communicator.h"

namespace slimwire {
namespace {

Hello hello_of(int rank, int ranks, uint64_t hash = 7) {
    Hello hello;
    hello.rank = rank;
    hello.ranks = ranks;
    hello.config_hash = hash;
    return hello;
}

AgreementAddress some_address() {
    AgreementAddress address;
    address.family = 4;
    address.port = 4711;
    address.token = 0x1122334455667788;
    address.address[0] = 127;
    address.address[3] = 1;
    return address;
}

TEST(IdTail, RoundTripLeavesTheFirstHalfAlone) {
    ncclUniqueId id{};
    std::memset(id.internal, 0x5a, 64);
    ASSERT_TRUE(write_id_tail(some_address(), &id));
    for (int i = 0; i < 64; ++i) {
        ASSERT_EQ(id.internal[i], 0x5a);
    }
    AgreementAddress read;
    EXPECT_EQ(read_id_tail(id, &read), TailState::kPresent);
    EXPECT_EQ(read, some_address());
}

TEST(IdTail, RefusesATailInUse) {
    for (int used = 64; used < NCCL_UNIQUE_ID_BYTES; ++used) {
        ncclUniqueId id{};
        id.internal[used] = 1;
        const ncclUniqueId before = id;
        EXPECT_FALSE(write_id_tail(some_address(), &id));
        EXPECT_EQ(std::memcmp(&before, &id, sizeof(id)), 0);
    }
}

TEST(IdTail, torn_id_tail) {
    ncclUniqueId whole{};
    AgreementAddress read;
    EXPECT_EQ(read_id_tail(whole, &read), TailState::kAbsent);
    ASSERT_TRUE(write_id_tail(some_address(), &whole));
    for (int byte = 72; byte < 64 + 40; ++byte) {
        ncclUniqueId torn = whole;
        torn.internal[byte] = static_cast<char>(torn.internal[byte] ^ 0x10);
        EXPECT_EQ(read_id_tail(torn, &read), TailState::kTorn) << "byte " << byte;
    }
}

// An error reaches all even when a rank is missing; one that stays out makes all native.
TEST(Decide, one_rank_without_slimwire_and_other_verdicts) {
    const Hello zero = hello_of(0, 3), one = hello_of(1, 3), two = hello_of(2, 3);
    Hello wrong = two, out = hello_of(1, 3, 99);
    wrong.error = "p.toml:1:1: no version";
    out.native_reason = "SLIMWIRE_MODE is off";
    struct Case {
        std::vector<Hello> hellos;
        Verdict verdict;
        std::string says;
        bool advises = false;  // more behind that
    };
    for (const auto& [hellos, verdict, says, advises] :
         {Case{{two, zero, one}, Verdict::kGo, ""},
          Case{{zero, hello_of(1, 3, 8), two},
               Verdict::kError,
               "rank 1 and rank 0 have different policies",
               true},
          Case{{zero, two}, Verdict::kNative, "rank 1 did not answer in 5000 ms", true},
          Case{{zero, wrong}, Verdict::kError, "rank 2: p.toml:1:1: no version"},
          Case{{zero, out, two}, Verdict::kNative, "rank 1: SLIMWIRE_MODE is off"}}) {
        const Agreement answer = decide(hellos, 3, 5000000);
        EXPECT_EQ(answer.verdict, verdict) << says;
        EXPECT_TRUE(answer.text == says || (advises && answer.text.starts_with(says)))
            << answer.text;
    }
    // One host sends it to each of 16,384 ranks and more.
    EXPECT_LE(agreement_wire::encode_answer({Verdict::kGo, ""}).size(), 64u);
}

TEST(Decide, ranks_that_differ_hear_in_what) {
    const std::string rule = "rule 'grads': op=allreduce -> codec=int8 min_bytes=64KiB\n";
    const auto difference = [](const std::string& first, const std::string& second) {
        // Of equal ones the first to come tells.
        Hello early = hello_of(2, 3), other = hello_of(1, 3, 8);
        early.settings = first;
        other.settings = second;
        return decide({early, other, hello_of(0, 3)}, 3, 1000).text;
    };
    const std::string settings = "SLIMWIRE_MODE=on SLIMWIRE_SEED=3\n";
    for (const auto& [other, said] :
         {std::pair{"SLIMWIRE_MODE=on SLIMWIRE_SEED=4\n" + rule, ", in SLIMWIRE_SEED: 4 and 3;"},
          {settings + "rule 'grads': op=allreduce -> codec=int4 min_bytes=64KiB\n",
           ", in codec of rule 'grads': int4 and int8;"},
          {settings + "rule 'grads': op=allreduce -> codec=int8 ef=ef14 min_bytes=64KiB\n",
           ", in ef of rule 'grads': ef14 and none;"},
          {settings, ", in rule 'grads', which the last alone has;"},
          {settings + rule + "rule 'more': -> codec=int4\n",
           ", in rule 'more', which the last has not;"},
          {std::string(), "variables;"}}) {
        const std::string text = difference(settings + rule, other);
        EXPECT_NE(text.find("rank 1 and rank 0 have different"), std::string::npos) << text;
        EXPECT_NE(text.find(said), std::string::npos) << text;
    }
}

// The exchange itself; the server of the test process answers after 300 ms.
constexpr uint64_t kAgreementTimeoutUs = 300000;

AgreementAddress opened() {
    return open_communicator(kAgreementTimeoutUs);
}
Result<AgreementAddress> open_by(const std::string& ifname, const ncclUniqueId& id = {}) {
    return open_agreement(kAgreementTimeoutUs, id, ifname);
}

std::string address_of(const Result<AgreementAddress>& address) {
    char text[INET6_ADDRSTRLEN] = "none";
    if (address.ok()) {
        inet_ntop(address.value().family == 6 ? AF_INET6 : AF_INET, address.value().address, text,
                  sizeof(text));
    }
    return text;
}

Result<Agreement> say(const AgreementAddress& address, const Hello& hello) {
    AgreementClient client;
    SLIMWIRE_TRY(client.send(address, hello, kAgreementTimeoutUs));
    return client.wait(10 * kAgreementTimeoutUs, nullptr);
}

TEST(Exchange, ManyRanksFromThreads) {
    constexpr int kRanks = 40;
    const AgreementAddress address = opened();
    std::vector<std::thread> threads;
    std::atomic<int> go{0};
    for (int rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
            Result<Agreement> answer = say(address, hello_of(rank, kRanks));
            go += answer.ok() && answer.value().verdict == Verdict::kGo ? 1 : 0;
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(go, kRanks);
}

// One host answers all ranks of the largest job; one thread may bring up many of them.
TEST(Exchange, OneOfManyRanksHasTheWholeText) {
    const std::string why = "p.toml:1:1: " + std::string(2000, 'x');
    for (const int ranks : {64, 65}) {
        const AgreementAddress address = opened();
        std::vector<AgreementClient> clients(static_cast<size_t>(ranks));
        for (int rank = ranks - 1; rank >= 0; --rank) {
            Hello hello = hello_of(rank, ranks);
            hello.error = rank == 7 ? why : "";
            ASSERT_TRUE(
                clients[static_cast<size_t>(rank)].send(address, hello, kAgreementTimeoutUs).ok());
        }
        for (int rank = 0; rank < ranks; ++rank) {
            const Result<Agreement> answer =
                clients[static_cast<size_t>(rank)].wait(10 * kAgreementTimeoutUs, nullptr);
            ASSERT_TRUE(answer.ok()) << answer.status().message();
            EXPECT_EQ(answer.value().verdict, Verdict::kError);
            const bool whole = ranks == 64 || rank == 0;
            EXPECT_EQ(answer.value().text,
                      whole ? "rank 7: " + why
                            : ("rank 7: " + why).substr(0, 40) + "... (rank 0 says all of it)");
        }
    }
    const Agreement native{Verdict::kNative, why};
    EXPECT_LE(agreement_wire::encode_answer(native, 0).size(), 64u);
}

TEST(Exchange, AMissingRankMeansNativeAfterTheTimeout) {
    const AgreementAddress address = opened();
    const auto begin = std::chrono::steady_clock::now();
    Result<Agreement> answer = say(address, hello_of(0, 2));
    const auto waited = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer.value().verdict, Verdict::kNative);
    EXPECT_GE(waited, std::chrono::microseconds(kAgreementTimeoutUs));
    // The latecomer learns the same.
    Result<Agreement> late = say(address, hello_of(1, 2));
    ASSERT_TRUE(late.ok());
    EXPECT_EQ(late.value().verdict, Verdict::kNative);
    EXPECT_FALSE(say(address, hello_of(1, 2)).ok()) << "all have come: nothing is kept";
}

TEST(Exchange, StrangersAndWrongTokensAreDropped) {
    const AgreementAddress address = opened();
    AgreementAddress wrong = address;
    wrong.token ^= 1;
    EXPECT_FALSE(say(wrong, hello_of(0, 1)).ok());
    for (const std::string& garbage :
         {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(5000, 'x'), std::string(80, '\0')}) {
        const uint64_t deadline_us = agreement_wire::now_us() + kTimeoutUs;
        const int stranger = agreement_wire::connect_to(address, deadline_us, {}).value();
        (void)agreement_wire::write_all(stranger, garbage.data(), garbage.size(), deadline_us);
        char byte = 0;
        EXPECT_FALSE(agreement_wire::read_all(stranger, &byte, 1, deadline_us, {}));  // not a word
        EXPECT_LT(agreement_wire::now_us(), deadline_us) << "it is closed";
        close(stranger);
    }
    Result<Agreement> answer = say(address, hello_of(0, 1));
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer.value().verdict, Verdict::kGo);
}

TEST(Exchange, abort_during_agreement) {
    AgreementClient client;
    ASSERT_TRUE(client.send(opened(), hello_of(0, 2), kAgreementTimeoutUs).ok());
    int looks = 0;
    EXPECT_FALSE(client.wait(kTimeoutUs, [&] { return ++looks == 1; }).ok());
    EXPECT_EQ(looks, 1) << "nothing else ended it";
}

// Two versions of slimwire in one job, whichever of them has the server.
TEST(Exchange, AnotherVersionIsAnErrorForAll) {
    const AgreementAddress address = opened();
    Hello own = hello_of(0, 2), theirs = hello_of(1, 2);
    own.settings = theirs.settings = "SLIMWIRE_MODE=on\n";
    AgreementClient client;
    ASSERT_TRUE(client.send(address, own, kTimeoutUs).ok());
    const Result<int> other =
        agreement_wire::connect_to(address, agreement_wire::now_us() + kTimeoutUs, {});
    ASSERT_TRUE(other.ok());
    std::string bytes = agreement_wire::encode_hello(theirs, address.token);
    const uint32_t older = kAgreementVersion - 1;
    std::memcpy(bytes.data() + offsetof(agreement_wire::HelloHeader, version), &older, 4);
    const uint64_t deadline_us = agreement_wire::now_us() + kTimeoutUs;
    ASSERT_TRUE(agreement_wire::write_all(other.value(), bytes.data(), bytes.size(), deadline_us));
    const Result<Agreement> heard = client.wait(kTimeoutUs, {});
    ASSERT_TRUE(heard.ok());
    EXPECT_EQ(heard.value().verdict, Verdict::kError);
    EXPECT_EQ(heard.value().text, "rank 1: runs another slimwire (agreement version " +
                                      std::to_string(older) + ", expected " +
                                      std::to_string(kAgreementVersion) + "); install one version");
    agreement_wire::AnswerHeader answer{};
    ASSERT_TRUE(agreement_wire::read_all(other.value(), &answer, sizeof(answer), deadline_us, {}));
    EXPECT_EQ(answer.verdict, static_cast<uint32_t>(Verdict::kError));
    EXPECT_EQ(answer.text_bytes, heard.value().text.size());
    close(other.value());
}

TEST(Exchange, NobodyListeningIsSaidAtOnce) {
    AgreementAddress nobody = some_address();
    nobody.port = 1;
    AgreementClient client;
    const Status status = client.send(nobody, hello_of(0, 2), 1000000);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("127.0.0.1 port 1"), std::string::npos) << status.message();
}

TEST(Exchange, AnUnknownInterfaceIsAnError) {
    const Status status = open_by("nosuchif").status();
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("SLIMWIRE_SOCKET_IFNAME 'nosuchif'"), std::string::npos);
    // '=' and '^' are of the whole list, as in NCCL's variable.
    EXPECT_FALSE(open_by("=l,nosuch").ok());
    EXPECT_NE(address_of(open_by("^lo")), "127.0.0.1");
    for (const char* list : {"=nosuch,lo", "nosuch,l", "=lo"}) {
        EXPECT_EQ(address_of(open_by(list)), "127.0.0.1") << list;
    }
}

TEST(Exchange, ALinkLocalAddressKeepsItsScope) {
    ncclUniqueId id{};
    sockaddr_in6 root{};
    root.sin6_family = AF_INET6;
    inet_pton(AF_INET6, "fe80::5", &root.sin6_addr);
    root.sin6_scope_id = 7;
    std::memcpy(id.internal + 8, &root, sizeof(root));
    const Result<AgreementAddress> address = open_by("", id);
    ASSERT_TRUE(address.ok()) << address.status().message();
    ncclUniqueId told{};
    ASSERT_TRUE(write_id_tail(address.value(), &told));
    AgreementAddress read;
    ASSERT_EQ(read_id_tail(told, &read), TailState::kPresent);
    EXPECT_EQ(read.scope, 7u);
    EXPECT_EQ(read.family, 6);
}

// The last of this file: an unknown token gets an answer from here on.
TEST(Exchange, IdsThatAreNeverUsedAreForgotten) {
    const AgreementAddress first = opened();
    for (size_t id = 16; id < ClaimBook::kMostComms; ++id) {
        (void)opened();
    }
    const AgreementAddress waits = opened();
    AgreementClient one;
    ASSERT_TRUE(one.send(waits, hello_of(0, 2), kAgreementTimeoutUs).ok());
    for (int id = 0; id < 32; ++id) {
        (void)opened();
    }
    const Result<Agreement> old = say(first, hello_of(0, 1));
    ASSERT_TRUE(old.ok());
    EXPECT_EQ(old.value().verdict, Verdict::kNative) << old.value().text;
    EXPECT_EQ(say(opened(), hello_of(0, 1)).value().verdict, Verdict::kGo);
    EXPECT_EQ(say(waits, hello_of(1, 2)).value().verdict, Verdict::kGo);
    EXPECT_EQ(one.wait(kAgreementTimeoutUs, nullptr).value().verdict, Verdict::kGo);
}

}  // namespace
}  // namespace slimwire
