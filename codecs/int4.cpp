// Codec int4: blocks of 4-bit integers, largest code 7. See block_int.h.
#include "codecs/block_int.h"

namespace slimwire {
namespace {

constexpr const char* kName = "int4";

}  // namespace

extern const CodecDescriptor codec_int4;
constinit const CodecDescriptor codec_int4 =
    BlockInt<4, 64, &BlockIntTable::int4, &kName>::descriptor(
        "int4" SLIMWIRE_BLOCK_INT_GRAMMAR("64"));

}  // namespace slimwire
