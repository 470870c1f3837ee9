// The data of `slimwire bench collective`: normal deviates by position, so that every rank knows
// everybody's without being sent them, and the element types they are stored in: ncclFloat32,
// ncclFloat16, ncclBfloat16.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace slimwire::bench {

[[nodiscard]] uint64_t mix(uint64_t x);
// Element `index` of rank `rank`'s input, before it is rounded to a type.
[[nodiscard]] float gaussian(uint64_t seed, int rank, size_t index);
[[nodiscard]] size_t element_bytes(ncclDataType_t type);
void store(ncclDataType_t type, void* buffer, size_t index, float value);
[[nodiscard]] float load(ncclDataType_t type, const void* buffer, size_t index);
// The value as it stands in a rank's buffer.
[[nodiscard]] float rounded(ncclDataType_t type, float value);

}  // namespace slimwire::bench
