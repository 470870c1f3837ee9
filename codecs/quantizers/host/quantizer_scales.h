// Scales of quantizers, from the elements of a tile's blocks, whose maxima are known:
//   choose_quantizer_scales<Kind>(tile, blocks, count, shape)   tile.scale, as stored, and
//   tile.inverse
// Rules: codecs/FORMAT.md, "Quantizers". Included by quantizers.cpp inside its anonymous
// namespace, after the tile.

// The sum of term(x, sum so far) over a block.
template <class Term>
SLIMWIRE_LANES float block_sum(const float* values, int64_t block, const Term& term) {
    Floats sums[kQuantizerLanes / kLanes];
    const int64_t rows = (block < kQuantizerLanes ? block : kQuantizerLanes) / kLanes;
    for (int64_t r = 0; r < rows; ++r) {
        sums[r] = term(load_float32(values + r * kLanes), broadcast(0.0f));
    }
    for (int64_t i = kQuantizerLanes; i < block; i += kQuantizerLanes) {
        for (int64_t r = 0; r < kQuantizerLanes / kLanes; ++r) {
            sums[r] = term(load_float32(values + i + r * kLanes), sums[r]);
        }
    }
    for (int64_t half = rows / 2; half > 0; half /= 2) {
        for (int64_t r = 0; r < half; ++r) {
            sums[r] = add(sums[r], sums[r + half]);
        }
    }
    return sum_of_halves(sums[0]);
}
struct MagnitudeTerm {
    Floats factor;
    [[gnu::always_inline]] Floats operator()(Floats x, Floats sum) const {
        const Words magnitude = bit_and(as_words(x), broadcast_bits(kMagnitudeMask));
        return add(sum, multiply(as_floats(magnitude), factor));
    }
};
struct SquareTerm {
    Floats factor;
    [[gnu::always_inline]] Floats operator()(Floats x, Floats sum) const {
        const Floats y = multiply(x, factor);
        return multiply_add(y, y, sum);
    }
};

SLIMWIRE_LANES float float_of(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}
SLIMWIRE_LANES uint32_t bits_of(float x) {
    return __builtin_bit_cast(uint32_t, x);
}
SLIMWIRE_LANES uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

// The mean magnitude of `elems` elements, whose sum is `sum` where that is finite.
SLIMWIRE_LANES uint32_t mean_bits(float sum, const float* values, int64_t block, int64_t elems) {
    const auto n = static_cast<float>(elems);
    if (bits_of(sum) < kInfinityBits) {
        return bits_of(sum / n);
    }
    const float down = block_sum(values, block, MagnitudeTerm{broadcast(kQuantizerDown)});
    return smaller(bits_of(down / n * kQuantizerUp), kMaxFloat32Bits);
}

// The norm, or with `elems` > 1 the root mean square of so many elements; `magnitude` is the
// largest. Squares are of elements under the largest one's power of two.
SLIMWIRE_LANES uint32_t norm_bits(const float* values,
                                  int64_t block,
                                  uint32_t magnitude,
                                  int64_t elems) {
    uint32_t field = magnitude >> 23;
    field = field < 1 ? 1 : field > 253 ? 253 : field;
    const float sum =
        block_sum(values, block, SquareTerm{broadcast(float_of((254 - field) << 23))});
    const float root = __builtin_sqrtf(elems > 1 ? sum / static_cast<float>(elems) : sum);
    return smaller(bits_of(root * float_of(field << 23)), kMaxFloat32Bits);
}

// What the scale of block b is made from, fp32 bits; the block's magnitude is finite.
SLIMWIRE_LANES uint32_t block_size_bits(
    const Tile& tile, int64_t b, int64_t elems, const QuantizerShape& shape, bool one_bit) {
    const float* values = tile.values + b * shape.block;
    const uint32_t most = tile.magnitude[b];
    switch (shape.scale) {
        case QuantizerScale::kMean:
            return mean_bits(block_sum(values, shape.block, MagnitudeTerm{broadcast(1.0f)}), values,
                             shape.block, elems);
        case QuantizerScale::kNorm:
            return norm_bits(values, shape.block, most, one_bit ? elems : 1);
        case QuantizerScale::kMax:
            break;
        case QuantizerScale::kClip: {
            const float root = float_of(norm_bits(values, shape.block, most, elems));
            return smaller(most, bits_of(root * kQuantizerClip));
        }
    }
    return most;
}

// The scales of `blocks` blocks, of which the last has elements up to `count` only.
template <class Kind>
[[gnu::noinline]] static void choose_quantizer_scales(Tile& tile,
                                                      int64_t blocks,
                                                      int64_t count,
                                                      const QuantizerShape& shape) {
    const auto levels = static_cast<float>(shape.levels);
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t left = count - b * shape.block;
        const uint32_t most = tile.magnitude[b];
        const bool poison = most >= kInfinityBits;
        uint32_t scale = 0;
        uint32_t inverse = 0;
        if constexpr (Kind::kRule == QuantizerRule::kPowers) {
            uint32_t field = (most + 0x7FFFFFu) >> 23;
            field = field < 1 ? 1 : field > 254 ? 254 : field;
            scale = field << 23;
            inverse = field == 254 ? 0x00400000u : (254 - field) << 23;
        } else if (!poison) {
            scale = block_size_bits(tile, b, left < shape.block ? left : shape.block, shape,
                                    Kind::kRule == QuantizerRule::kSign);
            if constexpr (Kind::kRule == QuantizerRule::kLevels) {
                const float step = float_of(smaller(scale, kQuantizerMostBits)) / levels;
                scale = bits_of(step) > kMinScaleBits ? bits_of(step) : kMinScaleBits;
                inverse = bits_of(1.0f / float_of(scale));
            }
        }
        tile.scale[b] = poison ? kNanScaleBits : scale;
        tile.inverse[b] = float_of(inverse);
    }
}
