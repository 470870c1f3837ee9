// Codec bf16: a cast of every element. See cast.h.
#include "codecs/cast.h"

namespace slimwire {
namespace {

constexpr const char* kName = "bf16";

}  // namespace

extern const CodecDescriptor codec_bf16;
constinit const CodecDescriptor codec_bf16 =
    Cast<DType::kBfloat16, &CastTable::bfloat16, &kName>::descriptor(
        "bf16:rounding=nearest|stochastic (default nearest)");

}  // namespace slimwire
