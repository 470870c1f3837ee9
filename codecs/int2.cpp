// Codec int2: blocks of 2-bit integers, largest code 1. See block_int.h.
#include "codecs/block_int.h"

namespace slimwire {
namespace {

constexpr const char* kName = "int2";

}  // namespace

extern const CodecDescriptor codec_int2;
constinit const CodecDescriptor codec_int2 =
    BlockInt<2, 32, &BlockIntTable::int2, &kName>::descriptor(
        "int2" SLIMWIRE_BLOCK_INT_GRAMMAR("32"));

}  // namespace slimwire
