// Messages and broadcasts whose ends name the type differently, which NCCL takes because it moves
// bytes: where a rule compresses one end both get an error, soon, and no other bytes arrive. One
// process, two emulated devices.
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/plugin/two_devices.h"

namespace {

constexpr size_t kCount = 4096;

struct End {
    ncclDataType_t type;
    size_t count;
};
constexpr End kFloats{ncclFloat32, kCount}, kBytes{ncclUint8, 4 * kCount},
    kHalves{ncclFloat16, 2 * kCount}, kBrains{ncclBfloat16, 2 * kCount};

class MessagesDiffer : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"all\"\ncodec = \"int8\"\n"
            "match = { op = [\"send\", \"recv\", \"broadcast\"] }\n");
    }
    MessagesDiffer() : TwoDevices(kCount) {}
    void SetUp() override {
        TwoDevices::SetUp();
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking),
                      cudaSuccess);
            fill(rank, Values(kCount, 0.5f));
            ASSERT_EQ(cudaMemset(recv_[rank], 0x7e, kCount * sizeof(float)), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        }
    }
    void TearDown() override {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            if (failed_) {
                EXPECT_EQ(ncclCommAbort(comms_[rank]), ncclSuccess);
            }
        }
        if (failed_) {
            ASSERT_EQ(ncclCommInitAll(comms_, kRanks, nullptr), ncclSuccess);
        }
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaStreamSynchronize(streams_[rank]), cudaSuccess);
            EXPECT_EQ(cudaStreamDestroy(streams_[rank]), cudaSuccess);
        }
        TwoDevices::TearDown();
    }

    // From rank 0 to rank 1, each end with its own words.
    void message(End sent, End got) {
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
        ASSERT_EQ(ncclSend(send_[0], sent.count, sent.type, 1, comms_[0], streams_[0]),
                  ncclSuccess);
        ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
        ASSERT_EQ(ncclRecv(recv_[1], got.count, got.type, 0, comms_[1], streams_[1]), ncclSuccess);
    }
    void expect_arrived() {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaStreamSynchronize(streams_[rank]), cudaSuccess);
            ncclResult_t state = ncclSuccess;
            ASSERT_EQ(ncclCommGetAsyncError(comms_[rank], &state), ncclSuccess);
            EXPECT_EQ(state, ncclSuccess) << ncclGetLastError(comms_[rank]);
        }
        for (const float value : received()) {
            ASSERT_NEAR(value, 0.5f, 0.01f);
        }
        ASSERT_EQ(cudaMemset(recv_[1], 0x7e, kCount * sizeof(float)), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    Values received() {
        Values values(kCount);
        EXPECT_EQ(
            cudaMemcpy(values.data(), recv_[1], kCount * sizeof(float), cudaMemcpyDeviceToHost),
            cudaSuccess);
        return values;
    }
    void expect_error_on_both() {
        failed_ = true;
        for (int rank = 0; rank < kRanks; ++rank) {
            ncclResult_t state = ncclSuccess;
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
            while (state == ncclSuccess && std::chrono::steady_clock::now() < limit) {
                ASSERT_EQ(ncclCommGetAsyncError(comms_[rank], &state), ncclSuccess);
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            EXPECT_EQ(state, ncclInvalidUsage) << "rank " << rank;
            EXPECT_NE(std::string(ncclGetLastError(comms_[rank])).find("same type and count"),
                      std::string::npos)
                << ncclGetLastError(comms_[rank]);
            EXPECT_EQ(ncclAllReduce(send_[rank], recv_[rank], kCount, ncclFloat32, ncclSum,
                                    comms_[rank], streams_[rank]),
                      ncclInvalidUsage);
        }
        Values untouched(kCount);
        std::memset(untouched.data(), 0x7e, kCount * sizeof(float));
        EXPECT_EQ(received(), untouched);
    }

    cudaStream_t streams_[kRanks] = {};
    bool failed_ = false;
};

TEST_F(MessagesDiffer, CompressedToNative) {
    message(kFloats, kBytes);
    expect_error_on_both();
}

TEST_F(MessagesDiffer, NativeToCompressed) {
    message(kBytes, kFloats);
    expect_error_on_both();
}

// Both encodings have as many bytes.
TEST_F(MessagesDiffer, OtherTypeOfEqualBytes) {
    message(kHalves, kBrains);
    expect_error_on_both();
}

TEST_F(MessagesDiffer, OtherCount) {
    message({ncclFloat32, kCount - 64}, kFloats);
    expect_error_on_both();
}

TEST_F(MessagesDiffer, AfterMessagesThatWereAlike) {
    for (int turn = 0; turn < 3; ++turn) {
        for (const End end : {kFloats, kBytes, kBytes}) {
            message(end, end);
            expect_arrived();
        }
    }
    message(kFloats, kFloats);
    expect_arrived();
    message(kFloats, kBytes);
    expect_error_on_both();
}

// Nobody sees how often a graph is launched.
TEST_F(MessagesDiffer, NotWhereOneEndIsAGraph) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t launched = nullptr;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(ncclSend(send_[0], kCount, ncclFloat32, 1, comms_[0], streams_[0]), ncclSuccess);
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&launched, graph, 0), cudaSuccess);
    for (int turn = 0; turn < 3; ++turn) {
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(launched, streams_[0]), cudaSuccess);
        ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
        ASSERT_EQ(ncclRecv(recv_[1], kCount, ncclFloat32, 0, comms_[1], streams_[1]), ncclSuccess);
        expect_arrived();
    }
    ASSERT_EQ(cudaGraphExecDestroy(launched), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    message(kBytes, kBytes);
    expect_arrived();
}

TEST_F(MessagesDiffer, InAGroup) {
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    message(kFloats, kBytes);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    expect_error_on_both();
}

TEST_F(MessagesDiffer, Broadcasts) {
    for (int rank = 0; rank < kRanks; ++rank) {
        const End end = rank == 0 ? kFloats : kBytes;
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(ncclBroadcast(send_[rank], recv_[rank], end.count, end.type, 0, comms_[rank],
                                streams_[rank]),
                  ncclSuccess);
    }
    expect_error_on_both();
}

}  // namespace
