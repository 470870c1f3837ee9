// Codec ternary: minus, nothing or plus the largest magnitude of a block, as TernGrad draws them.
// See coarse.h.
#include <array>

#include "codecs/coarse.h"

namespace slimwire {
namespace {

struct Ternary {
    static constexpr const char* kName = "ternary";
    static constexpr CodecParams kDefaults = {
        .block = 128,
        .bits = 2,
        .scale_type = static_cast<uint8_t>(CoarseScale::kMax),
        .rounding = static_cast<uint8_t>(Rounding::kStochastic),
        .levels = 1};
    static constexpr std::array<const SpecKey*, 3> kKeys = {
        &spec_key_block, &spec_key_scale_of_ternary, &spec_key_rounding_stochastic};
};

}  // namespace

extern const CodecDescriptor codec_ternary;
constinit const CodecDescriptor codec_ternary = Coarse<CoarseRule::kLevels, Ternary>::descriptor(
    "ternary:block=16..2048 (power of two, default 128),scale=max|clip (default max; clip: at most "
    "2.5 standard deviations, which is a bias),rounding=nearest|stochastic (default stochastic)");

}  // namespace slimwire
