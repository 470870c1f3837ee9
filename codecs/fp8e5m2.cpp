// Codec fp8e5m2: blocks of 8-bit floats with 2 bits of fraction, largest 57344. See fp8.h.
#include "codecs/fp8.h"

namespace slimwire {
namespace {

constexpr const char* kName = "fp8e5m2";

}  // namespace

extern const CodecDescriptor codec_fp8e5m2;
constinit const CodecDescriptor codec_fp8e5m2 =
    BlockFloat<DType::kFloat8e5m2, &Fp8Table::e5m2, &kName>::descriptor(
        "fp8e5m2:block=16..2048 (power of two, default 64),scale=bf16|fp32 (default bf16),"
        "rounding=nearest|stochastic (default nearest)");

}  // namespace slimwire
