// Codec fp8e4m3: blocks of 8-bit floats with 3 bits of fraction, largest 448. See fp8.h.
#include "codecs/fp8.h"

namespace slimwire {
namespace {

constexpr const char* kName = "fp8e4m3";

}  // namespace

extern const CodecDescriptor codec_fp8e4m3;
constinit const CodecDescriptor codec_fp8e4m3 =
    BlockFloat<DType::kFloat8e4m3, &Fp8Table::e4m3, &kName>::descriptor(
        "fp8e4m3:block=16..2048 (power of two, default 64),scale=bf16|fp32 (default bf16),"
        "rounding=nearest|stochastic (default nearest)");

}  // namespace slimwire
