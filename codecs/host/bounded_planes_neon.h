// What bounded_planes.h needs, on AArch64 Advanced SIMD. Included there.

struct Layer {
    uint8x16_t lo, hi;
};

template <int kBy>
SLIMWIRE_LANES uint64x2_t swap_bits(uint64x2_t x, uint64_t mask) {
    const uint64x2_t t = vandq_u64(veorq_u64(x, vshrq_n_u64(x, kBy)), vdupq_n_u64(mask));
    return veorq_u64(x, veorq_u64(t, vshlq_n_u64(t, kBy)));
}
// Bit i of byte k becomes bit k of byte i (Warren, Hacker's Delight, 7-3).
SLIMWIRE_LANES uint8x16_t transposed(uint8x16_t bytes) {
    uint64x2_t x = vreinterpretq_u64_u8(bytes);
    x = swap_bits<7>(x, 0x00AA00AA00AA00AAu);
    x = swap_bits<14>(x, 0x0000CCCC0000CCCCu);
    return vreinterpretq_u8_u64(swap_bits<28>(x, 0x00000000F0F0F0F0u));
}
// Word i of eight has byte i of four.
SLIMWIRE_LANES Layer bytes_to_planes(Layer bytes) {
    const uint8x16_t first = {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27};
    const uint8x16x2_t matrices = {{transposed(bytes.lo), transposed(bytes.hi)}};
    return {vqtbl2q_u8(matrices, first), vqtbl2q_u8(matrices, vaddq_u8(first, vdupq_n_u8(4)))};
}
SLIMWIRE_LANES Layer planes_to_bytes(Layer planes) {
    const uint8x16_t first = {0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29};
    const uint8x16x2_t words = {{planes.lo, planes.hi}};
    return {transposed(vqtbl2q_u8(words, first)),
            transposed(vqtbl2q_u8(words, vaddq_u8(first, vdupq_n_u8(2))))};
}
// `count` words, below four.
SLIMWIRE_LANES void store_some_planes(uint8_t* to, uint8x16_t planes, uint32_t count) {
    if ((count & 2) != 0) {
        vst1_u8(to, vget_low_u8(planes));
        to += 8;
        planes = vextq_u8(planes, planes, 8);
    }
    if ((count & 1) != 0) {
        store_4(to, vget_low_u8(planes));
    }
}
SLIMWIRE_LANES void store_planes(uint8_t* to, Layer planes, uint32_t count) {
    if (count < 4) {
        store_some_planes(to, planes.lo, count);
        return;
    }
    store_16(to, planes.lo);
    if (count == 8) {
        store_16(to + 16, planes.hi);
    } else {
        store_some_planes(to + 16, planes.hi, count & 3);
    }
}
SLIMWIRE_LANES uint8x16_t load_some_planes(const uint8_t* from, uint32_t count) {
    uint64_t low = 0;
    uint32_t last = 0;
    if ((count & 1) != 0) {
        __builtin_memcpy(&last, from + 4 * (count & 2), 4);
    }
    if ((count & 2) == 0) {
        return vcombine_u8(vcreate_u8(last), vcreate_u8(0));
    }
    __builtin_memcpy(&low, from, 8);
    return vcombine_u8(vcreate_u8(low), vcreate_u8(last));
}
SLIMWIRE_LANES Layer load_planes(const uint8_t* from, uint32_t count) {
    if (count < 4) {
        return {load_some_planes(from, count), vdupq_n_u8(0)};
    }
    if (count == 8) {
        return {load_16(from), load_16(from + 16)};
    }
    return {load_16(from), load_some_planes(from + 16, count & 3)};
}
template <int kLayer>
SLIMWIRE_LANES uint8x16_t byte_of_lanes(Words x) {
    if constexpr (kLayer == 0) {
        return low_bytes(x);
    } else if constexpr (kLayer == 1) {
        return vuzp2q_u8(vreinterpretq_u8_u16(low_halves(x.q0, x.q1)),
                         vreinterpretq_u8_u16(low_halves(x.q2, x.q3)));
    } else {
        static_assert(kLayer == 2);
        return vuzp1q_u8(vreinterpretq_u8_u16(high_halves(x.q0, x.q1)),
                         vreinterpretq_u8_u16(high_halves(x.q2, x.q3)));
    }
}
template <int kLayer>
SLIMWIRE_LANES Layer bytes_of_layer(Words a, Words b) {
    return {byte_of_lanes<kLayer>(a), byte_of_lanes<kLayer>(b)};
}
SLIMWIRE_LANES void words_of_bytes(Layer layer, Words& a, Words& b) {
    a = words_of_16(layer.lo);
    b = words_of_16(layer.hi);
}

SLIMWIRE_LANES void store_sixteen_halves(uint8_t* to, Words x) {
    store_16(to, vreinterpretq_u8_u16(high_halves(x.q0, x.q1)));
    store_16(to + 16, vreinterpretq_u8_u16(high_halves(x.q2, x.q3)));
}
SLIMWIRE_LANES void store_high_halves(uint8_t* to, Floats x, Floats y) {
    store_sixteen_halves(to, as_words(x));
    store_sixteen_halves(to + 32, as_words(y));
}
