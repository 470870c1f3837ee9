// Codec int2: blocks of 2-bit codes -1, 0, 1 (ternary). See block_int.h.
#include "codecs/block_int.h"

namespace slimwire {
namespace {

constexpr const char* kName = "int2";

}  // namespace

extern const CodecDescriptor codec_int2;
constinit const CodecDescriptor codec_int2 =
    BlockInt<2, 32, &BlockIntTable::int2, &kName>::descriptor(
        "int2:block=16..2048 (power of two, default 32),scale=bf16|fp32 (default bf16),"
        "rounding=nearest");

}  // namespace slimwire
