// Codec mxfp8e5m2: blocks of 32 OCP floats of 8 bits, 2 of fraction, under a power of two. See
// block_float.h.
#include "codecs/block_float.h"

namespace slimwire {
namespace {

constexpr const char* kName = "mxfp8e5m2";

}  // namespace

extern const CodecDescriptor codec_mxfp8e5m2;
constinit const CodecDescriptor codec_mxfp8e5m2 =
    BlockFloat<MxFp8e5m2, 32, &BlockFloatTable::mxfp8e5m2, &kName>::descriptor(
        "mxfp8e5m2" SLIMWIRE_MX_GRAMMAR);

}  // namespace slimwire
