// The descriptors of the casts. See cast.h.
#include "codecs/cast/cast.h"

namespace slimwire {

// A cast of every element.
extern const CodecDescriptor codec_bf16;
constinit const CodecDescriptor codec_bf16 =
    Cast<DType::kBfloat16, &CastTable::bfloat16>::descriptor(
        "bf16:rounding=nearest|stochastic (default nearest)");

// A cast of every element.
extern const CodecDescriptor codec_fp16;
constinit const CodecDescriptor codec_fp16 = Cast<DType::kFloat16, &CastTable::float16>::descriptor(
    "fp16:rounding=nearest|stochastic (default nearest),saturate=false|true (default false)");

}  // namespace slimwire
