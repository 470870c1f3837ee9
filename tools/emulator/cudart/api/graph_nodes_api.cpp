// Exported functions of single graph nodes and edges: looking at them.
#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/graph_handles.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

// Runs body(node).
template <class Body>
cudaError_t node_call(cudaGraphNode_t handle, Body&& body) {
    return call([&](Runtime&) {
        const NodeRef node = find_node(handle);
        return node == nullptr ? cudaErrorInvalidValue : body(node);
    });
}

template <class Body>
cudaError_t graph_query(cudaGraph_t handle, Body&& body) {
    return call([&](Runtime& runtime) {
        const std::shared_ptr<Graph> graph = runtime.graphs.find(handle);
        return graph == nullptr ? cudaErrorInvalidValue : body(*graph);
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
