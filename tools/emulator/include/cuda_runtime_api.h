// The host side of the CUDA Runtime API 13.0, as far as the emulator's libcudart.so.13 offers it:
// what slimwire's host code and plain CUDA clients compile against on a machine without a CUDA
// Toolkit. C and C++. Under nvcc the toolkit's own file is used instead. Meaning, thread rules and
// errors of every function are the CUDA Runtime's. Source: CUDA Runtime 13.0 ABI; tests/abi
// compares both sets of headers.
#pragma once

#if defined(__CUDACC__)
#include_next <cuda_runtime_api.h>
#else

#include "driver_types.h"

#define CUDART_VERSION 13000

#if defined(__cplusplus)
#define SLIMWIRE_EMU_DEFAULT(value) = value
#else
#define SLIMWIRE_EMU_DEFAULT(value)
#endif

// A program that asks for a default stream of its own in each thread binds to the twins.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define cudaEventRecordWithFlags cudaEventRecordWithFlags_ptsz
#define cudaEventRecord cudaEventRecord_ptsz
#define cudaFreeAsync cudaFreeAsync_ptsz
#define cudaGetDriverEntryPointByVersion cudaGetDriverEntryPointByVersion_ptsz
#define cudaGetDriverEntryPoint cudaGetDriverEntryPoint_ptsz
#define cudaGraphLaunch cudaGraphLaunch_ptsz
#define cudaLaunchHostFunc cudaLaunchHostFunc_ptsz
#define cudaLaunchKernelExC cudaLaunchKernelExC_ptsz
#define cudaLaunchKernel cudaLaunchKernel_ptsz
#define cudaMallocAsync cudaMallocAsync_ptsz
#define cudaMallocFromPoolAsync cudaMallocFromPoolAsync_ptsz
#define cudaMemPrefetchAsync cudaMemPrefetchAsync_ptsz
#define cudaMemcpyAsync cudaMemcpyAsync_ptsz
#define cudaMemcpy cudaMemcpy_ptds
#define cudaMemsetAsync cudaMemsetAsync_ptsz
#define cudaMemset cudaMemset_ptds
#define cudaStreamBeginCapture cudaStreamBeginCapture_ptsz
#define cudaStreamEndCapture cudaStreamEndCapture_ptsz
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_ptsz
#define cudaStreamGetDevice cudaStreamGetDevice_ptsz
#define cudaStreamGetFlags cudaStreamGetFlags_ptsz
#define cudaStreamGetId cudaStreamGetId_ptsz
#define cudaStreamGetPriority cudaStreamGetPriority_ptsz
#define cudaStreamIsCapturing cudaStreamIsCapturing_ptsz
#define cudaStreamQuery cudaStreamQuery_ptsz
#define cudaStreamSynchronize cudaStreamSynchronize_ptsz
#define cudaStreamUpdateCaptureDependencies cudaStreamUpdateCaptureDependencies_ptsz
#define cudaStreamWaitEvent cudaStreamWaitEvent_ptsz
#endif

#if defined(__cplusplus)
extern "C" {
#endif

// Errors and versions.
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int* driver_version);
cudaError_t cudaRuntimeGetVersion(int* runtime_version);

// Devices.
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaSetDeviceFlags(unsigned int flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* prop, int device);
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least_priority, int* greatest_priority);
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* pci_bus_id);
cudaError_t cudaDeviceGetPCIBusId(char* pci_bus_id, int len, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can_access_peer, int device, int peer_device);
cudaError_t cudaDeviceEnablePeerAccess(int peer_device, unsigned int flags);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* mem_pool, int device);

// Memory.
cudaError_t cudaMalloc(void** device_pointer, size_t size);
cudaError_t cudaFree(void* device_pointer);
cudaError_t cudaMallocHost(void** pointer, size_t size);
cudaError_t cudaHostAlloc(void** host, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned int flags);
cudaError_t cudaHostUnregister(void* pointer);
cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned int flags);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* pointer);

// Stream-ordered memory.
cudaError_t cudaMallocAsync(void** device_pointer, size_t size, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* device_pointer, cudaStream_t stream);
cudaError_t cudaMallocFromPoolAsync(void** pointer,
                                    size_t size,
                                    cudaMemPool_t mem_pool,
                                    cudaStream_t stream);
cudaError_t cudaMemPoolCreate(cudaMemPool_t* mem_pool, const struct cudaMemPoolProps* pool_props);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t mem_pool);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t mem_pool, size_t min_bytes_to_keep);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t mem_pool, enum cudaMemPoolAttr attr, void* value);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t mem_pool, enum cudaMemPoolAttr attr, void* value);
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t mem_pool,
                                 const struct cudaMemAccessDesc* desc_list,
                                 size_t count);

// Copies and fills.
cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* dst,
                            const void* src,
                            size_t count,
                            enum cudaMemcpyKind kind,
                            cudaStream_t stream SLIMWIRE_EMU_DEFAULT(0));
cudaError_t cudaMemcpyToSymbol(const void* symbol,
                               const void* src,
                               size_t count,
                               size_t offset SLIMWIRE_EMU_DEFAULT(0),
                               enum cudaMemcpyKind kind
                                   SLIMWIRE_EMU_DEFAULT(cudaMemcpyHostToDevice));
cudaError_t cudaMemcpyFromSymbol(void* dst,
                                 const void* symbol,
                                 size_t count,
                                 size_t offset SLIMWIRE_EMU_DEFAULT(0),
                                 enum cudaMemcpyKind kind
                                     SLIMWIRE_EMU_DEFAULT(cudaMemcpyDeviceToHost));
cudaError_t cudaMemset(void* device_pointer, int value, size_t count);
cudaError_t cudaMemsetAsync(void* device_pointer,
                            int value,
                            size_t count,
                            cudaStream_t stream SLIMWIRE_EMU_DEFAULT(0));
cudaError_t cudaMemPrefetchAsync(const void* device_pointer,
                                 size_t count,
                                 struct cudaMemLocation location,
                                 unsigned int flags,
                                 cudaStream_t stream SLIMWIRE_EMU_DEFAULT(0));

// Streams.
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream,
                                cudaEvent_t event,
                                unsigned int flags SLIMWIRE_EMU_DEFAULT(0));
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority);
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* stream_id);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* user_data);

// Events.
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream SLIMWIRE_EMU_DEFAULT(0));
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event,
                                     cudaStream_t stream SLIMWIRE_EMU_DEFAULT(0),
                                     unsigned int flags SLIMWIRE_EMU_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);

// Kernels.
cudaError_t cudaLaunchKernel(const void* func,
                             dim3 grid_dim,
                             dim3 block_dim,
                             void** args,
                             size_t shared_mem,
                             cudaStream_t stream);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* func, void** args);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attr, const void* func);
cudaError_t cudaFuncSetAttribute(const void* func, enum cudaFuncAttribute attr, int value);

// Capture, graphs, user objects.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  enum cudaStreamCaptureStatus* capture_status);
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream,
    enum cudaStreamCaptureStatus* capture_status_out,
    unsigned long long* id_out SLIMWIRE_EMU_DEFAULT(0),
    cudaGraph_t* graph_out SLIMWIRE_EMU_DEFAULT(0),
    const cudaGraphNode_t** dependencies_out SLIMWIRE_EMU_DEFAULT(0),
    const cudaGraphEdgeData** edge_data_out SLIMWIRE_EMU_DEFAULT(0),
    size_t* num_dependencies_out SLIMWIRE_EMU_DEFAULT(0));
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData* dependency_data,
                                                size_t num_dependencies,
                                                unsigned int flags SLIMWIRE_EMU_DEFAULT(0));
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph_exec,
                                 cudaGraph_t graph,
                                 unsigned long long flags SLIMWIRE_EMU_DEFAULT(0));
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph_exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph_exec);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes);
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object_out,
                                 void* pointer,
                                 cudaHostFn_t destroy,
                                 unsigned int initial_refcount,
                                 unsigned int flags);
cudaError_t cudaUserObjectRelease(cudaUserObject_t object,
                                  unsigned int count SLIMWIRE_EMU_DEFAULT(1));
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph,
                                      cudaUserObject_t object,
                                      unsigned int count SLIMWIRE_EMU_DEFAULT(1),
                                      unsigned int flags SLIMWIRE_EMU_DEFAULT(0));

// The driver.
cudaError_t cudaGetDriverEntryPoint(const char* symbol,
                                    void** func_ptr,
                                    unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult* driver_status
                                        SLIMWIRE_EMU_DEFAULT(NULL));
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol,
                                             void** func_ptr,
                                             unsigned int cuda_version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult* driver_status
                                                 SLIMWIRE_EMU_DEFAULT(NULL));

#if defined(__cplusplus)
}  // extern "C"
#endif

#undef SLIMWIRE_EMU_DEFAULT

#endif  // __CUDACC__
