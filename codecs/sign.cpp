// Codec sign: one bit an element, its sign, and a block's mean magnitude. See coarse.h.
#include <array>

#include "codecs/coarse.h"

namespace slimwire {
namespace {

struct Sign {
    static constexpr const char* kName = "sign";
    static constexpr CodecParams kDefaults = {
        .block = 1024, .bits = 1, .scale_type = static_cast<uint8_t>(CoarseScale::kMean)};
    static constexpr std::array<const SpecKey*, 2> kKeys = {&spec_key_block_of_bits,
                                                            &spec_key_scale_of_signs};
};

}  // namespace

extern const CodecDescriptor codec_sign;
constinit const CodecDescriptor codec_sign = Coarse<CoarseRule::kSign, Sign>::descriptor(
    "sign:block=32..2048 (power of two, default 1024),scale=mean|l2 (default mean)");

}  // namespace slimwire
