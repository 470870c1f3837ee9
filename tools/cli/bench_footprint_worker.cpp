// One rank of `slimwire bench footprint`: an ordinary CUDA and NCCL program that makes one
// communicator and calls one all-reduce a few times, and writes what that took and what it holds:
// times, device memory beside its own buffers, private host memory, sockets. Started with and
// without slimwire, it says what slimwire adds.
//
// slimwire-bench-footprint --bytes N --port P --out FILE; RANK, WORLD_SIZE and MASTER_ADDR say
// where it stands. FILE gets the rank appended and one JSON line.
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <nccl.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tools/cli/bench_worker_meeting.h"

namespace slimwire::bench {
namespace {

using Clock = std::chrono::steady_clock;

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        stop(std::string(what) + ": " + cudaGetErrorString(error));
    }
}

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        stop(std::string(what) + ": " + ncclGetErrorString(result));
    }
}

struct Held {
    int64_t device_bytes = 0, host_bytes = 0, sockets = 0;
};

// Private pages: neither files nor shared memory, which is where an emulated device's memory lies.
int64_t private_host_bytes() {
    std::FILE* file = std::fopen("/proc/self/status", "r");
    if (file == nullptr) {
        stop("/proc/self/status cannot be read");
    }
    char line[256];
    long long kibibytes = -1;
    while (std::fgets(line, sizeof line, file) != nullptr) {
        if (std::sscanf(line, "RssAnon: %lld kB", &kibibytes) == 1) {
            break;
        }
    }
    std::fclose(file);
    if (kibibytes < 0) {
        stop("/proc/self/status has no RssAnon");
    }
    return kibibytes * 1024;
}

int64_t open_sockets() {
    DIR* folder = ::opendir("/proc/self/fd");
    if (folder == nullptr) {
        stop("/proc/self/fd cannot be read");
    }
    int64_t count = 0;
    while (const dirent* entry = ::readdir(folder)) {
        char target[64] = {};
        const std::string path = std::string("/proc/self/fd/") + entry->d_name;
        if (::readlink(path.c_str(), target, sizeof target - 1) > 0 &&
            std::strncmp(target, "socket:", 7) == 0) {
            ++count;
        }
    }
    ::closedir(folder);
    return count;
}

Held measure() {
    size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    return {static_cast<int64_t>(total_bytes - free_bytes), private_host_bytes(), open_sockets()};
}

template <class Body>
double timed_us(const Body& body) {
    const Clock::time_point begin = Clock::now();
    body();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

int number(const char* variable) {
    const char* text = std::getenv(variable);
    if (text == nullptr) {
        stop(std::string(variable) + " is not set; start it by `slimwire bench footprint`");
    }
    return std::atoi(text);
}

int run(int argc, char** argv) {
    size_t bytes = 0;
    int port = 0;
    std::string out;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string option = argv[i];
        if (option == "--bytes") {
            bytes = static_cast<size_t>(std::strtoull(argv[i + 1], nullptr, 10));
        } else if (option == "--port") {
            port = std::atoi(argv[i + 1]);
        } else if (option == "--out") {
            out = argv[i + 1];
        }
    }
    if (bytes < 8 || port <= 0 || out.empty()) {
        stop("usage: slimwire-bench-footprint --bytes N --port P --out FILE");
    }
    const int rank = number("RANK"), ranks = number("WORLD_SIZE");
    const char* host = std::getenv("MASTER_ADDR");
    check(cudaSetDevice(0), "cudaSetDevice");
    void *send = nullptr, *recv = nullptr;
    check(cudaMalloc(&send, bytes), "cudaMalloc");
    check(cudaMalloc(&recv, bytes), "cudaMalloc");
    check(cudaMemset(send, 0, bytes), "cudaMemset");
    check(cudaMemset(recv, 0, bytes), "cudaMemset");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const Held before = measure();

    const ncclUniqueId id = meet(host != nullptr ? host : "127.0.0.1", port, rank, ranks);
    ncclComm_t comm = nullptr;
    const double creation_us =
        timed_us([&] { check(ncclCommInitRank(&comm, ranks, id, rank), "ncclCommInitRank"); });
    const auto call = [&] {
        check(ncclAllReduce(send, recv, bytes / sizeof(float), ncclFloat32, ncclSum, comm, stream),
              "ncclAllReduce");
        check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    };
    const double first_us = timed_us(call);
    const double second_us = timed_us(call);
    // Buffers that only grow have their size now.
    call();
    const Held after = measure();

    const std::string path = out + std::to_string(rank);
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) {
        stop("cannot write " + path);
    }
    std::fprintf(file,
                 "{\"device_bytes\":%" PRId64 ",\"host_bytes\":%" PRId64 ",\"sockets\":%" PRId64
                 ",\"creation_us\":%.1f,\"first_call_us\":%.1f,\"second_call_us\":%.1f}\n",
                 after.device_bytes - before.device_bytes, after.host_bytes - before.host_bytes,
                 after.sockets - before.sockets, creation_us, first_us, second_us);
    std::fclose(file);
    check(ncclCommDestroy(comm), "ncclCommDestroy");
    return 0;
}

}  // namespace
}  // namespace slimwire::bench

int main(int argc, char** argv) {
    return slimwire::bench::run(argc, argv);
}
