// The data of `slimwire bench collective`: normal deviates by position, so that every rank knows
// everybody's without being sent them, and the element types they are stored in.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace slimwire::bench {

enum class Type { kF32, kF16, kBf16 };

[[nodiscard]] uint64_t mix(uint64_t x);
// Element `index` of rank `rank`'s input, before it is rounded to a type.
[[nodiscard]] float gaussian(uint64_t seed, int rank, size_t index);
[[nodiscard]] size_t element_bytes(Type type);
[[nodiscard]] ncclDataType_t nccl_type(Type type);
void store(Type type, void* buffer, size_t index, float value);
[[nodiscard]] float load(Type type, const void* buffer, size_t index);
// The value as it stands in a rank's buffer.
[[nodiscard]] float rounded(Type type, float value);

}  // namespace slimwire::bench
