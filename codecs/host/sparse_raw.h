// The fast way of topk and threshold through 16-bit elements that are encoded as they are (factor
// 1, no residual): a span at a time, compared as integers to one bit an element. Only AVX-512 has
// it; the other instruction sets take the general way, and the bytes are the same. Included by
// host/sparse.cpp inside its anonymous namespace.

#if defined(SLIMWIRE_ISA_AVX512)

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
        alignas(64) uint16_t element[kLanes] = {middle};
        alignas(64) uint32_t value[kLanes];
        store_words(value, as_words(Element::load(element)));
        if (value[0] >= least) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return static_cast<uint16_t>(low);
}

constexpr int64_t kRawElems = 32;  // of one mask
constexpr int64_t kRawMasks = kSparseSpan / kRawElems;

// What a whole span holds: a bit for every element, and the number of each segment.
struct RawSpan {
    alignas(64) uint32_t mask[kRawMasks];
    uint16_t counts[kSpanSegments];
    int64_t count;
};

SLIMWIRE_LANES __mmask32 raw_mask(const uint8_t* from, __m512i limit) {
    const __m512i magnitude = _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi16(0x7FFF));
    return _mm512_cmpge_epu16_mask(magnitude, limit);
}

SLIMWIRE_LANES void mark_span(const uint8_t* input, uint16_t least, RawSpan& span) {
    const __m512i limit = _mm512_set1_epi16(static_cast<int16_t>(least));
    for (int64_t i = 0; i < kRawMasks; i += 2, input += 128) {
        if (i >= kRawMasks / 2) {
            _mm_prefetch(reinterpret_cast<const char*>(input) + 16384, _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(input) + 16448, _MM_HINT_T0);
        }
        const uint64_t both =
            _cvtmask64_u64(_mm512_kunpackd(raw_mask(input + 64, limit), raw_mask(input, limit)));
        __builtin_memcpy(span.mask + i, &both, 8);
    }
    span.count = 0;
    for (int64_t segment = 0; segment < kSpanSegments; ++segment) {
        uint64_t word[4];
        __builtin_memcpy(word, span.mask + segment * 8, sizeof(word));
        const int64_t count = (__builtin_popcountll(word[0]) + __builtin_popcountll(word[1])) +
                              (__builtin_popcountll(word[2]) + __builtin_popcountll(word[3]));
        span.counts[segment] = static_cast<uint16_t>(count);
        span.count += count;
    }
}

// Calls body(number of the mask) for those of [0, masks) that are not zero; masks is a multiple
// of 16.
template <class Body>
SLIMWIRE_LANES void for_each_mask(const uint32_t* mask, int64_t masks, Body body) {
    alignas(64) uint32_t numbers[kRawMasks + kLanes];
    int64_t count = 0;
    for (int64_t i = 0; i < masks; i += kLanes) {
        const Words words = load_words(mask + i);
        const uint32_t some = _mm512_test_epi32_mask(words.v, words.v);
        compress(add(lane_numbers(), broadcast_bits(static_cast<uint32_t>(i))), some,
                 numbers + count);
        count += bits_set(some);
    }
    for (int64_t i = 0; i < count; ++i) {
        body(int64_t{numbers[i]});
    }
}

SLIMWIRE_LANES __m512i raw_picked(const uint8_t* input, int64_t i, uint32_t mask) {
    return _mm512_maskz_compress_epi16(mask, _mm512_loadu_si512(input + i * 64));
}

// The marked elements of masks [first, first + kBatchElems / 32) as p and positions.
template <class Element>
SLIMWIRE_LANES void pick_raw(const uint8_t* input,
                             const RawSpan& span,
                             int64_t first,
                             Picked& picked) {
    picked.count = 0;
    for_each_mask(span.mask + first, kBatchElems / kRawElems, [&](int64_t i) {
        const uint32_t mask = span.mask[first + i];
        alignas(64) uint8_t bytes[64];
        _mm512_storeu_si512(bytes, raw_picked(input, first + i, mask));
        const auto base = static_cast<uint32_t>(i * kRawElems);
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
    });
}

// Positions and native values of a whole span straight to the encoding, from value `kept` on. Up to
// 32 places behind them are overwritten.
template <class Element>
SLIMWIRE_LANES void put_raw(const SparsePlan& plan,
                            uint8_t* output,
                            const uint8_t* input,
                            int64_t number,
                            const RawSpan& span,
                            int64_t kept) {
    constexpr bool kBrain = Element::kMaxBits == kMaxBfloat16Bits;
    const __m512i infinity = _mm512_set1_epi16(kBrain ? 0x7F80 : 0x7C00);
    const __m512i nan = _mm512_set1_epi16(kBrain ? 0x7FC0 : 0x7E00);
    uint8_t* values = output + plan.values + kept * 2;
    uint8_t* indices = output + plan.indices;
    const __m512i lanes16 =
        _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13,
                         12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const auto put_value = [&](const __m512i element, int64_t count) {
        _mm512_storeu_si512(values, element);
        values += count * 2;
    };
    if (plan.form == IndexForm::kLocal8) {
        const __m256i lanes8 = _mm512_cvtepi16_epi8(lanes16);
        uint8_t* to = indices + kept;
        const char* ahead = reinterpret_cast<const char*>(input) + 16384;
        for_each_mask(span.mask, kRawMasks, [&](int64_t i) {
            _mm_prefetch(ahead, _MM_HINT_T0);
            _mm_prefetch(ahead + 64, _MM_HINT_T0);
            ahead += 128;
            const uint32_t mask = span.mask[i];
            const int64_t count = bits_set(mask);
            put_value(raw_picked(input, i, mask), count);
            const __m256i at = _mm256_maskz_compress_epi8(
                mask, _mm256_add_epi8(lanes8, _mm256_set1_epi8(static_cast<char>(i * 32))));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), at);
            to += count;
        });
        uint8_t* entry = output + kSparseHeader + kLocal8Entry * number;
        const __m512i counts = _mm512_loadu_si512(span.counts);
        put_word(entry + 4, _mm512_cmpge_epu16_mask(counts, _mm512_set1_epi16(kSparseSegment)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(entry + 8), _mm512_cvtepi16_epi8(counts));
    } else if (plan.form == IndexForm::kBitmap) {
        __builtin_memcpy(indices + number * (kSparseSpan / 8), span.mask, kSparseSpan / 8);
        for_each_mask(span.mask, kRawMasks, [&](int64_t i) {
            put_value(raw_picked(input, i, span.mask[i]), bits_set(span.mask[i]));
        });
    } else {
        const int64_t inside = number * kSparseSpan % kSparseWide;
        uint8_t* to = indices + kept * 2;
        for_each_mask(span.mask, kRawMasks, [&](int64_t i) {
            const uint32_t mask = span.mask[i];
            put_value(raw_picked(input, i, mask), bits_set(mask));
            const __m512i at =
                _mm512_add_epi16(lanes16, _mm512_set1_epi16(static_cast<int16_t>(inside + i * 32)));
            _mm512_storeu_si512(to, _mm512_maskz_compress_epi16(mask, at));
            to += bits_set(mask) * 2;
        });
    }
    // NaN are rare; what lies behind the last value may be written as well.
    for (uint8_t* at = output + plan.values + kept * 2; at < values; at += 64) {
        const __m512i magnitude =
            _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi16(0x7FFF));
        const __mmask32 bad = _mm512_cmpgt_epu16_mask(magnitude, infinity);
        if (bad != 0) {
            _mm512_mask_storeu_epi16(at, bad, nan);
        }
    }
}

#endif
