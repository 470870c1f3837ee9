// fp32 lanes to the codes of quantizers and back. One struct for each QuantizerRule, with
//   put(p, inverse, largest, drawn, to)   sixteen codes; `drawn` as load_drawn has it, or
//                                         kQuantizerHalf for rounding to the nearest
//   Decoder(scale)(from)                  sixteen values
// Rules: codecs/FORMAT.md, "Quantizers". Included by quantizers.cpp inside its anonymous
// namespace, after the lanes.

template <class Kind, QuantizerRule = Kind::kRule>
struct QuantizerCodes;

// |p| in steps, at most `largest` of them.
SLIMWIRE_LANES Floats magnitude_in_steps(Floats p, Floats inverse, Words largest) {
    const Words magnitude = bit_and(as_words(p), broadcast_bits(kMagnitudeMask));
    return as_floats(minimum(as_words(multiply(as_floats(magnitude), inverse)), largest));
}
// floor(y + drawn / 2^kQuantizerFraction).
SLIMWIRE_LANES Words round_up_or_down(Floats y, Words drawn) {
    const Words fixed =
        truncate(multiply(y, broadcast(static_cast<float>(1 << kQuantizerFraction))));
    return shift_right<kQuantizerFraction>(add(fixed, drawn));
}

template <class Kind>
struct QuantizerCodes<Kind, QuantizerRule::kSign> {
    SLIMWIRE_LANES void put(Floats p, Floats, Words, Words, uint8_t* to) {
        const auto signs = static_cast<uint16_t>(sign_bits(p));
        __builtin_memcpy(to, &signs, 2);
    }
    struct Decoder {
        Floats scale;

        [[gnu::always_inline]] explicit Decoder(float s) : scale(broadcast(s)) {}
        [[gnu::always_inline]] Floats operator()(const uint8_t* from) const {
            uint16_t signs;
            __builtin_memcpy(&signs, from, 2);
            return flip_signs(scale, signs);
        }
    };
};

template <class Kind>
struct QuantizerCodes<Kind, QuantizerRule::kLevels> {
    SLIMWIRE_LANES void put(Floats p, Floats inverse, Words largest, Words drawn, uint8_t* to) {
        const Words steps = round_up_or_down(magnitude_in_steps(p, inverse, largest), drawn);
        const Words negative = shift_right_signed<31>(as_words(p));
        pack<Kind::kBits>(subtract(bit_xor(steps, negative), negative), to);
    }
    using Decoder = Dequantiser<Kind::kBits>;
};

// A code is a sign above a magnitude. Those of 8 bits are the exponent of |p| / scale as fp32 has
// it: the rounded fraction carries into it, and subnormals are what lies between 0 and the smallest
// power.
template <class Kind>
struct QuantizerCodes<Kind, QuantizerRule::kPowers> {
    static constexpr uint32_t kSign = 1u << (Kind::kBits - 1);
    static constexpr uint32_t kBelow = 127 - Kind::kTop;  // exponent field of code 0

    SLIMWIRE_LANES void put(Floats p, Floats inverse, Words largest, Words drawn, uint8_t* to) {
        const Floats y = magnitude_in_steps(p, inverse, largest);
        Words code =
            subtract(shift_right<23>(add(as_words(y), shift_left<23 - kQuantizerFraction>(drawn))),
                     broadcast_bits(kBelow));
        if constexpr (kBelow != 0) {
            constexpr float kPerSmallest = static_cast<float>(1 << (Kind::kTop - 1));
            const Words between = round_up_or_down(multiply(y, broadcast(kPerSmallest)), drawn);
            code = select_at_least(as_words(y), (kBelow + 1) << 23, code, between);
        }
        const Words sign =
            bit_and(shift_right<32 - Kind::kBits>(as_words(p)), broadcast_bits(kSign));
        pack<Kind::kBits>(bit_or(code, sign), to);
    }
    struct Decoder {
        Floats scale;

        [[gnu::always_inline]] explicit Decoder(float s) : scale(broadcast(s)) {}
        [[gnu::always_inline]] Floats operator()(const uint8_t* from) const {
            const Words code = unpack<Kind::kBits>(from);
            const Words magnitude = bit_and(code, broadcast_bits(kSign - 1));
            Words power = shift_left<23>(add(magnitude, broadcast_bits(kBelow)));
            if constexpr (kBelow != 0) {
                power = select_at_least(magnitude, 1, power, broadcast_bits(0));
            }
            const Words sign = shift_left<32 - Kind::kBits>(bit_and(code, broadcast_bits(kSign)));
            return multiply(as_floats(bit_or(power, sign)), scale);
        }
    };
};
