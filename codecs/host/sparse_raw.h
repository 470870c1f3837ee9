// The fast way of topk and threshold through 16-bit elements that are encoded as they are (factor
// 1, no residual): a span at a time, compared as integers to one bit an element. Only AVX-512 has
// it; the other instruction sets take the general way, and the bytes are the same. Marking keeps
// the memory busy and moving elements the core, so a span is moved while the next one is marked.
// Included by host/sparse.cpp inside its anonymous namespace.

#if defined(SLIMWIRE_ISA_AVX512)

// The magnitude bits of a 16-bit magnitude's fp32 value.
template <class Element>
SLIMWIRE_LANES uint32_t raw_value(uint16_t magnitude) {
    if constexpr (Element::kMaxBits == kMaxBfloat16Bits) {
        return uint32_t{magnitude} << 16;
    }
    alignas(64) const uint16_t element[kLanes] = {magnitude};
    alignas(64) uint32_t value[kLanes];
    store_words(value, as_words(Element::load(element)));
    return value[0];
}

// The least 16-bit magnitude whose fp32 value is at least the magnitude `least`, which is at most
// that of infinity plus 1.
template <class Element>
SLIMWIRE_LANES uint16_t raw_limit(uint32_t least) {
    uint32_t low = 0;
    uint32_t high = 0x7C01;  // no 16-bit magnitude below it is above infinity
    if constexpr (Element::kMaxBits == kMaxBfloat16Bits) {
        return static_cast<uint16_t>((least + 0xFFFF) >> 16);
    }
    while (low < high) {
        const auto middle = static_cast<uint16_t>((low + high) / 2);
        if (raw_value<Element>(middle) >= least) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return static_cast<uint16_t>(low);
}

constexpr int64_t kRawElems = 32;  // of one mask
constexpr int64_t kRawMasks = kSparseSpan / kRawElems;
constexpr int64_t kRawPairs = kRawMasks / 2;
constexpr int64_t kRawSpanBytes = kSparseSpan * 2;

// What a whole span holds: a bit for every element; then, from list_span(), the masks that are not
// zero with the first element of each, and the number of marked elements.
struct RawSpan {
    alignas(64) uint32_t mask[kRawMasks];
    alignas(64) uint32_t word[kRawMasks + kLanes];
    alignas(64) uint32_t first[kRawMasks + kLanes];
    alignas(64) uint16_t counts[kSpanSegments];
    int64_t lists;
    int64_t count;
};

SLIMWIRE_LANES __m512i raw_magnitudes(const uint8_t* from) {
    return _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi16(0x7FFF));
}
SLIMWIRE_LANES __m512i raw_broadcast(uint16_t limit) {
    return _mm512_set1_epi16(static_cast<int16_t>(limit));
}

// Marks 64 elements.
SLIMWIRE_LANES void mark_pair(const uint8_t* from, __m512i limit, uint32_t* mask) {
    const __mmask32 low = _mm512_cmpge_epu16_mask(raw_magnitudes(from), limit);
    const __mmask32 high = _mm512_cmpge_epu16_mask(raw_magnitudes(from + 64), limit);
    const uint64_t both = _cvtmask64_u64(_mm512_kunpackd(high, low));
    __builtin_memcpy(mask, &both, sizeof(both));
}

SLIMWIRE_LANES void mark_span(const uint8_t* input, __m512i limit, RawSpan& span) {
    for (int64_t i = 0; i < kRawPairs; ++i) {
        mark_pair(input + i * 128, limit, span.mask + i * 2);
    }
}

SLIMWIRE_LANES void list_span(RawSpan& span) {
    alignas(64) uint8_t bits[kRawMasks];  // of each mask
    const Words firsts = shift_left<5>(lane_numbers());
    int64_t lists = 0;
    for (int64_t i = 0; i < kRawMasks; i += kLanes) {
        const Words words = load_words(span.mask + i);
        const uint32_t some = word_of(_mm512_test_epi32_mask(words.v, words.v));
        compress(words, some, span.word + lists);
        compress(add(firsts, broadcast_bits(static_cast<uint32_t>(i * kRawElems))), some,
                 span.first + lists);
        lists += bits_set(some);
        _mm_store_si128(reinterpret_cast<__m128i*>(bits + i),
                        _mm512_cvtepi32_epi8(_mm512_popcnt_epi32(words.v)));
    }
    span.lists = lists;
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < kRawMasks; i += 64) {
        const __m512i eight = _mm512_sad_epu8(_mm512_load_si512(bits + i), _mm512_setzero_si512());
        sum = _mm512_add_epi64(sum, eight);
        _mm_store_si128(reinterpret_cast<__m128i*>(span.counts + i / 8),
                        _mm512_cvtepi64_epi16(eight));
    }
    span.count = _mm512_reduce_add_epi64(sum);
}

// Calls put(first element, mask) for the listed masks of a span in their order, and meanwhile marks
// the span at `ahead`. Three pairs for every two calls: at one survivor in a hundred both end
// together.
template <class Put>
SLIMWIRE_LANES void walk_span(
    const RawSpan& span, const uint8_t* ahead, __m512i limit, RawSpan& next, Put put) {
    const int64_t lists = span.lists;
    const int64_t twos = lists / 2 < kRawPairs / 3 ? lists / 2 : kRawPairs / 3;
    const uint32_t* word = span.word;
    const uint32_t* first = span.first;
    uint32_t* mask = next.mask;
    for (const uint32_t* end = word + 2 * twos; word < end; word += 2, first += 2) {
        mark_pair(ahead, limit, mask);
        mark_pair(ahead + 128, limit, mask + 2);
        mark_pair(ahead + 256, limit, mask + 4);
        ahead += 384;
        mask += 6;
        put(first, word[0]);
        put(first + 1, word[1]);
    }
    for (const uint32_t* end = span.word + lists; word < end; ++word, ++first) {
        put(first, word[0]);
    }
    for (const uint32_t* end = next.mask + kRawMasks; mask < end; mask += 2, ahead += 128) {
        mark_pair(ahead, limit, mask);
    }
}

// Unmarks elements equal to the cut, whose magnitude is `least`, once its ties are used up; true if
// there were any.
SLIMWIRE_LANES bool settle_ties(const uint8_t* input,
                                uint16_t least,
                                int64_t& ties,
                                RawSpan& span) {
    const __m512i equal = raw_broadcast(least);
    bool changed = false;
    for (int64_t i = 0; i < span.lists; ++i) {
        const int64_t at = span.first[i] / kRawElems;
        uint32_t tied =
            _cvtmask32_u32(_mm512_cmpeq_epi16_mask(raw_magnitudes(input + at * 64), equal));
        const int64_t count = bits_set(tied);
        if (count > ties) {
            for (; ties > 0; --ties) {
                tied &= tied - 1;
            }
            span.mask[at] &= ~tied;
            changed = true;
        } else {
            ties -= count;
        }
    }
    return changed;
}

SLIMWIRE_LANES __m512i compress_halves(__m512i x, uint32_t mask) {
    return _mm512_mask_compress_epi16(fresh_zero(), mask, x);
}
SLIMWIRE_LANES __m512i raw_picked(const uint8_t* input, int64_t first, uint32_t mask) {
    return compress_halves(_mm512_loadu_si512(input + first * 2), mask);
}

// The marked elements of masks [first, first + kBatchElems / 32) as p and positions.
template <class Element>
SLIMWIRE_LANES void pick_raw(const uint8_t* input,
                             const RawSpan& span,
                             int64_t first,
                             Picked& picked) {
    picked.count = 0;
    for (int64_t i = first; i < first + kBatchElems / kRawElems; ++i) {
        const uint32_t mask = span.mask[i];
        if (mask == 0) {
            continue;
        }
        alignas(64) uint8_t bytes[64];
        _mm512_storeu_si512(bytes, raw_picked(input, i * kRawElems, mask));
        const auto base = static_cast<uint32_t>((i - first) * kRawElems);
        const int64_t low = bits_set(mask & 0xFFFF);
        const int64_t count = bits_set(mask);
        store_float32(picked.p + picked.count, Element::load(bytes));
        if (count > kLanes) {
            store_float32(picked.p + picked.count + kLanes, Element::load(bytes + 2 * kLanes));
        }
        compress(add(lane_numbers(), broadcast_bits(base)), mask & 0xFFFF,
                 picked.at + picked.count);
        compress(add(lane_numbers(), broadcast_bits(base + kLanes)), mask >> 16,
                 picked.at + picked.count + low);
        picked.count += count;
    }
}

// A span when the capacity is used up: counts it, and says whether it holds a non-finite element.
template <class Element>
SLIMWIRE_LANES bool count_raw(const uint8_t* input, __m512i limit, int64_t& survivors) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < kRawSpanBytes; i += 128) {
        const __m512i low = raw_magnitudes(input + i);
        const __m512i high = raw_magnitudes(input + i + 64);
        most = _mm512_max_epu16(most, _mm512_max_epu16(low, high));
        survivors += __builtin_popcountll(_cvtmask64_u64(_mm512_kunpackd(
            _mm512_cmpge_epu16_mask(high, limit), _mm512_cmpge_epu16_mask(low, limit))));
    }
    return _mm512_cmpge_epu16_mask(most, raw_broadcast(raw_limit<Element>(kInfinityBits))) != 0;
}

#endif
