// A stream's capture, asked of the CUDA runtime that is linked in: one of CUDA 12.0, 12.3 or 13.0,
// as LINKED_CUDART says. Functions of its names stand for it. The one that has the parameters of
// CUDA 13's cudaStreamGetCaptureInfo, or all but the edges, gives a graph, and all others nothing.
#include <gtest/gtest.h>

#define SLIMWIRE_HAVE_CUDA
#include "collectives/call/backend.cpp"

namespace {

cudaGraph_t graph_of_capture() {
    return reinterpret_cast<cudaGraph_t>(0x31);
}

}  // namespace

extern "C" {

[[gnu::used]] cudaError_t gives_nothing() {
    return cudaErrorNotSupported;
}

[[gnu::used]] cudaError_t gives_graph(cudaStream_t /*stream*/,
                                      cudaStreamCaptureStatus* status,
                                      unsigned long long* id,
                                      cudaGraph_t* graph) {
    *status = cudaStreamCaptureStatusActive;
    *id = 31;
    *graph = graph_of_capture();
    return cudaSuccess;
}
}

#define STAND_IN(name, gives) asm(".globl " name "\n.set " name ", gives_" gives);
#if LINKED_CUDART >= 13000
#define OF_13(member, function) STAND_IN(#function, "graph")
SLIMWIRE_DEVICE_FUNCTIONS(OF_13)
#else
#define OF_12(member, function) STAND_IN(#function, "nothing")
SLIMWIRE_DEVICE_FUNCTIONS(OF_12)
#if LINKED_CUDART >= 12030
STAND_IN("cudaStreamGetCaptureInfo_v2", "nothing")
STAND_IN("cudaStreamGetCaptureInfo_v3", "graph")
#else
STAND_IN("cudaStreamGetCaptureInfo_v2", "graph")
#endif
#endif
STAND_IN("cudaGetDriverEntryPoint", "nothing")

namespace slimwire {
namespace {

TEST(LinkedCudart, captured_stream_has_its_graph) {
    const Result<DeviceApi> api = load_device_api();
    ASSERT_TRUE(api.ok()) << api.status().message();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(api.value().stream_get_capture_info(nullptr, &status, &id, &graph, nullptr, nullptr,
                                                  nullptr),
              cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusActive);
    EXPECT_EQ(id, 31U);
    EXPECT_EQ(graph, graph_of_capture());
}

}  // namespace
}  // namespace slimwire
