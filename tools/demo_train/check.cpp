#include "tools/demo_train/check.h"

#include <string>
#include <string_view>

namespace demo {
namespace {

std::string function_of(const char* call) {
    const std::string_view text(call);
    return std::string(text.substr(0, text.find('(')));
}

}  // namespace

void check_cuda(cudaError_t error, const char* call) {
    if (error == cudaSuccess) {
        return;
    }
    throw TrainError(function_of(call) + ": " + cudaGetErrorString(error) + " (" +
                     cudaGetErrorName(error) + ")");
}

void check_nccl(ncclResult_t result, const char* call) {
    if (result == ncclSuccess) {
        return;
    }
    std::string text = function_of(call) + ": " + ncclGetErrorString(result);
    const char* detail = ncclGetLastError(nullptr);
    if (detail != nullptr && *detail != '\0') {
        text += std::string(": ") + detail;
    }
    throw TrainError(text);
}

}  // namespace demo
