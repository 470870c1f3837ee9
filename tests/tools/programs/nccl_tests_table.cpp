// A stand-in for an nccl-tests program, ours: takes the options that `bench nccl-tests` sets,
// drives -g devices from one thread, makes the calls of the operation its file name says, and
// prints a table of the same shape with the time it took. With -c 1 it compares sums exactly. The
// test builds it under two names.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

struct Device {
    ncclComm_t comm;
    cudaStream_t stream;
    float *send, *receive;
};

std::string option(int argc, char** argv, const std::string& name, const std::string& otherwise) {
    std::string value = otherwise;
    for (int i = 1; i + 1 < argc; ++i) {
        value = argv[i] == name ? argv[i + 1] : value;
    }
    return value;
}

struct Outcome {
    double time_us;
    uint64_t wrong;
};

Outcome measure(const std::vector<Device>& devices, bool reduce_scatter, size_t count) {
    const size_t ranks = devices.size();
    std::vector<float> data(reduce_scatter ? count * ranks : count);
    for (size_t i = 0; i < data.size(); ++i) {
        data[i] = static_cast<float>(i % 7);
    }
    for (size_t d = 0; d < ranks; ++d) {
        CHECK_CUDA(cudaSetDevice(static_cast<int>(d)));
        CHECK_CUDA(cudaMemcpy(devices[d].send, data.data(), data.size() * sizeof(float),
                              cudaMemcpyHostToDevice));
    }
    const auto begin = std::chrono::steady_clock::now();
    CHECK_NCCL(ncclGroupStart());
    for (const Device& on : devices) {
        CHECK_NCCL((reduce_scatter ? ncclReduceScatter : ncclAllReduce)(
            on.send, on.receive, count, ncclFloat, ncclSum, on.comm, on.stream));
    }
    CHECK_NCCL(ncclGroupEnd());
    uint64_t wrong = std::getenv("TABLE_CLAIMS_WRONG") != nullptr ? 3 : 0;
    for (size_t d = 0; d < ranks; ++d) {
        CHECK_CUDA(cudaSetDevice(static_cast<int>(d)));
        CHECK_CUDA(cudaStreamSynchronize(devices[d].stream));
        std::vector<float> got(count);
        CHECK_CUDA(cudaMemcpy(got.data(), devices[d].receive, count * sizeof(float),
                              cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < count; ++i) {
            const size_t element = reduce_scatter ? d * count + i : i;
            wrong += got[i] != static_cast<float>(ranks * (element % 7)) ? 1 : 0;
        }
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    return {time.count(), wrong};
}

}  // namespace

int main(int argc, char** argv) {
    const bool reduce_scatter = std::string(argv[0]).find("reduce_scatter") != std::string::npos;
    const int ranks = std::stoi(option(argc, argv, "-g", "1"));
    const size_t smallest = std::stoul(option(argc, argv, "-b", "65536"));
    const size_t largest = std::stoul(option(argc, argv, "-e", "65536"));
    const bool check = option(argc, argv, "-c", "1") != "0";
    if (std::getenv("TABLE_FAILS") != nullptr) {
        return 7;
    }
    std::vector<ncclComm_t> comms(static_cast<size_t>(ranks));
    CHECK_NCCL(ncclCommInitAll(comms.data(), ranks, nullptr));
    std::vector<Device> devices;
    for (int d = 0; d < ranks; ++d) {
        Device on{comms[static_cast<size_t>(d)], nullptr, nullptr, nullptr};
        CHECK_CUDA(cudaSetDevice(d));
        CHECK_CUDA(cudaStreamCreate(&on.stream));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&on.send), largest));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&on.receive), largest));
        devices.push_back(on);
    }
    std::printf(
        "# a program of ours\n#\n# Using devices\n#\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n");
    uint64_t all_wrong = 0;
    for (size_t bytes = smallest; bytes <= largest; bytes *= 2) {
        const size_t elements = bytes / sizeof(float);
        const size_t count = reduce_scatter ? elements / static_cast<size_t>(ranks) : elements;
        const Outcome one = measure(devices, reduce_scatter, count);
        all_wrong += check ? one.wrong : 0;
        std::printf("%12zu %12zu     float     sum      -1 %8.2f %7.2f %7.2f %6s\n", bytes, count,
                    one.time_us, static_cast<double>(bytes) / one.time_us * 1e-3, 1.0,
                    check ? std::to_string(one.wrong).c_str() : "N/A");
    }
    std::printf("# Out of bounds values : %d %s\n# Avg bus bandwidth    : 1.25 \n#\n",
                all_wrong != 0 ? 1 : 0, all_wrong != 0 ? "FAILED" : "OK");
    for (ncclComm_t comm : comms) {
        CHECK_NCCL(ncclCommDestroy(comm));
    }
    return all_wrong != 0 ? 1 : 0;
}
