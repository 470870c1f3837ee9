// Codec qsgd: a number of levels up to a block's norm, as QSGD draws them. See coarse.h.
#include <array>

#include "codecs/coarse.h"

namespace slimwire {
namespace {

struct Qsgd {
    static constexpr const char* kName = "qsgd";
    static constexpr CodecParams kDefaults = {
        .block = 128,
        .bits = 8,
        .scale_type = static_cast<uint8_t>(CoarseScale::kNorm),
        .rounding = static_cast<uint8_t>(Rounding::kStochastic),
        .levels = 127};
    static constexpr std::array<const SpecKey*, 4> kKeys = {&spec_key_levels, &spec_key_block,
                                                            &spec_key_scale_of_levels,
                                                            &spec_key_rounding_stochastic};
};

}  // namespace

extern const CodecDescriptor codec_qsgd;
constinit const CodecDescriptor codec_qsgd = Coarse<CoarseRule::kLevels, Qsgd>::descriptor(
    "qsgd:levels=1..127 (default 127; codes of 2, 4, 6 or 8 bits),block=16..2048 (power of two, "
    "default 128),scale=l2|max (default l2),rounding=nearest|stochastic (default stochastic)");

}  // namespace slimwire
