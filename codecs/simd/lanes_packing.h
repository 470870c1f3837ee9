// Packing of 64 codes by the functions for fewer, where no instruction does more. Included by
// lanes.h after the scalar or AVX2 lanes.

// pack_pairs() for codes in the high bytes of 16-bit halves.
template <int kBits>
SLIMWIRE_LANES void pack_sums(const Words (&sums)[2], uint8_t* to) {
    const Words even[2] = {shift_right<8>(sums[0]), shift_right<8>(sums[1])};
    const Words odd[2] = {shift_right<24>(sums[0]), shift_right<24>(sums[1])};
    pack_pairs<kBits>(even, odd, to);
}

// pack() for 64 codes in their order.
template <int kBits>
SLIMWIRE_LANES void pack_64(const Words (&codes)[4], uint8_t* to) {
    for (int i = 0; i < 4; ++i) {
        pack<kBits>(codes[i], to + 2 * kBits * i);
    }
}
