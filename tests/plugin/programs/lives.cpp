// One rank of a job in which communicators come and go while ranks die, stay away or give up. The
// argument names the situation; each rank checks what it sees. Exit codes as in nccl_program.h; a
// victim ends by SIGKILL.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/programs/lives_rank.h"

extern "C" int slimwire_emulator_contexts();

namespace {

using namespace slimwire::test;

ncclComm_t start_non_blocking(const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, g_ranks, id, g_rank, &config);
    EXPECT_THAT(result == ncclInProgress, "%d", static_cast<int>(result));
    return comm;
}

ncclComm_t join_non_blocking(const ncclUniqueId& id) {
    ncclComm_t comm = start_non_blocking(id);
    const ncclResult_t state = settled(comm);
    EXPECT_THAT(state == ncclSuccess, "%d: %s", static_cast<int>(state), ncclGetLastError(nullptr));
    return comm;
}

[[noreturn]] void die() {
    kill(getpid(), SIGKILL);
    std::abort();
}

// Some time after NCCL has made the communicator: the others do not hear of one who has not come.
void die_once(std::function<bool()> made, int milliseconds) {
    std::thread([made = std::move(made), milliseconds] {
        while (!made()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        die();
    }).detach();
}

// Waits until the communicator reports an error, which must be soon.
void expect_error(ncclComm_t comm, Clock::time_point since) {
    ncclResult_t state = ncclSuccess;
    while ((state == ncclSuccess || state == ncclInProgress) &&
           seconds_since(since) < kBoundSeconds) {
        CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_THAT(state == ncclRemoteError, "%d", static_cast<int>(state));
}

// --- All goes well

// Two communicators of the same ranks, polled in opposite orders; the second rank polls only when
// the first one has told it, on another way, that its own is ready.
int non_blocking_polled_late(const ncclUniqueId& id) {
    const ncclUniqueId other = exchange_id(g_rank, "other");
    ncclComm_t first = start_non_blocking(id);
    ncclComm_t second = start_non_blocking(other);
    if (g_rank == 0) {
        EXPECT_THAT(settled(first) == ncclSuccess, "%s", ncclGetLastError(nullptr));
        publish("ready", "");
    } else {
        (void)await("ready");
    }
    EXPECT_THAT(settled(second) == ncclSuccess, "%s", ncclGetLastError(nullptr));
    EXPECT_THAT(settled(first) == ncclSuccess, "%s", ncclGetLastError(nullptr));
    reduce(first, true);
    reduce(second, true);
    CHECK_NCCL(ncclCommDestroy(first));
    const ncclResult_t finalized = ncclCommFinalize(second);
    EXPECT_THAT(finalized == ncclInProgress, "%d", static_cast<int>(finalized));
    EXPECT_THAT(settled(second) == ncclSuccess, "finalize");
    CHECK_NCCL(ncclCommDestroy(second));
    return 0;
}

int make_parts(const ncclUniqueId& id, bool compressed) {
    for (const bool blocking : {true, false}) {
        const ncclUniqueId again = blocking ? id : exchange_id(g_rank, "again");
        ncclComm_t world = blocking ? join(again) : join_non_blocking(again);
        ncclComm_t half = nullptr, rest = nullptr;
        const ncclResult_t expected = blocking ? ncclSuccess : ncclInProgress;
        EXPECT_THAT(ncclCommSplit(world, g_rank % 2, -g_rank, &half, nullptr) == expected, "split");
        EXPECT_THAT(settled(world) == ncclSuccess, "parent of the split");
        EXPECT_THAT(settled(half) == ncclSuccess, "split");
        reduce(half, compressed);
        int excluded[] = {0};
        if (g_rank != 0) {
            EXPECT_THAT(
                ncclCommShrink(world, excluded, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT) == expected,
                "shrink");
            EXPECT_THAT(settled(world) == ncclSuccess, "parent of the shrink");
            EXPECT_THAT(settled(rest) == ncclSuccess, "shrink");
            reduce(rest, compressed);
            CHECK_NCCL(ncclCommDestroy(rest));
        }
        barrier(blocking ? "blocking" : "non-blocking", g_rank, g_ranks);
        reduce(world, compressed);
        CHECK_NCCL(ncclCommDestroy(half));
        CHECK_NCCL(ncclCommDestroy(world));
    }
    return 0;
}

// The first rank goes on with the parent, which is not busy, while its part is made in the
// background; the other waits for the part first. The making must not wait for the call.
int a_call_on_the_parent_while_a_part_is_made(const ncclUniqueId& id) {
    const bool first = g_rank == 0;
    ncclComm_t comm = join(id);
    ncclComm_t part = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = first ? 0 : 1;
    const ncclResult_t result = ncclCommSplit(comm, 0, g_rank, &part, &config);
    EXPECT_THAT(result == (first ? ncclInProgress : ncclSuccess), "%d", static_cast<int>(result));
    reduce(comm, true);
    EXPECT_THAT(settled(part) == ncclSuccess, "the part");
    reduce(part, true);
    CHECK_NCCL(ncclCommDestroy(part));
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}

// A part of all ranks, each with `key`, and a call of its and of the world, if `compressed` is
// told.
int all_ranks_again(const ncclUniqueId& id, int key, std::optional<bool> compressed) {
    ncclComm_t comm = join(id);
    ncclComm_t part = nullptr;
    CHECK_NCCL(ncclCommSplit(comm, 0, key, &part, nullptr));
    if (compressed.has_value()) {
        reduce(part, *compressed);
        reduce(comm, true);
    }
    CHECK_NCCL(ncclCommDestroy(part));
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}

// Their server tells who they are. None beside another, which could leave a rank with less scratch.
int parts_of_some_ranks(const ncclUniqueId& id) {
    ncclComm_t world = join(id), part = nullptr;
    CHECK_NCCL(ncclCommSplit(world, g_rank % 2, -g_rank, &part, nullptr));
    CHECK_NCCL(ncclCommDestroy(part));
    CHECK_NCCL(ncclCommSplit(world, g_rank == 1 ? NCCL_SPLIT_NOCOLOR : 5, 0, &part, nullptr));
    CHECK_NCCL(part == nullptr ? ncclSuccess : ncclCommDestroy(part));
    int excluded[] = {0};
    if (g_rank != 0) {
        CHECK_NCCL(ncclCommShrink(world, excluded, 1, &part, nullptr, NCCL_SHRINK_DEFAULT));
        CHECK_NCCL(ncclCommDestroy(part));
    }
    CHECK_NCCL(ncclCommDestroy(world));
    return 0;
}

// With a codec that is none. Prints the host memory that each keeps.
int creations_that_fail(const ncclUniqueId&) {
    size_t before = 0;
    for (int round = 0; round < 110; ++round) {
        before = round == 10 ? mallinfo2().uordblks : before;
        ncclUniqueId own;
        CHECK_NCCL(ncclGetUniqueId(&own));
        ncclComm_t comm = nullptr;
        EXPECT_THAT(ncclCommInitRank(&comm, 1, own, 0) == ncclInvalidArgument, "%d", round);
    }
    std::printf("%ld\n", static_cast<long>(mallinfo2().uordblks - before) / 100);
    return 0;
}

// --- Ranks that differ

// One rank runs without slimwire: native for all, when the agreement's time is up.
int non_blocking_with_a_stranger(const ncclUniqueId& id) {
    ncclComm_t comm = join_non_blocking(id);
    reduce(comm, false);
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}

// All hear the same error, and the communicator is theirs to abort.
int non_blocking_with_different_policies(const ncclUniqueId& id) {
    ncclComm_t comm = start_non_blocking(id);
    const ncclResult_t state = settled(comm);
    EXPECT_THAT(state == ncclInvalidArgument, "%d", static_cast<int>(state));
    std::printf("%s\n", ncclGetLastError(nullptr));
    EXPECT_THAT(all_reduce(comm) == ncclInvalidArgument, "a call after the error");
    CHECK_NCCL(ncclCommAbort(comm));
    return 0;
}

// What is made comes to nothing, in bounded time.
void expect_nothing(ncclResult_t result,
                    ncclResult_t expected,
                    ncclComm_t comm,
                    Clock::time_point since) {
    EXPECT_THAT(expected == ncclNumResults ? result != ncclSuccess : result == expected, "%d: %s",
                static_cast<int>(result), ncclGetLastError(nullptr));
    EXPECT_THAT(comm == nullptr, "a communicator came back");
    EXPECT_THAT(seconds_since(since) < kBoundSeconds, "%.2f s", seconds_since(since));
}

// Both ranks with slimwire gave up. The first one answers for the agreement: its end would be what
// the other hears first.
void wait_for_aborts() {
    (void)await("aborted.0");
    (void)await("aborted.1");
}

// The last rank, who never says hello.
int be_the_stranger(const ncclUniqueId& id) {
    ncclComm_t comm = join(id);
    publish("native", "");
    wait_for_aborts();
    CHECK_NCCL(ncclCommAbort(comm));
    return 0;
}

// The others give up long before the agreement's time is up.
int abort_during_agreement(const ncclUniqueId& id) {
    if (g_rank == g_ranks - 1) {
        return be_the_stranger(id);
    }
    ncclComm_t comm = start_non_blocking(id);
    (void)await("native");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ncclResult_t state = ncclSuccess;
    CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_THAT(state == ncclInProgress, "%d", static_cast<int>(state));
    const auto start = Clock::now();
    CHECK_NCCL(ncclCommAbort(comm));
    EXPECT_THAT(seconds_since(start) < kBoundSeconds, "%.2f s", seconds_since(start));
    publish("aborted." + std::to_string(g_rank), "");
    wait_for_aborts();
    return 0;
}

// The same of a creation that blocks, by another thread, which knows the handle from NCCL.
int abort_during_blocking_agreement(const ncclUniqueId& id) {
    if (g_rank == g_ranks - 1) {
        return be_the_stranger(id);
    }
    ncclComm_t comm = nullptr;
    ncclResult_t result = ncclSuccess;
    std::thread creator([&] {
        CHECK_CUDA(cudaSetDevice(g_device));
        result = ncclCommInitRank(&comm, g_ranks, id, g_rank);
    });
    (void)await("native");
    ncclComm_t known = nullptr;
    while ((known = __atomic_load_n(&comm, __ATOMIC_ACQUIRE)) == nullptr) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto start = Clock::now();
    CHECK_NCCL(ncclCommAbort(known));
    creator.join();
    expect_nothing(result, ncclInvalidUsage, comm, start);
    publish("aborted." + std::to_string(g_rank), "");
    wait_for_aborts();
    return 0;
}

// --- Ranks that die. The victim is the last one.

bool victim() {
    return g_rank == g_ranks - 1;
}

// What the others see of a creation in which the victim dies.
int lose_the_victim(const ncclUniqueId& id, bool blocking) {
    const auto start = Clock::now();
    ncclComm_t comm = nullptr;
    if (blocking) {
        const ncclResult_t result = ncclCommInitRank(&comm, g_ranks, id, g_rank);
        expect_nothing(result, ncclRemoteError, comm, start);
        return 0;
    }
    comm = start_non_blocking(id);
    expect_error(comm, start);
    EXPECT_THAT(all_reduce(comm) == ncclRemoteError, "a call after the error");
    CHECK_NCCL(ncclCommAbort(comm));
    return 0;
}

// Between NCCL's creation and slimwire's: the victim, who is without slimwire, says no hello.
int killed_during_agreement(const ncclUniqueId& id, bool blocking) {
    if (victim()) {
        (void)join(id);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        die();
    }
    return lose_the_victim(id, blocking);
}

// The victim is held up in its private split, or in what follows, and dies there.
int killed_in_the_private_split(const ncclUniqueId& id, bool blocking) {
    if (!victim()) {
        return lose_the_victim(id, blocking);
    }
    static ncclComm_t comm = nullptr;
    if (blocking) {
        die_once([] { return __atomic_load_n(&comm, __ATOMIC_ACQUIRE) != nullptr; }, 1000);
        (void)ncclCommInitRank(&comm, g_ranks, id, g_rank);
        EXPECT_THAT(false, "the victim lives");
    }
    comm = start_non_blocking(id);
    int ranks = 0;
    die_once([=]() mutable { return ncclCommCount(comm, &ranks) == ncclSuccess; }, 1000);
    std::this_thread::sleep_for(std::chrono::seconds(90));
    return 0;
}

// The last rank does not come to the private split, which NCCL makes in the background on the
// others: they have an error, and it a native communicator.
int a_private_one_that_never_comes_non_blocking(const ncclUniqueId& id) {
    ncclComm_t comm = start_non_blocking(id);
    const ncclResult_t state = settled(comm);
    EXPECT_THAT(state == (g_rank == g_ranks - 1 ? ncclSuccess : ncclSystemError), "%d: %s",
                static_cast<int>(state), ncclGetLastError(nullptr));
    barrier("settled", g_rank, g_ranks);
    CHECK_NCCL(ncclCommAbort(comm));
    return 0;
}

int killed_in_a_split(const ncclUniqueId& id) {
    ncclComm_t world = join(id);
    reduce(world, true);
    const auto start = Clock::now();
    if (victim()) {
        die_once([] { return true; }, 500);
    }
    ncclComm_t part = nullptr;
    // The victim is late in the split for the private communicator (SLIMWIRE_EMU_FAULT).
    const ncclResult_t result = ncclCommSplit(world, 0, g_rank, &part, nullptr);
    EXPECT_THAT(!victim(), "the victim lives");
    expect_nothing(result, ncclRemoteError, part, start);
    CHECK_NCCL(ncclCommAbort(world));
    return 0;
}

// In the middle of compressed calls. Returns when.
Clock::time_point lose_the_last(ncclComm_t world) {
    reduce(world, true);
    if (victim()) {
        die();
    }
    const auto start = Clock::now();
    (void)all_reduce(world);
    expect_error(world, start);
    return start;
}

// The survivors shrink and go on compressing.
int the_survivors_shrink(const ncclUniqueId& id, bool blocking) {
    ncclComm_t world = blocking ? join(id) : join_non_blocking(id);
    const auto start = lose_the_last(world);
    int dead[] = {g_ranks - 1};
    ncclComm_t rest = nullptr;
    const ncclResult_t result = ncclCommShrink(world, dead, 1, &rest, nullptr, NCCL_SHRINK_ABORT);
    if (!blocking && (result == ncclInvalidArgument || result == ncclRemoteError)) {
        // NCCL does not shrink a non-blocking communicator that failed; the job begins anew.
        CHECK_NCCL(ncclCommAbort(world));
        return 0;
    }
    EXPECT_THAT(result == (blocking ? ncclSuccess : ncclInProgress), "%d",
                static_cast<int>(result));
    EXPECT_THAT(settled(rest) == ncclSuccess, "%s", ncclGetLastError(nullptr));
    CHECK_CUDA(cudaStreamSynchronize(g_stream));
    CHECK_NCCL(ncclCommAbort(world));
    EXPECT_THAT(seconds_since(start) < kBoundSeconds, "%.2f s", seconds_since(start));
    reduce(rest, true);
    CHECK_NCCL(ncclCommDestroy(rest));
    return 0;
}

// A rank whose own part fails must not leave the others waiting.
int one_rank_fails_its_part(const ncclUniqueId& id) {
    ncclComm_t world = join(id);
    reduce(world, true);
    const auto start = Clock::now();
    ncclComm_t part = nullptr;
    const ncclResult_t result = ncclCommSplit(world, 0, g_rank, &part, nullptr);
    expect_nothing(result, ncclNumResults, part, start);  // whichever error it is
    barrier("failed", g_rank, g_ranks);
    CHECK_NCCL(ncclCommAbort(world));
    return 0;
}

// --- Ends while work waits

// Communicators that have all that slimwire keeps for a step's tensors.
std::vector<Place> places(const std::string& name, int count) {
    static uint64_t step = 0;
    std::vector<Place> all;
    for (int i = 0; i < count; ++i) {
        all.emplace_back(name + std::to_string(i));
    }
    for (int i = 0; i < 3; ++i) {
        (void)slimwire_mark_step(++step);
        for (const Place& place : all) {
            place.calls();
            CHECK_CUDA(cudaStreamSynchronize(place.stream));
        }
    }
    (void)slimwire_mark_step(++step);
    return all;
}

// A message waits for its sender, who sends when three other communicators have ended.
void end_while_a_message_waits() {
    const std::vector<Place> all = places("beside", 4);
    const Place& mail = all[3];
    const int sender = 0, receiver = 1;
    if (g_rank == receiver) {
        CHECK_NCCL(ncclRecv(mail.taken, kCount, ncclFloat32, sender, mail.comm, mail.stream));
    }
    const auto start = Clock::now();
    CHECK_NCCL(ncclCommDestroy(all[0].comm));
    CHECK_NCCL(ncclCommFinalize(all[1].comm));
    CHECK_NCCL(ncclCommDestroy(all[1].comm));
    CHECK_NCCL(ncclCommAbort(all[2].comm));
    EXPECT_THAT(seconds_since(start) < kBoundSeconds, "%.2f s", seconds_since(start));
    barrier("ended", g_rank, g_ranks);
    if (g_rank == sender) {
        CHECK_NCCL(ncclSend(mail.given, kCount, ncclFloat32, receiver, mail.comm, mail.stream));
    }
    CHECK_CUDA(cudaStreamSynchronize(mail.stream));
    CHECK_NCCL(ncclCommDestroy(mail.comm));
}

// The last rank leaves out the calls of three communicators, which the others abort in turn.
void abort_in_turn() {
    std::vector<Place> all = places("in turn", 3);
    const bool away = g_rank == g_ranks - 1;
    for (const Place& place : all) {
        if (!away) {
            place.calls();
        }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (g_rank % 2 != 0) {
        std::reverse(all.begin(), all.end());
    }
    const auto start = Clock::now();
    for (const Place& place : all) {
        if (!away) {
            CHECK_NCCL(ncclCommAbort(place.comm));
        }
    }
    EXPECT_THAT(seconds_since(start) < kBoundSeconds, "%.2f s", seconds_since(start));
    barrier("aborted", g_rank, g_ranks);
    for (const Place& place : all) {
        if (away) {
            CHECK_NCCL(ncclCommAbort(place.comm));
        }
        (void)cudaStreamSynchronize(place.stream);
    }
}

// The last rank leaves out calls of a communicator, native ones and compressed ones by turns, each
// behind the one before.
void abort_by_turns() {
    const std::vector<Place> all = places("by turns", 1);
    const Place& place = all[0];
    const bool away = g_rank == g_ranks - 1;
    for (int turn = 0; turn < 2 && !away; ++turn) {
        CHECK_NCCL(ncclAllReduce(place.given, place.taken, kCount, ncclFloat32, ncclMax, place.comm,
                                 place.stream));
        place.calls();
    }
    const auto start = Clock::now();
    if (!away) {
        CHECK_NCCL(ncclCommAbort(place.comm));
    }
    EXPECT_THAT(seconds_since(start) < kBoundSeconds, "%.2f s", seconds_since(start));
    barrier("aborted by turns", g_rank, g_ranks);
    if (away) {
        CHECK_NCCL(ncclCommAbort(place.comm));
    }
    (void)cudaStreamSynchronize(place.stream);
}

int ends_while_work_waits(const ncclUniqueId&) {
    end_while_a_message_waits();
    abort_in_turn();
    abort_by_turns();
    const std::vector<Place> after = places("after", 1);
    CHECK_NCCL(ncclCommDestroy(after[0].comm));
    return 0;
}

constexpr Situation kSituations[] = {
    {"non_blocking_polled_late", non_blocking_polled_late},
    {"parts_of_parts", [](const ncclUniqueId& id) { return make_parts(id, true); }},
    {"a_call_on_the_parent_while_a_part_is_made", a_call_on_the_parent_while_a_part_is_made},
    // They know each other from the parent.
    {"a_part_of_all_ranks",
     [](const ncclUniqueId& id) { return all_ranks_again(id, g_rank, std::nullopt); }},
    {"parts_of_some_ranks", parts_of_some_ranks},
    // In another order; for it to share the world's memory and abort flag, which a private one must
    // not.
    {"a_part_that_shares",
     [](const ncclUniqueId& id) { return all_ranks_again(id, (g_rank + 1) % g_ranks, true); }},
    {"a_part_whose_private_one_fails_on_one_rank",
     [](const ncclUniqueId& id) { return all_ranks_again(id, g_rank, false); }},
    {"parts_of_parts_natively", [](const ncclUniqueId& id) { return make_parts(id, false); }},
    {"creations_that_fail", creations_that_fail},
    {"non_blocking_with_a_stranger", non_blocking_with_a_stranger},
    {"non_blocking_with_different_policies", non_blocking_with_different_policies},
    {"abort_during_agreement", abort_during_agreement},
    {"abort_during_blocking_agreement", abort_during_blocking_agreement},
    {"killed_during_agreement",
     [](const ncclUniqueId& id) { return killed_during_agreement(id, true); }},
    {"killed_during_agreement_non_blocking",
     [](const ncclUniqueId& id) { return killed_during_agreement(id, false); }},
    {"killed_in_the_private_split",
     [](const ncclUniqueId& id) { return killed_in_the_private_split(id, true); }},
    {"killed_in_the_private_split_non_blocking",
     [](const ncclUniqueId& id) { return killed_in_the_private_split(id, false); }},
    {"a_private_one_that_never_comes_non_blocking", a_private_one_that_never_comes_non_blocking},
    {"killed_in_a_split", killed_in_a_split},
    {"the_survivors_shrink", [](const ncclUniqueId& id) { return the_survivors_shrink(id, true); }},
    {"the_survivors_shrink_non_blocking",
     [](const ncclUniqueId& id) { return the_survivors_shrink(id, false); }},
    {"one_rank_fails_its_part", one_rank_fails_its_part},
    {"ends_while_work_waits", ends_while_work_waits},
};

}  // namespace

int main(int argc, char** argv) {
    const int code = run_situation(kSituations, argc, argv);
    EXPECT_THAT(slimwire_emulator_contexts() == 1, "%d contexts", slimwire_emulator_contexts());
    return code;
}
