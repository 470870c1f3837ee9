// Encoding on the host, one chunk at a time, in batches of 2048 elements: what topk and threshold
// share with blocktopk and rowtopk. Layout and rules: codecs/FORMAT.md, "Sparse". Included by
// host/sparse.cpp inside its anonymous namespace.

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

// Computes p of `elems` elements from `begin` on, and leaves it in the residual.
template <bool kResidual, class Source>
SLIMWIRE_LANES void fill_tile(
    float* tile, const Source& source, int64_t begin, int64_t elems, float* residual) {
    for (int64_t i = 0; i < elems; i += kLanes) {
        const Floats p = load_p(source, begin + i, begin + elems);
        store_float32(tile + i, p);
        if constexpr (kResidual) {
            leave(residual + begin + i, p, elems - i);
        }
    }
}

// What encoding a chunk has come to.
struct ChosenWriter {
    const SparsePlan& plan;
    Cut cut;
    IndexWriter indices;
    ValueWriter values;
    int64_t survivors = 0;
    bool lost = false;  // something non-finite found no room
    Picked picked;

    ChosenWriter(const SparsePlan& for_plan, const Cut& at, uint8_t* output, float* residual)
        : plan(for_plan), cut(at), indices(for_plan, output), values(for_plan, output, residual) {}

    // What to pick now: magnitudes from this one on.
    [[nodiscard]] uint32_t least() const { return cut.least + (cut.ties == 0 ? 1 : 0); }

    // Sends what was picked from the batch at element `batch`, as far as there is room.
    void send(int64_t batch) {
        survivors += picked.count;
        const int64_t room = plan.capacity - indices.count;
        const int64_t sent = picked.count < room ? picked.count : room;
        indices.put(picked.at, sent, batch);
        values.put(picked, sent, batch);
        for (int64_t i = sent; i < picked.count; ++i) {
            lost |= !is_finite(picked.p[i]);
        }
    }

    void finish() {
        uint8_t* output = indices.output;
        values.finish();
        survivors = plan.kind == SparseKind::kTopK ? cut.at_least : survivors;
        put_word(output, static_cast<uint32_t>(indices.count));
        put_word(output + 4,
                 survivors < UINT32_MAX ? static_cast<uint32_t>(survivors) : UINT32_MAX);
        put_word(output + 8, cut.least);
        put_word(output + 12, static_cast<uint32_t>(plan.form) | (lost ? kFlagNonFinite : 0));
    }
};
