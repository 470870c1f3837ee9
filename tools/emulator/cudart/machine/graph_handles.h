// Helpers of the exported graph functions: arrays of handles in and out. Any thread.
#pragma once

#include <driver_types.h>

#include <algorithm>
#include <vector>

#include "tools/emulator/cudart/machine/graph.h"

namespace slimwire::emulator {

// The nodes behind `count` handles; false when one is none, repeats, or belongs to another graph
// than `graph` (null: any).
inline bool find_nodes(const Graph* graph,
                       const cudaGraphNode_t* handles,
                       size_t count,
                       std::vector<NodeRef>* out) {
    if (handles == nullptr && count != 0) {
        return false;
    }
    for (size_t i = 0; i < count; ++i) {
        NodeRef node = find_node(handles[i]);
        if (node == nullptr || (graph != nullptr && node->graph != graph) ||
            std::find(out->begin(), out->end(), node) != out->end()) {
            return false;
        }
        out->push_back(std::move(node));
    }
    return true;
}

// Only edges that mean "after" are there: no ports, no programmatic launch.
inline bool plain_edges(const cudaGraphEdgeData* edges, size_t count) {
    return edges == nullptr || std::all_of(edges, edges + count, [](const cudaGraphEdgeData& edge) {
               return edge.from_port == 0 && edge.to_port == 0 &&
                      edge.type == cudaGraphDependencyTypeDefault;
           });
}

// Answers a query for an array: `*count` is its capacity and becomes its size; without an array,
// only the size. Surplus places become null.
template <class Handle>
cudaError_t give_handles(const std::vector<Handle>& handles, Handle* out, size_t* count) {
    if (count == nullptr) {
        return cudaErrorInvalidValue;
    }
    if (out != nullptr) {
        for (size_t i = 0; i < *count; ++i) {
            out[i] = i < handles.size() ? handles[i] : nullptr;
        }
        *count = std::min(*count, handles.size());
    } else {
        *count = handles.size();
    }
    return cudaSuccess;
}

}  // namespace slimwire::emulator
