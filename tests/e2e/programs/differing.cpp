// Two or more ranks whose calls have the same bytes and, where CASE says so, other types, or are in
// a graph on rank 0 alone:
//   differing error|error-of-calls|fine CASE
// error: every rank must get an asynchronous error of the communicator before its call ends, though
// it need not be soon; prints the text that goes with it. error-of-calls: a later call returns it.
// fine: what arrives is what was sent, and there is no error; prints "fine". The case one-process
// is of two devices of one process; in forked and forked-too the process that makes the unique id,
// and never touched CUDA before, forks two ranks, or one beside itself.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kCount = 100000, kBytes = kCount * sizeof(float);

struct Rank {
    int rank = 0, ranks = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    char *send = nullptr, *recv = nullptr;
};

size_t count_of(ncclDataType_t type) {
    switch (type) {
        case ncclUint8:
        case ncclInt8:
            return kBytes;
        case ncclFloat16:
        case ncclBfloat16:
            return kBytes / 2;
        default:
            return kCount;
    }
}

// From rank 0 to rank 1.
void message(const Rank& own, ncclDataType_t sent, ncclDataType_t received) {
    if (own.rank == 0) {
        CHECK_NCCL(ncclSend(own.send, count_of(sent), sent, 1, own.comm, own.stream));
    } else if (own.rank == 1) {
        CHECK_NCCL(ncclRecv(own.recv, count_of(received), received, 0, own.comm, own.stream));
    }
}

void in_group(const Rank& own, ncclDataType_t zeros, ncclDataType_t ones) {
    const ncclDataType_t type = own.rank == 0 ? zeros : ones;
    const int peer = 1 - own.rank;
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclSend(own.send, count_of(type), type, peer, own.comm, own.stream));
    CHECK_NCCL(ncclRecv(own.recv, count_of(type), type, peer, own.comm, own.stream));
    CHECK_NCCL(ncclGroupEnd());
}

void split(Rank* own) {
    ncclComm_t part = nullptr;
    CHECK_NCCL(ncclCommSplit(own->comm, 0, own->ranks - own->rank, &part, nullptr));
    own->comm = part;
    own->rank = own->ranks - 1 - own->rank;
}

// The last rank has another type than all others.
void broadcast(const Rank& own, ncclDataType_t type, ncclDataType_t last) {
    const ncclDataType_t mine = own.rank == own.ranks - 1 ? last : type;
    CHECK_NCCL(ncclBroadcast(own.send, own.recv, count_of(mine), mine, 0, own.comm, own.stream));
}
void all_gather(const Rank& own, ncclDataType_t type, ncclDataType_t last) {
    const ncclDataType_t mine = own.rank == own.ranks - 1 ? last : type;
    CHECK_NCCL(ncclAllGather(own.send, own.recv, count_of(mine), mine, own.comm, own.stream));
}

// Rank 0 sends long before rank 1 takes it: what both do meanwhile on another communicator and
// stream goes on.
void late(const Rank& own) {
    const auto send_part = [&] {
        if (own.rank == 0) {
            CHECK_NCCL(ncclSend(own.send, kCount / 4, ncclFloat32, 1, own.comm, own.stream));
        } else {
            CHECK_NCCL(ncclRecv(own.recv, kCount / 4, ncclFloat32, 0, own.comm, own.stream));
        }
    };
    Rank aside = own;
    CHECK_NCCL(ncclCommSplit(own.comm, 0, own.rank, &aside.comm, nullptr));
    CHECK_CUDA(cudaStreamCreateWithFlags(&aside.stream, cudaStreamNonBlocking));
    message(own, ncclFloat32, ncclFloat32);  // later ones end when they are on their way
    if (own.rank == 0) {
        send_part();
    }
    for (int i = 0; i < 2; ++i) {
        all_gather(aside, ncclFloat32, ncclFloat32);
    }
    CHECK_CUDA(cudaStreamSynchronize(aside.stream));
    if (own.rank == 1) {
        send_part();
    }
    CHECK_NCCL(ncclCommDestroy(aside.comm));
}

// A group that never runs has no types.
void dropped(const Rank& own) {
    if (own.rank == 0) {
        CHECK_NCCL(ncclGroupStart());
        CHECK_NCCL(ncclSend(own.send, kBytes, ncclUint8, 1, own.comm, own.stream));
        CHECK_NCCL(ncclSend(own.send, kBytes / 2, ncclBfloat16, 1, own.comm, own.stream));
        (void)ncclSend(nullptr, kBytes, ncclUint8, 1, nullptr, own.stream);
        (void)ncclGroupEnd();
    }
    message(own, ncclFloat32, ncclFloat32);
}

// More kinds of calls than types are compared of.
void many(const Rank& own) {
    for (size_t less = 0; less < 400; ++less) {
        const size_t count = kCount - 300 + less % 300;
        if (own.rank == 0) {
            CHECK_NCCL(ncclSend(own.send, count, ncclFloat32, 1, own.comm, own.stream));
        } else {
            CHECK_NCCL(ncclRecv(own.recv, count, ncclFloat32, 0, own.comm, own.stream));
        }
    }
    message(own, ncclFloat32, ncclFloat32);
}

// Rank 0 receives a small message and sends a large one in one group, where rank 1 receives the
// large one first. Nothing that the group needs, such as room to encode in, may wait for the
// receive. Three rounds, each with a larger message.
void growing(const Rank& own) {
    for (const size_t count : {kCount / 100, kCount / 10, kCount}) {
        if (own.rank == 0) {
            CHECK_NCCL(ncclGroupStart());
            CHECK_NCCL(ncclRecv(own.recv, 8, ncclFloat32, 1, own.comm, own.stream));
            CHECK_NCCL(ncclSend(own.send, count, ncclFloat32, 1, own.comm, own.stream));
            CHECK_NCCL(ncclGroupEnd());
        } else {
            CHECK_NCCL(ncclRecv(own.recv, count, ncclFloat32, 0, own.comm, own.stream));
            CHECK_NCCL(ncclSend(own.send, 8, ncclFloat32, 0, own.comm, own.stream));
        }
        CHECK_CUDA(cudaStreamSynchronize(own.stream));
    }
}

// Rank 0 sends in the group of an all-reduce, rank 1 receives in a call of its own after the
// all-reduce, as NCCL allows: of a group it runs a communicator's collectives first.
void mixed(const Rank& own) {
    if (own.rank == 0) {
        CHECK_NCCL(ncclGroupStart());
        message(own, ncclFloat32, ncclFloat32);
    }
    CHECK_NCCL(ncclAllReduce(own.send, own.recv + kBytes, kCount, ncclFloat32, ncclSum, own.comm,
                             own.stream));
    if (own.rank == 0) {
        CHECK_NCCL(ncclGroupEnd());
    } else {
        message(own, ncclFloat32, ncclFloat32);
    }
}

void one_call(Rank* own, bool messages) {
    if (messages) {
        message(*own, ncclFloat32, ncclFloat32);
        return;
    }
    CHECK_NCCL(
        ncclAllReduce(own->send, own->recv, kCount, ncclFloat32, ncclAvg, own->comm, own->stream));
}

// Captures a call and launches it so often.
void replay(Rank* own, const std::function<void()>& call, int times) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    CHECK_CUDA(cudaStreamBeginCapture(own->stream, cudaStreamCaptureModeGlobal));
    call();
    CHECK_CUDA(cudaStreamEndCapture(own->stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));
    for (int i = 0; i < times; ++i) {
        CHECK_CUDA(cudaGraphLaunch(ready, own->stream));
    }
    CHECK_CUDA(cudaGraphExecDestroy(ready));  // once its launches have ended
}

// Calls of a marked step, after one outside of graphs.
void steps(Rank* own, bool captured, bool messages) {
    const auto call = [&] { one_call(own, messages); };
    EXPECT_THAT(slimwire_mark_step(1) == SLIMWIRE_OK, "%s", slimwire_last_error());
    call();
    CHECK_CUDA(cudaStreamSynchronize(own->stream));
    EXPECT_THAT(slimwire_mark_step(2) == SLIMWIRE_OK, "%s", slimwire_last_error());
    if (!captured) {
        call();
        return;
    }
    replay(own, call, 1);
}

// Calls of which rank 0 captures one, behind `before` others, and replays it, where the others make
// as many as it then does.
void early(Rank* own, bool messages, bool marks, int before) {
    constexpr int kReplays = 8;
    const auto call = [&] { one_call(own, messages); };
    const auto mark = [&](int step) {
        EXPECT_THAT(!marks || slimwire_mark_step(static_cast<uint64_t>(step)) == SLIMWIRE_OK, "%s",
                    slimwire_last_error());
    };
    for (int step = 0; step < before; ++step) {
        mark(step);
        call();
    }
    mark(before);
    if (own->rank == 0) {
        replay(own, call, kReplays);
        return;
    }
    for (int i = 0; i < kReplays; ++i) {
        mark(before + i);
        call();
    }
}

// A shape in front of messages, which rank 0 captures, or both.
void header(Rank* own, bool both) {
    constexpr int64_t kShape[] = {kCount / 100, 100};
    void* shape = nullptr;
    CHECK_CUDA(cudaMalloc(&shape, sizeof kShape));
    CHECK_CUDA(cudaMemcpy(shape, kShape, sizeof kShape, cudaMemcpyHostToDevice));
    const auto tell = [&] {
        if (own->rank == 0) {
            CHECK_NCCL(ncclSend(shape, 2, ncclInt64, 1, own->comm, own->stream));
        } else {
            CHECK_NCCL(ncclRecv(shape, 2, ncclInt64, 0, own->comm, own->stream));
        }
    };
    own->rank == 0 || both ? replay(own, tell, 1) : tell();
    for (int i = 0; i < 40; ++i) {
        message(*own, ncclFloat32, ncclFloat32);
        if (i == 0) {
            CHECK_CUDA(cudaStreamSynchronize(own->stream));  // or a call would wait
        }
    }
}

// Of steps of two calls rank 0 replays the second from a graph, once it is known where steps begin.
void part_of_steps(Rank* own) {
    constexpr int kLearned = 12, kSteps = 20;
    const auto second = [&] {
        CHECK_NCCL(ncclReduceScatter(own->send, own->recv, kCount / 4, ncclFloat32, ncclSum,
                                     own->comm, own->stream));
    };
    for (int step = 0; step < kSteps; ++step) {
        one_call(own, false);
        own->rank == 0 && step == kLearned  ? replay(own, second, kSteps - kLearned)
        : own->rank == 0 && step > kLearned ? void()
                                            : second();
    }
}

// Rank 0 captures calls from the second on, some before the start of their rule, each launched
// once, and one behind it, which it replays. Then all rest, and are asked for errors.
void passing(Rank* own) {
    constexpr int kStart = 3, kReplays = 4;
    const auto call = [&] { one_call(own, false); };
    call();
    for (int i = 1; i < kStart + 2; ++i) {
        own->rank == 0 ? replay(own, call, 1) : call();
    }
    if (own->rank == 0) {
        replay(own, call, kReplays);
    }
    for (int i = 0; i < kReplays && own->rank != 0; ++i) {
        call();
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(6);
    while (std::chrono::steady_clock::now() < end) {
        ncclResult_t state = ncclSuccess;
        CHECK_NCCL(ncclCommGetAsyncError(own->comm, &state));
        EXPECT_THAT(state == ncclSuccess, "%s", ncclGetLastError(own->comm));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

void run(const std::string& what, Rank* own) {
    const std::map<std::string, std::function<void()>> cases = {
        {"f32-u8", [&] { message(*own, ncclFloat32, ncclUint8); }},
        {"u8-f32", [&] { message(*own, ncclUint8, ncclFloat32); }},
        {"f32-bf16", [&] { message(*own, ncclFloat32, ncclBfloat16); }},
        {"bf16-f32", [&] { message(*own, ncclBfloat16, ncclFloat32); }},
        {"f16-bf16", [&] { message(*own, ncclFloat16, ncclBfloat16); }},
        {"i32-u8", [&] { message(*own, ncclInt32, ncclUint8); }},
        {"group", [&] { in_group(*own, ncclFloat32, ncclBfloat16); }},
        {"split",
         [&] {
             split(own);
             message(*own, ncclFloat32, ncclBfloat16);
         }},
        {"broadcast", [&] { broadcast(*own, ncclFloat32, ncclInt8); }},
        {"broadcast-both", [&] { broadcast(*own, ncclFloat16, ncclBfloat16); }},
        {"all-gather", [&] { all_gather(*own, ncclFloat16, ncclBfloat16); }},
        {"in-turn",
         [&] {
             for (int i = 0; i < 3; ++i) {
                 message(*own, ncclUint8, ncclUint8);
                 message(*own, ncclBfloat16, ncclBfloat16);
                 in_group(*own, ncclFloat16, ncclFloat16);
                 message(*own, ncclFloat32, ncclFloat32);
             }
         }},
        {"after-turns",
         [&] {
             message(*own, ncclUint8, ncclUint8);
             message(*own, ncclFloat32, ncclFloat32);
             message(*own, ncclFloat16, ncclBfloat16);
         }},
        {"dropped", [&] { dropped(*own); }},
        {"late", [&] { late(*own); }},
        {"graph", [&] { steps(own, own->rank == 0, false); }},
        {"graphs", [&] { steps(own, true, false); }},
        {"graph-messages", [&] { steps(own, own->rank == 0, true); }},
        {"graphs-messages", [&] { steps(own, true, true); }},
        {"graph-header", [&] { header(own, false); }},
        {"graphs-header", [&] { header(own, true); }},
        {"early", [&] { early(own, false, false, 1); }},
        {"early-stages", [&] { early(own, false, false, 1); }},
        {"early-messages", [&] { early(own, true, false, 1); }},
        {"early-first", [&] { early(own, false, true, 0); }},
        {"part", [&] { part_of_steps(own); }},
        {"passing", [&] { passing(own); }},
        {"many", [&] { many(*own); }},
        {"growing", [&] { growing(*own); }},
        {"mixed", [&] { mixed(*own); }},
        {"forked", [&] { message(*own, ncclFloat32, ncclFloat32); }},
        {"forked-too", [&] { message(*own, ncclFloat32, ncclFloat32); }},
    };
    cases.at(what)();
}

ncclResult_t asked(const Rank& own) {
    ncclResult_t state = ncclSuccess;
    CHECK_NCCL(ncclCommGetAsyncError(own.comm, &state));
    return state;
}
ncclResult_t of_next_call(const Rank& own) {
    return ncclAllReduce(own.send, own.send, 1, ncclInt32, ncclSum, own.comm, own.stream);
}

void expect_error(const std::string& what, const Rank& own, ncclResult_t (*state_of)(const Rank&)) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    // The emulated NCCL may be first to say that bytes are missing.
    ncclResult_t state = ncclSuccess;
    std::string text;
    while (text.find("name the same type") == std::string::npos &&
           text.find("a graph of rank 0") == std::string::npos &&
           text.find("without a place") == std::string::npos &&
           std::chrono::steady_clock::now() < limit) {
        state = state_of(own);
        text = state != ncclSuccess ? ncclGetLastError(own.comm) : "";
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_THAT(state == ncclInvalidUsage, "%d", static_cast<int>(state));
    std::puts(text.c_str());
    // What arrives is never taken for what was sent.
    const bool alike = what == "broadcast-both" && own.rank == 1;  // with the root
    // NCCL takes fewer bytes than were asked for.
    const bool takes_less = what == "early-stages";
    const bool sends = own.rank == 0 && what != "group" && what != "all-gather";
    EXPECT_THAT(sends || alike || takes_less || cudaStreamQuery(own.stream) == cudaErrorNotReady,
                "%s", what.c_str());
    // An abort is an error of the others, too.
    slimwire::test::barrier("told", own.rank, own.ranks);
    CHECK_NCCL(ncclCommAbort(own.comm));
    CHECK_CUDA(cudaStreamSynchronize(own.stream));
}

void expect_fine(const Rank& own, const std::vector<float>& sent) {
    CHECK_CUDA(cudaStreamSynchronize(own.stream));
    std::vector<float> got(kCount);
    CHECK_CUDA(cudaMemcpy(got.data(), own.recv, kBytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; own.rank == 1 && i < kCount; ++i) {
        EXPECT_THAT(got[i] > sent[i] - 0.02f && got[i] < sent[i] + 0.02f, "[%zu] %g, sent %g", i,
                    static_cast<double>(got[i]), static_cast<double>(sent[i]));
    }
    slimwire::test::barrier("received", own.rank, own.ranks);
    ncclResult_t state = ncclSuccess;
    CHECK_NCCL(ncclCommGetAsyncError(own.comm, &state));
    EXPECT_THAT(state == ncclSuccess, "%d: %s", static_cast<int>(state),
                ncclGetLastError(own.comm));
    CHECK_NCCL(ncclCommDestroy(own.comm));
    std::puts("fine");
}

// Device 0 sends fp32 and device 1 takes it for bf16: both communicators must say so.
void in_one_process() {
    ncclComm_t comms[2] = {};
    CHECK_NCCL(ncclCommInitAll(comms, 2, nullptr));
    Rank devices[2];
    CHECK_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) {
        Rank& own = devices[rank];
        own = {.rank = rank, .ranks = 2, .comm = comms[rank]};
        CHECK_CUDA(cudaSetDevice(rank));
        CHECK_CUDA(cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&own.send), kBytes));
        own.recv = own.send;
        message(own, ncclFloat32, ncclBfloat16);
    }
    CHECK_NCCL(ncclGroupEnd());
    for (const Rank& own : devices) {
        ncclResult_t state = ncclSuccess;
        for (int look = 0; look < 20'000 && state == ncclSuccess; ++look) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            state = asked(own);
        }
        EXPECT_THAT(state == ncclInvalidUsage, "%d", static_cast<int>(state));
        std::puts(ncclGetLastError(own.comm));
        EXPECT_THAT(own.rank == 0 || cudaStreamQuery(own.stream) == cudaErrorNotReady, "%s",
                    "what came is taken for data");
    }
    for (const Rank& own : devices) {
        CHECK_NCCL(ncclCommAbort(own.comm));
    }
}

// Returns in each rank. A process that is none waits for them and ends.
void fork_ranks(bool too, Rank* own) {
    ncclUniqueId id;
    CHECK_NCCL(ncclGetUniqueId(&id));
    own->ranks = 2;
    std::vector<pid_t> children;
    for (int rank = too ? 1 : 0; rank < 2; ++rank) {
        children.push_back(fork());
        if (children.back() == 0) {
            own->rank = rank;
            break;
        }
    }
    if (children.back() != 0 && !too) {
        int all = 0;
        for (const pid_t child : children) {
            int status = 1;
            waitpid(child, &status, 0);
            all |= status;
        }
        std::exit(all == 0 ? 0 : 1);
    }
    CHECK_CUDA(cudaSetDevice(own->rank));
    CHECK_NCCL(ncclCommInitRank(&own->comm, 2, id, own->rank));
}

}  // namespace

int main(int, char** argv) {
    const std::string what = argv[2];
    if (what == "one-process") {
        in_one_process();
        return 0;
    }
    Rank own;
    own.rank = slimwire::test::launcher_rank();
    own.ranks = slimwire::test::launcher_ranks();
    if (what.starts_with("forked")) {
        fork_ranks(what == "forked-too", &own);
    } else {
        own.comm = slimwire::test::join_job(own.rank, own.ranks);
    }
    CHECK_CUDA(cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking));
    const size_t room = kBytes * static_cast<size_t>(own.ranks);
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&own.send), kBytes));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&own.recv), room));
    CHECK_CUDA(cudaMemset(own.recv, 0, room));
    std::vector<float> sent(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        sent[i] = static_cast<float>(i % 251) / 250.0f + 0.5f;
    }
    CHECK_CUDA(cudaMemcpy(own.send, sent.data(), kBytes, cudaMemcpyHostToDevice));
    run(what, &own);
    if (const std::string expected = argv[1]; expected != "fine") {
        expect_error(what, own, expected == "error" ? asked : of_next_call);
    } else {
        expect_fine(own, sent);
    }
    return 0;
}
