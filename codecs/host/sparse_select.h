// Which elements of a whole chunk are the largest, by counting digits of their magnitude bits.
// Included by host/sparse.cpp inside its anonymous namespace.

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
