// Codec fp8e4m3: blocks of 8-bit floats with 3 bits of fraction, largest 448. See block_float.h.
#include "codecs/block_float.h"

namespace slimwire {
namespace {

constexpr const char* kName = "fp8e4m3";

}  // namespace

extern const CodecDescriptor codec_fp8e4m3;
constinit const CodecDescriptor codec_fp8e4m3 =
    BlockFloat<Fp8e4m3, 64, &BlockFloatTable::fp8e4m3, &kName>::descriptor(
        "fp8e4m3" SLIMWIRE_FP8_GRAMMAR);

}  // namespace slimwire
