// Exported functions of single graph nodes: adding them by hand, looking at them, edges.
#include "tools/emulator/cudart/exports.h"
#include "tools/emulator/cudart/graph_handles.h"
#include "tools/emulator/cudart/node_operations.h"
#include "tools/emulator/cudart/operations.h"
#include "tools/emulator/cudart/runtime.h"

using namespace slimwire::emulator;

namespace {

// Where a new node goes.
struct Place {
    cudaGraphNode_t* out;
    cudaGraph_t graph;
    const cudaGraphNode_t* dependencies;
    size_t count;
};

// Adds the node that `fill(runtime, &work)` describes.
template <class Fill>
cudaError_t add_node(const Place& place, cudaGraphNodeType type, Fill&& fill) {
    return device_call([&](Runtime& runtime) {
        const std::shared_ptr<Graph> graph = runtime.graphs.find(place.graph);
        std::vector<NodeRef> dependencies;
        if (place.out == nullptr || graph == nullptr ||
            !find_nodes(graph.get(), place.dependencies, place.count, &dependencies)) {
            return cudaErrorInvalidValue;
        }
        NodeWork work;
        work.type = type;
        if (const cudaError_t error = fill(runtime, &work); error != cudaSuccess) {
            return error;
        }
        *place.out = graph->add(std::move(work), dependencies)->handle;
        return cudaSuccess;
    });
}

cudaError_t add_event_node(const Place& place, cudaGraphNodeType type, cudaEvent_t event) {
    return add_node(place, type, [&](Runtime& runtime, NodeWork* work) {
        work->event = runtime.events.find(event);
        work->event_handle = event;
        if (work->event == nullptr) {
            return cudaErrorInvalidValue;
        }
        work->device = &runtime.device(work->event->device());
        return cudaSuccess;
    });
}

// Runs body(node).
template <class Body>
cudaError_t node_call(cudaGraphNode_t handle, Body&& body) {
    return call([&](Runtime&) {
        const NodeRef node = find_node(handle);
        return node == nullptr || node->graph == nullptr ? cudaErrorInvalidValue : body(node);
    });
}

template <class Body>
cudaError_t graph_query(cudaGraph_t handle, Body&& body) {
    return call([&](Runtime& runtime) {
        const std::shared_ptr<Graph> graph = runtime.graphs.find(handle);
        return graph == nullptr ? cudaErrorInvalidValue : body(*graph);
    });
}

// Adds or removes edges: all of them are checked first.
cudaError_t change_edges(cudaGraph_t handle,
                         const cudaGraphNode_t* from,
                         const cudaGraphNode_t* to,
                         const cudaGraphEdgeData* edges,
                         size_t count,
                         bool (Graph::*change)(GraphNode*, GraphNode*)) {
    return graph_query(handle, [&](Graph& graph) {
        if (count != 0 && (from == nullptr || to == nullptr)) {
            return cudaErrorInvalidValue;
        }
        if (!plain_edges(edges, count)) {
            return cudaErrorNotSupported;
        }
        for (size_t i = 0; i < count; ++i) {
            const NodeRef source = find_node(from[i]);
            const NodeRef target = find_node(to[i]);
            if (source == nullptr || target == nullptr || source->graph != &graph ||
                target->graph != &graph || source == target) {
                return cudaErrorInvalidValue;
            }
        }
        for (size_t i = 0; i < count; ++i) {
            if (!(graph.*change)(find_node(from[i]).get(), find_node(to[i]).get())) {
                return cudaErrorInvalidValue;
            }
        }
        return cudaSuccess;
    });
}

cudaError_t give_nodes(const std::vector<GraphNode*>& nodes,
                       cudaGraphNode_t* out,
                       cudaGraphEdgeData* edges,
                       size_t* count) {
    std::vector<cudaGraphNode_t> handles;
    for (const GraphNode* node : nodes) {
        handles.push_back(node->handle);
    }
    const cudaError_t error = give_handles(handles, out, count);
    if (error == cudaSuccess && out != nullptr && edges != nullptr) {
        std::fill(edges, edges + *count, cudaGraphEdgeData{});
    }
    return error;
}

}  // namespace

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node,
                                  cudaGraph_t graph,
                                  const cudaGraphNode_t* dependencies,
                                  size_t num_dependencies) {
    return add_node({node, graph, dependencies, num_dependencies}, cudaGraphNodeTypeEmpty,
                    [](Runtime&, NodeWork*) { return cudaSuccess; });
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node,
                                 cudaGraph_t graph,
                                 const cudaGraphNode_t* dependencies,
                                 size_t num_dependencies,
                                 const cudaHostNodeParams* params) {
    return add_node({node, graph, dependencies, num_dependencies}, cudaGraphNodeTypeHost,
                    [&](Runtime& runtime, NodeWork* work) {
                        if (params == nullptr || params->fn == nullptr) {
                            return cudaErrorInvalidValue;
                        }
                        work->host = *params;
                        work->device = &runtime.device(current_device());
                        work->operation =
                            std::make_shared<HostFunctionOperation>(params->fn, params->userData);
                        return cudaSuccess;
                    });
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node,
                                   cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies,
                                   size_t num_dependencies,
                                   const cudaKernelNodeParams* params) {
    return add_node({node, graph, dependencies, num_dependencies}, cudaGraphNodeTypeKernel,
                    [&](Runtime& runtime, NodeWork* work) {
                        if (params == nullptr) {
                            return cudaErrorInvalidValue;
                        }
                        if (params->extra != nullptr) {
                            return cudaErrorNotSupported;
                        }
                        work->device = &runtime.device(current_device());
                        return make_kernel_operation(params->func, params->gridDim,
                                                     params->blockDim, params->kernelParams,
                                                     params->sharedMemBytes, &work->operation);
                    });
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node,
                                     cudaGraph_t graph,
                                     const cudaGraphNode_t* dependencies,
                                     size_t num_dependencies,
                                     void* dst,
                                     const void* src,
                                     size_t count,
                                     cudaMemcpyKind kind) {
    return add_node({node, graph, dependencies, num_dependencies}, cudaGraphNodeTypeMemcpy,
                    [&](Runtime& runtime, NodeWork* work) {
                        work->device = &runtime.device(current_device());
                        return make_copy_operation(runtime, dst, src, count, kind,
                                                   &work->operation);
                    });
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node,
                                   cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies,
                                   size_t num_dependencies,
                                   const cudaMemsetParams* params) {
    return add_node({node, graph, dependencies, num_dependencies}, cudaGraphNodeTypeMemset,
                    [&](Runtime& runtime, NodeWork* work) {
                        if (params == nullptr) {
                            return cudaErrorInvalidValue;
                        }
                        work->device = &runtime.device(current_device());
                        return make_fill_operation(runtime, *params, &work->operation);
                    });
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node,
                                       cudaGraph_t graph,
                                       const cudaGraphNode_t* dependencies,
                                       size_t num_dependencies,
                                       cudaGraph_t child_graph) {
    return add_node({node, graph, dependencies, num_dependencies}, cudaGraphNodeTypeGraph,
                    [&](Runtime& runtime, NodeWork* work) {
                        const std::shared_ptr<Graph> child = runtime.graphs.find(child_graph);
                        if (child == nullptr || child_graph == graph || child->capturing) {
                            return cudaErrorInvalidValue;
                        }
                        work->child = child->clone();
                        return cudaSuccess;
                    });
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node,
                                        cudaGraph_t graph,
                                        const cudaGraphNode_t* dependencies,
                                        size_t num_dependencies,
                                        cudaEvent_t event) {
    return add_event_node({node, graph, dependencies, num_dependencies},
                          cudaGraphNodeTypeEventRecord, event);
}

cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node,
                                      cudaGraph_t graph,
                                      const cudaGraphNode_t* dependencies,
                                      size_t num_dependencies,
                                      cudaEvent_t event) {
    return add_event_node({node, graph, dependencies, num_dependencies}, cudaGraphNodeTypeWaitEvent,
                          event);
}

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
    return node_call(node, [](const NodeRef& found) {
        if (found->graph->capturing) {
            return cudaErrorIllegalState;
        }
        found->graph->remove(found);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph,
                                     const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to,
                                     const cudaGraphEdgeData* edge_data,
                                     size_t num_dependencies) {
    return change_edges(graph, from, to, edge_data, num_dependencies, &Graph::add_edge);
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph,
                                        const cudaGraphNode_t* from,
                                        const cudaGraphNode_t* to,
                                        const cudaGraphEdgeData* edge_data,
                                        size_t num_dependencies) {
    return change_edges(graph, from, to, edge_data, num_dependencies, &Graph::remove_edge);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
    return graph_query(graph, [&](Graph& found) {
        std::vector<cudaGraphNode_t> handles;
        for (const NodeRef& node : found.nodes()) {
            handles.push_back(node->handle);
        }
        return give_handles(handles, nodes, num_nodes);
    });
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph,
                                  cudaGraphNode_t* root_nodes,
                                  size_t* num_root_nodes) {
    return graph_query(graph, [&](Graph& found) {
        std::vector<cudaGraphNode_t> handles;
        for (const NodeRef& node : found.nodes()) {
            if (node->dependencies.empty()) {
                handles.push_back(node->handle);
            }
        }
        return give_handles(handles, root_nodes, num_root_nodes);
    });
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph,
                              cudaGraphNode_t* from,
                              cudaGraphNode_t* to,
                              cudaGraphEdgeData* edge_data,
                              size_t* num_edges) {
    return graph_query(graph, [&](Graph& found) {
        if (num_edges == nullptr || (from == nullptr) != (to == nullptr)) {
            return cudaErrorInvalidValue;
        }
        std::vector<GraphNode*> sources;
        std::vector<GraphNode*> targets;
        for (const NodeRef& node : found.nodes()) {
            for (GraphNode* dependency : node->dependencies) {
                sources.push_back(dependency);
                targets.push_back(node.get());
            }
        }
        size_t capacity = *num_edges;
        (void)give_nodes(sources, from, edge_data, &capacity);
        return give_nodes(targets, to, nullptr, num_edges);
    });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
    return node_call(node, [&](const NodeRef& found) {
        if (type == nullptr) {
            return cudaErrorInvalidValue;
        }
        *type = found->work.type;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                         cudaGraphNode_t* dependencies,
                                         cudaGraphEdgeData* edge_data,
                                         size_t* num_dependencies) {
    return node_call(node, [&](const NodeRef& found) {
        return give_nodes(found->dependencies, dependencies, edge_data, num_dependencies);
    });
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node,
                                           cudaGraphNode_t* dependent_nodes,
                                           cudaGraphEdgeData* edge_data,
                                           size_t* num_dependent_nodes) {
    return node_call(node, [&](const NodeRef& found) {
        std::vector<GraphNode*> dependents;
        for (const NodeRef& other : found->graph->nodes()) {
            const auto& before = other->dependencies;
            if (std::find(before.begin(), before.end(), found.get()) != before.end()) {
                dependents.push_back(other.get());
            }
        }
        return give_nodes(dependents, dependent_nodes, edge_data, num_dependent_nodes);
    });
}

cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* node,
                                     cudaGraphNode_t original_node,
                                     cudaGraph_t cloned_graph) {
    return graph_query(cloned_graph, [&](Graph& clone) {
        for (const NodeRef& candidate : clone.nodes()) {
            if (node != nullptr && original_node != nullptr &&
                candidate->cloned_from == original_node) {
                *node = candidate->handle;
                return cudaSuccess;
            }
        }
        return cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* params) {
    return node_call(node, [&](const NodeRef& found) {
        if (params == nullptr || found->work.type != cudaGraphNodeTypeHost) {
            return cudaErrorInvalidValue;
        }
        *params = found->work.host;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event_out) {
    return node_call(node, [&](const NodeRef& found) {
        if (event_out == nullptr || found->work.type != cudaGraphNodeTypeEventRecord) {
            return cudaErrorInvalidValue;
        }
        *event_out = found->work.event_handle;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event_out) {
    return node_call(node, [&](const NodeRef& found) {
        if (event_out == nullptr || found->work.type != cudaGraphNodeTypeWaitEvent) {
            return cudaErrorInvalidValue;
        }
        *event_out = found->work.event_handle;
        return cudaSuccess;
    });
}
