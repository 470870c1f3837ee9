// The few names of the toolkit's cuda_fp16.h that our kernels use, for kernels compiled by the host
// compiler (tests/support/cuda_on_host.h).
#pragma once

#include "codecs/float16.h"

struct __half {
    unsigned short bits;
};
inline __half __ushort_as_half(unsigned short bits) {
    return {bits};
}
inline unsigned short __half_as_ushort(__half half) {
    return half.bits;
}
inline float __half2float(__half half) {
    return slimwire::float16_to_float(half.bits);
}
// The device's NaN has other bits than ours; the kernels must not let it through.
inline __half __float2half_rn(float x) {
    return {x == x ? slimwire::float_to_float16(x) : static_cast<unsigned short>(0x7FFF)};
}
