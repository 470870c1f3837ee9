// Codec fp8e5m2: blocks of 8-bit floats with 2 bits of fraction, largest 57344. See block_float.h.
#include "codecs/block_float.h"

namespace slimwire {
namespace {

constexpr const char* kName = "fp8e5m2";

}  // namespace

extern const CodecDescriptor codec_fp8e5m2;
constinit const CodecDescriptor codec_fp8e5m2 =
    BlockFloat<Fp8e5m2, 64, &BlockFloatTable::fp8e5m2, &kName>::descriptor(
        "fp8e5m2" SLIMWIRE_FP8_GRAMMAR);

}  // namespace slimwire
