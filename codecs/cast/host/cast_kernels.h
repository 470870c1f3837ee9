// Casts to 16-bit floats on the host: the operations on one chunk. Layout and
// rules: codecs/FORMAT.md. Included by cast.cpp inside its anonymous namespace.

// Rounds sixteen finite p, none above the target's largest, to values of the target: to a neighbour
// that the bytes of `random` choose. `drawn` is twice those bytes plus 1.
struct StochasticBfloat16 {
    SLIMWIRE_LANES Floats round(Floats p, Words drawn) {
        return as_floats(bit_and(add(as_words(p), shift_left<7>(drawn)), broadcast_bits(~0xFFFFu)));
    }
};
struct StochasticFloat16 {
    SLIMWIRE_LANES Floats round(Floats p, Words drawn) {
        const Words bits = as_words(p);
        const Words magnitude = bit_and(bits, broadcast_bits(kMagnitudeMask));
        const Words normal =
            bit_and(add(magnitude, shift_left<4>(drawn)), broadcast_bits(~0x1FFFu));
        // Below 2^-14 the step is 2^-24: 512 times the steps of p, without their fraction, plus
        // `drawn`. The result is made in the last bits of a float in [0.5, 1).
        const Words steps = shift_right<9>(
            add(truncate(multiply(as_floats(minimum(magnitude, broadcast_bits(kSmallestNormal))),
                                  broadcast(0x1p33f))),
                drawn));
        const Floats small =
            subtract(as_floats(add(steps, broadcast_bits(0x3F000000u))), broadcast(0.5f));
        return as_floats(
            bit_or(bit_and(bits, broadcast_bits(~kMagnitudeMask)),
                   select_at_least(magnitude, kSmallestNormal, normal, as_words(small))));
    }
    static constexpr uint32_t kSmallestNormal = 0x38800000u;
};

template <class Target, class Stochastic>
struct Cast {
    // How p of a chunk are rounded.
    struct Rules {
        Limit limit;        // of the user's type
        uint32_t overflow;  // the least magnitude that becomes infinite

        Rules(DType dtype, const CastShape& shape)
            : limit(max_bits(dtype)),
              overflow(shape.saturates ? kInfinityBits : Target::kOverflowBits) {}
    };

    // p less its decoded value; where that is not finite, the old residual.
    SLIMWIRE_LANES Floats leftover(Floats p,
                                   const Rules& rules,
                                   const uint8_t* encoded,
                                   Floats old) {
        const Floats decoded = rules.limit(Target::load(encoded));
        const Words magnitude = bit_and(as_words(decoded), broadcast_bits(kMagnitudeMask));
        return as_floats(select_at_least(magnitude, kInfinityBits, as_words(old),
                                         as_words(subtract(p, decoded))));
    }

    // The random bytes of a chunk, drawn 256 at a time as the loop passes them.
    struct Random : Rules {
        const ChunkRandom& random;
        alignas(64) uint8_t bytes[kRandomTile];

        Random(const ChunkRandom& from, DType dtype, const CastShape& shape)
            : Rules(dtype, shape), random(from) {}
        [[gnu::always_inline]] Words drawn(int64_t i) {
            const int64_t at = i % kRandomTile;
            if (at == 0) {
                random_bytes(random, i, bytes);
            }
            return add(shift_left<1>(load_bytes(bytes + at)), broadcast_bits(1));
        }
    };
    struct NoRandom : Rules {
        NoRandom(const ChunkRandom&, DType dtype, const CastShape& shape) : Rules(dtype, shape) {}
    };

    // What Target::store turns into the encoding of p, which is element i and following.
    SLIMWIRE_LANES Floats in_range(Floats p, const Rules& rules) {
        return saturated(overflowed(p, rules.overflow), broadcast_bits(Target::kMaxBits));
    }
    SLIMWIRE_LANES Floats prepare(Floats p, int64_t, NoRandom& rules) { return in_range(p, rules); }
    SLIMWIRE_LANES Floats prepare(Floats p, int64_t i, Random& random) {
        const Floats limited = in_range(p, random);
        const Words magnitude = bit_and(as_words(limited), broadcast_bits(kMagnitudeMask));
        const Floats rounded = Stochastic::round(limited, random.drawn(i));
        return as_floats(
            select_at_least(magnitude, kInfinityBits, as_words(limited), as_words(rounded)));
    }

    // Encodes element i to i + 15 of the chunk from `source`, or the last `count` of them.
    template <bool kResidual, class Source, class Dice>
    SLIMWIRE_LANES void put_sixteen(
        const Source& source, int64_t i, uint8_t* output, float* residual, Dice& dice) {
        const Floats p = source.sixteen(i);
        uint8_t* to = output + i * Target::kBytes;
        Target::store(to, prepare(p, i, dice));
        if constexpr (kResidual) {
            store_float32(residual + i, leftover(p, dice, to, load_float32(residual + i)));
        }
    }
    template <bool kResidual, class Source, class Dice>
    SLIMWIRE_LANES void put_some(const Source& source,
                                 int64_t i,
                                 int64_t count,
                                 uint8_t* output,
                                 float* residual,
                                 Dice& dice) {
        const Floats p = source.some(i, count);
        uint8_t buffer[kLanes * Target::kBytes];
        Target::store(buffer, prepare(p, i, dice));
        __builtin_memcpy(output + i * Target::kBytes, buffer,
                         static_cast<size_t>(count) * Target::kBytes);
        if constexpr (kResidual) {
            uint8_t* kept = bytes_of(residual + i);
            store_some<Float32>(kept, leftover(p, dice, buffer, load_some<Float32>(kept, count)),
                                count);
        }
    }
    template <bool kResidual, class Source, class Dice>
    SLIMWIRE_LANES void put_all(
        const Source& source, int64_t count, uint8_t* output, float* residual, Dice& dice) {
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) {
            put_sixteen<kResidual>(source, i, output, residual, dice);
        }
        if (i < count) {
            put_some<kResidual>(source, i, count - i, output, residual, dice);
        }
    }

    template <class Element, bool kResidual, class Dice>
    static void encode_as(const EncodeChunk& chunk, const CastShape& shape) {
        const Source<Element, kResidual> source{chunk.input, chunk.residual,
                                                broadcast(chunk.factor)};
        Dice dice(chunk.random, chunk.dtype, shape);
        put_all<kResidual>(source, chunk.count, chunk.output, chunk.residual, dice);
    }
    static void encode(const EncodeChunk& chunk, const CastShape& shape) {
        visit(chunk.dtype, chunk.residual != nullptr,
              [&]<bool kResidual>(auto element, Flag<kResidual>) {
                  using Element = decltype(element);
                  if (shape.stochastic) {
                      encode_as<Element, kResidual, Random>(chunk, shape);
                  } else {
                      encode_as<Element, kResidual, NoRandom>(chunk, shape);
                  }
              });
    }

    template <class Element, bool kAccumulate>
    static void decode_as(const DecodeChunk& chunk) {
        const Sink<Element, kAccumulate> sink{chunk.output, Element::kMaxBits, chunk.sum_limit};
        const Limit limit(Element::kMaxBits);
        int64_t i = 0;
        for (; i + kLanes <= chunk.count; i += kLanes) {
            sink.sixteen(i, limit(Target::load(chunk.input + i * Target::kBytes)));
        }
        if (i < chunk.count) {
            const int64_t left = chunk.count - i;
            sink.some(i, limit(load_some<Target>(chunk.input + i * Target::kBytes, left)), left);
        }
    }

    static void decode(const DecodeChunk& chunk, const CastShape&) {
        visit(chunk.dtype, chunk.accumulate,
              [&]<bool kAccumulate>(auto element, Flag<kAccumulate>) {
                  decode_as<decltype(element), kAccumulate>(chunk);
              });
    }

    // p of a reduction: factor * (sum of the sources) + residual.
    template <bool kResidual>
    struct Sum {
        const ReduceChunk& chunk;
        Limit limit;  // of a source
        SumWithin within;
        uint32_t overflow;

        explicit Sum(const ReduceChunk& of)
            : chunk(of),
              limit(max_bits(of.dtype)),
              within(of.sum_limit),
              overflow(overflow_bits(of.dtype)) {}
        [[gnu::always_inline]] Floats scaled(Floats sum) const {
            const Floats product = multiply(broadcast(chunk.factor), within(sum));
            return overflow < kInfinityBits ? overflowed(product, overflow) : product;
        }
        [[gnu::always_inline]] Floats sixteen(int64_t i) const {
            const uint8_t* from = chunk.input + i * Target::kBytes;
            const Floats scale = broadcast(chunk.input_scale);
            Floats sum = multiply(scale, limit(Target::load(from)));
            for (int32_t source = 1; source < chunk.inputs; ++source) {
                from += chunk.input_stride;
                sum = multiply_add(scale, limit(Target::load(from)), sum);
            }
            if constexpr (kResidual) {
                return add_residual(scaled(sum), load_float32(chunk.residual + i));
            }
            return scaled(sum);
        }
        [[gnu::always_inline]] Floats some(int64_t i, int64_t count) const {
            const uint8_t* from = chunk.input + i * Target::kBytes;
            const Floats scale = broadcast(chunk.input_scale);
            Floats sum = multiply(scale, limit(load_some<Target>(from, count)));
            for (int32_t source = 1; source < chunk.inputs; ++source) {
                from += chunk.input_stride;
                sum = multiply_add(scale, limit(load_some<Target>(from, count)), sum);
            }
            if constexpr (kResidual) {
                return add_residual(scaled(sum),
                                    load_some<Float32>(bytes_of(chunk.residual + i), count));
            }
            return scaled(sum);
        }
    };

    template <bool kResidual, class Dice>
    static void reduce_as(const ReduceChunk& chunk, const CastShape& shape) {
        Dice dice(chunk.random, chunk.dtype, shape);
        put_all<kResidual>(Sum<kResidual>{chunk}, chunk.count, chunk.output, chunk.residual, dice);
    }
    template <class Dice>
    SLIMWIRE_LANES void reduce_with(const ReduceChunk& chunk, const CastShape& shape) {
        if (chunk.residual != nullptr) {
            reduce_as<true, Dice>(chunk, shape);
        } else {
            reduce_as<false, Dice>(chunk, shape);
        }
    }
    static void reduce(const ReduceChunk& chunk, const CastShape& shape) {
        if (shape.stochastic) {
            reduce_with<Random>(chunk, shape);
        } else {
            reduce_with<NoRandom>(chunk, shape);
        }
    }

    template <class Element>
    static void sum_as(const ReduceChunk& chunk) {
        const Sum<false> source{chunk};
        const Sink<Element, false> sink{chunk.output};
        int64_t i = 0;
        for (; i + kLanes <= chunk.count; i += kLanes) {
            sink.sixteen(i, source.sixteen(i));
        }
        if (i < chunk.count) {
            sink.some(i, source.some(i, chunk.count - i), chunk.count - i);
        }
    }
    static void sum(const ReduceChunk& chunk, const CastShape&) {
        visit(chunk.dtype, [&](auto element) { sum_as<decltype(element)>(chunk); });
    }

    static constexpr ChunkKernels<CastShape> kKernels = {encode, decode, reduce, sum};
};
