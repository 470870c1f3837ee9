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
    char *send, *receive;
};

std::string option(int argc, char** argv, const std::string& name, const std::string& otherwise) {
    std::string value = otherwise;
    for (int i = 1; i + 1 < argc; ++i) {
        value = argv[i] == name ? argv[i + 1] : value;
    }
    return value;
}

// fp32 as it is, bf16 its upper half; the values used here are exact in both.
void put(std::vector<char>* buffer, size_t at, size_t width, float value) {
    const char* bytes = reinterpret_cast<const char*>(&value);
    std::memcpy(buffer->data() + at * width, bytes + 4 - width, width);
}

struct Outcome {
    double time_us;
    uint64_t wrong;
};

Outcome measure(std::vector<Device>& devices,
                bool reduce_scatter,
                size_t count,
                ncclDataType_t type,
                bool in_place,
                int iterations,
                bool check) {
    const size_t width = type == ncclFloat ? 4 : 2;
    const size_t ranks = devices.size();
    const size_t sent = reduce_scatter ? count * ranks : count;
    std::vector<char> data(sent * width);
    for (size_t i = 0; i < sent; ++i) {
        put(&data, i, width, static_cast<float>(i % 7));
    }
    for (size_t d = 0; check && d < ranks; ++d) {
        CHECK_CUDA(cudaSetDevice(static_cast<int>(d)));
        CHECK_CUDA(cudaMemcpy(devices[d].send, data.data(), data.size(), cudaMemcpyHostToDevice));
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < (check ? 1 : iterations); ++i) {
        CHECK_NCCL(ncclGroupStart());
        for (size_t d = 0; d < ranks; ++d) {
            Device& on = devices[d];
            char* const in_place_part = reduce_scatter ? on.send + d * count * width : on.send;
            char* const receive = in_place ? in_place_part : on.receive;
            if (reduce_scatter) {
                CHECK_NCCL(
                    ncclReduceScatter(on.send, receive, count, type, ncclSum, on.comm, on.stream));
            } else {
                CHECK_NCCL(
                    ncclAllReduce(on.send, receive, count, type, ncclSum, on.comm, on.stream));
            }
        }
        CHECK_NCCL(ncclGroupEnd());
    }
    uint64_t wrong = 0;
    for (size_t d = 0; d < ranks; ++d) {
        Device& on = devices[d];
        CHECK_CUDA(cudaSetDevice(static_cast<int>(d)));
        CHECK_CUDA(cudaStreamSynchronize(on.stream));
        std::vector<char> got(count * width);
        char* const in_place_part = reduce_scatter ? on.send + d * count * width : on.send;
        CHECK_CUDA(cudaMemcpy(got.data(), in_place ? in_place_part : on.receive, got.size(),
                              cudaMemcpyDeviceToHost));
        for (size_t i = 0; check && i < count; ++i) {
            std::vector<char> want(width);
            const size_t element = reduce_scatter ? d * count + i : i;
            put(&want, 0, width, static_cast<float>(ranks * (element % 7)));
            wrong += std::memcmp(want.data(), got.data() + i * width, width) != 0 ? 1 : 0;
        }
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    return {time.count() / iterations,
            wrong + (std::getenv("TABLE_CLAIMS_WRONG") != nullptr ? 3 : 0)};
}

}  // namespace

int main(int argc, char** argv) {
    const std::string name = argv[0];
    const bool reduce_scatter = name.find("reduce_scatter") != std::string::npos;
    const int ranks = std::stoi(option(argc, argv, "-g", "1"));
    const size_t smallest = std::stoul(option(argc, argv, "-b", "65536"));
    const size_t largest = std::stoul(option(argc, argv, "-e", "65536"));
    const bool check = option(argc, argv, "-c", "1") != "0";
    const std::string type_name = option(argc, argv, "-d", "float");
    const ncclDataType_t type = type_name == "float" ? ncclFloat : ncclBfloat16;
    const int iterations = std::stoi(option(argc, argv, "-n", "4"));
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
        CHECK_CUDA(cudaMemset(on.send, 0, largest));
        devices.push_back(on);
    }
    std::printf("# a program of ours\n#\n# Using devices\n");
    for (int d = 0; d < ranks; ++d) {
        cudaDeviceProp properties{};
        cudaGetDeviceProperties(&properties, d);
        std::printf("#  Rank %2d Group  0 Pid      1 on       host device %2d [0x00] %s\n", d, d,
                    properties.name);
    }
    std::printf(
        "#\n#       size         count      type   redop    root     time   algbw   busbw "
        "#wrong     time   algbw   busbw #wrong\n");
    uint64_t all_wrong = 0;
    for (size_t bytes = smallest; bytes <= largest; bytes *= 2) {
        const size_t elements = bytes / (type == ncclFloat ? 4 : 2);
        const size_t count = reduce_scatter ? elements / static_cast<size_t>(ranks) : elements;
        std::printf("%12zu %12zu %9s     sum      -1", bytes, count, type_name.c_str());
        for (const bool in_place : {false, true}) {
            const Outcome one =
                measure(devices, reduce_scatter, count, type, in_place, iterations, check);
            all_wrong += check ? one.wrong : 0;
            std::printf(" %8.2f %7.2f %7.2f %6s", one.time_us,
                        static_cast<double>(bytes) / one.time_us * 1e-3, 1.0,
                        check ? std::to_string(one.wrong).c_str() : "N/A");
        }
        std::printf("\n");
    }
    std::printf("# Out of bounds values : %d %s\n# Avg bus bandwidth    : 1.25 \n#\n",
                all_wrong != 0 ? 1 : 0, all_wrong != 0 ? "FAILED" : "OK");
    for (ncclComm_t comm : comms) {
        CHECK_NCCL(ncclCommDestroy(comm));
    }
    return all_wrong != 0 ? 1 : 0;
}
