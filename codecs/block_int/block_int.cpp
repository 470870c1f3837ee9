// What the block integers have in common outside their operations. See block_int.h.
#include "codecs/block_int/block_int.h"

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

bool set_row(std::string_view value, CodecParams* params) {
    uint32_t row = 0;
    if (!read_number(value, 0, INT32_MAX, &row) || row == 1) {
        return false;
    }
    params->row = row;
    return true;
}

}  // namespace

constinit const SpecKey spec_key_row_of_columns = {
    "row", "0 (blocks along rows) or a whole number from 2 to 2147483647", set_row,
    [](const CodecParams& params) { return std::to_string(params.row); }};

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

// Blocks of 8-bit integers, largest code 127.
extern const CodecDescriptor codec_int8;
constinit const CodecDescriptor codec_int8 =
    BlockInt<8, 64, &BlockIntTable::int8>::descriptor("int8" SLIMWIRE_BLOCK_INT_GRAMMAR("64"));

// Blocks of 4-bit integers, largest code 7.
extern const CodecDescriptor codec_int4;
constinit const CodecDescriptor codec_int4 =
    BlockInt<4, 64, &BlockIntTable::int4>::descriptor("int4" SLIMWIRE_BLOCK_INT_GRAMMAR("64"));

// Blocks of 2-bit integers, largest code 1.
extern const CodecDescriptor codec_int2;
constinit const CodecDescriptor codec_int2 =
    BlockInt<2, 32, &BlockIntTable::int2>::descriptor("int2" SLIMWIRE_BLOCK_INT_GRAMMAR("32"));

}  // namespace slimwire
