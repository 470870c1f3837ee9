// Sixteen fp32 lanes on AArch64 Advanced SIMD, as four registers. The same functions as
// lanes_scalar.h, which says what each one means. Conversions round as the FloatEnvironment says:
// to nearest even, denormals kept.

#define SLIMWIRE_LANES [[gnu::always_inline]] static inline

// Eight times four are all registers there are.
constexpr bool kManyRegisters = false;

struct Floats {
    float32x4_t q0, q1, q2, q3;
};
struct Words {
    uint32x4_t q0, q1, q2, q3;
};

SLIMWIRE_LANES Floats all_quarters(float32x4_t x) {
    return {x, x, x, x};
}
SLIMWIRE_LANES Words all_quarters(uint32x4_t x) {
    return {x, x, x, x};
}
SLIMWIRE_LANES Floats broadcast(float x) {
    return all_quarters(vdupq_n_f32(x));
}
SLIMWIRE_LANES Words broadcast_bits(uint32_t x) {
    return all_quarters(vdupq_n_u32(x));
}
SLIMWIRE_LANES Floats as_floats(Words x) {
    return {vreinterpretq_f32_u32(x.q0), vreinterpretq_f32_u32(x.q1), vreinterpretq_f32_u32(x.q2),
            vreinterpretq_f32_u32(x.q3)};
}
SLIMWIRE_LANES Words as_words(Floats x) {
    return {vreinterpretq_u32_f32(x.q0), vreinterpretq_u32_f32(x.q1), vreinterpretq_u32_f32(x.q2),
            vreinterpretq_u32_f32(x.q3)};
}

// Loads and stores of bytes, which need no alignment.
SLIMWIRE_LANES uint8x16_t load_16(const void* from) {
    return vld1q_u8(static_cast<const uint8_t*>(from));
}
SLIMWIRE_LANES void store_16(void* to, uint8x16_t x) {
    vst1q_u8(static_cast<uint8_t*>(to), x);
}
SLIMWIRE_LANES uint16x8_t load_eight_halves(const void* from) {
    return vreinterpretq_u16_u8(load_16(from));
}

SLIMWIRE_LANES Words load_words(const void* from) {
    const auto* p = static_cast<const uint8_t*>(from);
    return {vreinterpretq_u32_u8(load_16(p)), vreinterpretq_u32_u8(load_16(p + 16)),
            vreinterpretq_u32_u8(load_16(p + 32)), vreinterpretq_u32_u8(load_16(p + 48))};
}
SLIMWIRE_LANES Floats load_float32(const void* from) {
    return as_floats(load_words(from));
}
SLIMWIRE_LANES Floats load_bfloat16(const void* from) {
    const uint16x8_t low = load_eight_halves(from);
    const uint16x8_t high = load_eight_halves(static_cast<const uint8_t*>(from) + 16);
    return as_floats({vshll_n_u16(vget_low_u16(low), 16), vshll_high_n_u16(low, 16),
                      vshll_n_u16(vget_low_u16(high), 16), vshll_high_n_u16(high, 16)});
}
SLIMWIRE_LANES Floats floats_of_halves(uint16x8_t low, uint16x8_t high) {
    const float16x8_t first = vreinterpretq_f16_u16(low);
    const float16x8_t second = vreinterpretq_f16_u16(high);
    return {vcvt_f32_f16(vget_low_f16(first)), vcvt_high_f32_f16(first),
            vcvt_f32_f16(vget_low_f16(second)), vcvt_high_f32_f16(second)};
}
SLIMWIRE_LANES Floats load_float16(const void* from) {
    return floats_of_halves(load_eight_halves(from),
                            load_eight_halves(static_cast<const uint8_t*>(from) + 16));
}

SLIMWIRE_LANES void store_words(void* to, Words x) {
    auto* p = static_cast<uint8_t*>(to);
    store_16(p, vreinterpretq_u8_u32(x.q0));
    store_16(p + 16, vreinterpretq_u8_u32(x.q1));
    store_16(p + 32, vreinterpretq_u8_u32(x.q2));
    store_16(p + 48, vreinterpretq_u8_u32(x.q3));
}
SLIMWIRE_LANES void store_float32(void* to, Floats x) {
    store_words(to, as_words(x));
}

// 255 in every bit of a lane that is a number.
SLIMWIRE_LANES uint32x4_t is_number(float32x4_t x) {
    return vceqq_f32(x, x);
}
// The upper halves of lanes, and their lower ones.
SLIMWIRE_LANES uint16x8_t high_halves(uint32x4_t low, uint32x4_t high) {
    return vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
}
SLIMWIRE_LANES uint16x8_t low_halves(uint32x4_t low, uint32x4_t high) {
    return vuzp1q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
}
// A number rounded to bf16 in the upper half, above rubbish.
SLIMWIRE_LANES uint32x4_t round_number(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
}
SLIMWIRE_LANES uint32x4_t round_bfloat16(float32x4_t x) {
    return vbslq_u32(is_number(x), round_number(x), vdupq_n_u32(kNanFloat32));
}
SLIMWIRE_LANES void store_bfloat16(void* to, Floats x) {
    auto* p = static_cast<uint8_t*>(to);
    store_16(p, vreinterpretq_u8_u16(high_halves(round_bfloat16(x.q0), round_bfloat16(x.q1))));
    store_16(p + 16, vreinterpretq_u8_u16(high_halves(round_bfloat16(x.q2), round_bfloat16(x.q3))));
}
SLIMWIRE_LANES uint16x8_t round_float16(float32x4_t low, float32x4_t high) {
    const uint16x8_t half = vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(low), high));
    return vbslq_u16(low_halves(is_number(low), is_number(high)), half, vdupq_n_u16(kNanFloat16));
}
SLIMWIRE_LANES void store_float16(void* to, Floats x) {
    auto* p = static_cast<uint8_t*>(to);
    store_16(p, vreinterpretq_u8_u16(round_float16(x.q0, x.q1)));
    store_16(p + 16, vreinterpretq_u8_u16(round_float16(x.q2, x.q3)));
}

#define SLIMWIRE_QUARTERS(Type, name, instruction)                                         \
    SLIMWIRE_LANES Type name(Type a, Type b) {                                             \
        return {instruction(a.q0, b.q0), instruction(a.q1, b.q1), instruction(a.q2, b.q2), \
                instruction(a.q3, b.q3)};                                                  \
    }
SLIMWIRE_QUARTERS(Floats, add, vaddq_f32)
SLIMWIRE_QUARTERS(Floats, subtract, vsubq_f32)
SLIMWIRE_QUARTERS(Floats, multiply, vmulq_f32)
SLIMWIRE_QUARTERS(Floats, divide, vdivq_f32)
SLIMWIRE_QUARTERS(Words, add, vaddq_u32)
SLIMWIRE_QUARTERS(Words, subtract, vsubq_u32)
SLIMWIRE_QUARTERS(Words, bit_and, vandq_u32)
SLIMWIRE_QUARTERS(Words, bit_or, vorrq_u32)
SLIMWIRE_QUARTERS(Words, bit_xor, veorq_u32)
SLIMWIRE_QUARTERS(Words, minimum, vminq_u32)
SLIMWIRE_QUARTERS(Words, maximum, vmaxq_u32)
#undef SLIMWIRE_QUARTERS

SLIMWIRE_LANES Floats multiply_add(Floats a, Floats b, Floats c) {
    return {vfmaq_f32(c.q0, a.q0, b.q0), vfmaq_f32(c.q1, a.q1, b.q1), vfmaq_f32(c.q2, a.q2, b.q2),
            vfmaq_f32(c.q3, a.q3, b.q3)};
}
SLIMWIRE_LANES float32x4_t four_of_halves(Floats x) {
    return vaddq_f32(vaddq_f32(x.q0, x.q2), vaddq_f32(x.q1, x.q3));
}
SLIMWIRE_LANES float sum_of_halves(Floats x) {
    const float32x4_t four = four_of_halves(x);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
SLIMWIRE_LANES void four_sums_of_halves(const Floats* x, float* to) {
    const float32x4_t a = four_of_halves(x[0]);
    const float32x4_t b = four_of_halves(x[1]);
    const float32x4_t c = four_of_halves(x[2]);
    const float32x4_t d = four_of_halves(x[3]);
    const auto pairs = [](float32x4_t low, float32x4_t high) {
        const float64x2_t x_ = vreinterpretq_f64_f32(low);
        const float64x2_t y_ = vreinterpretq_f64_f32(high);
        return vaddq_f32(vreinterpretq_f32_f64(vuzp1q_f64(x_, y_)),
                         vreinterpretq_f32_f64(vuzp2q_f64(x_, y_)));
    };
    vst1q_f32(to, vpaddq_f32(pairs(a, b), pairs(c, d)));
}
SLIMWIRE_LANES float32x4_t canonical(float32x4_t x) {
    return vreinterpretq_f32_u32(
        vbslq_u32(is_number(x), vreinterpretq_u32_f32(x), vdupq_n_u32(kNanFloat32)));
}
SLIMWIRE_LANES Floats canonical(Floats x) {
    return {canonical(x.q0), canonical(x.q1), canonical(x.q2), canonical(x.q3)};
}

template <int kBy>
SLIMWIRE_LANES Words shift_left(Words x) {
    return {vshlq_n_u32(x.q0, kBy), vshlq_n_u32(x.q1, kBy), vshlq_n_u32(x.q2, kBy),
            vshlq_n_u32(x.q3, kBy)};
}
// Instructions shift right by one at least.
template <int kBy>
SLIMWIRE_LANES Words shift_right(Words x) {
    if constexpr (kBy == 0) {
        return x;
    } else {
        return {vshrq_n_u32(x.q0, kBy), vshrq_n_u32(x.q1, kBy), vshrq_n_u32(x.q2, kBy),
                vshrq_n_u32(x.q3, kBy)};
    }
}
template <int kBy>
SLIMWIRE_LANES uint32x4_t shift_right_signed(uint32x4_t x) {
    return vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(x), kBy));
}
template <int kBy>
SLIMWIRE_LANES Words shift_right_signed(Words x) {
    return {shift_right_signed<kBy>(x.q0), shift_right_signed<kBy>(x.q1),
            shift_right_signed<kBy>(x.q2), shift_right_signed<kBy>(x.q3)};
}
template <int kBy>
SLIMWIRE_LANES uint32x4_t rotate_left(uint32x4_t x) {
    if constexpr (kBy == 16) {
        return vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(x)));
    } else {
        return vsriq_n_u32(vshlq_n_u32(x, kBy), x, 32 - kBy);
    }
}
template <int kBy>
SLIMWIRE_LANES Words rotate_left(Words x) {
    return {rotate_left<kBy>(x.q0), rotate_left<kBy>(x.q1), rotate_left<kBy>(x.q2),
            rotate_left<kBy>(x.q3)};
}
SLIMWIRE_LANES Words truncate(Floats x) {
    return {vcvtq_u32_f32(x.q0), vcvtq_u32_f32(x.q1), vcvtq_u32_f32(x.q2), vcvtq_u32_f32(x.q3)};
}
SLIMWIRE_LANES Words lane_numbers() {
    const uint32x4_t first = {0, 1, 2, 3};
    return {first, vaddq_u32(first, vdupq_n_u32(4)), vaddq_u32(first, vdupq_n_u32(8)),
            vaddq_u32(first, vdupq_n_u32(12))};
}
SLIMWIRE_LANES Words words_of_halves(uint16x8_t low, uint16x8_t high) {
    return {vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)),
            vmovl_high_u16(high)};
}
SLIMWIRE_LANES Words words_of_16(uint8x16_t bytes) {
    return words_of_halves(vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
}
SLIMWIRE_LANES Words load_bytes(const uint8_t* from) {
    return words_of_16(load_16(from));
}
// The lowest bytes of lanes.
SLIMWIRE_LANES uint8x16_t low_bytes(Words x) {
    return vuzp1q_u8(vreinterpretq_u8_u16(low_halves(x.q0, x.q1)),
                     vreinterpretq_u8_u16(low_halves(x.q2, x.q3)));
}
SLIMWIRE_LANES void store_interleaved(uint8_t* to, Words a, Words b, Words c, Words d) {
    const auto four = [](uint8_t* at, uint32x4_t e, uint32x4_t f, uint32x4_t g, uint32x4_t h) {
        vst4q_u32(reinterpret_cast<uint32_t*>(at), {{e, f, g, h}});
    };
    four(to, a.q0, b.q0, c.q0, d.q0);
    four(to + 64, a.q1, b.q1, c.q1, d.q1);
    four(to + 128, a.q2, b.q2, c.q2, d.q2);
    four(to + 192, a.q3, b.q3, c.q3, d.q3);
}
SLIMWIRE_LANES uint32x4_t largest_quarter(Words x) {
    return vmaxq_u32(vmaxq_u32(x.q0, x.q1), vmaxq_u32(x.q2, x.q3));
}
SLIMWIRE_LANES uint32_t largest(Words x) {
    return vmaxvq_u32(largest_quarter(x));
}
SLIMWIRE_LANES Words select_at_least(Words x, uint32_t limit, Words yes, Words no) {
    const uint32x4_t l = vdupq_n_u32(limit);
    return {
        vbslq_u32(vcgeq_u32(x.q0, l), yes.q0, no.q0), vbslq_u32(vcgeq_u32(x.q1, l), yes.q1, no.q1),
        vbslq_u32(vcgeq_u32(x.q2, l), yes.q2, no.q2), vbslq_u32(vcgeq_u32(x.q3, l), yes.q3, no.q3)};
}

// The upper lanes are negated by the multiplication, which is exact.
template <int kStride>
SLIMWIRE_LANES float32x4_t butterfly_4(float32x4_t x) {
    if constexpr (kStride == 1) {
        const float32x4_t sign = {1, -1, 1, -1};
        return vfmaq_f32(vrev64q_f32(x), x, sign);
    } else {
        static_assert(kStride == 2);
        const float32x4_t sign = {1, 1, -1, -1};
        return vfmaq_f32(vextq_f32(x, x, 2), x, sign);
    }
}
template <int kStride>
SLIMWIRE_LANES Floats butterfly(Floats x) {
    if constexpr (kStride == 8) {
        return {vaddq_f32(x.q0, x.q2), vaddq_f32(x.q1, x.q3), vsubq_f32(x.q0, x.q2),
                vsubq_f32(x.q1, x.q3)};
    } else if constexpr (kStride == 4) {
        return {vaddq_f32(x.q0, x.q1), vsubq_f32(x.q0, x.q1), vaddq_f32(x.q2, x.q3),
                vsubq_f32(x.q2, x.q3)};
    } else {
        return {butterfly_4<kStride>(x.q0), butterfly_4<kStride>(x.q1), butterfly_4<kStride>(x.q2),
                butterfly_4<kStride>(x.q3)};
    }
}

// One bit for each lane of masks, which are all ones or all zeros.
SLIMWIRE_LANES uint32_t bits_of_masks(Words masks) {
    const uint32x4_t place = {1, 2, 4, 8};
    const uint32x4_t low =
        vorrq_u32(vandq_u32(masks.q0, place), vandq_u32(masks.q1, vshlq_n_u32(place, 4)));
    const uint32x4_t high = vorrq_u32(vandq_u32(masks.q2, vshlq_n_u32(place, 8)),
                                      vandq_u32(masks.q3, vshlq_n_u32(place, 12)));
    return vaddvq_u32(vorrq_u32(low, high));
}
SLIMWIRE_LANES uint32_t equal_lanes(Words x, uint32_t value) {
    const uint32x4_t v = vdupq_n_u32(value);
    return bits_of_masks(
        {vceqq_u32(x.q0, v), vceqq_u32(x.q1, v), vceqq_u32(x.q2, v), vceqq_u32(x.q3, v)});
}

SLIMWIRE_LANES uint32x4_t maximum_halves(uint32x4_t a, uint32x4_t b) {
    return vreinterpretq_u32_u16(vmaxq_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}
SLIMWIRE_LANES Words maximum_halves(Words a, Words b) {
    return {maximum_halves(a.q0, b.q0), maximum_halves(a.q1, b.q1), maximum_halves(a.q2, b.q2),
            maximum_halves(a.q3, b.q3)};
}
SLIMWIRE_LANES uint32x4_t add_halves(uint32x4_t a, uint32x4_t b) {
    return vreinterpretq_u32_u16(vaddq_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}
SLIMWIRE_LANES Words add_halves(Words a, Words b) {
    return {add_halves(a.q0, b.q0), add_halves(a.q1, b.q1), add_halves(a.q2, b.q2),
            add_halves(a.q3, b.q3)};
}
SLIMWIRE_LANES Words join_halves(Words low, Words high) {
    return {vsliq_n_u32(low.q0, high.q0, 16), vsliq_n_u32(low.q1, high.q1, 16),
            vsliq_n_u32(low.q2, high.q2, 16), vsliq_n_u32(low.q3, high.q3, 16)};
}
SLIMWIRE_LANES Words load_bytes_to_halves(const uint8_t* from) {
    const uint8x16_t low = load_16(from);
    const uint8x16_t high = load_16(from + 16);
    return {vreinterpretq_u32_u16(vmovl_u8(vget_low_u8(low))),
            vreinterpretq_u32_u16(vmovl_high_u8(low)),
            vreinterpretq_u32_u16(vmovl_u8(vget_low_u8(high))),
            vreinterpretq_u32_u16(vmovl_high_u8(high))};
}

// Lane i belongs to x[i].
SLIMWIRE_LANES uint32x4_t largest_of_four(const Words* x) {
    return vpmaxq_u32(vpmaxq_u32(largest_quarter(x[0]), largest_quarter(x[1])),
                      vpmaxq_u32(largest_quarter(x[2]), largest_quarter(x[3])));
}
SLIMWIRE_LANES Words largest_of_each(const Words (&x)[16]) {
    return {largest_of_four(x), largest_of_four(x + 4), largest_of_four(x + 8),
            largest_of_four(x + 12)};
}
SLIMWIRE_LANES Words largest_half_of_each(const Words (&x)[16]) {
    Words both[16];
    for (int i = 0; i < 16; ++i) {
        both[i] = maximum_halves(x[i], shift_left<16>(x[i]));
    }
    return largest_of_each(both);
}
