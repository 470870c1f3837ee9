// Encoding of topk and threshold on the host: the fast way where there is one, span by span
// otherwise. Layout and rules: codecs/FORMAT.md, "Sparse". Included by host/sparse.cpp inside its
// anonymous namespace.

template <class Element, bool kResidual>
void encode_chosen(const EncodeChunk& chunk, const SparsePlan& plan) {
    const Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
    const bool integers = Element::kBytes == 2 && !kResidual && chunk.factor == 1.0f;
    Cut cut = {plan.threshold, -1};
    if (plan.kind == SparseKind::kTopK) {
        bool selected = false;
#if defined(SLIMWIRE_ISA_AVX512)
        if constexpr (Element::kBytes == 2) {
            selected = integers && plan.count >= kSparseSpan;
            if (selected) {
                cut = select_raw<Element>(chunk.input, plan.count, plan.capacity);
            }
        }
#endif
        if (!selected) {
            cut = select_cut(source, plan.count, plan.capacity, integers);
        }
    }
    __builtin_memset(chunk.output, 0, static_cast<size_t>(plan.values));
    ChosenWriter writer(plan, cut, chunk.output, chunk.residual);
    int64_t begin = 0;
#if defined(SLIMWIRE_ISA_AVX512)
    if constexpr (Element::kBytes == 2) {
        const int64_t spans = plan.count / kSparseSpan;
        if (integers && spans != 0 && cut.least <= kInfinityBits) {
            encode_raw<Element>(chunk.input, spans, writer);
            begin = spans * kSparseSpan;
        }
    }
#endif
    alignas(64) float tile[kBatchElems + kLanes];
    for (; begin < plan.count; begin += kSparseSpan) {
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
