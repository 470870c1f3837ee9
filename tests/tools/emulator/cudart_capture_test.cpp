// Stream capture: what becomes of the calls made while a stream is captured, fork and join, and
// which calls a capture does not survive. What graphs do afterwards is cudart_graphs_test.cpp.
#include "tests/support/has.h"
#include "tests/tools/emulator/cuda_test.h"

namespace slimwire::testing {
namespace {

cudaStreamCaptureStatus status_of(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    return status;
}

size_t node_count(cudaGraph_t graph) {
    size_t count = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
    return count;
}

void replay(cudaGraph_t graph, cudaStream_t stream, int times) {
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < times; ++i) {
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    }
    ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

class Capture : public ::testing::Test {
  protected:
    void SetUp() override {
        stream = make_stream();
        other = make_stream();
    }
    void TearDown() override {
        ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
        ASSERT_EQ(cudaStreamDestroy(other), cudaSuccess);
        (void)cudaGetLastError();
    }
    void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
        ASSERT_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
    }
    // Ends the capture, which `call` must have made invalid.
    void expect_invalid(cudaError_t from_end = cudaErrorStreamCaptureInvalidated) {
        EXPECT_EQ(status_of(stream), cudaStreamCaptureStatusInvalidated);
        cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(this);
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), from_end);
        EXPECT_EQ(graph, nullptr);
        EXPECT_EQ(status_of(stream), cudaStreamCaptureStatusNone);
    }
    void expect_valid(size_t nodes) {
        cudaGraph_t graph = nullptr;
        ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        EXPECT_EQ(node_count(graph), nodes);
        ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }

    cudaStream_t stream = nullptr;
    cudaStream_t other = nullptr;
    std::vector<int> log;
};

TEST_F(Capture, NothingRunsBeforeTheReplayAndEachReplayRunsAll) {
    begin();
    EXPECT_EQ(status_of(stream), cudaStreamCaptureStatusActive);
    EXPECT_EQ(status_of(other), cudaStreamCaptureStatusNone);
    note(stream, log, 1);
    note(stream, log, 2);
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(status_of(stream), cudaStreamCaptureStatusNone);
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(log.empty());
    EXPECT_EQ(node_count(graph), 2u);
    replay(graph, other, 3);
    EXPECT_EQ(log, (std::vector<int>{1, 2, 1, 2, 1, 2}));
    CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(Capture, CopiesAndFillsReadMemoryAtTheReplay) {
    constexpr size_t kBytes = 1000;
    unsigned char* device = nullptr;
    CUDA_OK(cudaMalloc(&device, kBytes));
    std::vector<unsigned char> source(kBytes, 7);  // pageable: not taken at the call
    std::vector<unsigned char> target(kBytes, 0);
    begin();
    CUDA_OK(cudaMemcpyAsync(device, source.data(), kBytes, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemsetAsync(device, 9, 10, stream));
    CUDA_OK(cudaMemcpyAsync(target.data(), device, kBytes, cudaMemcpyDeviceToHost, stream));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(node_count(graph), 3u);
    EXPECT_EQ(target[20], 0);
    for (const unsigned char value : {11, 12}) {
        std::fill(source.begin(), source.end(), value);
        replay(graph, stream, 1);
        EXPECT_EQ(target[9], 9);
        EXPECT_EQ(target[10], value);
        EXPECT_EQ(target[kBytes - 1], value);
    }
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(cudaFree(device));
}

TEST_F(Capture, ForkAndJoinThroughEventsBecomesOneGraph) {
    begin();
    note(stream, log, 1);
    order(stream, other);
    EXPECT_EQ(status_of(other), cudaStreamCaptureStatusActive);
    note(other, log, 2);
    order(other, stream);
    note(stream, log, 3);
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(status_of(other), cudaStreamCaptureStatusNone);
    replay(graph, stream, 2);
    EXPECT_EQ(log, (std::vector<int>{1, 2, 3, 1, 2, 3}));
    note(other, log, 4);  // the forked stream is an ordinary one again
    CUDA_OK(cudaStreamSynchronize(other));
    EXPECT_EQ(log.back(), 4);
    CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(Capture, AForkThatIsNotJoinedIsAnErrorAndEndsTheCapture) {
    for (const bool after_a_join : {false, true}) {
        begin();
        order(stream, other);
        note(other, log, 1);
        if (after_a_join) {
            order(other, stream);
            note(other, log, 2);
        }
        cudaGraph_t graph = nullptr;
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
        EXPECT_EQ(graph, nullptr);
        EXPECT_EQ(status_of(stream), cudaStreamCaptureStatusNone);
        EXPECT_EQ(status_of(other), cudaStreamCaptureStatusNone);
    }
}

TEST_F(Capture, AForkWithoutWorkNeedsNoJoin) {
    begin();
    note(stream, log, 1);
    order(stream, other);
    note(stream, log, 2);
    expect_valid(2);
}

TEST_F(Capture, EndBelongsToTheStreamThatBegan) {
    begin();
    order(stream, other);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched);
    expect_invalid();
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    begin();
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
    expect_valid(0);
}

TEST_F(Capture, EndBelongsToTheThreadThatBeganUnlessRelaxed) {
    for (const bool relaxed : {false, true}) {
        begin(relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal);
        cudaError_t from_thread = cudaSuccess;
        cudaGraph_t graph = nullptr;
        std::thread([&] { from_thread = cudaStreamEndCapture(stream, &graph); }).join();
        EXPECT_EQ(from_thread, relaxed ? cudaSuccess : cudaErrorStreamCaptureWrongThread);
        if (!relaxed) {
            CUDA_OK(cudaStreamEndCapture(stream, &graph));
        }
        CUDA_OK(cudaGraphDestroy(graph));
    }
}

TEST_F(Capture, SynchronisingOrAskingACapturedStreamInvalidates) {
    for (const auto& ask : {cudaStreamSynchronize, cudaStreamQuery}) {
        begin(cudaStreamCaptureModeRelaxed);
        EXPECT_EQ(ask(stream), cudaErrorStreamCaptureUnsupported);
        EXPECT_EQ(cudaLaunchHostFunc(
                      stream, [](void*) {}, nullptr),
                  cudaErrorStreamCaptureInvalidated);
        expect_invalid();
    }
    begin(cudaStreamCaptureModeRelaxed);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    expect_invalid();
}

TEST_F(Capture, AskingACapturedEventInvalidatesAndStaysAnError) {
    const Event event(cudaEventDisableTiming);
    for (const auto& ask : {cudaEventSynchronize, cudaEventQuery}) {
        begin(cudaStreamCaptureModeRelaxed);
        CUDA_OK(cudaEventRecord(event, stream));
        EXPECT_EQ(ask(event), cudaErrorCapturedEvent);
        expect_invalid();
        EXPECT_EQ(ask(event), cudaErrorCapturedEvent);
        EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaErrorCapturedEvent);
        CUDA_OK(cudaEventRecord(event, stream));  // an ordinary recording ends that
        CUDA_OK(cudaEventSynchronize(event));
    }
}

TEST_F(Capture, UncapturedEventsAndOtherCapturesCannotBeWaitedFor) {
    const Event event(cudaEventDisableTiming);
    CUDA_OK(cudaEventRecord(event, other));
    begin();
    EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureIsolation);
    expect_invalid();

    begin();
    CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(cudaEventRecord(event, other));
    EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureMerge);
    expect_invalid();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Capture, UnsafeCallsInvalidateUnlessRelaxed) {
    void* pointer = nullptr;
    for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
        begin(mode);
        EXPECT_EQ(cudaMalloc(&pointer, 512), cudaErrorStreamCaptureUnsupported);
        expect_invalid();
        begin(mode);
        EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorStreamCaptureUnsupported);
        expect_invalid();
        begin(mode);
        int value = 0;
        EXPECT_EQ(cudaMemcpy(&value, &value, sizeof value, cudaMemcpyHostToHost),
                  cudaErrorStreamCaptureUnsupported);
        expect_invalid();
    }
    begin(cudaStreamCaptureModeRelaxed);
    CUDA_OK(cudaMalloc(&pointer, 512));
    CUDA_OK(cudaFree(pointer));
    CUDA_OK(cudaStreamSynchronize(other));
    note(stream, log, 1);
    expect_valid(1);
}

TEST_F(Capture, OtherThreadsDisturbOnlyAGlobalCapture) {
    const auto malloc_elsewhere = [](cudaStreamCaptureMode thread_mode) {
        cudaError_t error = cudaSuccess;
        std::thread([&] {
            ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&thread_mode), cudaSuccess);
            void* pointer = nullptr;
            error = cudaMalloc(&pointer, 512);
            if (error == cudaSuccess) {
                EXPECT_EQ(cudaFree(pointer), cudaSuccess);
            }
        }).join();
        return error;
    };
    begin(cudaStreamCaptureModeGlobal);
    EXPECT_EQ(malloc_elsewhere(cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(malloc_elsewhere(cudaStreamCaptureModeRelaxed), cudaSuccess);
    EXPECT_EQ(status_of(stream), cudaStreamCaptureStatusActive);
    EXPECT_EQ(malloc_elsewhere(cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
    expect_invalid();
    begin(cudaStreamCaptureModeThreadLocal);
    EXPECT_EQ(malloc_elsewhere(cudaStreamCaptureModeGlobal), cudaSuccess);
    expect_valid(0);
}

TEST_F(Capture, TheThreadsModeIsExchangedAndAllowsUnsafeCalls) {
    begin(cudaStreamCaptureModeGlobal);
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
    void* pointer = nullptr;
    CUDA_OK(cudaMalloc(&pointer, 512));
    CUDA_OK(cudaFree(pointer));
    CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
    expect_valid(0);
}

TEST_F(Capture, TheLegacyStreamIsUnusableBesideABlockingCapture) {
    const Stream blocking(cudaStreamDefault);
    cudaStreamCaptureStatus status{};
    EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed),
              cudaErrorStreamCaptureUnsupported);
    CUDA_OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    EXPECT_EQ(cudaStreamIsCapturing(nullptr, &status), cudaErrorStreamCaptureImplicit);
    EXPECT_EQ(status_of(blocking), cudaStreamCaptureStatusActive);  // asking is harmless
    EXPECT_EQ(cudaLaunchHostFunc(
                  nullptr, [](void*) {}, nullptr),
              cudaErrorStreamCaptureImplicit);
    EXPECT_EQ(status_of(blocking), cudaStreamCaptureStatusInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);

    begin(cudaStreamCaptureModeRelaxed);  // a non-blocking stream does not mind
    CUDA_OK(cudaLaunchHostFunc(
        nullptr, [](void*) {}, nullptr));
    CUDA_OK(cudaStreamSynchronize(nullptr));
    expect_valid(0);
}

TEST_F(Capture, PoolAllocationsAreRefused) {
    begin(cudaStreamCaptureModeRelaxed);
    void* pointer = nullptr;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cudaMallocAsync(&pointer, 512, stream), cudaErrorNotSupported);
    EXPECT_HAS(::testing::internal::GetCapturedStderr(), "memory nodes");
    expect_invalid();
}

TEST_F(Capture, InfoNamesTheGraphAndWhatTheNextNodeDependsOn) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    unsigned long long id = 1;
    cudaGraph_t graph = nullptr;
    const cudaGraphNode_t* dependencies = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    size_t count = 1;
    CUDA_OK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, &edges, &count));
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
    EXPECT_EQ(count, 0u);
    begin();
    note(stream, log, 1);
    CUDA_OK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, &edges, &count));
    EXPECT_EQ(status, cudaStreamCaptureStatusActive);
    ASSERT_EQ(count, 1u);
    EXPECT_EQ(edges[0].type, cudaGraphDependencyTypeDefault);
    EXPECT_EQ(node_count(graph), 1u);
    unsigned long long forked_id = 0;
    order(stream, other);
    CUDA_OK(cudaStreamGetCaptureInfo(other, &status, &forked_id));
    EXPECT_EQ(forked_id, id);
    cudaGraph_t captured = nullptr;
    EXPECT_EQ(cudaGraphDestroy(graph), cudaErrorIllegalState);
    CUDA_OK(cudaStreamEndCapture(stream, &captured));
    EXPECT_EQ(captured, graph);
    CUDA_OK(cudaGraphDestroy(captured));
    begin();
    CUDA_OK(cudaStreamGetCaptureInfo(stream, &status, &forked_id));
    EXPECT_NE(forked_id, id);
    expect_valid(0);
}

// How they are set, the tests of graphs show.
TEST_F(Capture, DependenciesCanBeAddedAndDropped) {
    const auto update = [](cudaStream_t of, std::vector<cudaGraphNode_t> nodes, unsigned int how) {
        return cudaStreamUpdateCaptureDependencies(of, nodes.data(), nullptr, nodes.size(), how);
    };
    begin();
    order(stream, other);
    note(other, log, 1);
    cudaStreamCaptureStatus status{};
    const cudaGraphNode_t* added = nullptr;
    size_t count = 0;
    CUDA_OK(cudaStreamGetCaptureInfo(other, &status, nullptr, nullptr, &added, nullptr, &count));
    ASSERT_EQ(count, 1u);
    CUDA_OK(
        update(stream, {*added}, cudaStreamAddCaptureDependencies));  // joins the work of `other`
    expect_valid(1);
    begin();
    order(stream, other);
    note(other, log, 1);
    CUDA_OK(update(other, {}, cudaStreamSetCaptureDependencies));  // none is left to be joined
    expect_valid(1);
    EXPECT_EQ(update(stream, {}, cudaStreamSetCaptureDependencies), cudaErrorIllegalState);
}

TEST_F(Capture, ThePerThreadStreamCanBeCaptured) {
    CUDA_OK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal));
    note(cudaStreamPerThread, log, 1);
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
    replay(graph, stream, 2);
    EXPECT_EQ(log, (std::vector<int>{1, 1}));
    CUDA_OK(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace slimwire::testing
