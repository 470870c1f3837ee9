// Encoding of topk and threshold on the host, span by span. Layout and rules: codecs/FORMAT.md,
// "Sparse". Included by host/sparse.cpp inside its anonymous namespace.

// The cut that keeps plan.capacity elements.
template <class Element, bool kResidual>
SLIMWIRE_LANES Cut find_cut(const Source<Element, kResidual>& source,
                            const SparsePlan& plan,
                            float factor) {
    const bool as_they_are = Element::kBytes == 2 && !kResidual && factor == 1.0f;
    return select_cut(source, plan.count, plan.capacity, as_they_are);
}

template <class Element, bool kResidual>
void encode_chosen(const EncodeChunk& chunk, const SparsePlan& plan) {
    const Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
    const Cut cut = plan.kind == SparseKind::kTopK ? find_cut(source, plan, chunk.factor)
                                                   : Cut{plan.threshold, -1};
    __builtin_memset(chunk.output, 0, static_cast<size_t>(plan.values));
    ChosenWriter writer(plan, cut, chunk.output, chunk.residual);
    alignas(64) float tile[kBatchElems + kLanes];
    for (int64_t begin = 0; begin < plan.count; begin += kSparseSpan) {
        writer.indices.begin_span(begin / kSparseSpan);
        const int64_t span_end =
            begin + kSparseSpan < plan.count ? begin + kSparseSpan : plan.count;
        for (int64_t batch = begin; batch < span_end; batch += kBatchElems) {
            const int64_t end = batch + kBatchElems < span_end ? batch + kBatchElems : span_end;
            writer.picked.count = 0;
            fill_tile<kResidual>(tile, source, batch, end - batch, chunk.residual);
            collect_group(tile, 0, end - batch, writer.least(), writer.picked);
            if (writer.cut.ties > 0) {
                keep(writer.picked, 0, writer.cut);
            }
            writer.send(batch);
        }
    }
    writer.finish();
}

template <class Element, bool kResidual>
uint32_t cut_of(const EncodeChunk& chunk, const SparsePlan& plan) {
    const Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
    return find_cut(source, plan, chunk.factor).least;
}

template <class Element, bool kResidual>
int64_t reach_of(const EncodeChunk& chunk, uint32_t least) {
    const Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
    int64_t reach = 0;
    for (int64_t i = 0; i < chunk.count; i += kLanes) {
        const int64_t left = chunk.count - i;
        const uint32_t there = left < kLanes ? (1u << left) - 1 : 0xFFFF;
        reach +=
            bits_set(mask_at_least(magnitude_of(load_p(source, i, chunk.count)), least) & there);
    }
    return reach;
}
