// The reduction operators of a communicator: NCCL's own, and those that a client made.
#include <algorithm>
#include <cstring>
#include <string>

#include "tools/emulator/nccl/execution/communicator.h"

namespace slimwire::emu {
namespace {

// Handles are shifted by a number of the communicator's own, so that those of another communicator
// are recognised.
constexpr uint32_t kOperatorRange = 0x7fffffffu - ncclNumOps;

}  // namespace

int Communicator::operator_index(ncclRedOp_t op) const noexcept {
    const auto shift = static_cast<uint32_t>(id() % kOperatorRange);
    const uint32_t value = static_cast<uint32_t>(op) - ncclNumOps;
    const uint32_t index = (value + kOperatorRange - shift) % kOperatorRange;
    return index < operators_.size() && operators_[index].alive ? static_cast<int>(index) : -1;
}

Result<ncclRedOp_t> Communicator::make_operator(const void* scalar, DType type, bool on_device) {
    UserOperator made{true, type, {}};
    if (on_device) {
        made.reduction.scale_pointer = scalar;
    } else {
        memcpy(made.reduction.scale.element, scalar, dtype_bytes(type));
    }
    made.reduction.scale.enabled = true;
    const std::lock_guard lock(mutex_);
    const auto free = std::find_if(operators_.begin(), operators_.end(),
                                   [](const UserOperator& op) { return !op.alive; });
    const auto index = static_cast<uint32_t>(free - operators_.begin());
    if (free == operators_.end()) {
        operators_.push_back(made);
    } else {
        *free = made;
    }
    const auto shift = static_cast<uint32_t>(id() % kOperatorRange);
    return static_cast<ncclRedOp_t>(ncclNumOps + (index + shift) % kOperatorRange);
}

Status Communicator::destroy_operator(ncclRedOp_t op) {
    const std::lock_guard lock(mutex_);
    if (op >= 0 && op < ncclNumOps) {
        return {Code::kInvalidArgument, "ncclRedOpDestroy: operator " + std::to_string(op) +
                                            " is built in and cannot be destroyed"};
    }
    const int index = operator_index(op);
    if (index < 0) {
        return {Code::kInvalidArgument,
                "ncclRedOpDestroy: not a living operator of this communicator"};
    }
    operators_[static_cast<size_t>(index)].alive = false;
    return {};
}

Result<Reduction> Communicator::resolve(ncclRedOp_t op, DType type) const {
    Reduction reduction;
    switch (op) {
        case ncclSum:
            return reduction;
        case ncclProd:
            reduction.op = ReduceOp::kProd;
            return reduction;
        case ncclMax:
            reduction.op = ReduceOp::kMax;
            return reduction;
        case ncclMin:
            reduction.op = ReduceOp::kMin;
            return reduction;
        case ncclAvg:
            reduction.scale = one_over(type, size());
            reduction.divisor = size();
            return reduction;
        default:
            break;
    }
    const std::lock_guard lock(mutex_);
    const int index = op < 0 ? -1 : operator_index(op);
    if (index < 0) {
        return Status(Code::kInvalidArgument, "invalid reduction operation " +
                                                  std::to_string(static_cast<int>(op)) +
                                                  " for this communicator");
    }
    const UserOperator& user = operators_[static_cast<size_t>(index)];
    if (user.type != type) {
        return Status(Code::kInvalidArgument, std::string("the reduction operation was made for ") +
                                                  dtype_name(user.type) + ", the data is " +
                                                  dtype_name(type));
    }
    return user.reduction;
}

}  // namespace slimwire::emu
