// Which elements of a block or row are the largest. Few of many: whatever is among the k largest is
// not below the k-th largest of the columns' maxima, which leaves little more than k elements to
// choose from. Included by host/sparse.cpp inside its anonymous namespace.

// Kept are magnitudes above `least`, and of those equal to it the first `ties` (all if negative).
struct Cut {
    uint32_t least;
    int64_t ties;
    int64_t at_least = 0;  // elements whose magnitude is not below `least`
};

// Of the entries of `picked` from `from` on those that the cut keeps; uses up its ties.
SLIMWIRE_LANES void keep(Picked& picked, int64_t from, Cut& cut) {
    int64_t count = from;
    for (int64_t i = from; i < picked.count; ++i) {
        const uint32_t magnitude = magnitude_bits(picked.p[i]);
        const bool tie = magnitude == cut.least;
        const bool kept = magnitude > cut.least || (tie && cut.ties != 0);
        cut.ties -= tie && kept ? 1 : 0;
        picked.p[count] = picked.p[i];
        picked.at[count] = picked.at[i];
        count += kept ? 1 : 0;
    }
    picked.count = count;
}

// Magnitudes of sixteen elements of p[0, n) from i on, zero past the end.
SLIMWIRE_LANES Words magnitudes_at(const float* p, int64_t i, int64_t n) {
    const Words magnitude = magnitude_of(load_float32(p + i));
    return n - i >= kLanes ? magnitude : blend((1u << (n - i)) - 1, magnitude, broadcast_bits(0));
}

// Elements of p[0, n) with a magnitude of at least `limit`, which is not 0.
SLIMWIRE_LANES int64_t count_at_least(const float* p, int64_t n, uint32_t limit) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += kLanes) {
        count += bits_set(mask_at_least(magnitudes_at(p, i, n), limit));
    }
    return count;
}

// The cut that keeps k <= n of p[0, n), by halving; where up to `more` elements above k do no harm,
// one that keeps k to k + more of them. Up to fifteen elements behind may be read.
SLIMWIRE_LANES Cut select_short(const float* p, int64_t n, int64_t k, int64_t more = 0) {
    Words most = broadcast_bits(0);
    for (int64_t i = 0; i < n; i += kLanes) {
        most = maximum(most, magnitudes_at(p, i, n));
    }
    constexpr uint32_t kNear = 4u << 23;  // a sixteenth of the largest
    uint32_t low = 0;
    uint32_t high = largest(most) + 1;
    int64_t above = 0;   // elements not below `high`
    bool zeros = false;  // looked for
    uint32_t middle = high > kNear ? high - kNear : high / 2;
    while (high - low > 1) {
        const int64_t count = count_at_least(p, n, middle);
        if (count >= k && count <= k + more) {
            return {middle, -1};
        }
        if (count > k) {
            low = middle;
        } else {
            high = middle;
            above = count;
        }
        // What is not near the largest may as well be 0.
        middle = low == 0 && count < k && high > 1 && !zeros ? 1 : low + (high - low) / 2;
        zeros = true;
    }
    return {low, k - above};
}

// The k-th largest of p[0, n), n being at least sixteen: from the kDepth >= k largest of each of
// sixteen columns.
template <int kDepth>
SLIMWIRE_LANES uint32_t select_few(const float* p, int64_t n, int64_t k) {
    Words most[kDepth];
    for (int d = 0; d < kDepth; ++d) {
        most[d] = broadcast_bits(0);
    }
    for (int64_t i = 0; i < n; i += kLanes) {
        Words x = magnitudes_at(p, i, n);
        for (int d = 0; d < kDepth; ++d) {
            const Words less = minimum(most[d], x);
            most[d] = maximum(most[d], x);
            x = less;
        }
    }
    for (;;) {
        const uint32_t bound = largest(most[0]);
        if (--k == 0) {
            return bound;
        }
        const uint32_t equal = equal_lanes(most[0], bound);
        const uint32_t one = equal & (0u - equal);
        for (int d = 0; d + 1 < kDepth; ++d) {
            most[d] = blend(one, most[d + 1], most[d]);
        }
    }
}

// A magnitude that at least k of p[0, n) reach and few more: from the maxima of 16 * kColumns
// columns.
template <int kColumns>
SLIMWIRE_LANES uint32_t bound_of(const float* p, int64_t n, int64_t k) {
    constexpr int64_t kStep = kColumns * kLanes;
    Words most[kColumns];
    for (int c = 0; c < kColumns; ++c) {
        most[c] = magnitude_of(load_float32(p + c * kLanes));
    }
    for (int64_t i = kStep; i + kStep <= n; i += kStep) {
        for (int c = 0; c < kColumns; ++c) {
            most[c] = maximum(most[c], magnitude_of(load_float32(p + i + c * kLanes)));
        }
    }
    alignas(64) float columns[kStep];
    for (int c = 0; c < kColumns; ++c) {
        store_float32(columns + c * kLanes, as_floats(most[c]));
    }
    return select_short(columns, kStep, k, k / 4).least;
}

// Appends the elements of p[first, first + n) that are not below `least`, with their distance from
// p; none if there is no room for them. Returns their number.
SLIMWIRE_LANES int64_t
collect_group(const float* p, int64_t first, int64_t n, uint32_t least, Picked& picked) {
    constexpr int64_t kMost = kMaxSparseGroup / kLanes + 1;
    uint16_t masks[kMost];
    uint16_t listed[kMost];
    int64_t lists = 0;
    int64_t count = 0;
    const int64_t whole = n / kLanes;
    const auto list = [&](int64_t i, uint32_t mask) __attribute__((always_inline)) {
        masks[i] = static_cast<uint16_t>(mask);
        listed[lists] = static_cast<uint16_t>(i);
        lists += mask != 0 ? 1 : 0;
        count += bits_set(mask);
    };
    for (int64_t i = 0; i < whole; ++i) {
        list(i, mask_at_least(magnitude_of(load_float32(p + first + i * kLanes)), least));
    }
    if (n % kLanes != 0) {
        const Words rest = magnitude_of(load_float32(p + first + whole * kLanes));
        list(whole, mask_at_least(rest, least) & ((1u << n % kLanes) - 1));
    }
    if (picked.count + count > kBatchElems) {
        return count;
    }
    for (int64_t k = 0; k < lists; ++k) {
        const int64_t i = first + listed[k] * kLanes;
        const uint32_t mask = masks[listed[k]];
        const Words at = add(lane_numbers(), broadcast_bits(static_cast<uint32_t>(i)));
        compress(as_words(load_float32(p + i)), mask, picked.p + picked.count);
        compress(at, mask, picked.at + picked.count);
        picked.count += bits_set(mask);
    }
    return count;
}

// Appends what is not 0 in p[first, first + n), and the first `zeros` of the others.
SLIMWIRE_LANES void pick_few_and_zeros(
    const float* p, int64_t first, int64_t n, int64_t zeros, Picked& picked) {
    int64_t i = first;
    for (; i < first + n && zeros > 0; ++i) {
        const bool zero = magnitude_bits(p[i]) == 0;
        zeros -= zero ? 1 : 0;
        picked.p[picked.count] = p[i];
        picked.at[picked.count++] = static_cast<uint32_t>(i);
    }
    collect_group(p, i, first + n - i, 1, picked);
}

// Appends the k largest of p[first, first + n), with their distance from p; false where more than
// there is room for would have to be looked at. Sixteen more elements than n may be read.
SLIMWIRE_LANES bool pick_group(
    const float* p, int64_t first, int64_t n, int64_t k, Picked& picked) {
    const int64_t from = picked.count;
    const float* group = p + first;
    Cut cut = {0, -1};
    bool exact = true;
    if (k <= 4) {
        cut.least = k == 1   ? select_few<1>(group, n, k)
                    : k == 2 ? select_few<2>(group, n, k)
                             : select_few<4>(group, n, k);
    } else if (k <= 24 && n >= 256) {
        cut.least = bound_of<4>(group, n, k);
        exact = false;
    } else if (k <= 96 && n >= 1024) {
        cut.least = bound_of<16>(group, n, k);
        exact = false;
    } else if (n <= kBatchElems) {
        cut = select_short(group, n, k);
    } else {
        return false;
    }
    const bool some_zeros = cut.least == 0 && cut.ties < 0;
    const int64_t found = collect_group(p, first, n, some_zeros ? 1 : cut.least, picked);
    if (some_zeros && found < k) {
        picked.count = from;
        pick_few_and_zeros(p, first, n, k - found, picked);
        return true;
    }
    if (found == k) {
        return picked.count == from + k;
    }
    if (picked.count != from + found) {
        return false;
    }
    if (!exact) {
        cut = select_short(picked.p + from, found, k);
    } else if (cut.ties < 0) {
        cut.ties = k - count_at_least(picked.p + from, found, cut.least + 1);
    }
    keep(picked, from, cut);
    return true;
}
