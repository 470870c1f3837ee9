// The sparsifiers on the host, one chunk at a time, in batches of 2048 elements. Layout and rules:
// codecs/FORMAT.md, "Sparse". Included by host/sparse.cpp inside its anonymous namespace.

// The residual of elements that are not sent: p where it is finite, otherwise the old one.
SLIMWIRE_LANES void leave(float* residual, Floats p, int64_t some) {
    const uint32_t bad = mask_at_least(magnitude_of(p), kInfinityBits);
    if (bad == 0 && some >= kLanes) {
        store_float32(residual, p);
        return;
    }
    const int64_t n = some < kLanes ? some : kLanes;
    const Floats old = load_some<Float32>(bytes_of(residual), n);
    store_some<Float32>(bytes_of(residual), as_floats(blend(bad, as_words(old), as_words(p))), n);
}

// Appends the elements [first, end) of a chunk of `count` whose magnitude is not below `least`,
// with their distance from `origin`.
template <bool kResidual, class Source>
SLIMWIRE_LANES void collect(const Source& source,
                            int64_t first,
                            int64_t end,
                            int64_t origin,
                            uint32_t least,
                            float* residual,
                            Picked& picked) {
    for (int64_t i = first; i < end; i += kLanes) {
        const Floats p = load_p(source, i, end);
        uint32_t mask = mask_at_least(magnitude_of(p), least);
        if (end - i < kLanes) {
            mask &= (1u << (end - i)) - 1;
        }
        if constexpr (kResidual) {
            leave(residual + i, p, end - i);
        }
        if (mask != 0) {
            const Words at = add(lane_numbers(), broadcast_bits(static_cast<uint32_t>(i - origin)));
            compress(as_words(p), mask, picked.p + picked.count);
            compress(at, mask, picked.at + picked.count);
            picked.count += bits_set(mask);
        }
    }
}

// Drops, from entry `from` on, elements equal to the cut once its ties are used up.
SLIMWIRE_LANES void drop_ties(Picked& picked, int64_t from, Cut& cut) {
    int64_t count = from;
    for (int64_t i = from; i < picked.count; ++i) {
        const bool tie = magnitude_bits(picked.p[i]) == cut.least;
        if (tie && cut.ties == 0) {
            continue;
        }
        cut.ties -= tie ? 1 : 0;
        picked.p[count] = picked.p[i];
        picked.at[count++] = picked.at[i];
    }
    picked.count = count;
}

// --- topk, threshold

template <class Element, bool kResidual>
void encode_chosen(const EncodeChunk& chunk, const SparsePlan& plan) {
    const Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
    const bool top = plan.kind == SparseKind::kTopK;
    Cut cut = {plan.threshold, -1};
    if (top) {
        cut = select_cut(source, plan.count, plan.capacity,
                         Element::kBytes == 2 && !kResidual && chunk.factor == 1.0f);
    }
    __builtin_memset(chunk.output, 0, static_cast<size_t>(plan.values));
    IndexWriter indices(plan, chunk.output);
    ValueWriter values(plan, chunk.output, chunk.residual);
    Picked picked;
    int64_t survivors = 0;
    bool lost = false;
    [[maybe_unused]] const bool raw = chunk.factor == 1.0f && cut.least <= kInfinityBits;
    const auto send = [&](int64_t batch) {
        if (cut.ties > 0) {
            drop_ties(picked, 0, cut);
        }
        survivors += picked.count;
        const int64_t room = plan.capacity - indices.count;
        const int64_t sent = picked.count < room ? picked.count : room;
        indices.put(picked.at, sent, batch);
        values.put(picked, sent, batch);
        for (int64_t i = sent; i < picked.count; ++i) {
            lost |= !is_finite(picked.p[i]);
        }
    };
    for (int64_t begin = 0; begin < plan.count; begin += kSparseSpan) {
        indices.begin_span(begin / kSparseSpan);
#if defined(SLIMWIRE_ISA_AVX512)
        if constexpr (Element::kBytes == 2 && !kResidual) {
            if (raw && begin + kSparseSpan <= plan.count) {
                RawSpan span;
                const uint8_t* input = chunk.input + begin * Element::kBytes;
                mark_span(input, raw_limit<Element>(cut.least + (cut.ties == 0 ? 1 : 0)), span);
                if (cut.ties <= 0 && plan.form != IndexForm::kGaps &&
                    plan.format == ValueFormat::kNative &&
                    indices.count + span.count + kRawElems <= plan.capacity) {
                    put_raw<Element>(plan, chunk.output, input, begin / kSparseSpan, span,
                                     indices.count);
                    indices.count += span.count;
                    values.count += span.count;
                    survivors += span.count;
                    continue;
                }
                for (int64_t i = 0; i < kSparseSpan; i += kBatchElems) {
                    pick_raw<Element>(input, span, i / kRawElems, picked);
                    send(begin + i);
                }
                continue;
            }
        }
#endif
        const int64_t span_end =
            begin + kSparseSpan < plan.count ? begin + kSparseSpan : plan.count;
        for (int64_t batch = begin; batch < span_end; batch += kBatchElems) {
            const int64_t end = batch + kBatchElems < span_end ? batch + kBatchElems : span_end;
            picked.count = 0;
            collect<kResidual>(source, batch, end, batch, cut.least + (cut.ties == 0 ? 1 : 0),
                               chunk.residual, picked);
            send(batch);
        }
    }
    values.finish();
    survivors = top ? cut.at_least : survivors;
    put_word(chunk.output, static_cast<uint32_t>(indices.count));
    put_word(chunk.output + 4,
             survivors < UINT32_MAX ? static_cast<uint32_t>(survivors) : UINT32_MAX);
    put_word(chunk.output + 8, cut.least);
    put_word(chunk.output + 12, static_cast<uint32_t>(plan.form) | (lost ? kFlagNonFinite : 0));
}

// Puts values at their positions in `output`, or adds them.
template <class Element, bool kAccumulate>
struct Scatter {
    static constexpr int64_t kMost = 512;
    const SparsePlan& plan;
    const uint8_t* input;
    uint8_t* output = nullptr;
    int64_t first = 0;  // number of the first value that waits
    int64_t waiting = 0;
    uint32_t at[kMost];
    alignas(64) float value[kMost + kLanes];

    Scatter(const SparsePlan& for_plan, const uint8_t* from) : plan(for_plan), input(from) {}

    void operator()(int64_t position, int64_t number) {
        if (waiting == kMost || number != first + waiting) {
            flush();
            first = number;
        }
        at[waiting++] = static_cast<uint32_t>(position);
    }

    void flush() {
        if (waiting == 0) {
            return;
        }
        read_values(plan, input, first, waiting, value);
        for (int64_t i = 0; i < waiting; i += kLanes) {
            const int64_t some = waiting - i < kLanes ? waiting - i : kLanes;
            alignas(64) uint8_t element[kLanes * Element::kBytes] = {};
            Floats x = load_float32(value + i);
            if constexpr (kAccumulate) {
                for (int64_t k = 0; k < some; ++k) {
                    __builtin_memcpy(element + k * Element::kBytes,
                                     output + int64_t{at[i + k]} * Element::kBytes,
                                     Element::kBytes);
                }
                x = add(Element::load(element), x);
            }
            Element::store(element, canonical(x));
            for (int64_t k = 0; k < some; ++k) {
                __builtin_memcpy(output + int64_t{at[i + k]} * Element::kBytes,
                                 element + k * Element::kBytes, Element::kBytes);
            }
        }
        waiting = 0;
    }
};

SLIMWIRE_LANES void set_status(uint32_t* status, bool good) {
    if (!good && status != nullptr) {
        *status |= kStatusCorrupt;
    }
}

template <class Element, bool kAccumulate>
void decode_chosen(const DecodeChunk& chunk, const SparsePlan& plan) {
    const int64_t kept = get_word(chunk.input);
    const uint32_t word = get_word(chunk.input + 12);
    bool good =
        kept <= plan.capacity && (word & ~kFlagNonFinite) == static_cast<uint32_t>(plan.form);
    const IndexReader reader{plan, chunk.input, kept < plan.capacity ? kept : plan.capacity};
    Scatter<Element, kAccumulate> scatter(plan, chunk.input);
    const int64_t unit_elems = reader.unit_elems();
    for (int64_t begin = 0, unit = 0; begin < plan.count; begin += unit_elems, ++unit) {
        const int64_t elems = plan.count - begin < unit_elems ? plan.count - begin : unit_elems;
        scatter.output = chunk.output + begin * Element::kBytes;
        if constexpr (!kAccumulate) {
            __builtin_memset(scatter.output, 0, static_cast<size_t>(elems * Element::kBytes));
        }
        good &= reader.read(unit, elems, [&](int64_t at, int64_t i) { scatter(at, i); });
        scatter.flush();
    }
    if ((word & kFlagNonFinite) != 0) {
        store_some<Element>(chunk.output, broadcast(__builtin_bit_cast(float, kNanFloat32)), 1);
    }
    set_status(chunk.status, good);
}
