// The rest of the runtime's exported names: arrays, textures, graphics, unusual graph nodes and
// others that have no meaning on the emulator. A program that only mentions them loads; one that
// calls one gets cudaErrorNotSupported and, once, a line that names the function. To add a
// function: implement it in the file of its topic and take its name off this list.
#include <atomic>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

cudaError_t absent(const char* function, std::atomic<bool>& said) {
    if (!said.exchange(true)) {
        say("%s: not in the emulator", function);
    }
    return remember(cudaErrorNotSupported);
}

}  // namespace

// Called with arguments that are never looked at: the calling convention lets a callee ignore them.
#define SLIMWIRE_EMU_ABSENT(name)             \
    SLIMWIRE_EMU_EXPORT cudaError_t name() {  \
        static std::atomic<bool> said{false}; \
        return absent(#name, said);           \
    }

// clang-format off
#define SLIMWIRE_EMU_ABSENT_FUNCTIONS(X) \
    X(__cudaGetProcAddress) \
    X(cudaArrayGetInfo) \
    X(cudaArrayGetMemoryRequirements) \
    X(cudaArrayGetPlane) \
    X(cudaArrayGetSparseProperties) \
    X(cudaCreateSurfaceObject) \
    X(cudaCreateTextureObject) \
    X(cudaDestroyExternalMemory) \
    X(cudaDestroyExternalSemaphore) \
    X(cudaDestroySurfaceObject) \
    X(cudaDestroyTextureObject) \
    X(cudaDeviceGetGraphMemAttribute) \
    X(cudaDeviceGetHostAtomicCapabilities) \
    X(cudaDeviceGetNvSciSyncAttributes) \
    X(cudaDeviceGetP2PAtomicCapabilities) \
    X(cudaDeviceGetSharedMemConfig) \
    X(cudaDeviceGetTexture1DLinearMaxWidth) \
    X(cudaDeviceGraphMemTrim) \
    X(cudaDeviceRegisterAsyncNotification) \
    X(cudaDeviceSetGraphMemAttribute) \
    X(cudaDeviceSetSharedMemConfig) \
    X(cudaDeviceUnregisterAsyncNotification) \
    X(cudaEGLStreamConsumerAcquireFrame) \
    X(cudaEGLStreamConsumerConnect) \
    X(cudaEGLStreamConsumerConnectWithFlags) \
    X(cudaEGLStreamConsumerDisconnect) \
    X(cudaEGLStreamConsumerReleaseFrame) \
    X(cudaEGLStreamProducerConnect) \
    X(cudaEGLStreamProducerDisconnect) \
    X(cudaEGLStreamProducerPresentFrame) \
    X(cudaEGLStreamProducerReturnFrame) \
    X(cudaEventCreateFromEGLSync) \
    X(cudaExternalMemoryGetMappedBuffer) \
    X(cudaExternalMemoryGetMappedMipmappedArray) \
    X(cudaFreeArray) \
    X(cudaFreeMipmappedArray) \
    X(cudaFuncGetParamInfo) \
    X(cudaFuncSetSharedMemConfig) \
    X(cudaGLGetDevices) \
    X(cudaGLMapBufferObject) \
    X(cudaGLMapBufferObjectAsync) \
    X(cudaGLRegisterBufferObject) \
    X(cudaGLSetBufferObjectMapFlags) \
    X(cudaGLSetGLDevice) \
    X(cudaGLUnmapBufferObject) \
    X(cudaGLUnmapBufferObjectAsync) \
    X(cudaGLUnregisterBufferObject) \
    X(cudaGetChannelDesc) \
    X(cudaGetExportTable) \
    X(cudaGetKernel) \
    X(cudaGetMipmappedArrayLevel) \
    X(cudaGetSurfaceObjectResourceDesc) \
    X(cudaGetTextureObjectResourceDesc) \
    X(cudaGetTextureObjectResourceViewDesc) \
    X(cudaGetTextureObjectTextureDesc) \
    X(cudaGraphAddChildGraphNode) \
    X(cudaGraphAddDependencies) \
    X(cudaGraphAddEmptyNode) \
    X(cudaGraphAddEventRecordNode) \
    X(cudaGraphAddEventWaitNode) \
    X(cudaGraphAddExternalSemaphoresSignalNode) \
    X(cudaGraphAddExternalSemaphoresWaitNode) \
    X(cudaGraphAddHostNode) \
    X(cudaGraphAddKernelNode) \
    X(cudaGraphAddMemAllocNode) \
    X(cudaGraphAddMemFreeNode) \
    X(cudaGraphAddMemcpyNode) \
    X(cudaGraphAddMemcpyNode1D) \
    X(cudaGraphAddMemcpyNodeFromSymbol) \
    X(cudaGraphAddMemcpyNodeToSymbol) \
    X(cudaGraphAddMemsetNode) \
    X(cudaGraphAddNode) \
    X(cudaGraphChildGraphNodeGetGraph) \
    X(cudaGraphConditionalHandleCreate) \
    X(cudaGraphDebugDotPrint) \
    X(cudaGraphDestroyNode) \
    X(cudaGraphEventRecordNodeGetEvent) \
    X(cudaGraphEventRecordNodeSetEvent) \
    X(cudaGraphEventWaitNodeGetEvent) \
    X(cudaGraphEventWaitNodeSetEvent) \
    X(cudaGraphExecChildGraphNodeSetParams) \
    X(cudaGraphExecEventRecordNodeSetEvent) \
    X(cudaGraphExecEventWaitNodeSetEvent) \
    X(cudaGraphExecExternalSemaphoresSignalNodeSetParams) \
    X(cudaGraphExecExternalSemaphoresWaitNodeSetParams) \
    X(cudaGraphExecHostNodeSetParams) \
    X(cudaGraphExecKernelNodeSetParams) \
    X(cudaGraphExecMemcpyNodeSetParams) \
    X(cudaGraphExecMemcpyNodeSetParams1D) \
    X(cudaGraphExecMemcpyNodeSetParamsFromSymbol) \
    X(cudaGraphExecMemcpyNodeSetParamsToSymbol) \
    X(cudaGraphExecMemsetNodeSetParams) \
    X(cudaGraphExecNodeSetParams) \
    X(cudaGraphExternalSemaphoresSignalNodeGetParams) \
    X(cudaGraphExternalSemaphoresSignalNodeSetParams) \
    X(cudaGraphExternalSemaphoresWaitNodeGetParams) \
    X(cudaGraphExternalSemaphoresWaitNodeSetParams) \
    X(cudaGraphHostNodeGetParams) \
    X(cudaGraphHostNodeSetParams) \
    X(cudaGraphKernelNodeCopyAttributes) \
    X(cudaGraphKernelNodeGetAttribute) \
    X(cudaGraphKernelNodeGetParams) \
    X(cudaGraphKernelNodeSetAttribute) \
    X(cudaGraphKernelNodeSetParams) \
    X(cudaGraphMemAllocNodeGetParams) \
    X(cudaGraphMemFreeNodeGetParams) \
    X(cudaGraphMemcpyNodeGetParams) \
    X(cudaGraphMemcpyNodeSetParams) \
    X(cudaGraphMemcpyNodeSetParams1D) \
    X(cudaGraphMemcpyNodeSetParamsFromSymbol) \
    X(cudaGraphMemcpyNodeSetParamsToSymbol) \
    X(cudaGraphMemsetNodeGetParams) \
    X(cudaGraphMemsetNodeSetParams) \
    X(cudaGraphNodeFindInClone) \
    X(cudaGraphNodeGetEnabled) \
    X(cudaGraphNodeSetEnabled) \
    X(cudaGraphNodeSetParams) \
    X(cudaGraphRemoveDependencies) \
    X(cudaGraphicsEGLRegisterImage) \
    X(cudaGraphicsGLRegisterBuffer) \
    X(cudaGraphicsGLRegisterImage) \
    X(cudaGraphicsMapResources) \
    X(cudaGraphicsResourceGetMappedEglFrame) \
    X(cudaGraphicsResourceGetMappedMipmappedArray) \
    X(cudaGraphicsResourceGetMappedPointer) \
    X(cudaGraphicsResourceSetMapFlags) \
    X(cudaGraphicsSubResourceGetMappedArray) \
    X(cudaGraphicsUnmapResources) \
    X(cudaGraphicsUnregisterResource) \
    X(cudaGraphicsVDPAURegisterOutputSurface) \
    X(cudaGraphicsVDPAURegisterVideoSurface) \
    X(cudaImportExternalMemory) \
    X(cudaImportExternalSemaphore) \
    X(cudaKernelSetAttributeForDevice) \
    X(cudaLibraryEnumerateKernels) \
    X(cudaLibraryGetGlobal) \
    X(cudaLibraryGetKernel) \
    X(cudaLibraryGetKernelCount) \
    X(cudaLibraryGetManaged) \
    X(cudaLibraryGetUnifiedFunction) \
    X(cudaLibraryLoadData) \
    X(cudaLibraryLoadFromFile) \
    X(cudaLibraryUnload) \
    X(cudaLogsCurrent) \
    X(cudaLogsDumpToFile) \
    X(cudaLogsDumpToMemory) \
    X(cudaLogsRegisterCallback) \
    X(cudaLogsUnregisterCallback) \
    X(cudaMalloc3D) \
    X(cudaMalloc3DArray) \
    X(cudaMallocArray) \
    X(cudaMallocMipmappedArray) \
    X(cudaMemAdvise) \
    X(cudaMemDiscardAndPrefetchBatchAsync) \
    X(cudaMemDiscardAndPrefetchBatchAsync_ptsz) \
    X(cudaMemDiscardBatchAsync) \
    X(cudaMemDiscardBatchAsync_ptsz) \
    X(cudaMemGetDefaultMemPool) \
    X(cudaMemGetMemPool) \
    X(cudaMemPoolExportPointer) \
    X(cudaMemPoolExportToShareableHandle) \
    X(cudaMemPoolImportFromShareableHandle) \
    X(cudaMemPoolImportPointer) \
    X(cudaMemPrefetchBatchAsync) \
    X(cudaMemPrefetchBatchAsync_ptsz) \
    X(cudaMemRangeGetAttribute) \
    X(cudaMemRangeGetAttributes) \
    X(cudaMemSetMemPool) \
    X(cudaMemcpy2DArrayToArray) \
    X(cudaMemcpy2DArrayToArray_ptds) \
    X(cudaMemcpy2DFromArray) \
    X(cudaMemcpy2DFromArrayAsync) \
    X(cudaMemcpy2DFromArrayAsync_ptsz) \
    X(cudaMemcpy2DFromArray_ptds) \
    X(cudaMemcpy2DToArray) \
    X(cudaMemcpy2DToArrayAsync) \
    X(cudaMemcpy2DToArrayAsync_ptsz) \
    X(cudaMemcpy2DToArray_ptds) \
    X(cudaMemcpy3D) \
    X(cudaMemcpy3DAsync) \
    X(cudaMemcpy3DAsync_ptsz) \
    X(cudaMemcpy3DBatchAsync) \
    X(cudaMemcpy3DBatchAsync_ptsz) \
    X(cudaMemcpy3DPeer) \
    X(cudaMemcpy3DPeerAsync) \
    X(cudaMemcpy3DPeerAsync_ptsz) \
    X(cudaMemcpy3DPeer_ptds) \
    X(cudaMemcpy3D_ptds) \
    X(cudaMemcpyArrayToArray) \
    X(cudaMemcpyArrayToArray_ptds) \
    X(cudaMemcpyFromArray) \
    X(cudaMemcpyFromArrayAsync) \
    X(cudaMemcpyFromArrayAsync_ptsz) \
    X(cudaMemcpyFromArray_ptds) \
    X(cudaMemcpyToArray) \
    X(cudaMemcpyToArrayAsync) \
    X(cudaMemcpyToArrayAsync_ptsz) \
    X(cudaMemcpyToArray_ptds) \
    X(cudaMemset3D) \
    X(cudaMemset3DAsync) \
    X(cudaMemset3DAsync_ptsz) \
    X(cudaMemset3D_ptds) \
    X(cudaMipmappedArrayGetMemoryRequirements) \
    X(cudaMipmappedArrayGetSparseProperties) \
    X(cudaOccupancyAvailableDynamicSMemPerBlock) \
    X(cudaOccupancyMaxActiveClusters) \
    X(cudaOccupancyMaxPotentialClusterSize) \
    X(cudaSetValidDevices) \
    X(cudaSignalExternalSemaphoresAsync) \
    X(cudaSignalExternalSemaphoresAsync_ptsz) \
    X(cudaStreamAttachMemAsync) \
    X(cudaStreamAttachMemAsync_ptsz) \
    X(cudaStreamCopyAttributes) \
    X(cudaStreamCopyAttributes_ptsz) \
    X(cudaStreamGetAttribute) \
    X(cudaStreamGetAttribute_ptsz) \
    X(cudaStreamSetAttribute) \
    X(cudaStreamSetAttribute_ptsz) \
    X(cudaVDPAUGetDevice) \
    X(cudaVDPAUSetVDPAUDevice) \
    X(cudaWaitExternalSemaphoresAsync) \
    X(cudaWaitExternalSemaphoresAsync_ptsz)
// clang-format on

SLIMWIRE_EMU_ABSENT_FUNCTIONS(SLIMWIRE_EMU_ABSENT)

// Profiler hints and cache hints are harmless where there is nothing to profile or to cache.
SLIMWIRE_EMU_EXPORT cudaError_t cudaProfilerStart() {
    return cudaSuccess;
}
SLIMWIRE_EMU_EXPORT cudaError_t cudaProfilerStop() {
    return cudaSuccess;
}
SLIMWIRE_EMU_EXPORT cudaError_t cudaCtxResetPersistingL2Cache() {
    return cudaSuccess;
}

// Describes a texture's element; needs no texture.
struct ChannelFormat {
    int x, y, z, w;
    int kind;
};
SLIMWIRE_EMU_EXPORT ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
    return {x, y, z, w, kind};
}
