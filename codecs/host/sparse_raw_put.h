// The fast way of topk and threshold, second part: whole spans to the encoding. Included by
// host/sparse.cpp inside its anonymous namespace, after sparse_raw.h and the general way.

#if defined(SLIMWIRE_ISA_AVX512)

// NaN among values [from, to) become canonical. What lies behind the last value may be written as
// well.
template <class Element>
SLIMWIRE_LANES void settle_nan(uint8_t* values, int64_t from, int64_t to) {
    constexpr bool kBrain = Element::kMaxBits == kMaxBfloat16Bits;
    const __m512i infinity = raw_broadcast(kBrain ? 0x7F80 : 0x7C00);
    const __m512i nan = raw_broadcast(kBrain ? kNanBfloat16 : kNanFloat16);
    for (int64_t i = from; i < to; i += kRawElems) {
        const __mmask32 bad = _mm512_cmpgt_epu16_mask(raw_magnitudes(values + 2 * i), infinity);
        if (bad != 0) {
            _mm512_mask_storeu_epi16(values + 2 * i, bad, nan);
        }
    }
}

// Where the positions and native values of a span go, from value `kept` on. Up to 32 places behind
// them are overwritten.
struct RawOutput {
    uint8_t* values;
    uint8_t* indices;
    int64_t kept;
    int64_t inside;  // the span's first element within what two bytes reach
};

// Sends a span while the next one is marked.
template <IndexForm kForm>
[[gnu::noinline]] void put_raw(const RawOutput& output,
                               const uint8_t* input,
                               const RawSpan& span,
                               const uint8_t* ahead,
                               __m512i limit,
                               RawSpan& next) {
    uint8_t* values = output.values;
    uint8_t* indices = output.indices;
    const auto inside = static_cast<uint32_t>(output.inside);
    int64_t kept = output.kept;
    const __m512i lanes16 =
        _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13,
                         12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i lanes8 = _mm512_cvtepi16_epi8(lanes16);
    const auto put = [&](const uint32_t* first, uint32_t mask) __attribute__((always_inline)) {
        const int64_t count = bits_set(mask);
        const bool few = __builtin_expect(count <= 8, 1);  // small stores seldom cross a line
        const __m512i picked = raw_picked(input, *first, mask);
        if (kForm != IndexForm::kBitmap && few) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 2 * kept),
                             _mm512_castsi512_si128(picked));
        } else {
            _mm512_storeu_si512(values + 2 * kept, picked);
        }
        if constexpr (kForm == IndexForm::kLocal8) {
            const __m256i at =
                _mm256_add_epi8(lanes8, _mm256_set1_epi8(*reinterpret_cast<const char*>(first)));
            const __m256i moved =
                _mm256_mask_compress_epi8(_mm512_castsi512_si256(fresh_zero()), mask, at);
            if (few) {
                _mm_storel_epi64(reinterpret_cast<__m128i*>(indices + kept),
                                 _mm256_castsi256_si128(moved));
            } else {
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + kept), moved);
            }
        } else if constexpr (kForm == IndexForm::kLocal16) {
            const __m512i at =
                _mm512_add_epi16(lanes16, raw_broadcast(static_cast<uint16_t>(inside + *first)));
            _mm512_storeu_si512(indices + 2 * kept, compress_halves(at, mask));
        }
        kept += count;
    };
    walk_span(span, ahead, limit, next, put);
}

// Encodes the first `spans` spans of a chunk, all of them whole.
template <class Element>
SLIMWIRE_LANES void encode_raw(const uint8_t* input, int64_t spans, ChosenWriter& writer) {
    const SparsePlan& plan = writer.plan;
    uint8_t* output = writer.indices.output;
    int64_t& ties = writer.cut.ties;
    const uint16_t least = raw_limit<Element>(writer.cut.least);
    const bool straight = plan.format == ValueFormat::kNative && plan.form != IndexForm::kGaps;
    int64_t settled = 0;  // values [settled, raw_end) may hold NaN that are not canonical
    int64_t raw_end = 0;
    RawSpan both[2];
    mark_span(input, raw_broadcast(least), both[0]);
    for (int64_t s = 0; s < spans; ++s, input += kRawSpanBytes) {
        RawSpan& span = both[s % 2];
        RawSpan& next = both[(s + 1) % 2];
        list_span(span);
        if (ties > 0 && settle_ties(input, least, ties, span)) {
            list_span(span);
        }
        const auto now = static_cast<uint16_t>(least + (ties == 0 ? 1 : 0));
        const __m512i limit = raw_broadcast(now);
        writer.indices.begin_span(s);
        const int64_t kept = writer.indices.count;
        const uint8_t* ahead = s + 1 < spans ? input + kRawSpanBytes : input;
        if (straight && kept + span.count + kRawElems <= plan.capacity) {
            uint8_t* values = output + plan.values;
            const RawOutput to{values, output + plan.indices, kept, s * kSparseSpan % kSparseWide};
            settle_nan<Element>(values, settled, kept);  // of spans before, whose stores are done
            settled = kept;
            if (plan.form == IndexForm::kLocal8) {
                uint8_t* entry = output + kSparseHeader + kLocal8Entry * s;
                const __m512i counts = _mm512_load_si512(span.counts);
                put_word(entry + 4, _cvtmask32_u32(_mm512_cmpge_epu16_mask(
                                        counts, raw_broadcast(kSparseSegment))));
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(entry + 8),
                                    _mm512_cvtepi16_epi8(counts));
                put_raw<IndexForm::kLocal8>(to, input, span, ahead, limit, next);
            } else if (plan.form == IndexForm::kLocal16) {
                put_raw<IndexForm::kLocal16>(to, input, span, ahead, limit, next);
            } else {
                __builtin_memcpy(to.indices + s * (kSparseSpan / 8), span.mask, kSparseSpan / 8);
                put_raw<IndexForm::kBitmap>(to, input, span, ahead, limit, next);
            }
            raw_end = kept + span.count;
            writer.indices.count += span.count;
            writer.values.count += span.count;
            writer.survivors += span.count;
            continue;
        }
        if (kept == plan.capacity) {
            for (; s < spans; ++s, input += kRawSpanBytes) {
                writer.indices.begin_span(s);
                if (plan.kind == SparseKind::kThreshold) {
                    writer.lost |= count_raw<Element>(input, limit, writer.survivors);
                }
            }
            break;
        }
        for (int64_t i = 0; i < kSparseSpan && span.count != 0; i += kBatchElems) {
            pick_raw<Element>(input, span, i / kRawElems, writer.picked);
            writer.send(s * kSparseSpan + i);
        }
        mark_span(ahead, limit, next);
    }
    settle_nan<Element>(output + plan.values, settled, raw_end);
}

#endif
