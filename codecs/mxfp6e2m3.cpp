// Codec mxfp6e2m3: blocks of 32 OCP floats of 6 bits, 3 of fraction, under a power of two. See
// block_float.h.
#include "codecs/block_float.h"

namespace slimwire {
namespace {

constexpr const char* kName = "mxfp6e2m3";

}  // namespace

extern const CodecDescriptor codec_mxfp6e2m3;
constinit const CodecDescriptor codec_mxfp6e2m3 =
    BlockFloat<MxFp6e2m3, 32, &BlockFloatTable::mxfp6e2m3, &kName>::descriptor(
        "mxfp6e2m3" SLIMWIRE_MX_GRAMMAR);

}  // namespace slimwire
