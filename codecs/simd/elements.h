// The user's side of an operation: element types, where fp32 values come from, where they go.
// Included by kernels.cpp inside its anonymous namespace, after the lanes.

constexpr int kLanes = 16;

struct Float32 {
    static constexpr int kBytes = 4;
    static constexpr uint32_t kMaxBits = kMaxFloat32Bits;
    static constexpr uint32_t kOverflowBits = kInfinityBits;
    SLIMWIRE_LANES Floats load(const void* from) { return load_float32(from); }
    SLIMWIRE_LANES void store(void* to, Floats x) { store_float32(to, x); }
};
struct Float16 {
    static constexpr int kBytes = 2;
    static constexpr uint32_t kMaxBits = kMaxFloat16Bits;
    static constexpr uint32_t kOverflowBits = kOverflowFloat16Bits;
    SLIMWIRE_LANES Floats load(const void* from) { return load_float16(from); }
    SLIMWIRE_LANES void store(void* to, Floats x) { store_float16(to, x); }
};
struct Bfloat16 {
    static constexpr int kBytes = 2;
    static constexpr uint32_t kMaxBits = kMaxBfloat16Bits;
    static constexpr uint32_t kOverflowBits = kOverflowBfloat16Bits;
    SLIMWIRE_LANES Floats load(const void* from) { return load_bfloat16(from); }
    SLIMWIRE_LANES void store(void* to, Floats x) { store_bfloat16(to, x); }
};

// Calls run(Element{}) for the three types that codecs take; other types never get here.
template <class Run>
SLIMWIRE_LANES void visit(DType dtype, Run run) {
    if (dtype == DType::kFloat32) {
        run(Float32{});
    } else if (dtype == DType::kFloat16) {
        run(Float16{});
    } else {
        run(Bfloat16{});
    }
}

// The same with a flag, which becomes a type, too: run(Element{}, Flag<flag>{}).
template <bool kValue>
struct Flag {};
template <class Run>
SLIMWIRE_LANES void visit(DType dtype, bool flag, Run run) {
    visit(dtype, [&](auto element) {
        if (flag) {
            run(element, Flag<true>{});
        } else {
            run(element, Flag<false>{});
        }
    });
}

// The same of a type that is known when the operation runs.
SLIMWIRE_LANES uint32_t max_bits(DType dtype) {
    return dtype == DType::kFloat32   ? Float32::kMaxBits
           : dtype == DType::kFloat16 ? Float16::kMaxBits
                                      : Bfloat16::kMaxBits;
}
SLIMWIRE_LANES uint32_t overflow_bits(DType dtype) {
    return dtype == DType::kFloat32   ? Float32::kOverflowBits
           : dtype == DType::kFloat16 ? Float16::kOverflowBits
                                      : Bfloat16::kOverflowBits;
}

// Finite x moved into [-most, most], given as fp32 bits.
SLIMWIRE_LANES Floats saturated(Floats x, Words most) {
    const Words magnitude = bit_and(as_words(x), broadcast_bits(kMagnitudeMask));
    const Words sign = bit_and(as_words(x), broadcast_bits(~kMagnitudeMask));
    const Words moved = minimum(magnitude, most);
    return as_floats(bit_or(sign, select_at_least(magnitude, kInfinityBits, magnitude, moved)));
}

// x, infinite from the magnitude bits `overflow` on.
SLIMWIRE_LANES Floats overflowed(Floats x, uint32_t overflow) {
    const Words magnitude = bit_and(as_words(x), broadcast_bits(kMagnitudeMask));
    const Floats infinite = multiply(x, as_floats(broadcast_bits(kInfinityBits)));
    return as_floats(select_at_least(magnitude, overflow, as_words(infinite), as_words(x)));
}

// x + residual; of a finite x at most the largest fp32.
SLIMWIRE_LANES Floats add_residual(Floats x, Floats residual) {
    const Words mask = broadcast_bits(kMagnitudeMask);
    const Floats sum = add(x, residual);
    const Words magnitude = bit_and(as_words(sum), mask);
    if (equal_lanes(magnitude, kInfinityBits) == 0) {
        return sum;
    }
    const Words sign = bit_xor(as_words(sum), magnitude);
    const Words given = bit_and(as_words(x), mask);
    const Words finite = select_at_least(given, kInfinityBits, magnitude,
                                         minimum(magnitude, broadcast_bits(kMaxFloat32Bits)));
    const Words limited = select_at_least(magnitude, kInfinityBits + 1, magnitude, finite);
    return as_floats(bit_or(sign, limited));
}

// Keeps decoded values within the user's type, whose largest has the fp32 bits `most`; those of a
// block are at most `reach` times its scale.
struct Limit {
    Words most;
    bool needed;

    [[gnu::always_inline]] explicit Limit(uint32_t most_bits)
        : most(broadcast_bits(most_bits)), needed(most_bits < kMaxFloat32Bits) {}
    [[gnu::always_inline]] Limit(float scale, float reach, uint32_t most_bits)
        : most(broadcast_bits(most_bits)),
          needed(most_bits < kMaxFloat32Bits &&
                 __builtin_fabsf(scale) * reach > __builtin_bit_cast(float, most_bits)) {}
    [[gnu::always_inline]] Floats operator()(Floats x) const {
        return needed ? saturated(x, most) : x;
    }
};

// Keeps sums within a SumLimit.
struct SumWithin {
    Words most;
    uint32_t overflow;  // bits
    bool needed;

    [[gnu::always_inline]] explicit SumWithin(SumLimit limit)
        : most(as_words(broadcast(limit.most))),
          overflow(__builtin_bit_cast(uint32_t, limit.most * limit.overflow)),
          needed(limit.most < kNoSumLimit) {}
    [[gnu::always_inline]] Floats operator()(Floats x) const {
        if (!needed) {
            return x;
        }
        const Words magnitude = bit_and(as_words(x), broadcast_bits(kMagnitudeMask));
        const Words sign = bit_and(as_words(x), broadcast_bits(~kMagnitudeMask));
        return as_floats(bit_or(
            sign,
            select_at_least(magnitude, overflow, maximum(magnitude, broadcast_bits(kInfinityBits)),
                            minimum(magnitude, most))));
    }
};

// scale * x + old within a limit: the sum of their halves is finite where both are.
SLIMWIRE_LANES Floats limited_sum(Floats scale, Floats x, Floats old, SumLimit limit) {
    const Floats half = broadcast(0.5f);
    const Floats sum = multiply_add(multiply(half, scale), x, multiply(half, old));
    return multiply(broadcast(2.0f), SumWithin({0.5f * limit.most, limit.overflow})(sum));
}

// Keeps a tile of sums within a limit, in steps of sixteen.
SLIMWIRE_LANES void limit_sums(SumLimit limit, float* sum, int64_t count) {
    const SumWithin within(limit);
    for (int64_t i = 0; within.needed && i < count; i += kLanes) {
        store_float32(sum + i, within(load_float32(sum + i)));
    }
}

template <class Element>
SLIMWIRE_LANES Floats load_some(const uint8_t* from, int64_t count) {
    uint8_t buffer[kLanes * Element::kBytes] = {};
    __builtin_memcpy(buffer, from, static_cast<size_t>(count) * Element::kBytes);
    return Element::load(buffer);
}

template <class Element>
SLIMWIRE_LANES void store_some(uint8_t* to, Floats x, int64_t count) {
    uint8_t buffer[kLanes * Element::kBytes];
    Element::store(buffer, x);
    __builtin_memcpy(to, buffer, static_cast<size_t>(count) * Element::kBytes);
}

SLIMWIRE_LANES uint8_t* bytes_of(float* p) {
    return reinterpret_cast<uint8_t*>(p);
}
SLIMWIRE_LANES const uint8_t* bytes_of(const float* p) {
    return reinterpret_cast<const uint8_t*>(p);
}

// p = factor * input + residual: the multiplication and the addition round separately. Infinite
// where the user's type would round the product to infinity. Not kScaled: the factor is one.
template <class Element, bool kResidual, bool kScaled = true>
struct Source {
    const uint8_t* input;
    const float* residual;
    Floats factor;
    uint32_t overflow = Element::kOverflowBits;  // of the user's type, which sums are not of

    [[gnu::always_inline]] Floats sixteen(int64_t i) const {
        const Floats scaled = times_factor(Element::load(input + i * Element::kBytes));
        if constexpr (kResidual) {
            return add_residual(scaled, load_float32(residual + i));
        }
        return scaled;
    }
    [[gnu::always_inline]] Floats some(int64_t i, int64_t count) const {
        const Floats scaled = times_factor(load_some<Element>(input + i * Element::kBytes, count));
        if constexpr (kResidual) {
            return add_residual(scaled, load_some<Float32>(bytes_of(residual + i), count));
        }
        return scaled;
    }
    [[gnu::always_inline]] Floats times_factor(Floats x) const {
        if constexpr (kScaled) {
            const Floats scaled = multiply(factor, x);
            return overflow < kInfinityBits ? overflowed(scaled, overflow) : scaled;
        }
        return x;
    }
};

// Decoded values go to the user: output = value, or output + value, rounded once. Decoders keep
// values within `most`, that of the user's type, which sums are not of.
template <class Element, bool kAccumulate>
struct Sink {
    uint8_t* output;
    uint32_t most = Element::kMaxBits;
    SumLimit sum_limit = {};

    [[gnu::always_inline]] void sixteen(int64_t i, Floats x) const {
        uint8_t* to = output + i * Element::kBytes;
        if constexpr (kAccumulate) {
            x = sum(Element::load(to), x);
        }
        Element::store(to, canonical(x));
    }
    [[gnu::always_inline]] void some(int64_t i, Floats x, int64_t count) const {
        uint8_t* to = output + i * Element::kBytes;
        if constexpr (kAccumulate) {
            x = sum(load_some<Element>(to, count), x);
        }
        store_some<Element>(to, canonical(x), count);
    }
    [[gnu::always_inline]] Floats sum(Floats old, Floats x) const {
        return sum_limit.most == kNoSumLimit ? add(old, x)
                                             : limited_sum(broadcast(1.0f), x, old, sum_limit);
    }
};

// Decoded values of one source go into the fp32 sum of all: that of the first, then others.
template <bool kFirst>
struct SumSink {
    uint8_t* output;
    uint32_t most;  // of the user's type, see Sink
    Floats scale;

    [[gnu::always_inline]] void sixteen(int64_t i, Floats x) const {
        uint8_t* to = output + i * Float32::kBytes;
        store_float32(to, kFirst ? multiply(scale, x) : multiply_add(scale, x, load_float32(to)));
    }
    [[gnu::always_inline]] void some(int64_t i, Floats x, int64_t count) const {
        uint8_t* to = output + i * Float32::kBytes;
        store_some<Float32>(
            to, kFirst ? multiply(scale, x) : multiply_add(scale, x, load_some<Float32>(to, count)),
            count);
    }
};
