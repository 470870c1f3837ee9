// The error codes of the CUDA Runtime 13.0: names and values, those of graphics, profilers, MPS and
// kernels that launch kernels left out. Included by driver_types.h; their
// texts are in tools/emulator/cudart/machine/errors.cpp. Source of the values: CUDA Runtime 13.0
// ABI; tests/abi compares them where a toolkit is present.
#pragma once

// clang-format off
#define SLIMWIRE_EMU_ERRORS(X) \
    X(cudaSuccess, 0) \
    X(cudaErrorInvalidValue, 1) \
    X(cudaErrorMemoryAllocation, 2) \
    X(cudaErrorInitializationError, 3) \
    X(cudaErrorCudartUnloading, 4) \
    X(cudaErrorInvalidConfiguration, 9) \
    X(cudaErrorInvalidSymbol, 13) \
    X(cudaErrorInvalidDevicePointer, 17) \
    X(cudaErrorInvalidMemcpyDirection, 21) \
    X(cudaErrorStubLibrary, 34) \
    X(cudaErrorInsufficientDriver, 35) \
    X(cudaErrorCallRequiresNewerDriver, 36) \
    X(cudaErrorDevicesUnavailable, 46) \
    X(cudaErrorIncompatibleDriverContext, 49) \
    X(cudaErrorMissingConfiguration, 52) \
    X(cudaErrorLaunchMaxDepthExceeded, 65) \
    X(cudaErrorInvalidDeviceFunction, 98) \
    X(cudaErrorNoDevice, 100) \
    X(cudaErrorInvalidDevice, 101) \
    X(cudaErrorInvalidKernelImage, 200) \
    X(cudaErrorDeviceUninitialized, 201) \
    X(cudaErrorNoKernelImageForDevice, 209) \
    X(cudaErrorECCUncorrectable, 214) \
    X(cudaErrorDeviceAlreadyInUse, 216) \
    X(cudaErrorPeerAccessUnsupported, 217) \
    X(cudaErrorInvalidPtx, 218) \
    X(cudaErrorNvlinkUncorrectable, 220) \
    X(cudaErrorUnsupportedPtxVersion, 222) \
    X(cudaErrorContained, 226) \
    X(cudaErrorFileNotFound, 301) \
    X(cudaErrorSharedObjectSymbolNotFound, 302) \
    X(cudaErrorSharedObjectInitFailed, 303) \
    X(cudaErrorOperatingSystem, 304) \
    X(cudaErrorInvalidResourceHandle, 400) \
    X(cudaErrorIllegalState, 401) \
    X(cudaErrorSymbolNotFound, 500) \
    X(cudaErrorNotReady, 600) \
    X(cudaErrorIllegalAddress, 700) \
    X(cudaErrorLaunchOutOfResources, 701) \
    X(cudaErrorLaunchTimeout, 702) \
    X(cudaErrorPeerAccessAlreadyEnabled, 704) \
    X(cudaErrorPeerAccessNotEnabled, 705) \
    X(cudaErrorContextIsDestroyed, 709) \
    X(cudaErrorAssert, 710) \
    X(cudaErrorHostMemoryAlreadyRegistered, 712) \
    X(cudaErrorHostMemoryNotRegistered, 713) \
    X(cudaErrorHardwareStackError, 714) \
    X(cudaErrorIllegalInstruction, 715) \
    X(cudaErrorMisalignedAddress, 716) \
    X(cudaErrorInvalidPc, 718) \
    X(cudaErrorLaunchFailure, 719) \
    X(cudaErrorNotPermitted, 800) \
    X(cudaErrorNotSupported, 801) \
    X(cudaErrorSystemNotReady, 802) \
    X(cudaErrorSystemDriverMismatch, 803) \
    X(cudaErrorCompatNotSupportedOnDevice, 804) \
    X(cudaErrorStreamCaptureUnsupported, 900) \
    X(cudaErrorStreamCaptureInvalidated, 901) \
    X(cudaErrorStreamCaptureMerge, 902) \
    X(cudaErrorStreamCaptureUnmatched, 903) \
    X(cudaErrorStreamCaptureUnjoined, 904) \
    X(cudaErrorStreamCaptureIsolation, 905) \
    X(cudaErrorStreamCaptureImplicit, 906) \
    X(cudaErrorCapturedEvent, 907) \
    X(cudaErrorStreamCaptureWrongThread, 908) \
    X(cudaErrorTimeout, 909) \
    X(cudaErrorFunctionNotLoaded, 913) \
    X(cudaErrorUnknown, 999)
// clang-format on

#define SLIMWIRE_EMU_ENUMERATOR(name, value) name = value,
enum cudaError { SLIMWIRE_EMU_ERRORS(SLIMWIRE_EMU_ENUMERATOR) };
#undef SLIMWIRE_EMU_ENUMERATOR

typedef enum cudaError cudaError_t;
