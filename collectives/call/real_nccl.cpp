#include "collectives/call/real_nccl.h"

namespace slimwire {

Status nccl_status(const RealNccl& nccl, ncclResult_t result, const char* what) {
    if (result == ncclSuccess || result == ncclInProgress) {
        return {};
    }
    std::string text =
        std::string(what) + ": nccl error " + std::to_string(static_cast<int>(result));
    if (nccl.GetErrorString != nullptr) {
        text += std::string(" (") + nccl.GetErrorString(result) + ")";
    }
    Code code = Code::kNcclError;
    switch (static_cast<int>(result)) {
        case ncclUnhandledCudaError:
            code = Code::kCudaError;
            break;
        case ncclSystemError:
            code = Code::kSystemError;
            break;
        case ncclInvalidArgument:
            code = Code::kInvalidArgument;
            break;
        case ncclInvalidUsage:
            code = Code::kInvalidUsage;
            break;
        case ncclRemoteError:
            code = Code::kRemoteError;
            break;
        default:
            break;
    }
    return {code, std::move(text)};
}

}  // namespace slimwire
