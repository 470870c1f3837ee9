// Codec int6: blocks of 6-bit integers, largest code 31. See block_int.h.
#include "codecs/block_int.h"

namespace slimwire {
namespace {

constexpr const char* kName = "int6";

}  // namespace

extern const CodecDescriptor codec_int6;
constinit const CodecDescriptor codec_int6 =
    BlockInt<6, 64, &BlockIntTable::int6, &kName>::descriptor(
        "int6" SLIMWIRE_BLOCK_INT_GRAMMAR("64"));

}  // namespace slimwire
