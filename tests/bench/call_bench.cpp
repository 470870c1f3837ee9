// Slimwire's own host time of a compressed call: dispatch() over a CUDA runtime and an NCCL whose
// functions return at once, so that what is left is ours. One JSON line a case: median and 99th
// percentile over batches of 100 calls, how often a runtime or NCCL function was called in one, and
// heap allocations.
// With a limit, exit code 1 when the median of a single call lies above it, or one allocates.
//   call_bench [CALLS [LIMIT_NS]]      (200000)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "codecs/base/emulator_abi.h"
#include "collectives/communicator/process.h"
#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/session.h"
#include "collectives/dispatch/thread_group.h"
#include "tests/bench/allocations.h"

namespace slimwire {
namespace {

uint64_t g_below = 0;  // calls of runtime and NCCL functions

alignas(256) char g_memory[256];  // never looked at

// Any function of a table as one that only returns success.
template <class Result, class... Arguments>
void idle(Result (**function)(Arguments...)) {
    *function = [](Arguments...) -> Result {
        ++g_below;
        return Result{};
    };
}

DeviceApi idle_device() {
    DeviceApi api;
#define IDLE(member, function) idle(&api.member);
    SLIMWIRE_DEVICE_FUNCTIONS(IDLE)
#undef IDLE
    api.malloc = [](void** memory, size_t) {
        *memory = g_memory;
        return cudaSuccess;
    };
    api.host_alloc = [](void** memory, size_t bytes, unsigned) {
        alignas(256) static char host[DeviceMemory::kPinnedPiece];
        *memory = host;
        return bytes <= sizeof host ? cudaSuccess : cudaErrorMemoryAllocation;
    };
    api.stream_create_with_flags = [](cudaStream_t* stream, unsigned) {
        *stream = reinterpret_cast<cudaStream_t>(g_memory);
        return cudaSuccess;
    };
    api.stream_create_with_priority = [](cudaStream_t* stream, unsigned, int) {
        *stream = reinterpret_cast<cudaStream_t>(g_memory);
        return cudaSuccess;
    };
    static const EmulatorApi kEmulator = {
        sizeof(EmulatorApi),
        [](cudaStream_t, void (*)(const void*), const void*, size_t, const char*) {
            ++g_below;
            return cudaSuccess;
        },
        [](const void* pointer) { return const_cast<void*>(pointer); },
        [](int) { return 0; },
        [](const void*) { return cudaSuccess; },
    };
    api.emulator = &kEmulator;
    api.pointer_get_attributes = [](cudaPointerAttributes* attributes, const void*) {
        ++g_below;
        attributes->type = cudaMemoryTypeDevice;
        return cudaSuccess;
    };
    return api;
}

RealNccl idle_nccl() {
    RealNccl nccl;
#define SLIMWIRE_NCCL(name, handling) idle(&nccl.name);
#include "collectives/call/nccl_api.def"
    return nccl;
}

struct Case {
    const char* name;
    const char* rule;
    uint64_t slice_bytes = 0;
    int grouped = 1;  // calls of as many communicators in one group
    bool single = true;
};

constexpr int kBatch = 100;

struct CallCost {
    double p50_ns;
    bool allocates;
};

CallCost measure(const Case& of, long calls) {
    auto runtime = std::make_unique<Runtime>();
    runtime->listener = make_dispatch_state(*runtime);
    static const RealNccl nccl = idle_nccl();
    runtime->use_device(idle_device());
    runtime->config.active = true;
    runtime->config.settings.slice_bytes = of.slice_bytes;
    runtime->config.policy =
        parse_policy(std::string("version = 1\n[[rule]]\nname = \"r\"\n") + of.rule, "p.toml")
            .value();
    static int handles = 0;  // a thread remembers the last it looked up
    std::vector<CollectiveCall> group;
    for (int i = 0; i < of.grouped; ++i) {
        auto state = std::make_unique<Session>();
        state->comm = reinterpret_cast<ncclComm_t>(g_memory + ++handles);
        state->nccl = &nccl;
        state->exchange_comm = reinterpret_cast<ncclComm_t>(g_memory + 128 + handles);
        state->state_key = static_cast<uint64_t>(i);
        state->shape.ranks = 8;
        state->shape.go = true;
        state->stats = std::make_shared<CommStats>();
        state->device_memory = &runtime->device_memory;
        CollectiveCall call;
        call.signature.redop = RedOp::kSum;
        call.signature.count = 1 << 20;
        call.send = call.recv = g_memory;
        call.comm = state->comm;
        group.push_back(call);
        runtime->comms.add(std::move(state));
    }
    const auto run = [&] {
        if (of.grouped > 1) {
            group_started(nccl);
        }
        for (const CollectiveCall& call : group) {
            if (dispatch(*runtime, call) != ncclSuccess) {
                std::fprintf(stderr, "call_bench: %s: the call was not taken\n", of.name);
                std::exit(2);
            }
        }
        if (of.grouped > 1 && group_end(*runtime, nccl) != ncclSuccess) {
            std::exit(2);
        }
    };
    for (int i = 0; i < kBatch; ++i) {
        run();
    }
    std::vector<double> ns;
    ns.reserve(static_cast<size_t>(calls / kBatch) + 1);
    const uint64_t allocations = g_allocations;
    const uint64_t below = g_below;
    for (long done = 0; done < calls; done += kBatch) {
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < kBatch; ++i) {
            run();
        }
        ns.push_back(
            std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin)
                .count() /
            kBatch / of.grouped);
    }
    const auto total = static_cast<double>(ns.size()) * kBatch * of.grouped;
    std::sort(ns.begin(), ns.end());
    const uint64_t allocated = g_allocations - allocations;
    std::printf(
        "{\"v\":1,\"record\":\"bench_call\",\"case\":\"%s\",\"calls\":%.0f,\"p50_ns\":%.0f,"
        "\"p99_ns\":%.0f,\"calls_below\":%.1f,\"allocations\":%.2f}\n",
        of.name, total, ns[ns.size() / 2], ns[ns.size() * 99 / 100],
        static_cast<double>(g_below - below) / total, static_cast<double>(allocated) / total);
    std::fflush(stdout);
    (void)runtime.release();  // communicators of an NCCL that is none
    return {ns[ns.size() / 2], allocated > 0};
}

}  // namespace
}  // namespace slimwire

int main(int argc, char** argv) {
    using namespace slimwire;
    const long calls = argc > 1 ? std::atol(argv[1]) : 200000;
    const double limit_ns = argc > 2 ? std::atof(argv[2]) : 0;
    constexpr char kInt8[] = "codec = \"int8\"\n";
    constexpr char kFeedback[] =
        "codec = \"int4:rounding=stochastic\"\nerror_feedback = \"ef14\"\n";
    bool within = true;
    for (const Case& of : {Case{"all_reduce", kInt8}, Case{"all_reduce_feedback", kFeedback},
                           Case{"all_reduce_4_slices", kInt8, 1 << 20, 1, false},
                           Case{"all_reduce_group_of_4", kInt8, 0, 4, false}}) {
        const CallCost measured = measure(of, calls);
        within = within && (limit_ns <= 0 || !of.single ||
                            (measured.p50_ns <= limit_ns && !measured.allocates));
    }
    return within ? 0 : 1;
}
