// Codec int4: blocks of 4-bit integers, largest code 7. See block_int.h.
#include "codecs/block_int.h"

namespace slimwire {
namespace {

constexpr const char* kName = "int4";

}  // namespace

extern const CodecDescriptor codec_int4;
constinit const CodecDescriptor codec_int4 =
    BlockInt<4, 64, &BlockIntTable::int4, &kName>::descriptor(
        "int4:block=16..2048 (power of two, default 64),scale=bf16|fp32 (default bf16),"
        "rounding=nearest");

}  // namespace slimwire
