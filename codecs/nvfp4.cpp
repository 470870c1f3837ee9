// Codec nvfp4: blocks of 16 floats of 4 bits under an e4m3 scale, in groups of 512 under an fp32.
// See block_float.h.
#include "codecs/block_float.h"

namespace slimwire {
namespace {

constexpr const char* kName = "nvfp4";

}  // namespace

extern const CodecDescriptor codec_nvfp4;
constinit const CodecDescriptor codec_nvfp4 =
    BlockFloat<NvFp4, 16, &BlockFloatTable::nvfp4, &kName>::descriptor(
        "nvfp4:scale=nearest|ceil (default nearest, as NVIDIA's conversion does),"
        "rounding=nearest|stochastic (default nearest; stochastic needs scale=ceil)");

}  // namespace slimwire
