// Codec mxfp6e3m2: blocks of 32 OCP floats of 6 bits, 2 of fraction, under a power of two. See
// block_float.h.
#include "codecs/block_float.h"

namespace slimwire {
namespace {

constexpr const char* kName = "mxfp6e3m2";

}  // namespace

extern const CodecDescriptor codec_mxfp6e3m2;
constinit const CodecDescriptor codec_mxfp6e3m2 =
    BlockFloat<MxFp6e3m2, 32, &BlockFloatTable::mxfp6e3m2, &kName>::descriptor(
        "mxfp6e3m2" SLIMWIRE_MX_GRAMMAR);

}  // namespace slimwire
