// Element types of a buffer, with NCCL's numbering so that a cast converts at the boundary.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slimwire {

// Values equal ncclDataType_t (asserted in collectives/call/nccl_types.h).
enum class DType : uint8_t {
    kInt8 = 0,
    kUint8 = 1,
    kInt32 = 2,
    kUint32 = 3,
    kInt64 = 4,
    kUint64 = 5,
    kFloat16 = 6,
    kFloat32 = 7,
    kFloat64 = 8,
    kBfloat16 = 9,
    kFloat8e4m3 = 10,
    kFloat8e5m2 = 11,
};

inline constexpr int kDTypeCount = 12;

[[nodiscard]] constexpr size_t dtype_bytes(DType type) noexcept {
    switch (type) {
        case DType::kInt8:
        case DType::kUint8:
        case DType::kFloat8e4m3:
        case DType::kFloat8e5m2:
            return 1;
        case DType::kFloat16:
        case DType::kBfloat16:
            return 2;
        case DType::kInt32:
        case DType::kUint32:
        case DType::kFloat32:
            return 4;
        case DType::kInt64:
        case DType::kUint64:
        case DType::kFloat64:
            return 8;
    }
    return 0;
}

// Short name used in policies, reports and benchmarks: "f32", "bf16", "i64", "f8e4m3", ...
[[nodiscard]] constexpr const char* dtype_name(DType type) noexcept {
    constexpr const char* kNames[kDTypeCount] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                                 "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
    return static_cast<int>(type) < kDTypeCount ? kNames[static_cast<int>(type)] : "unknown";
}

}  // namespace slimwire
