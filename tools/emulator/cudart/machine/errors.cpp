// Error names, error texts, the last error of a thread, versions.
#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

struct ErrorText {
    cudaError_t error;
    const char* name;
    const char* text;
};

// In the order of cuda_errors.h; a test walks all codes.
#define SLIMWIRE_EMU_ERROR(code, text) \
    { code, #code, text }
constexpr ErrorText kErrors[] = {
    SLIMWIRE_EMU_ERROR(cudaSuccess, "no error"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidValue, "invalid argument"),
    SLIMWIRE_EMU_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    SLIMWIRE_EMU_ERROR(cudaErrorInitializationError, "initialization error"),
    SLIMWIRE_EMU_ERROR(cudaErrorCudartUnloading, "cudart unloading"),
    SLIMWIRE_EMU_ERROR(cudaErrorProfilerDisabled, "profiler disabled"),
    SLIMWIRE_EMU_ERROR(cudaErrorProfilerNotInitialized, "profiler not initialized"),
    SLIMWIRE_EMU_ERROR(cudaErrorProfilerAlreadyStarted, "profiler already started"),
    SLIMWIRE_EMU_ERROR(cudaErrorProfilerAlreadyStopped, "profiler already stopped"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidConfiguration, "invalid configuration"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidPitchValue, "invalid pitch value"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidSymbol, "invalid symbol"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidHostPointer, "invalid host pointer"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidTexture, "invalid texture"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidTextureBinding, "invalid texture binding"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidChannelDescriptor, "invalid channel descriptor"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    SLIMWIRE_EMU_ERROR(cudaErrorAddressOfConstant, "address of constant"),
    SLIMWIRE_EMU_ERROR(cudaErrorTextureFetchFailed, "texture fetch failed"),
    SLIMWIRE_EMU_ERROR(cudaErrorTextureNotBound, "texture not bound"),
    SLIMWIRE_EMU_ERROR(cudaErrorSynchronizationError, "synchronization error"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidFilterSetting, "invalid filter setting"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidNormSetting, "invalid norm setting"),
    SLIMWIRE_EMU_ERROR(cudaErrorMixedDeviceExecution, "mixed device execution"),
    SLIMWIRE_EMU_ERROR(cudaErrorNotYetImplemented, "not yet implemented"),
    SLIMWIRE_EMU_ERROR(cudaErrorMemoryValueTooLarge, "memory value too large"),
    SLIMWIRE_EMU_ERROR(cudaErrorStubLibrary, "stub library"),
    SLIMWIRE_EMU_ERROR(cudaErrorInsufficientDriver, "insufficient driver"),
    SLIMWIRE_EMU_ERROR(cudaErrorCallRequiresNewerDriver, "call requires newer driver"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidSurface, "invalid surface"),
    SLIMWIRE_EMU_ERROR(cudaErrorDuplicateVariableName, "duplicate variable name"),
    SLIMWIRE_EMU_ERROR(cudaErrorDuplicateTextureName, "duplicate texture name"),
    SLIMWIRE_EMU_ERROR(cudaErrorDuplicateSurfaceName, "duplicate surface name"),
    SLIMWIRE_EMU_ERROR(cudaErrorDevicesUnavailable, "devices unavailable"),
    SLIMWIRE_EMU_ERROR(cudaErrorIncompatibleDriverContext, "incompatible driver context"),
    SLIMWIRE_EMU_ERROR(cudaErrorMissingConfiguration, "missing configuration"),
    SLIMWIRE_EMU_ERROR(cudaErrorPriorLaunchFailure, "prior launch failure"),
    SLIMWIRE_EMU_ERROR(cudaErrorLaunchMaxDepthExceeded, "launch max depth exceeded"),
    SLIMWIRE_EMU_ERROR(cudaErrorLaunchFileScopedTex, "launch file scoped tex"),
    SLIMWIRE_EMU_ERROR(cudaErrorLaunchFileScopedSurf, "launch file scoped surf"),
    SLIMWIRE_EMU_ERROR(cudaErrorSyncDepthExceeded, "sync depth exceeded"),
    SLIMWIRE_EMU_ERROR(cudaErrorLaunchPendingCountExceeded, "launch pending count exceeded"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    SLIMWIRE_EMU_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    SLIMWIRE_EMU_ERROR(cudaErrorDeviceNotLicensed, "device not licensed"),
    SLIMWIRE_EMU_ERROR(cudaErrorSoftwareValidityNotEstablished,
                       "software validity not established"),
    SLIMWIRE_EMU_ERROR(cudaErrorStartupFailure, "startup failure"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidKernelImage, "invalid kernel image"),
    SLIMWIRE_EMU_ERROR(cudaErrorDeviceUninitialized, "device uninitialized"),
    SLIMWIRE_EMU_ERROR(cudaErrorMapBufferObjectFailed, "map buffer object failed"),
    SLIMWIRE_EMU_ERROR(cudaErrorUnmapBufferObjectFailed, "unmap buffer object failed"),
    SLIMWIRE_EMU_ERROR(cudaErrorArrayIsMapped, "array is mapped"),
    SLIMWIRE_EMU_ERROR(cudaErrorAlreadyMapped, "already mapped"),
    SLIMWIRE_EMU_ERROR(cudaErrorNoKernelImageForDevice, "no kernel image for device"),
    SLIMWIRE_EMU_ERROR(cudaErrorAlreadyAcquired, "already acquired"),
    SLIMWIRE_EMU_ERROR(cudaErrorNotMapped, "not mapped"),
    SLIMWIRE_EMU_ERROR(cudaErrorNotMappedAsArray, "not mapped as array"),
    SLIMWIRE_EMU_ERROR(cudaErrorNotMappedAsPointer, "not mapped as pointer"),
    SLIMWIRE_EMU_ERROR(cudaErrorECCUncorrectable, "ECC uncorrectable"),
    SLIMWIRE_EMU_ERROR(cudaErrorUnsupportedLimit, "unsupported limit"),
    SLIMWIRE_EMU_ERROR(cudaErrorDeviceAlreadyInUse, "device already in use"),
    SLIMWIRE_EMU_ERROR(cudaErrorPeerAccessUnsupported, "peer access unsupported"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidPtx, "invalid ptx"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidGraphicsContext, "invalid graphics context"),
    SLIMWIRE_EMU_ERROR(cudaErrorNvlinkUncorrectable, "nvlink uncorrectable"),
    SLIMWIRE_EMU_ERROR(cudaErrorJitCompilerNotFound, "jit compiler not found"),
    SLIMWIRE_EMU_ERROR(cudaErrorUnsupportedPtxVersion, "unsupported ptx version"),
    SLIMWIRE_EMU_ERROR(cudaErrorJitCompilationDisabled, "jit compilation disabled"),
    SLIMWIRE_EMU_ERROR(cudaErrorUnsupportedExecAffinity, "unsupported exec affinity"),
    SLIMWIRE_EMU_ERROR(cudaErrorUnsupportedDevSideSync, "unsupported dev side sync"),
    SLIMWIRE_EMU_ERROR(cudaErrorContained, "contained"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidSource, "invalid source"),
    SLIMWIRE_EMU_ERROR(cudaErrorFileNotFound, "file not found"),
    SLIMWIRE_EMU_ERROR(cudaErrorSharedObjectSymbolNotFound, "shared object symbol not found"),
    SLIMWIRE_EMU_ERROR(cudaErrorSharedObjectInitFailed, "shared object init failed"),
    SLIMWIRE_EMU_ERROR(cudaErrorOperatingSystem, "operating system"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    SLIMWIRE_EMU_ERROR(cudaErrorIllegalState, "illegal state"),
    SLIMWIRE_EMU_ERROR(cudaErrorLossyQuery, "lossy query"),
    SLIMWIRE_EMU_ERROR(cudaErrorSymbolNotFound, "symbol not found"),
    SLIMWIRE_EMU_ERROR(cudaErrorNotReady, "device not ready"),
    SLIMWIRE_EMU_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    SLIMWIRE_EMU_ERROR(cudaErrorLaunchOutOfResources, "launch out of resources"),
    SLIMWIRE_EMU_ERROR(cudaErrorLaunchTimeout, "launch timeout"),
    SLIMWIRE_EMU_ERROR(cudaErrorLaunchIncompatibleTexturing, "launch incompatible texturing"),
    SLIMWIRE_EMU_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access already enabled"),
    SLIMWIRE_EMU_ERROR(cudaErrorPeerAccessNotEnabled, "peer access not enabled"),
    SLIMWIRE_EMU_ERROR(cudaErrorSetOnActiveProcess, "set on active process"),
    SLIMWIRE_EMU_ERROR(cudaErrorContextIsDestroyed, "context is destroyed"),
    SLIMWIRE_EMU_ERROR(cudaErrorAssert, "assert"),
    SLIMWIRE_EMU_ERROR(cudaErrorTooManyPeers, "too many peers"),
    SLIMWIRE_EMU_ERROR(cudaErrorHostMemoryAlreadyRegistered, "host memory already registered"),
    SLIMWIRE_EMU_ERROR(cudaErrorHostMemoryNotRegistered, "host memory not registered"),
    SLIMWIRE_EMU_ERROR(cudaErrorHardwareStackError, "hardware stack error"),
    SLIMWIRE_EMU_ERROR(cudaErrorIllegalInstruction, "illegal instruction"),
    SLIMWIRE_EMU_ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidAddressSpace, "invalid address space"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidPc, "invalid pc"),
    SLIMWIRE_EMU_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    SLIMWIRE_EMU_ERROR(cudaErrorCooperativeLaunchTooLarge, "cooperative launch too large"),
    SLIMWIRE_EMU_ERROR(cudaErrorTensorMemoryLeak, "tensor memory leak"),
    SLIMWIRE_EMU_ERROR(cudaErrorNotPermitted, "operation not permitted"),
    SLIMWIRE_EMU_ERROR(cudaErrorNotSupported, "operation not supported"),
    SLIMWIRE_EMU_ERROR(cudaErrorSystemNotReady, "system not ready"),
    SLIMWIRE_EMU_ERROR(cudaErrorSystemDriverMismatch, "system driver mismatch"),
    SLIMWIRE_EMU_ERROR(cudaErrorCompatNotSupportedOnDevice, "compat not supported on device"),
    SLIMWIRE_EMU_ERROR(cudaErrorMpsConnectionFailed, "mps connection failed"),
    SLIMWIRE_EMU_ERROR(cudaErrorMpsRpcFailure, "mps rpc failure"),
    SLIMWIRE_EMU_ERROR(cudaErrorMpsServerNotReady, "mps server not ready"),
    SLIMWIRE_EMU_ERROR(cudaErrorMpsMaxClientsReached, "mps max clients reached"),
    SLIMWIRE_EMU_ERROR(cudaErrorMpsMaxConnectionsReached, "mps max connections reached"),
    SLIMWIRE_EMU_ERROR(cudaErrorMpsClientTerminated, "mps client terminated"),
    SLIMWIRE_EMU_ERROR(cudaErrorCdpNotSupported, "cdp not supported"),
    SLIMWIRE_EMU_ERROR(cudaErrorCdpVersionMismatch, "cdp version mismatch"),
    SLIMWIRE_EMU_ERROR(cudaErrorStreamCaptureUnsupported, "stream capture unsupported"),
    SLIMWIRE_EMU_ERROR(cudaErrorStreamCaptureInvalidated, "stream capture invalidated"),
    SLIMWIRE_EMU_ERROR(cudaErrorStreamCaptureMerge, "stream capture merge"),
    SLIMWIRE_EMU_ERROR(cudaErrorStreamCaptureUnmatched, "stream capture unmatched"),
    SLIMWIRE_EMU_ERROR(cudaErrorStreamCaptureUnjoined, "stream capture unjoined"),
    SLIMWIRE_EMU_ERROR(cudaErrorStreamCaptureIsolation, "stream capture isolation"),
    SLIMWIRE_EMU_ERROR(cudaErrorStreamCaptureImplicit, "stream capture implicit"),
    SLIMWIRE_EMU_ERROR(cudaErrorCapturedEvent, "captured event"),
    SLIMWIRE_EMU_ERROR(cudaErrorStreamCaptureWrongThread, "stream capture wrong thread"),
    SLIMWIRE_EMU_ERROR(cudaErrorTimeout, "timeout"),
    SLIMWIRE_EMU_ERROR(cudaErrorGraphExecUpdateFailure, "graph exec update failure"),
    SLIMWIRE_EMU_ERROR(cudaErrorExternalDevice, "external device"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidClusterSize, "invalid cluster size"),
    SLIMWIRE_EMU_ERROR(cudaErrorFunctionNotLoaded, "function not loaded"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidResourceType, "invalid resource type"),
    SLIMWIRE_EMU_ERROR(cudaErrorInvalidResourceConfiguration, "invalid resource configuration"),
    SLIMWIRE_EMU_ERROR(cudaErrorUnknown, "unknown error"),
    SLIMWIRE_EMU_ERROR(cudaErrorApiFailureBase, "api failure base"),
};
#undef SLIMWIRE_EMU_ERROR

const ErrorText* find(cudaError_t error) {
    for (const ErrorText& entry : kErrors) {
        if (entry.error == error) {
            return &entry;
        }
    }
    return nullptr;
}

cudaError_t sticky_or_last(bool clear) {
    cudaError_t unusable = cudaSuccess;
    Runtime* runtime = Runtime::get(&unusable);
    if (runtime == nullptr) {
        return unusable;
    }
    const cudaError_t sticky = runtime->device(current_device()).sticky();
    return sticky != cudaSuccess ? sticky : last_error(clear);
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
    const ErrorText* entry = find(error);
    return entry != nullptr ? entry->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    const ErrorText* entry = find(error);
    return entry != nullptr ? entry->text : "unrecognized error code";
}

cudaError_t cudaGetLastError() {
    return sticky_or_last(true);
}

cudaError_t cudaPeekAtLastError() {
    return sticky_or_last(false);
}

cudaError_t cudaRuntimeGetVersion(int* runtime_version) {
    if (runtime_version == nullptr) {
        return remember(cudaErrorInvalidValue);
    }
    *runtime_version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* driver_version) {
    if (driver_version == nullptr) {
        return remember(cudaErrorInvalidValue);
    }
    *driver_version = CUDART_VERSION;
    return cudaSuccess;
}
