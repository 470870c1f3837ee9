// How residuals of error feedback are stored (load_store.h): read by policies and plans, which know
// no device, and by kernels.
#pragma once

#include <cstdint>

namespace slimwire {

// fp32, bf16, or int8 in blocks with a bf16 scale each.
enum class ResidualType : uint8_t { kFloat32, kBfloat16, kInt8 };
inline constexpr int64_t kResidualBlock = 64;

}  // namespace slimwire
