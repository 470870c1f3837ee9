// The user's side of an operation: element types, where fp32 values come from, where they go.
// Included by kernels.cpp inside its anonymous namespace, after the lanes.

constexpr int kLanes = 16;

struct Float32 {
    static constexpr int kBytes = 4;
    SLIMWIRE_LANES Floats load(const void* from) { return load_float32(from); }
    SLIMWIRE_LANES void store(void* to, Floats x) { store_float32(to, x); }
};
struct Float16 {
    static constexpr int kBytes = 2;
    static constexpr uint32_t kMaxBits = kMaxFloat16Bits;
    SLIMWIRE_LANES Floats load(const void* from) { return load_float16(from); }
    SLIMWIRE_LANES void store(void* to, Floats x) { store_float16(to, x); }
};
struct Bfloat16 {
    static constexpr int kBytes = 2;
    static constexpr uint32_t kMaxBits = kMaxBfloat16Bits;
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

// p = factor * input + residual: the multiplication and the addition round separately. Not kScaled:
// the factor is one.
template <class Element, bool kResidual, bool kScaled = true>
struct Source {
    const uint8_t* input;
    const float* residual;
    Floats factor;

    [[gnu::always_inline]] Floats sixteen(int64_t i) const {
        const Floats scaled = times_factor(Element::load(input + i * Element::kBytes));
        if constexpr (kResidual) {
            return add(scaled, load_float32(residual + i));
        }
        return scaled;
    }
    [[gnu::always_inline]] Floats some(int64_t i, int64_t count) const {
        const Floats scaled = times_factor(load_some<Element>(input + i * Element::kBytes, count));
        if constexpr (kResidual) {
            return add(scaled, load_some<Float32>(bytes_of(residual + i), count));
        }
        return scaled;
    }
    [[gnu::always_inline]] Floats times_factor(Floats x) const {
        if constexpr (kScaled) {
            return multiply(factor, x);
        }
        return x;
    }
};

// Decoded values go to the user: output = value, or output + value, rounded once.
template <class Element, bool kAccumulate>
struct Sink {
    uint8_t* output;

    [[gnu::always_inline]] void sixteen(int64_t i, Floats x) const {
        uint8_t* to = output + i * Element::kBytes;
        if constexpr (kAccumulate) {
            x = add(Element::load(to), x);
        }
        Element::store(to, canonical(x));
    }
    [[gnu::always_inline]] void some(int64_t i, Floats x, int64_t count) const {
        uint8_t* to = output + i * Element::kBytes;
        if constexpr (kAccumulate) {
            x = add(load_some<Element>(to, count), x);
        }
        store_some<Element>(to, canonical(x), count);
    }
};
