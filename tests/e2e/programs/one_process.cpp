// A stock program of one process with several devices: ncclCommInitAll, and a group of all-reduces
// over all devices from one thread, or a thread a device:
//   one_process group|threads STEPS
//   one_process types
// A step reduces four tensors, two fp32, one bf16, one too small, always the same gradients. Checks
// that all devices have the same bits and no communicator says an error. Prints the relative L2
// error of the sum over all steps, of the large fp32 tensors: "error E". With `types` device 0
// sends fp32 and device 1 takes it for bf16: both communicators must say so, which is printed.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

struct Tensor {
    size_t count;
    ncclDataType_t type;
};
constexpr Tensor kTensors[] = {
    {64 * 512, ncclFloat32}, {40 * 512, ncclFloat32}, {64 * 512, ncclBfloat16}, {7, ncclFloat32}};
constexpr size_t kMost = 64 * 512;

size_t bytes_of(const Tensor& tensor) {
    return tensor.count * (tensor.type == ncclBfloat16 ? 2 : 4);
}

float gradient(int rank, size_t tensor, size_t i) {
    return std::sin(0.37f * static_cast<float>(i % 4096) + 1.9f * static_cast<float>(rank) +
                    4.1f * static_cast<float>(tensor)) *
           (i % 7 == 0 ? 1.0f : 0.1f);
}

struct Device {
    int rank = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    char* buffers[std::size(kTensors)] = {};
    std::vector<char> given[std::size(kTensors)], reduced[std::size(kTensors)];

    void begin() {
        CHECK_CUDA(cudaSetDevice(rank));
        CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (size_t t = 0; t < std::size(kTensors); ++t) {
            const Tensor& tensor = kTensors[t];
            CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffers[t]), bytes_of(tensor)));
            given[t].resize(bytes_of(tensor));
            reduced[t].resize(bytes_of(tensor));
            for (size_t i = 0; i < tensor.count; ++i) {
                const float value = gradient(rank, t, i);
                const size_t bytes = bytes_of(tensor) / tensor.count;
                std::memcpy(&given[t][i * bytes],
                            reinterpret_cast<const char*>(&value) + sizeof(value) - bytes, bytes);
            }
        }
    }
    void give() {
        CHECK_CUDA(cudaSetDevice(rank));
        for (size_t t = 0; t < std::size(kTensors); ++t) {
            CHECK_CUDA(cudaMemcpyAsync(buffers[t], given[t].data(), given[t].size(),
                                       cudaMemcpyHostToDevice, stream));
        }
    }
    void reduce(size_t t) {
        CHECK_NCCL(ncclAllReduce(buffers[t], buffers[t], kTensors[t].count, kTensors[t].type,
                                 ncclSum, comm, stream));
    }
    void take() {
        CHECK_CUDA(cudaSetDevice(rank));
        for (size_t t = 0; t < std::size(kTensors); ++t) {
            CHECK_CUDA(cudaMemcpyAsync(reduced[t].data(), buffers[t], reduced[t].size(),
                                       cudaMemcpyDeviceToHost, stream));
        }
        CHECK_CUDA(cudaStreamSynchronize(stream));
        ncclResult_t state = ncclSuccess;
        CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
        EXPECT_THAT(state == ncclSuccess, "rank %d: %s", rank, ncclGetLastError(nullptr));
    }
};

void take_for_another_type(const std::vector<Device>& devices) {
    const Tensor &sent = kTensors[0], taken{2 * sent.count, ncclBfloat16};
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclSend(devices[0].buffers[0], sent.count, sent.type, 1, devices[0].comm,
                        devices[0].stream));
    CHECK_NCCL(ncclRecv(devices[1].buffers[0], taken.count, taken.type, 0, devices[1].comm,
                        devices[1].stream));
    CHECK_NCCL(ncclGroupEnd());
    for (const Device& device : devices) {
        ncclResult_t state = ncclSuccess;
        for (int look = 0; look < 20'000 && state == ncclSuccess; ++look) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            CHECK_NCCL(ncclCommGetAsyncError(device.comm, &state));
        }
        EXPECT_THAT(state == ncclInvalidUsage, "%d", static_cast<int>(state));
        std::puts(ncclGetLastError(device.comm));
        EXPECT_THAT(device.rank == 0 || cudaStreamQuery(device.stream) == cudaErrorNotReady, "%s",
                    "what came is taken for data");
    }
    for (const Device& device : devices) {
        CHECK_NCCL(ncclCommAbort(device.comm));
    }
}

// The sums over all steps beside the exact ones.
class Judge {
  public:
    explicit Judge(size_t ranks) : exact_(2 * kMost), sums_(2 * kMost) {
        for (size_t rank = 0; rank < ranks; ++rank) {
            for (size_t at = 0; at < exact_.size(); ++at) {
                exact_[at] +=
                    static_cast<double>(gradient(static_cast<int>(rank), at / kMost, at % kMost));
            }
        }
    }
    void step(const std::vector<Device>& devices) {
        for (size_t t = 0; t < std::size(kTensors); ++t) {
            for (const Device& device : devices) {
                EXPECT_THAT(device.reduced[t] == devices[0].reduced[t], "tensor %zu of device %d",
                            t, device.rank);
            }
        }
        for (size_t t = 0; t < 2; ++t) {
            const auto* values = reinterpret_cast<const float*>(devices[0].reduced[t].data());
            for (size_t i = 0; i < kTensors[t].count; ++i) {
                sums_[t * kMost + i] += static_cast<double>(values[i]);
            }
        }
    }
    [[nodiscard]] double error(int steps) const {
        double wrong = 0, all = 0;
        for (size_t t = 0; t < 2; ++t) {
            for (size_t at = t * kMost; at < t * kMost + kTensors[t].count; ++at) {
                wrong += std::pow(sums_[at] / steps - exact_[at], 2);
                all += std::pow(exact_[at], 2);
            }
        }
        return std::sqrt(wrong / all);
    }

  private:
    std::vector<double> exact_, sums_;
};

}  // namespace

int main(int argc, char** argv) {
    const bool threads = argc > 1 && std::strcmp(argv[1], "threads") == 0;
    const int steps = argc > 2 ? std::atoi(argv[2]) : 16;
    int count = 0;
    CHECK_CUDA(cudaGetDeviceCount(&count));
    std::vector<Device> devices(static_cast<size_t>(count));
    std::vector<ncclComm_t> comms(devices.size());
    CHECK_NCCL(ncclCommInitAll(comms.data(), count, nullptr));
    for (size_t rank = 0; rank < devices.size(); ++rank) {
        devices[rank].rank = static_cast<int>(rank);
        devices[rank].comm = comms[rank];
        devices[rank].begin();
    }
    if (argc == 2) {
        take_for_another_type(devices);
        return 0;
    }
    Judge judge(devices.size());
    if (threads) {
        std::barrier stepped(count, [&]() noexcept { judge.step(devices); });
        std::vector<std::thread> all;
        for (Device& device : devices) {
            all.emplace_back([&] {
                for (int step = 0; step < steps; ++step) {
                    device.give();
                    for (size_t t = 0; t < std::size(kTensors); ++t) {
                        device.reduce(t);
                    }
                    device.take();
                    stepped.arrive_and_wait();
                }
            });
        }
        for (std::thread& thread : all) {
            thread.join();
        }
    }
    for (int step = 0; step < steps && !threads; ++step) {
        std::for_each(devices.begin(), devices.end(), std::mem_fn(&Device::give));
        for (size_t t = 0; t < std::size(kTensors); ++t) {
            CHECK_NCCL(ncclGroupStart());
            for (Device& device : devices) {
                device.reduce(t);
            }
            CHECK_NCCL(ncclGroupEnd());
        }
        std::for_each(devices.begin(), devices.end(), std::mem_fn(&Device::take));
        judge.step(devices);
    }
    std::printf("error %.6f\n", judge.error(steps));
    for (ncclComm_t comm : comms) {
        CHECK_NCCL(ncclCommDestroy(comm));
    }
    return 0;
}
