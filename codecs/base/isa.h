// Which instruction set the host bodies of the codecs use. Chosen once, at first use, from what the
// processor offers; every choice gives the same bytes (asserted by tests/codecs).
// Callers: whoever reads SLIMWIRE_CODEC_ISA, tests, benchmarks. Thread contract: any thread;
// forcing while operations run is safe, each operation takes the choice at its start.
#pragma once

#include <cstdint>
#include <string_view>

#include "codecs/base/status.h"

namespace slimwire {

enum class Isa : uint8_t {
    kScalar = 0,  // plain C++ for the baseline of the target
    kAvx2 = 1,    // AVX2 + FMA + F16C
    kAvx512 = 2,  // AVX-512 F, BW, DQ, VL, VBMI, VBMI2, VPOPCNTDQ, BITALG + BMI2, GFNI
};
inline constexpr int kIsaCount = 3;

// "scalar", "avx2", "avx512".
[[nodiscard]] const char* isa_name(Isa isa) noexcept;

// True when this build has the path and this processor can run it.
[[nodiscard]] bool isa_supported(Isa isa) noexcept;

// The path in use; makes the choice when none was made yet.
[[nodiscard]] Isa active_isa() noexcept;

// Uses `isa` from now on. kUnsupported, and no change, when isa_supported() says no.
Status force_isa(Isa isa);

// The same by name; kInvalidArgument lists the accepted names.
Status force_isa(std::string_view name);

}  // namespace slimwire
