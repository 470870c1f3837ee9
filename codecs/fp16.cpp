// Codec fp16: a cast of every element. See cast.h.
#include "codecs/cast.h"

namespace slimwire {
namespace {

constexpr const char* kName = "fp16";

}  // namespace

extern const CodecDescriptor codec_fp16;
constinit const CodecDescriptor codec_fp16 =
    Cast<DType::kFloat16, &CastTable::float16, &kName>::descriptor(
        "fp16:rounding=nearest|stochastic (default nearest)");

}  // namespace slimwire
