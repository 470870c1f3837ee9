// Error names, error texts, the last error of a thread, versions.
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

struct ErrorText {
    cudaError_t error;
    const char* name;
    std::string text;
};

// "cudaErrorCapturedEvent" as "captured event".
std::string words_of(std::string_view name) {
    constexpr std::string_view kPrefix = "cudaError";
    std::string text;
    for (const char c : name.substr(kPrefix.size())) {
        const bool upper = std::isupper(static_cast<unsigned char>(c)) != 0;
        text += upper && !text.empty() ? " " : "";
        text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return text;
}

// Where the runtime says something else than the name.
constexpr std::pair<cudaError_t, const char*> kOwnTexts[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"},
    {cudaErrorNoDevice, "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "ECC uncorrectable"},
    {cudaErrorNotReady, "device not ready"},
    {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "unspecified launch failure"},
    {cudaErrorNotPermitted, "operation not permitted"},
    {cudaErrorNotSupported, "operation not supported"},
    {cudaErrorUnknown, "unknown error"},
};

ErrorText text_of(cudaError_t error, const char* name) {
    for (const auto& [other, text] : kOwnTexts) {
        if (other == error) {
            return {error, name, text};
        }
    }
    return {error, name, words_of(name)};
}

const ErrorText* find(cudaError_t error) {
#define SLIMWIRE_EMU_TEXT(name, value) text_of(name, #name),
    static const auto* const texts = new std::vector{SLIMWIRE_EMU_ERRORS(SLIMWIRE_EMU_TEXT)};
#undef SLIMWIRE_EMU_TEXT
    const auto found = std::find_if(texts->begin(), texts->end(),
                                    [&](const ErrorText& one) { return one.error == error; });
    return found != texts->end() ? &*found : nullptr;
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
    return entry != nullptr ? entry->text.c_str() : "unrecognized error code";
}

cudaError_t cudaGetLastError() {
    return sticky_or_last(true);
}

cudaError_t cudaPeekAtLastError() {
    return sticky_or_last(false);
}

cudaError_t cudaRuntimeGetVersion(int* runtime_version) {
    return remember(give(runtime_version, CUDART_VERSION));
}

cudaError_t cudaDriverGetVersion(int* driver_version) {
    return remember(give(driver_version, CUDART_VERSION));
}
