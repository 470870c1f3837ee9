// Codec mxfp4: blocks of 32 OCP floats of 4 bits, 1 of fraction, under a power of two. See
// block_float.h.
#include "codecs/block_float.h"

namespace slimwire {
namespace {

constexpr const char* kName = "mxfp4";

}  // namespace

extern const CodecDescriptor codec_mxfp4;
constinit const CodecDescriptor codec_mxfp4 =
    BlockFloat<MxFp4, 32, &BlockFloatTable::mxfp4, &kName>::descriptor("mxfp4" SLIMWIRE_MX_GRAMMAR);

}  // namespace slimwire
