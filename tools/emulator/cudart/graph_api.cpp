// Capture, graphs, user objects, other processes, the driver: what the emulator answers while it
// does not have them. A stream is never capturing, and everything that would need a graph is "not
// supported".
#include "tools/emulator/cudart/exports.h"
#include "tools/emulator/cudart/runtime.h"

using namespace slimwire::emulator;

namespace {

thread_local cudaStreamCaptureMode t_capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t not_supported() {
    return device_call([](Runtime&) { return cudaErrorNotSupported; });
}

}  // namespace

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* capture_status) {
    return stream_call(stream, [&](Runtime&, Stream&) {
        if (capture_status == nullptr) {
            return cudaErrorInvalidValue;
        }
        *capture_status = cudaStreamCaptureStatusNone;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* capture_status_out,
                                     unsigned long long* id_out,
                                     cudaGraph_t* graph_out,
                                     const cudaGraphNode_t** dependencies_out,
                                     const cudaGraphEdgeData** edge_data_out,
                                     size_t* num_dependencies_out) {
    return stream_call(stream, [&](Runtime&, Stream&) {
        if (capture_status_out == nullptr) {
            return cudaErrorInvalidValue;
        }
        *capture_status_out = cudaStreamCaptureStatusNone;
        if (id_out != nullptr) {
            *id_out = 0;
        }
        if (graph_out != nullptr) {
            *graph_out = nullptr;
        }
        if (dependencies_out != nullptr) {
            *dependencies_out = nullptr;
        }
        if (edge_data_out != nullptr) {
            *edge_data_out = nullptr;
        }
        if (num_dependencies_out != nullptr) {
            *num_dependencies_out = 0;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return call([&](Runtime&) {
        if (mode == nullptr || *mode > cudaStreamCaptureModeRelaxed) {
            return cudaErrorInvalidValue;
        }
        std::swap(*mode, t_capture_mode);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    return not_supported();
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
    return not_supported();
}

cudaError_t cudaStreamUpdateCaptureDependencies(
    cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t, unsigned int) {
    return not_supported();
}

cudaError_t cudaGraphCreate(cudaGraph_t*, unsigned int) {
    return not_supported();
}
cudaError_t cudaGraphDestroy(cudaGraph_t) {
    return not_supported();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
    return not_supported();
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
    return not_supported();
}
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t*,
                                           cudaGraph_t,
                                           cudaGraphInstantiateParams*) {
    return not_supported();
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    return not_supported();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
    return not_supported();
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
    return not_supported();
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t*) {
    return not_supported();
}
cudaError_t cudaGraphAddDependencies(
    cudaGraph_t, const cudaGraphNode_t*, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t) {
    return not_supported();
}
cudaError_t cudaGraphAddEventRecordNode(
    cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t, cudaEvent_t) {
    return not_supported();
}
cudaError_t cudaGraphAddEventWaitNode(
    cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t, cudaEvent_t) {
    return not_supported();
}
cudaError_t cudaGraphAddHostNode(
    cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t, const cudaHostNodeParams*) {
    return not_supported();
}
cudaError_t cudaUserObjectCreate(
    cudaUserObject_t*, void*, cudaHostFn_t, unsigned int, unsigned int) {
    return not_supported();
}
cudaError_t cudaUserObjectRetain(cudaUserObject_t, unsigned int) {
    return not_supported();
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned int) {
    return not_supported();
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned int, unsigned int) {
    return not_supported();
}
cudaError_t cudaGraphReleaseUserObject(cudaGraph_t, cudaUserObject_t, unsigned int) {
    return not_supported();
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
    return not_supported();
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned int) {
    return not_supported();
}
cudaError_t cudaIpcCloseMemHandle(void*) {
    return not_supported();
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
    return not_supported();
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
    return not_supported();
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol,
                                             void** func_ptr,
                                             unsigned int /*cuda_version*/,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* driver_status) {
    return call([&](Runtime&) {
        if (symbol == nullptr || func_ptr == nullptr) {
            return cudaErrorInvalidValue;
        }
        *func_ptr = nullptr;  // there is no driver below
        if (driver_status != nullptr) {
            *driver_status = cudaDriverEntryPointSymbolNotFound;
        }
        return cudaErrorSymbolNotFound;
    });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol,
                                    void** func_ptr,
                                    unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* driver_status) {
    return cudaGetDriverEntryPointByVersion(symbol, func_ptr, CUDART_VERSION, flags, driver_status);
}
