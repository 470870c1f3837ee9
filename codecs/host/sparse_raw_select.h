// The cut of topk through 16-bit elements that are encoded as they are: guessed from a sample, then
// counted exactly in one read, of which only the elements above the guess cost anything. Included
// by host/sparse.cpp inside its anonymous namespace.

#if defined(SLIMWIRE_ISA_AVX512)

constexpr int64_t kRawSample = 16384;
constexpr int64_t kRawWindow = 2048;  // magnitudes that are told apart
constexpr uint32_t kRawMost = 0x7FFF;

// A magnitude that somewhat more than k of `count` elements should reach.
SLIMWIRE_LANES uint16_t guess_raw(const uint8_t* input, int64_t count, int64_t k) {
    alignas(64) uint8_t sample[2 * kRawSample];
    const int64_t most = kRawSample < count / 8 ? kRawSample : count / 8;
    const int64_t rows = most / kRawElems;
    const int64_t stride = count / rows / kRawElems * kRawElems;
    for (int64_t i = 0; i < rows; ++i) {
        _mm512_store_si512(sample + i * 64, raw_magnitudes(input + 2 * i * stride));
    }
    const double part = static_cast<double>(k) / static_cast<double>(count);
    const auto expected = static_cast<int64_t>(part * static_cast<double>(rows * kRawElems));
    int64_t deviation = 1;
    for (; deviation * deviation < expected; ++deviation) {
    }
    const int64_t wanted = expected + expected / 8 + 4 * deviation;
    uint32_t low = 0;
    uint32_t high = kRawMost + 1;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        const __m512i limit = raw_broadcast(static_cast<uint16_t>(middle));
        int64_t above = 0;
        for (int64_t i = 0; i < rows; ++i) {
            above += bits_set(
                _cvtmask32_u32(_mm512_cmpge_epu16_mask(_mm512_load_si512(sample + i * 64), limit)));
        }
        if (above >= wanted) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return static_cast<uint16_t>(low);
}

// Counts magnitudes by their distance from a guess; those from the window's last on together.
struct RawCounter {
    __m512i guess;
    __m512i most;  // every NaN counts as the least
    alignas(64) uint32_t bins[kRawWindow];
    alignas(64) uint16_t values[kSparseSpan + kRawElems];

    void add(int64_t count) {
        for (int64_t i = 0; i < count; i += kRawElems) {
            const __m512i magnitude = _mm512_min_epu16(
                raw_magnitudes(reinterpret_cast<const uint8_t*>(values + i)), most);
            _mm512_storeu_si512(values + i, _mm512_min_epu16(_mm512_subs_epu16(magnitude, guess),
                                                             raw_broadcast(kRawWindow - 1)));
        }
        for (int64_t i = 0; i < count; ++i) {
            ++bins[values[i]];
        }
    }
};

// Counts the elements whose magnitude is not below `guess`.
[[gnu::noinline]] void count_above(const uint8_t* input,
                                   int64_t count,
                                   uint16_t guess,
                                   RawCounter& counter) {
    const __m512i limit = raw_broadcast(guess);
    const int64_t spans = count / kSparseSpan;
    RawSpan both[2];
    mark_span(input, limit, both[0]);
    for (int64_t s = 0; s < spans; ++s, input += kRawSpanBytes) {
        RawSpan& span = both[s % 2];
        list_span(span);
        uint16_t* values = counter.values;
        const uint8_t* ahead = s + 1 < spans ? input + kRawSpanBytes : input;
        const auto put = [&](const uint32_t* first, uint32_t mask) __attribute__((always_inline)) {
            const int64_t found = bits_set(mask);
            const __m512i picked = raw_picked(input, *first, mask);
            if (__builtin_expect(found <= 8, 1)) {
                _mm_storeu_si128(reinterpret_cast<__m128i*>(values),
                                 _mm512_castsi512_si128(picked));
            } else {
                _mm512_storeu_si512(values, picked);
            }
            values += found;
        };
        walk_span(span, ahead, limit, both[(s + 1) % 2], put);
        counter.add(span.count);
    }
    int64_t rest = 0;
    for (int64_t i = 0; i < count % kSparseSpan; ++i) {
        uint16_t element;
        __builtin_memcpy(&element, input + 2 * i, 2);
        counter.values[rest] = element;
        rest += (element & kRawMost) >= guess ? 1 : 0;
    }
    counter.add(rest);
}

// The cut that keeps k <= count of at least kSparseSpan elements.
template <class Element>
SLIMWIRE_LANES Cut select_raw(const uint8_t* input, int64_t count, int64_t k) {
    const auto nan = static_cast<uint16_t>(raw_limit<Element>(kInfinityBits) + 1);
    uint16_t guess = guess_raw(input, count, k);
    guess = guess < nan ? guess : nan;
    RawCounter counter;
    counter.most = raw_broadcast(nan);
    for (;;) {
        counter.guess = raw_broadcast(guess);
        __builtin_memset(counter.bins, 0, sizeof(counter.bins));
        count_above(input, count, guess, counter);
        int64_t above = 0;  // elements above `bin`
        int64_t bin = kRawWindow - 1;
        for (; bin >= 0 && above + counter.bins[bin] < k; --bin) {
            above += counter.bins[bin];
        }
        if (bin < 0) {
            guess = 0;
        } else if (bin == kRawWindow - 1 && guess + bin < nan) {
            guess = static_cast<uint16_t>(guess + bin);
        } else {
            const auto least = static_cast<uint16_t>(guess + bin);
            const int64_t tied = counter.bins[bin];
            const bool all = k - above == tied;
            return {least == nan ? kNanFloat32 : raw_value<Element>(least), all ? -1 : k - above,
                    above + tied};
        }
    }
}

#endif
