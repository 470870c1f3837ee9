// Other processes, and the driver: of both there is nothing below or beside the emulator, but what
// driver_api.cpp has.
#include "tools/emulator/cudart/api/driver_api.h"
#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

cudaError_t not_supported() {
    return device_call([](Runtime&) { return cudaErrorNotSupported; });
}

}  // namespace

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
        *func_ptr = driver_function(symbol);
        if (driver_status != nullptr) {
            *driver_status = *func_ptr != nullptr ? cudaDriverEntryPointSuccess
                                                  : cudaDriverEntryPointSymbolNotFound;
        }
        return *func_ptr != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
    });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol,
                                    void** func_ptr,
                                    unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* driver_status) {
    return cudaGetDriverEntryPointByVersion(symbol, func_ptr, CUDART_VERSION, flags, driver_status);
}
