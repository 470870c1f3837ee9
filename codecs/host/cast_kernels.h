// Casts to 16-bit floats on the host: encode, decode, decode-reduce-encode of one chunk. Layout and
// rules: codecs/FORMAT.md. Included by kernels.cpp inside its anonymous namespace.

template <class Target>
struct Cast {
    // The value that is rounded: finite magnitudes beyond the target's largest become the largest.
    SLIMWIRE_LANES Floats saturate(Floats p) {
        const Words magnitude = bit_and(as_words(p), broadcast_bits(kMagnitudeMask));
        const Words clamped = minimum(magnitude, broadcast_bits(Target::kMaxBits));
        const Words sign = bit_and(as_words(p), broadcast_bits(~kMagnitudeMask));
        return as_floats(
            bit_or(sign, select_at_least(magnitude, kInfinityBits, magnitude, clamped)));
    }

    // p less its decoded value; where p is not finite, the old residual.
    SLIMWIRE_LANES Floats leftover(Floats p, const uint8_t* encoded, Floats old) {
        const Words magnitude = bit_and(as_words(p), broadcast_bits(kMagnitudeMask));
        return as_floats(select_at_least(magnitude, kInfinityBits, as_words(old),
                                         as_words(subtract(p, Target::load(encoded)))));
    }

    // Encodes sixteen p or the first `count` of them.
    template <bool kResidual>
    SLIMWIRE_LANES void put(Floats p, uint8_t* to, float* residual, int64_t count) {
        if (count >= kLanes) {
            Target::store(to, saturate(p));
            if constexpr (kResidual) {
                store_float32(residual, leftover(p, to, load_float32(residual)));
            }
            return;
        }
        uint8_t buffer[kLanes * Target::kBytes];
        Target::store(buffer, saturate(p));
        __builtin_memcpy(to, buffer, static_cast<size_t>(count) * Target::kBytes);
        if constexpr (kResidual) {
            const Floats old = load_some<Float32>(bytes_of(residual), count);
            store_some<Float32>(bytes_of(residual), leftover(p, buffer, old), count);
        }
    }

    template <class Element, bool kResidual>
    static void encode_as(const EncodeChunk& chunk) {
        const Source<Element, kResidual> source{chunk.input, chunk.residual,
                                                broadcast(chunk.factor)};
        for (int64_t i = 0; i < chunk.count; i += kLanes) {
            const int64_t left = chunk.count - i;
            put<kResidual>(left >= kLanes ? source.sixteen(i) : source.some(i, left),
                           chunk.output + i * Target::kBytes,
                           kResidual ? chunk.residual + i : nullptr, left);
        }
    }

    static void encode(const EncodeChunk& chunk) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            if (chunk.residual != nullptr) {
                encode_as<Element, true>(chunk);
            } else {
                encode_as<Element, false>(chunk);
            }
        });
    }

    template <class Element, bool kAccumulate>
    static void decode_as(const DecodeChunk& chunk) {
        const Sink<Element, kAccumulate> sink{chunk.output};
        int64_t i = 0;
        for (; i + kLanes <= chunk.count; i += kLanes) {
            sink.sixteen(i, Target::load(chunk.input + i * Target::kBytes));
        }
        if (i < chunk.count) {
            const int64_t left = chunk.count - i;
            sink.some(i, load_some<Target>(chunk.input + i * Target::kBytes, left), left);
        }
    }

    static void decode(const DecodeChunk& chunk) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            if (chunk.accumulate) {
                decode_as<Element, true>(chunk);
            } else {
                decode_as<Element, false>(chunk);
            }
        });
    }

    template <bool kResidual>
    static void reduce_as(const ReduceChunk& chunk) {
        const Floats factor = broadcast(chunk.factor);
        for (int64_t i = 0; i < chunk.count; i += kLanes) {
            const int64_t left = chunk.count - i;
            const bool full = left >= kLanes;
            const uint8_t* from = chunk.input + i * Target::kBytes;
            Floats sum = full ? Target::load(from) : load_some<Target>(from, left);
            for (int32_t source = 1; source < chunk.inputs; ++source) {
                from += chunk.input_stride;
                sum = add(sum, full ? Target::load(from) : load_some<Target>(from, left));
            }
            Floats p = multiply(factor, sum);
            float* residual = kResidual ? chunk.residual + i : nullptr;
            if constexpr (kResidual) {
                p = add(p, full ? load_float32(residual)
                                : load_some<Float32>(bytes_of(residual), left));
            }
            put<kResidual>(p, chunk.output + i * Target::kBytes, residual, left);
        }
    }

    static void reduce(const ReduceChunk& chunk) {
        if (chunk.residual != nullptr) {
            reduce_as<true>(chunk);
        } else {
            reduce_as<false>(chunk);
        }
    }

    static constexpr CastKernels kKernels = {encode, decode, reduce};
};
