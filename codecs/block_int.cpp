// What the block integers have in common outside their operations. See block_int.h.
#include "codecs/block_int.h"

namespace slimwire {
namespace {

bool set_rotate(std::string_view value, CodecParams* params) {
    uint32_t rotate = 0;
    if (value != "0" && !read_power_of_two(value, 32, 512, &rotate)) {
        return false;
    }
    params->rotate = static_cast<uint16_t>(rotate);
    return true;
}

}  // namespace

constinit const SpecKey spec_key_rotate = {
    "rotate", "0 or a power of two from 32 to 512", set_rotate,
    [](const CodecParams& params) { return std::to_string(params.rotate); }};

double block_int_error_bound(const CodecParams& params, DType) {
    const BlockIntShape shape = block_int_shape(params);
    const double bound = (shape.stochastic ? 1.0 : 0.5) / largest_code(params.bits) *
                         (shape.scale_bytes == 4 ? 1.0 : 1.0 + 0x1p-7) * (1.0 + 0x1p-16);
    return shape.rotate != 0 ? shape.rotate * (bound + 20 * 0x1p-24) : bound;
}

double block_int_smallest_error(const CodecParams& params) {
    const double step = std::max<double>(params.rotate, 1) * 0x1p-126;
    return params.rounding == static_cast<uint8_t>(Rounding::kStochastic) ? step : step / 2;
}

}  // namespace slimwire
