// Codec natural: sign and exponent, as natural compression and natural dithering draw them. See
// coarse.h.
#include <array>

#include "codecs/coarse.h"

namespace slimwire {
namespace {

struct Natural {
    static constexpr const char* kName = "natural";
    static constexpr CodecParams kDefaults = {
        .block = 256,
        .bits = 8,
        .scale_type = static_cast<uint8_t>(CoarseScale::kMax),
        .rounding = static_cast<uint8_t>(Rounding::kStochastic)};
    static constexpr std::array<const SpecKey*, 3> kKeys = {
        &spec_key_bits_of_powers, &spec_key_block, &spec_key_rounding_stochastic};
};

}  // namespace

extern const CodecDescriptor codec_natural;
constinit const CodecDescriptor codec_natural = Coarse<CoarseRule::kPowers, Natural>::descriptor(
    "natural:bits=8|4 (default 8),block=16..2048 (power of two, default 256),"
    "rounding=nearest|stochastic (default stochastic)");

}  // namespace slimwire
