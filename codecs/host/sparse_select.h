// Which elements are the largest: of a whole chunk by counting digits of their magnitude bits, of a
// short group by halving. Included by host/sparse.cpp inside its anonymous namespace.

// Kept are magnitudes above `least`, and of those equal to it the first `ties` (all if negative).
struct Cut {
    uint32_t least;
    int64_t ties;
    int64_t at_least = 0;  // elements whose magnitude is not below `least`
};

// Sixteen p of a chunk of `count` elements, zero past the end.
template <class Source>
SLIMWIRE_LANES Floats load_p(const Source& source, int64_t i, int64_t count) {
    if (i + kLanes <= count) {
        return source.sixteen(i);
    }
    const Words p = as_words(source.some(i, count - i));
    return as_floats(blend((1u << (count - i)) - 1, p, broadcast_bits(0)));
}

// The cut that keeps k <= count elements of a chunk. Reads it twice (16-bit elements as they are)
// or three times. Digits that enough counted elements exceed are no longer counted, so that few
// elements are.
template <class Source>
SLIMWIRE_LANES Cut
select_cut(const Source& source, int64_t count, int64_t k, bool low_bits_are_zero) {
    constexpr uint32_t kDigits = 2048;
    uint32_t histogram[kDigits];
    uint32_t low = 0;
    uint32_t high = kMagnitudeMask + 1;
    int64_t wanted = k;
    Cut cut = {0, 0};
    for (const int shift : {20, 9, 0}) {
        if (shift == 0 && low_bits_are_zero) {
            break;
        }
        __builtin_memset(histogram, 0, sizeof(histogram));
        uint32_t digit = 0;
        int64_t above = 0;  // counted elements in `digit` and above it
        for (int64_t i = 0; i < count;) {
            const int64_t end = i + kBatchElems < count ? i + kBatchElems : count;
            const uint32_t from = low + (digit << shift);
            for (; i < end; i += kLanes) {
                const Words magnitude = magnitude_of(load_p(source, i, count));
                uint32_t mask = mask_at_least(magnitude, from) & ~mask_at_least(magnitude, high);
                if (count - i < kLanes) {
                    mask &= (1u << (count - i)) - 1;
                }
                if (mask != 0) {
                    alignas(64) uint32_t lanes[kLanes];
                    store_words(lanes, magnitude);
                    above += bits_set(mask);
                    for (; mask != 0; mask &= mask - 1) {
                        ++histogram[(lanes[__builtin_ctz(mask)] - low) >> shift];
                    }
                }
            }
            while (above - histogram[digit] >= wanted) {
                above -= histogram[digit++];
            }
        }
        wanted -= above - histogram[digit];
        cut.at_least = k - wanted + histogram[digit];
        low += digit << shift;
        high = low + (1u << shift);
    }
    cut.least = low;
    cut.ties = wanted;
    return cut;
}

// Elements of p[0, n) with a magnitude of at least `limit`.
SLIMWIRE_LANES int64_t count_at_least(const float* p, int64_t n, uint32_t limit) {
    int64_t count = 0;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        count += bits_set(mask_at_least(magnitude_of(load_float32(p + i)), limit));
    }
    if (i < n) {
        const Floats rest = load_some<Float32>(bytes_of(p + i), n - i);
        const uint32_t mask = mask_at_least(magnitude_of(rest), limit);
        count += bits_set(mask & ((1u << (n - i)) - 1));
    }
    return count;
}

// The cut that keeps k <= n of p[0, n).
SLIMWIRE_LANES Cut select_group(const float* p, int64_t n, int64_t k) {
    Words most = broadcast_bits(0);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        most = maximum(most, magnitude_of(load_float32(p + i)));
    }
    if (i < n) {
        most = maximum(most, magnitude_of(load_some<Float32>(bytes_of(p + i), n - i)));
    }
    constexpr uint32_t kNear = 4u << 23;  // a sixteenth of the largest
    uint32_t low = 0;
    uint32_t high = largest(most) + 1;
    int64_t above = 0;  // elements not below `high`
    uint32_t middle = high > kNear ? high - kNear : high / 2;
    while (high - low > 1) {
        const int64_t count = count_at_least(p, n, middle);
        if (count == k) {
            return {middle, -1};
        }
        if (count > k) {
            low = middle;
        } else {
            high = middle;
            above = count;
        }
        middle = low + (high - low) / 2;
    }
    return {low, k - above};
}
