// What the tests of the emulated NCCL in one process start from: four devices with a communicator,
// a stream and two buffers each.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <string>
#include <vector>

#define ASSERT_CUDA(call) ASSERT_EQ((call), cudaSuccess)
#define ASSERT_NCCL(call) ASSERT_EQ((call), ncclSuccess) << ncclGetLastError(nullptr)

namespace slimwire::test {

inline constexpr int kDevices = 4;
inline constexpr size_t kCount = 1000;

inline std::string last_error() {
    return ncclGetLastError(nullptr);
}

inline ncclUniqueId new_id() {
    ncclUniqueId id;
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    return id;
}

// Makes `call` for each device in one group; gives what the group's end gave.
template <class Call>
ncclResult_t grouped(int devices, const Call& call) {
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (int i = 0; i < devices; ++i) {
        EXPECT_EQ(call(i), ncclSuccess) << ncclGetLastError(nullptr);
    }
    return ncclGroupEnd();
}

// A stream of each device beside those of the clique.
class SideStreams {
  public:
    SideStreams() {
        for (int i = 0; i < kDevices; ++i) {
            EXPECT_EQ(cudaSetDevice(i), cudaSuccess);
            EXPECT_EQ(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking), cudaSuccess);
        }
    }
    ~SideStreams() {
        for (cudaStream_t stream : streams_) {
            EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
        }
    }
    SideStreams(const SideStreams&) = delete;
    SideStreams& operator=(const SideStreams&) = delete;
    cudaStream_t operator[](int i) const { return streams_[i]; }
    void synchronize() const {
        for (cudaStream_t stream : streams_) {
            ASSERT_CUDA(cudaStreamSynchronize(stream));
        }
    }

  private:
    cudaStream_t streams_[kDevices] = {};
};

// Four communicators of one clique with a stream and two buffers each.
class Clique : public testing::Test {
  protected:
    void SetUp() override {
        int devices = 0;
        ASSERT_CUDA(cudaGetDeviceCount(&devices));
        ASSERT_EQ(devices, kDevices) << "SLIMWIRE_EMU_DEVICES must be 4";
        ASSERT_NCCL(ncclCommInitAll(comms_, kDevices, nullptr));
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_CUDA(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking));
            in_[i] = device_floats(i, static_cast<float>(i + 1));
            out_[i] = device_floats(i, -1);
        }
    }
    void TearDown() override {
        for (int i = 0; i < kDevices; ++i) {
            EXPECT_EQ(ncclCommDestroy(comms_[i]), ncclSuccess);
            EXPECT_EQ(cudaStreamDestroy(streams_[i]), cudaSuccess);
            EXPECT_EQ(cudaFree(in_[i]), cudaSuccess);
            EXPECT_EQ(cudaFree(out_[i]), cudaSuccess);
        }
    }
    static float* device_floats(int device, float value) {
        float* data = nullptr;
        EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
        EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data), kCount * sizeof(float)), cudaSuccess);
        const std::vector<float> values(kCount, value);
        EXPECT_EQ(cudaMemcpy(data, values.data(), kCount * sizeof(float), cudaMemcpyDefault),
                  cudaSuccess);
        return data;
    }
    void synchronize() {
        for (cudaStream_t stream : streams_) {
            ASSERT_CUDA(cudaStreamSynchronize(stream));
        }
    }
    static void expect_all(const float* data, float value) {
        std::vector<float> found(kCount);
        ASSERT_CUDA(cudaMemcpy(found.data(), data, kCount * sizeof(float), cudaMemcpyDefault));
        EXPECT_EQ(found, std::vector<float>(kCount, value));
    }
    static ncclResult_t all_reduce_in_place(float* data, ncclComm_t comm, cudaStream_t stream) {
        return ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, comm, stream);
    }
    // On all devices, in one group; the results are there at return.
    void all_reduce_together(ncclComm_t* comms, ncclRedOp_t op = ncclSum) {
        ASSERT_NCCL(grouped(kDevices, [&](int i) { return all_reduce(i, op, comms[i]); }));
        synchronize();
    }
    ncclResult_t all_reduce(int i, ncclRedOp_t op = ncclSum, ncclComm_t comm = nullptr) {
        return ncclAllReduce(in_[i], out_[i], kCount, ncclFloat32, op,
                             comm != nullptr ? comm : comms_[i], streams_[i]);
    }

    ncclComm_t comms_[kDevices] = {};
    cudaStream_t streams_[kDevices] = {};
    float* in_[kDevices] = {};
    float* out_[kDevices] = {};
};

}  // namespace slimwire::test
