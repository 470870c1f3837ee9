// A rule with a start step counts the calls that ran: those of a group that was dropped or that
// failed never were, on any rank. One process, two emulated devices, a policy of the test's own.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kRanks = 2;
constexpr size_t kCount = 20000;

class StartStep : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        policy_ = new std::string(testing::TempDir() + "start_step_" + std::to_string(getpid()) +
                                  ".toml");
        std::FILE* file = std::fopen(policy_->c_str(), "w");
        ASSERT_NE(file, nullptr);
        std::fputs(
            "version = 1\n[[rule]]\nname = \"late\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int8\"\nstart_step = 2\n",
            file);
        std::fclose(file);
        // Before the first NCCL call of the process, which reads it.
        ::setenv("SLIMWIRE_POLICY", policy_->c_str(), 1);
    }
    static void TearDownTestSuite() {
        std::remove(policy_->c_str());
        delete policy_;
    }

    void SetUp() override {
        ASSERT_EQ(ncclCommInitAll(comms_, kRanks, nullptr), ncclSuccess)
            << ncclGetLastError(nullptr);
        std::vector<float> host(kCount);
        for (size_t i = 0; i < kCount; ++i) {
            host[i] = std::sin(static_cast<float>(i));
        }
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            for (float** buffer : {&send_[rank], &recv_[rank]}) {
                ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(buffer), kCount * sizeof(float)),
                          cudaSuccess);
                ASSERT_EQ(cudaMemcpy(*buffer, host.data(), kCount * sizeof(float),
                                     cudaMemcpyHostToDevice),
                          cudaSuccess);
            }
        }
    }
    void TearDown() override {
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
            (void)cudaFree(send_[rank]);
            (void)cudaFree(recv_[rank]);
        }
    }

    void queue_all() {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], kCount, ncclFloat32, ncclSum,
                                    comms_[rank], nullptr),
                      ncclSuccess);
        }
    }

    // A call of all ranks; whether it was compressed. Twice a value is exact natively.
    bool call_is_compressed() {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        queue_all();
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        std::vector<float> sent(kCount), result(kCount);
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const size_t bytes = kCount * sizeof(float);
        EXPECT_EQ(cudaMemcpy(sent.data(), send_[0], bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(result.data(), recv_[0], bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        size_t inexact = 0;
        for (size_t i = 0; i < kCount; ++i) {
            inexact += result[i] != 2 * sent[i] ? 1 : 0;
        }
        return inexact > 0;
    }

    void expect_two_native_calls_first() {
        EXPECT_FALSE(call_is_compressed());
        EXPECT_FALSE(call_is_compressed());
        EXPECT_TRUE(call_is_compressed());
        EXPECT_TRUE(call_is_compressed());
    }

    ncclComm_t comms_[kRanks] = {};
    float* send_[kRanks] = {};
    float* recv_[kRanks] = {};

  private:
    static std::string* policy_;
};
std::string* StartStep::policy_ = nullptr;

TEST_F(StartStep, CallsUntilItAreNative) {
    expect_two_native_calls_first();
}

TEST_F(StartStep, CallsOfASimulatedGroupWereNone) {
    for (int i = 0; i < 3; ++i) {
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        queue_all();
        ASSERT_EQ(ncclGroupSimulateEnd(&info), ncclSuccess);
    }
    expect_two_native_calls_first();
}

TEST_F(StartStep, CallsOfAFailedGroupWereNone) {
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        queue_all();
        EXPECT_NE(
            ncclBroadcast(send_[0], recv_[0], kCount, ncclFloat32, kRanks, comms_[0], nullptr),
            ncclSuccess);
        EXPECT_NE(ncclGroupEnd(), ncclSuccess);
    }
    expect_two_native_calls_first();
}

}  // namespace
