// Codec int8: blocks of 8-bit integers, largest code 127. See block_int.h.
#include "codecs/block_int.h"

namespace slimwire {
namespace {

constexpr const char* kName = "int8";

}  // namespace

extern const CodecDescriptor codec_int8;
constinit const CodecDescriptor codec_int8 =
    BlockInt<8, 64, &BlockIntTable::int8, &kName>::descriptor(
        "int8" SLIMWIRE_BLOCK_INT_GRAMMAR("64"));

}  // namespace slimwire
