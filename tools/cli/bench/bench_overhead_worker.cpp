// The measuring half of `slimwire bench overhead`, an ordinary NCCL program: times ncclAllReduce as
// the program's own symbol resolves (slimwire, when it is preloaded) against the same function
// taken from libnccl.so.2 by handle, in turn, in batches so that the clock's own cost vanishes.
// Counts heap allocations by standing in front of malloc. Prints one JSON line per case.
//
// slimwire-bench-overhead --case NAME --calls N
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

// Of the calling thread: the reporter's own thread may write a report meanwhile.
__attribute__((tls_model("initial-exec"))) thread_local uint64_t t_allocations = 0;

}  // namespace

#if !defined(__SANITIZE_ADDRESS__)  // whose own allocator stands there
// Every library of the process resolves these to the program's; glibc keeps its own under other
// names.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

__attribute__((visibility("default"))) void* malloc(size_t size) {
    ++t_allocations;
    return __libc_malloc(size);
}
__attribute__((visibility("default"))) void* calloc(size_t count, size_t size) {
    ++t_allocations;
    return __libc_calloc(count, size);
}
__attribute__((visibility("default"))) void* realloc(void* old, size_t size) {
    ++t_allocations;
    return __libc_realloc(old, size);
}
__attribute__((visibility("default"))) void* aligned_alloc(size_t alignment, size_t size) {
    ++t_allocations;
    return __libc_memalign(alignment, size);
}
__attribute__((visibility("default"))) int posix_memalign(void** out,
                                                          size_t alignment,
                                                          size_t size) {
    ++t_allocations;
    *out = __libc_memalign(alignment, size);
    return *out != nullptr ? 0 : 12 /* ENOMEM */;
}
}
#endif

namespace {

using Clock = std::chrono::steady_clock;
using AllReduce = decltype(&ncclAllReduce);

// So many calls share two clock reads.
constexpr int kBatch = 100;

[[noreturn]] void stop(const char* what, const char* why) {
    std::fprintf(stderr, "slimwire-bench-overhead: %s: %s\n", what, why);
    std::exit(1);
}

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        stop(what, ncclGetErrorString(result));
    }
}

struct Call {
    const void* send;
    void* recv;
    size_t count;
    ncclComm_t comm;
    cudaStream_t stream;
};

double ns_of_batch(AllReduce function, const Call& call, int calls) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
        if (function(call.send, call.recv, call.count, ncclFloat32, ncclSum, call.comm,
                     call.stream) != ncclSuccess) {
            stop("ncclAllReduce", "failed");
        }
    }
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

struct Series {
    AllReduce function;
    std::vector<double> ns_per_call;
    uint64_t allocations = 0;
};

double percentile(std::vector<double> values, double fraction) {
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1,
                           static_cast<size_t>(fraction * static_cast<double>(values.size())))];
}

void print(const char* name, const Series& series, long calls) {
    std::printf(
        "{\"case\":\"%s\",\"p50_ns\":%.2f,\"p99_ns\":%.2f,\"allocations\":%llu,\"calls\":%ld}\n",
        name, percentile(series.ns_per_call, 0.50), percentile(series.ns_per_call, 0.99),
        static_cast<unsigned long long>(series.allocations), calls);
}

}  // namespace

int main(int argc, char** argv) {
    const char* name = "declined";
    long calls = 1'000'000;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (std::strcmp(argv[i], "--case") == 0) {
            name = argv[i + 1];
        } else if (std::strcmp(argv[i], "--calls") == 0) {
            calls = std::atol(argv[i + 1]);
        }
    }

    void* real = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (real == nullptr) {
        stop("libnccl.so.2", dlerror());
    }
    Series direct{.function = reinterpret_cast<AllReduce>(dlsym(real, "ncclAllReduce")),
                  .ns_per_call = {}};
    Series entry{.function = reinterpret_cast<AllReduce>(dlsym(RTLD_DEFAULT, "ncclAllReduce")),
                 .ns_per_call = {}};
    if (direct.function == nullptr || entry.function == nullptr) {
        stop("ncclAllReduce", "not found");
    }
    if (direct.function == entry.function) {
        stop(name, "slimwire is not in front of libnccl.so.2");
    }

    // Two ranks in one process agree in memory; only the first one calls, as the stub moves
    // nothing.
    ncclComm_t comms[2] = {};
    check(ncclCommInitAll(comms, 2, nullptr), "ncclCommInitAll");
    constexpr size_t kCount = size_t{1} << 20;
    void* buffer = nullptr;
    cudaStream_t stream = nullptr;
    if (cudaSetDevice(0) != cudaSuccess ||
        cudaMalloc(&buffer, kCount * sizeof(float)) != cudaSuccess ||
        cudaStreamCreate(&stream) != cudaSuccess) {
        stop("cuda", "no device, buffer or stream");
    }
    const Call call{buffer, buffer, kCount, comms[0], stream};

    // Page in both, build the plan, and settle the clock.
    for (Series* series : {&direct, &entry}) {
        (void)ns_of_batch(series->function, call, 1000);
    }
    std::vector<double> empty;
    for (int i = 0; i < 1000; ++i) {
        empty.push_back(ns_of_batch(direct.function, call, 0));
    }
    const double clock_ns = percentile(empty, 0.5);
    const long batches = std::max(1L, calls / kBatch);
    for (Series* series : {&direct, &entry}) {
        series->ns_per_call.reserve(static_cast<size_t>(batches));
    }
    for (long batch = 0; batch < batches; ++batch) {
        for (Series* series : {&direct, &entry}) {
            const uint64_t before = t_allocations;
            const double ns = ns_of_batch(series->function, call, kBatch);
            series->allocations += t_allocations - before;
            series->ns_per_call.push_back(std::max(0.0, ns - clock_ns) / kBatch);
        }
    }
    print("direct", direct, batches * kBatch);
    print(name, entry, batches * kBatch);

    (void)cudaFree(buffer);
    (void)cudaStreamDestroy(stream);
    for (ncclComm_t comm : comms) {
        check(ncclCommDestroy(comm), "ncclCommDestroy");
    }
    return 0;
}
