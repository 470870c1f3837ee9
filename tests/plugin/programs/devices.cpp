// One thread drives all devices of its process from device 1, as single-process programs do, and
// looks after each call whether it is still there.
#include <cmath>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

void still_on_device_1(const char* after) {
    int device = -1;
    CHECK_CUDA(cudaGetDevice(&device));
    EXPECT_THAT(device == 1, "device %d after %s", device, after);
}

}  // namespace

int main() {
    constexpr int kDevices = 3;
    constexpr size_t kCounts[] = {30000, 12345};
    ncclComm_t comms[kDevices];
    cudaStream_t streams[kDevices];
    float* buffers[kDevices][2];
    for (int device = 0; device < kDevices; ++device) {
        CHECK_CUDA(cudaSetDevice(device));
        CHECK_CUDA(cudaStreamCreate(&streams[device]));
        for (int i = 0; i < 2; ++i) {
            CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffers[device][i]),
                                  kCounts[i] * sizeof(float)));
        }
    }
    CHECK_CUDA(cudaSetDevice(1));
    CHECK_NCCL(ncclCommInitAll(comms, kDevices, nullptr));
    still_on_device_1("ncclCommInitAll");
    for (int round = 0; round < 10; ++round) {
        for (int device = 0; device < kDevices; ++device) {
            CHECK_CUDA(cudaSetDevice(device));
            for (int i = 0; i < 2; ++i) {
                const std::vector<float> values(kCounts[i],
                                                static_cast<float>((device + 1) * (i + 1)));
                CHECK_CUDA(cudaMemcpy(buffers[device][i], values.data(), kCounts[i] * sizeof(float),
                                      cudaMemcpyHostToDevice));
            }
        }
        CHECK_CUDA(cudaSetDevice(1));
        CHECK_NCCL(ncclGroupStart());
        for (int i = 0; i < 2; ++i) {
            for (int device = 0; device < kDevices; ++device) {
                CHECK_NCCL(ncclAllReduce(buffers[device][i], buffers[device][i], kCounts[i],
                                         ncclFloat32, i == 0 ? ncclSum : ncclAvg, comms[device],
                                         streams[device]));
                still_on_device_1("ncclAllReduce");
            }
        }
        CHECK_NCCL(ncclGroupEnd());
        still_on_device_1("ncclGroupEnd");
        for (int device = 0; device < kDevices; ++device) {
            CHECK_CUDA(cudaStreamSynchronize(streams[device]));
            for (int i = 0; i < 2; ++i) {
                std::vector<float> sums(kCounts[i]);
                CHECK_CUDA(cudaMemcpy(sums.data(), buffers[device][i], kCounts[i] * sizeof(float),
                                      cudaMemcpyDeviceToHost));
                const float expected = i == 0 ? 6.0f : 4.0f;  // sum of 1 2 3; mean of 2 4 6
                for (const float sum : sums) {
                    EXPECT_THAT(std::fabs(sum - expected) < 0.05f * expected,
                                "device %d: %g, expected %g", device, static_cast<double>(sum),
                                static_cast<double>(expected));
                }
            }
        }
    }
    for (ncclComm_t comm : comms) {
        CHECK_NCCL(ncclCommDestroy(comm));
        still_on_device_1("ncclCommDestroy");
    }
    return 0;
}
