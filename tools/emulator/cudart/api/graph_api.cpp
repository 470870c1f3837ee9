// Exported functions of graphs: capturing, instantiating, launching, user objects, counting nodes.
#include <algorithm>
#include <climits>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

constexpr unsigned long long kInstantiateFlags =
    cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
    cudaGraphInstantiateFlagDeviceLaunch | cudaGraphInstantiateFlagUseNodePriority;

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

// Gives up references of the program's own; false where it has fewer.
bool release(UserObject& object, unsigned int count) {
    uint64_t held = object.references;
    do {
        if (held < count) {
            return false;
        }
    } while (!object.references.compare_exchange_weak(held, held - count));
    if (held == count) {
        object.held.reset();
    }
    return true;
}

}  // namespace

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
        const std::shared_ptr<Graph> found = runtime.graphs.find(graph);
        if (graph_exec == nullptr || found == nullptr || (flags & ~kInstantiateFlags) != 0) {
            return cudaErrorInvalidValue;
        }
        if (found->capturing) {
            return cudaErrorIllegalState;
        }
        if ((flags & cudaGraphInstantiateFlagDeviceLaunch) != 0) {
            say("graphs launched by kernels are not in the emulator");
            return cudaErrorNotSupported;
        }
        *graph_exec = runtime.graph_execs.add(std::make_shared<GraphExec>(compile(*found)));
        return cudaSuccess;
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph_exec) {
    return call([&](Runtime& runtime) {
        return runtime.graph_execs.remove(graph_exec) != nullptr ? cudaSuccess
                                                                 : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph_exec, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        const std::shared_ptr<GraphExec> exec = runtime.graph_execs.find(graph_exec);
        if (exec == nullptr) {
            return cudaErrorInvalidValue;
        }
        if (target.capturing()) {
            return runtime.captures.append(target, *exec->plan().source);
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
        auto object = std::make_shared<UserObject>();
        object->references = initial_refcount;
        const cudaUserObject_t handle = runtime.user_objects.add(object);
        object->held.reset(pointer, [&runtime, handle, destroy](void* last) {
            runtime.user_objects.remove(handle);
            destroy(last);
        });
        object->object = object->held;
        *object_out = handle;
        return cudaSuccess;
    });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
    return call([&](Runtime& runtime) {
        const std::shared_ptr<UserObject> found = runtime.user_objects.find(object);
        return found != nullptr && valid_count(count) && release(*found, count)
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
        std::shared_ptr<void> kept = found->object.lock();
        if (kept == nullptr || (flags == cudaGraphUserObjectMove && !release(*found, count))) {
            return cudaErrorInvalidValue;
        }
        owner->keep(std::move(kept));
        return cudaSuccess;
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
    return graph_call(graph, [&](Runtime&, const std::shared_ptr<Graph>& found) {
        if (num_nodes == nullptr) {
            return cudaErrorInvalidValue;
        }
        const std::vector<NodeRef> all = found->nodes();
        if (nodes == nullptr) {
            *num_nodes = all.size();
            return cudaSuccess;
        }
        // Surplus places become null.
        for (size_t i = 0; i < *num_nodes; ++i) {
            nodes[i] = i < all.size() ? all[i]->handle : nullptr;
        }
        *num_nodes = std::min(*num_nodes, all.size());
        return cudaSuccess;
    });
}

// Exported functions of stream capture; the rules are in capture.h.

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
        SLIMWIRE_EMU_TRY(runtime.captures.info(target, &info));
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
