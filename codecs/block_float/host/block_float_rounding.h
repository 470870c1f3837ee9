// fp32 lanes to codes of a small float. Rules: codecs/FORMAT.md, "Block floats" and "Stochastic
// rounding to a float". Included by block_float.cpp inside its anonymous namespace, after the
// lanes.

template <class Format>
struct SmallFloat {
    static constexpr int kFractionBits = Format::kFractionBits;
    // fp32 bits from this one on are the exponent and fraction of the code.
    static constexpr int kDropped = 23 - kFractionBits;
    static constexpr uint32_t kSign = 1u << (Format::kBits - 1);
    static constexpr uint32_t kCodeOffset = 0u - (Format::kMinNormalBits >> kDropped);

    // Magnitudes up to the largest value, and their exponent fields, at least the smallest
    // normal's.
    struct Parts {
        Words magnitude, exponent;
    };
    SLIMWIRE_LANES Parts parts_of(Words bits) {
        const Words magnitude = minimum(bit_and(bits, broadcast_bits(kMagnitudeMask)),
                                        broadcast_bits(Format::kMaxBits));
        return {magnitude, maximum(bit_and(magnitude, broadcast_bits(kInfinityBits)),
                                   broadcast_bits(Format::kMinNormalBits))};
    }
    // The code of `steps` (in its low bits) above 0 in the range of this exponent, with the sign.
    SLIMWIRE_LANES Words code_of(Words steps, Words exponent, Words bits) {
        const Words code = add(steps, shift_right<kDropped>(exponent));
        return bit_or(bit_and(code, broadcast_bits(kSign - 1)),
                      bit_and(shift_right<32 - Format::kBits>(bits), broadcast_bits(kSign)));
    }

    // Nearest even: the sum with a power of two whose unit is the step has the steps as its low
    // bits. The offset stands there already; it is even, so that ties stay where they were.
    SLIMWIRE_LANES Words nearest(Floats y) {
        static_assert(kCodeOffset % 2 == 0);
        const Words bits = as_words(y);
        const Parts parts = parts_of(bits);
        const Words magic =
            add(parts.exponent, broadcast_bits((kDropped << 23) | (kCodeOffset & (kSign - 1))));
        const Floats sum = add(as_floats(parts.magnitude), as_floats(magic));
        return code_of(as_words(sum), parts.exponent, bits);
    }

    // Stochastic: 512 times the steps, without their fraction, plus `drawn`.
    SLIMWIRE_LANES Words stochastic(Floats y, Words drawn) {
        const Words bits = as_words(y);
        const Parts parts = parts_of(bits);
        // 2^(9 + kFractionBits - e) from the field of e.
        const Words power =
            subtract(broadcast_bits((254u + 9 + kFractionBits) << 23), parts.exponent);
        const Words fixed = truncate(multiply(as_floats(parts.magnitude), as_floats(power)));
        const Words steps = add(shift_right<9>(add(fixed, drawn)), broadcast_bits(kCodeOffset));
        return code_of(steps, parts.exponent, bits);
    }
};
