// Exported functions of graphs: making, instantiating, launching, updating, user objects, looking
// at nodes and edges.
#include <algorithm>
#include <climits>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

constexpr unsigned long long kInstantiateFlags =
    cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
    cudaGraphInstantiateFlagDeviceLaunch | cudaGraphInstantiateFlagUseNodePriority;

cudaError_t instantiate(Runtime& runtime,
                        cudaGraphExec_t* out,
                        cudaGraph_t handle,
                        unsigned long long flags,
                        cudaGraphInstantiateResult* result) {
    *result = cudaGraphInstantiateError;
    const std::shared_ptr<Graph> graph = runtime.graphs.find(handle);
    if (out == nullptr || graph == nullptr || (flags & ~kInstantiateFlags) != 0) {
        return cudaErrorInvalidValue;
    }
    if (graph->capturing) {
        return cudaErrorIllegalState;
    }
    if ((flags & cudaGraphInstantiateFlagDeviceLaunch) != 0) {
        *result = cudaGraphInstantiateNodeOperationNotSupported;
        say("graphs launched by kernels are not in the emulator");
        return cudaErrorNotSupported;
    }
    *out = runtime.graph_execs.add(std::make_shared<GraphExec>(compile(*graph), flags));
    *result = cudaGraphInstantiateSuccess;
    return cudaSuccess;
}

// Runs body(graph); a graph that is no graph is an invalid value.
template <class Body>
cudaError_t graph_call(cudaGraph_t handle,
                       Body&& body,
                       const char* function = __builtin_FUNCTION()) {
    return call(
        [&](Runtime& runtime) {
            const std::shared_ptr<Graph> graph = runtime.graphs.find(handle);
            return graph == nullptr ? cudaErrorInvalidValue : body(runtime, graph);
        },
        function);
}

bool valid_count(unsigned int count) {
    return count != 0 && count <= INT_MAX;
}

// Runs body(node).
template <class Body>
cudaError_t node_call(cudaGraphNode_t handle, Body&& body) {
    return call([&](Runtime&) {
        const NodeRef node = find_node(handle);
        return node == nullptr ? cudaErrorInvalidValue : body(node);
    });
}

// Answers a query for an array: `*count` is its capacity and becomes its size; without an array,
// only the size. Surplus places become null.
cudaError_t give_handles(const std::vector<cudaGraphNode_t>& handles,
                         cudaGraphNode_t* out,
                         size_t* count) {
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

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned int flags) {
    return call([&](Runtime& runtime) {
        if (graph == nullptr || flags != 0) {
            return cudaErrorInvalidValue;
        }
        *graph = runtime.graphs.add(std::make_shared<Graph>());
        return cudaSuccess;
    });
}

cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t original) {
    return graph_call(original, [&](Runtime& runtime, const std::shared_ptr<Graph>& graph) {
        if (clone == nullptr) {
            return cudaErrorInvalidValue;
        }
        *clone = runtime.graphs.add(graph->clone());
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return graph_call(graph, [&](Runtime& runtime, const std::shared_ptr<Graph>& found) {
        if (found->capturing) {
            return cudaErrorIllegalState;
        }
        runtime.graphs.remove(graph);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph_exec,
                                 cudaGraph_t graph,
                                 unsigned long long flags) {
    return device_call([&](Runtime& runtime) {
        cudaGraphInstantiateResult result{};
        return instantiate(runtime, graph_exec, graph, flags, &result);
    });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* graph_exec,
                                          cudaGraph_t graph,
                                          unsigned long long flags) {
    return device_call([&](Runtime& runtime) {
        cudaGraphInstantiateResult result{};
        return instantiate(runtime, graph_exec, graph, flags, &result);
    });
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* graph_exec,
                                           cudaGraph_t graph,
                                           cudaGraphInstantiateParams* instantiate_params) {
    return device_call([&](Runtime& runtime) {
        if (instantiate_params == nullptr) {
            return cudaErrorInvalidValue;
        }
        instantiate_params->errNode_out = nullptr;
        return instantiate(runtime, graph_exec, graph, instantiate_params->flags,
                           &instantiate_params->result_out);
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph_exec) {
    return call([&](Runtime& runtime) {
        return runtime.graph_execs.remove(graph_exec) != nullptr ? cudaSuccess
                                                                 : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t graph_exec,
                                cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result_info) {
    return graph_call(graph, [&](Runtime& runtime, const std::shared_ptr<Graph>& update) {
        const std::shared_ptr<GraphExec> exec = runtime.graph_execs.find(graph_exec);
        if (exec == nullptr || result_info == nullptr) {
            return cudaErrorInvalidValue;
        }
        return exec->update(*update, result_info);
    });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph_exec, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        if (runtime.graph_execs.find(graph_exec) == nullptr) {
            return cudaErrorInvalidValue;
        }
        return target.capturing() ? runtime.captures.refuse(target) : cudaSuccess;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph_exec, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        const std::shared_ptr<GraphExec> exec = runtime.graph_execs.find(graph_exec);
        if (exec == nullptr) {
            return cudaErrorInvalidValue;
        }
        if (target.capturing()) {
            NodeWork work;
            work.type = cudaGraphNodeTypeGraph;
            work.child = exec->plan()->source->clone();
            return runtime.captures.add(target, std::move(work));
        }
        exec->launch(target);
        return cudaSuccess;
    });
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object_out,
                                 void* pointer,
                                 cudaHostFn_t destroy,
                                 unsigned int initial_refcount,
                                 unsigned int flags) {
    return call([&](Runtime& runtime) {
        if (object_out == nullptr || destroy == nullptr || !valid_count(initial_refcount) ||
            flags != cudaUserObjectNoDestructorSync) {
            return cudaErrorInvalidValue;
        }
        auto object = std::make_shared<UserObject>(pointer, destroy, initial_refcount);
        const cudaUserObject_t handle = runtime.user_objects.add(object);
        object->on_end([&runtime, handle] { runtime.user_objects.remove(handle); });
        *object_out = handle;
        return cudaSuccess;
    });
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
    return call([&](Runtime& runtime) {
        const std::shared_ptr<UserObject> found = runtime.user_objects.find(object);
        return found != nullptr && valid_count(count) && found->retain(count)
                   ? cudaSuccess
                   : cudaErrorInvalidValue;
    });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
    return call([&](Runtime& runtime) {
        const std::shared_ptr<UserObject> found = runtime.user_objects.find(object);
        return found != nullptr && valid_count(count) && found->release(count)
                   ? cudaSuccess
                   : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph,
                                      cudaUserObject_t object,
                                      unsigned int count,
                                      unsigned int flags) {
    return graph_call(graph, [&](Runtime& runtime, const std::shared_ptr<Graph>& owner) {
        const std::shared_ptr<UserObject> found = runtime.user_objects.find(object);
        if (found == nullptr || !valid_count(count) || flags > cudaGraphUserObjectMove) {
            return cudaErrorInvalidValue;
        }
        if (flags != cudaGraphUserObjectMove && !found->retain(count)) {
            return cudaErrorInvalidValue;
        }
        owner->user_objects().adopt(found, count);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph,
                                       cudaUserObject_t object,
                                       unsigned int count) {
    return graph_call(graph, [&](Runtime& runtime, const std::shared_ptr<Graph>& owner) {
        const std::shared_ptr<UserObject> found = runtime.user_objects.find(object);
        return found != nullptr && valid_count(count) && owner->user_objects().release(found, count)
                   ? cudaSuccess
                   : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
    return graph_call(graph, [&](Runtime&, const std::shared_ptr<Graph>& found) {
        std::vector<cudaGraphNode_t> handles;
        for (const NodeRef& node : found->nodes()) {
            handles.push_back(node->handle);
        }
        return give_handles(handles, nodes, num_nodes);
    });
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph,
                                  cudaGraphNode_t* root_nodes,
                                  size_t* num_root_nodes) {
    return graph_call(graph, [&](Runtime&, const std::shared_ptr<Graph>& found) {
        std::vector<cudaGraphNode_t> handles;
        for (const NodeRef& node : found->nodes()) {
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
    return graph_call(graph, [&](Runtime&, const std::shared_ptr<Graph>& found) {
        if (num_edges == nullptr || (from == nullptr) != (to == nullptr)) {
            return cudaErrorInvalidValue;
        }
        std::vector<GraphNode*> sources;
        std::vector<GraphNode*> targets;
        for (const NodeRef& node : found->nodes()) {
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
    return node_call(node, [&](const NodeRef& found) { return give(type, found->work.type); });
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
