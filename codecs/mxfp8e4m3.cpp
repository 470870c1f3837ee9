// Codec mxfp8e4m3: blocks of 32 OCP floats of 8 bits, 3 of fraction, under a power of two. See
// block_float.h.
#include "codecs/block_float.h"

namespace slimwire {
namespace {

constexpr const char* kName = "mxfp8e4m3";

}  // namespace

extern const CodecDescriptor codec_mxfp8e4m3;
constinit const CodecDescriptor codec_mxfp8e4m3 =
    BlockFloat<MxFp8e4m3, 32, &BlockFloatTable::mxfp8e4m3, &kName>::descriptor(
        "mxfp8e4m3" SLIMWIRE_MX_GRAMMAR);

}  // namespace slimwire
