// The cut of topk through a whole chunk: between two magnitudes guessed from a sample, then by
// counting digits of those that lie between them. Included by host/sparse.cpp inside its anonymous
// namespace.

// Sixteen p of a chunk of `count` elements, zero past the end.
template <class Source>
SLIMWIRE_LANES Floats load_p(const Source& source, int64_t i, int64_t count) {
    if (i + kLanes <= count) {
        return source.sixteen(i);
    }
    const Words p = as_words(source.some(i, count - i));
    return as_floats(blend((1u << (count - i)) - 1, p, broadcast_bits(0)));
}

constexpr int64_t kSampled = 8192;
constexpr uint32_t kDigits = 2048;

// Magnitudes [from, to), between which the cut should be.
struct Window {
    uint32_t from = 0;
    uint32_t to = kMagnitudeMask + 1;
};

template <class Source>
[[gnu::noinline]] Window guess_window(const Source& source, int64_t count, int64_t k) {
    Window window;
    const int64_t rows = (kSampled < count / 8 ? kSampled : count / 8) / kLanes;
    if (rows < 16) {
        return window;
    }
    alignas(64) float sample[kSampled];
    const int64_t stride = count / rows;
    for (int64_t i = 0; i < rows; ++i) {
        store_float32(sample + i * kLanes, source.sixteen(i * stride));
    }
    const int64_t n = rows * kLanes;
    const double part = static_cast<double>(k) / static_cast<double>(count);
    const auto expected = static_cast<int64_t>(part * static_cast<double>(n));
    int64_t deviation = 1;
    while (deviation * deviation < expected) {
        ++deviation;
    }
    const int64_t margin = expected / 8 + 4 * deviation;
    if (expected + margin < n) {
        window.from = select_short(sample, n, expected + margin, deviation).least;
    }
    if (expected > margin) {
        window.to = select_short(sample, n, expected - margin, deviation).least + 1;
    }
    return window;
}

// Counts magnitudes in a window by their digit.
struct DigitCounter {
    Window window;
    int shift = 0;
    int64_t above = 0;  // not below the window's end
    int64_t inside = 0;
    uint32_t digits[kDigits];
    alignas(64) uint32_t found[kBatchElems + kLanes];

    // Of at most a batch of elements.
    template <class Source>
    void count(const Source& source, int64_t begin, int64_t end) {
        alignas(64) uint32_t magnitudes[kBatchElems];
        uint16_t masks[kBatchElems / kLanes];
        uint16_t listed[kBatchElems / kLanes];
        int64_t lists = 0;
        for (int64_t i = begin; i < end; i += kLanes) {
            const Words magnitude = magnitude_of(load_p(source, i, end));
            const uint32_t valid = end - i < kLanes ? (1u << (end - i)) - 1 : 0xFFFF;
            const uint32_t over = mask_at_least(magnitude, window.to) & valid;
            const uint32_t mask = mask_at_least(magnitude, window.from) & ~over & valid;
            const int64_t number = (i - begin) / kLanes;
            store_words(magnitudes + number * kLanes, magnitude);
            above += bits_set(over);
            masks[number] = static_cast<uint16_t>(mask);
            listed[lists] = static_cast<uint16_t>(number);
            lists += mask != 0 ? 1 : 0;
        }
        int64_t some = 0;
        for (int64_t i = 0; i < lists; ++i) {
            const uint32_t mask = masks[listed[i]];
            compress(load_words(magnitudes + listed[i] * kLanes), mask, found + some);
            some += bits_set(mask);
        }
        for (int64_t i = 0; i < some; ++i) {
            ++digits[(found[i] - window.from) >> shift];
        }
        inside += some;
    }
};

// The cut that keeps k <= count elements of a chunk. Reads it twice, or once where 16-bit elements
// are taken as they are; more often if the sample was no sample.
template <class Source>
SLIMWIRE_LANES Cut
select_cut(const Source& source, int64_t count, int64_t k, bool low_bits_are_zero) {
    const int least_shift = low_bits_are_zero ? 9 : 0;
    const uint32_t unit = 1u << least_shift;
    uint32_t low = 0;  // the cut is in [low, high)
    uint32_t high = kMagnitudeMask + 1;
    DigitCounter counter;
    counter.window = guess_window(source, count, k);
    for (;;) {
        Window& window = counter.window;
        window.from &= ~(unit - 1);
        window.to = (window.to + unit - 1) & ~(unit - 1);
        counter.shift = least_shift;
        while ((window.to - window.from - 1) >> counter.shift >= kDigits) {
            ++counter.shift;
        }
        counter.above = counter.inside = 0;
        __builtin_memset(counter.digits, 0, sizeof(counter.digits));
        for (int64_t i = 0; i < count; i += kBatchElems) {
            counter.count(source, i, i + kBatchElems < count ? i + kBatchElems : count);
        }
        // Ranks count from the top of the chunk.
        const int64_t above = counter.above;
        if (above >= k) {
            low = window.to;
        } else if (above + counter.inside < k) {
            high = window.from;
        } else {
            uint32_t digit = kDigits - 1;
            int64_t rank = above;
            while (rank + counter.digits[digit] < k) {
                rank += counter.digits[digit--];
            }
            low = window.from + (digit << counter.shift);
            high = low + (1u << counter.shift);
            if (counter.shift == least_shift) {
                const int64_t ties = counter.digits[digit];
                return {low, k - rank == ties ? -1 : k - rank, rank + ties};
            }
        }
        window = {low, high};
    }
}
