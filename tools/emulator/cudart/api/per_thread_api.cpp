// The twins that a program compiled for per-thread default streams binds to: stream 0 is the
// calling thread's own stream; synchronous copies and fills go through it, too.
#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

namespace {

cudaStream_t own(cudaStream_t stream) {
    return stream == nullptr ? cudaStreamPerThread : stream;
}

cudaError_t finish(cudaError_t enqueued) {
    return enqueued == cudaSuccess ? cudaStreamSynchronize(cudaStreamPerThread) : enqueued;
}

}  // namespace

#define TWIN(name, parameters, arguments)                    \
    SLIMWIRE_EMU_EXPORT cudaError_t name##_ptsz parameters { \
        return name arguments;                               \
    }

TWIN(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, own(stream)))
TWIN(cudaEventRecordWithFlags,
     (cudaEvent_t event, cudaStream_t stream, unsigned int flags),
     (event, own(stream), flags))
TWIN(cudaFreeAsync, (void* pointer, cudaStream_t stream), (pointer, own(stream)))
TWIN(cudaGetDriverEntryPoint,
     (const char* symbol,
      void** function,
      unsigned long long flags,
      cudaDriverEntryPointQueryResult* status),
     (symbol, function, flags, status))
TWIN(cudaGetDriverEntryPointByVersion,
     (const char* symbol,
      void** function,
      unsigned int version,
      unsigned long long flags,
      cudaDriverEntryPointQueryResult* status),
     (symbol, function, version, flags, status))
TWIN(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), (exec, own(stream)))
TWIN(cudaLaunchHostFunc,
     (cudaStream_t stream, cudaHostFn_t function, void* user_data),
     (own(stream), function, user_data))
TWIN(cudaLaunchKernel,
     (const void* function,
      dim3 grid,
      dim3 block,
      void** args,
      size_t shared_bytes,
      cudaStream_t stream),
     (function, grid, block, args, shared_bytes, own(stream)))
TWIN(cudaMallocAsync,
     (void** pointer, size_t bytes, cudaStream_t stream),
     (pointer, bytes, own(stream)))
TWIN(cudaMallocFromPoolAsync,
     (void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
     (pointer, bytes, pool, own(stream)))
TWIN(cudaMemcpyAsync,
     (void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
     (dst, src, bytes, kind, own(stream)))
TWIN(cudaMemsetAsync,
     (void* pointer, int value, size_t bytes, cudaStream_t stream),
     (pointer, value, bytes, own(stream)))
TWIN(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), (own(stream), mode))
TWIN(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph), (own(stream), graph))
TWIN(cudaStreamGetCaptureInfo,
     (cudaStream_t stream,
      cudaStreamCaptureStatus* status,
      unsigned long long* id,
      cudaGraph_t* graph,
      const cudaGraphNode_t** dependencies,
      const cudaGraphEdgeData** edges,
      size_t* count),
     (own(stream), status, id, graph, dependencies, edges, count))
TWIN(cudaStreamGetDevice, (cudaStream_t stream, int* device), (own(stream), device))
TWIN(cudaStreamGetFlags, (cudaStream_t stream, unsigned int* flags), (own(stream), flags))
TWIN(cudaStreamGetId, (cudaStream_t stream, unsigned long long* id), (own(stream), id))
TWIN(cudaStreamGetPriority, (cudaStream_t stream, int* priority), (own(stream), priority))
TWIN(cudaStreamIsCapturing,
     (cudaStream_t stream, cudaStreamCaptureStatus* status),
     (own(stream), status))
TWIN(cudaStreamQuery, (cudaStream_t stream), (own(stream)))
TWIN(cudaStreamSynchronize, (cudaStream_t stream), (own(stream)))
TWIN(cudaStreamUpdateCaptureDependencies,
     (cudaStream_t stream,
      cudaGraphNode_t* dependencies,
      const cudaGraphEdgeData* edges,
      size_t count,
      unsigned int flags),
     (own(stream), dependencies, edges, count, flags))
TWIN(cudaStreamWaitEvent,
     (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
     (own(stream), event, flags))

#undef TWIN

SLIMWIRE_EMU_EXPORT cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config,
                                                         const void* function,
                                                         void** args) {
    if (config == nullptr) {
        return cudaLaunchKernelExC(config, function, args);
    }
    cudaLaunchConfig_t mine = *config;
    mine.stream = own(mine.stream);
    return cudaLaunchKernelExC(&mine, function, args);
}

SLIMWIRE_EMU_EXPORT cudaError_t cudaMemcpy_ptds(void* dst,
                                                const void* src,
                                                size_t bytes,
                                                cudaMemcpyKind kind) {
    return finish(cudaMemcpyAsync(dst, src, bytes, kind, cudaStreamPerThread));
}

SLIMWIRE_EMU_EXPORT cudaError_t cudaMemset_ptds(void* pointer, int value, size_t bytes) {
    return finish(cudaMemsetAsync(pointer, value, bytes, cudaStreamPerThread));
}
