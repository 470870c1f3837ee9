// NCCL calls under stream capture: they become nodes, replays do them again with the data of the
// moment and in the order of the launches, and a graph keeps what it needs.
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_clique.h"

namespace slimwire::test {
namespace {

class NcclCapture : public Clique {
  protected:
    void begin() {
        for (cudaStream_t stream : streams_) {
            ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        }
    }
    void end() {
        for (int i = 0; i < kDevices; ++i) {
            cudaGraph_t graph = nullptr;
            ASSERT_CUDA(cudaStreamEndCapture(streams_[i], &graph));
            ASSERT_CUDA(cudaGraphInstantiate(&execs_[i], graph, 0));
            ASSERT_CUDA(cudaGraphDestroy(graph));
        }
    }
    void launch() {
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaGraphLaunch(execs_[i], streams_[i]));
        }
    }
    void destroy() {
        for (cudaGraphExec_t& exec : execs_) {
            ASSERT_CUDA(cudaGraphExecDestroy(std::exchange(exec, nullptr)));
        }
    }
    cudaGraphExec_t execs_[kDevices] = {};
};

TEST_F(NcclCapture, a_captured_group_over_two_streams_joins_them) {
    const SideStreams side;
    cudaEvent_t events[kDevices] = {};
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_CUDA(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    }
    begin();
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaEventRecord(events[i], streams_[i]));
        ASSERT_CUDA(cudaStreamWaitEvent(side[i], events[i], 0));
        ASSERT_NCCL(all_reduce(i));
        ASSERT_NCCL(all_reduce_in_place(in_[i], comms_[i], side[i]));
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaEventRecord(events[i], side[i]));
        ASSERT_CUDA(cudaStreamWaitEvent(streams_[i], events[i], 0));
    }
    end();
    launch();
    launch();
    synchronize();
    expect_all(out_[1], 40);
    expect_all(in_[1], 40);
    destroy();
    for (cudaEvent_t event : events) {
        ASSERT_CUDA(cudaEventDestroy(event));
    }
}

TEST_F(NcclCapture, a_communicators_streams_are_in_one_graph_or_in_none) {
    const SideStreams side;
    ASSERT_CUDA(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(all_reduce(0));
    ASSERT_NCCL(all_reduce_in_place(in_[0], comms_[0], side[0]));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_HAS(last_error(), "captured by the same graph");
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(streams_[0], &graph));
    size_t nodes = 1;
    ASSERT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 0u);
    ASSERT_CUDA(cudaGraphDestroy(graph));
}

// Rank 0 is held back. Without an order between the graph's launch and the eager calls on another
// stream its later all-reduce would meet the others' first one.
TEST_F(NcclCapture, graph_launches_and_eager_calls_keep_their_order) {
    const SideStreams eager;
    begin();
    ASSERT_NCCL(grouped(kDevices, [&](int i) { return all_reduce(i); }));
    end();
    for (int round = 0; round < 2; ++round) {
        std::atomic<int> open{0};
        ASSERT_CUDA(cudaLaunchHostFunc(
            streams_[0], [](void* gate) { static_cast<std::atomic<int>*>(gate)->wait(0); }, &open));
        launch();
        ASSERT_NCCL(grouped(
            kDevices, [&](int i) { return all_reduce_in_place(in_[i], comms_[i], eager[i]); }));
        for (int wait = 0; wait < 20; ++wait) {
            EXPECT_EQ(cudaStreamQuery(eager[0]), cudaErrorNotReady) << round;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        open = 1;
        open.notify_all();
        ASSERT_CUDA(cudaStreamSynchronize(streams_[0]));  // the gate is not used any more
    }
    synchronize();
    eager.synchronize();
    for (int i = 0; i < kDevices; ++i) {
        expect_all(in_[i], 40);
        expect_all(out_[i], 40);
    }
    destroy();
}

}  // namespace
}  // namespace slimwire::test
