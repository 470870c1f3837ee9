// Exported functions of stream capture; the rules are in capture.h.
#include <algorithm>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

// The nodes behind `count` handles; false when one is none or repeats.
bool find_nodes(const cudaGraphNode_t* handles, size_t count, std::vector<NodeRef>* out) {
    if (handles == nullptr && count != 0) {
        return false;
    }
    for (size_t i = 0; i < count; ++i) {
        NodeRef node = find_node(handles[i]);
        if (node == nullptr || std::find(out->begin(), out->end(), node) != out->end()) {
            return false;
        }
        out->push_back(std::move(node));
    }
    return true;
}

// Only edges that mean "after" are there: no ports, no programmatic launch.
bool plain_edges(const cudaGraphEdgeData* edges, size_t count) {
    return edges == nullptr || std::all_of(edges, edges + count, [](const cudaGraphEdgeData& edge) {
               return edge.from_port == 0 && edge.to_port == 0 &&
                      edge.type == cudaGraphDependencyTypeDefault;
           });
}

}  // namespace

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* capture_status) {
    return stream_call(stream, [&](Runtime& runtime, Stream& target) {
        CaptureTable::Info info;
        const cudaError_t error = runtime.captures.info(target, &info);
        return error == cudaSuccess ? give(capture_status, info.status) : error;
    });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* capture_status_out,
                                     unsigned long long* id_out,
                                     cudaGraph_t* graph_out,
                                     const cudaGraphNode_t** dependencies_out,
                                     const cudaGraphEdgeData** edge_data_out,
                                     size_t* num_dependencies_out) {
    return stream_call(stream, [&](Runtime& runtime, Stream& target) {
        if (capture_status_out == nullptr) {
            return cudaErrorInvalidValue;
        }
        CaptureTable::Info info;
        if (const cudaError_t error = runtime.captures.info(target, &info); error != cudaSuccess) {
            return error;
        }
        *capture_status_out = info.status;
        if (id_out != nullptr) {
            *id_out = info.id;
        }
        if (graph_out != nullptr) {
            *graph_out = info.graph;
        }
        if (dependencies_out != nullptr) {
            *dependencies_out = info.dependencies;
        }
        if (edge_data_out != nullptr) {
            *edge_data_out = info.edges;
        }
        if (num_dependencies_out != nullptr) {
            *num_dependencies_out = info.dependency_count;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return call([&](Runtime&) {
        if (mode == nullptr || *mode > cudaStreamCaptureModeRelaxed) {
            return cudaErrorInvalidValue;
        }
        std::swap(*mode, CaptureTable::thread_mode());
        return cudaSuccess;
    });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return stream_call(stream, [&](Runtime& runtime, Stream& target) {
        if (mode > cudaStreamCaptureModeRelaxed) {
            return cudaErrorInvalidValue;
        }
        auto graph = std::make_shared<Graph>();
        const cudaGraph_t handle = runtime.graphs.add(graph);
        const cudaError_t error = runtime.captures.begin(target, mode, std::move(graph), handle);
        if (error != cudaSuccess) {
            runtime.graphs.remove(handle);
        }
        return error;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return stream_call(stream, [&](Runtime& runtime, Stream& target) {
        if (graph == nullptr) {
            return cudaErrorInvalidValue;
        }
        cudaGraph_t dropped = nullptr;
        const cudaError_t error = runtime.captures.end(target, graph, &dropped);
        runtime.graphs.remove(dropped);
        return error;
    });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData* dependency_data,
                                                size_t num_dependencies,
                                                unsigned int flags) {
    return stream_call(stream, [&](Runtime& runtime, Stream& target) {
        std::vector<NodeRef> nodes;
        if (flags > cudaStreamSetCaptureDependencies ||
            !plain_edges(dependency_data, num_dependencies) ||
            !find_nodes(dependencies, num_dependencies, &nodes)) {
            return cudaErrorInvalidValue;
        }
        return runtime.captures.update_dependencies(target, nodes,
                                                    flags == cudaStreamSetCaptureDependencies);
    });
}
