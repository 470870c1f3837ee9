// Decoding of topk and threshold on the host, and what all decoders share. Layout and rules:
// codecs/FORMAT.md, "Sparse". Included by host/sparse.cpp inside its anonymous namespace.

// Puts values, times `scale`, at their positions in `output`, or adds them.
template <class Element, bool kAccumulate>
struct Scatter {
    static constexpr int64_t kMost = 512;
    const SparsePlan& plan;
    const uint8_t* input;
    Floats scale;
    SumLimit sum_limit;
    uint8_t* output = nullptr;
    int64_t first = 0;  // number of the first value that waits
    int64_t waiting = 0;
    uint32_t at[kMost];
    alignas(64) float value[kMost + kLanes];
    alignas(64) uint8_t element[(kMost + kLanes) * Element::kBytes];

    Scatter(const SparsePlan& for_plan, const uint8_t* from, float times, SumLimit limit = {})
        : plan(for_plan), input(from), scale(broadcast(times)), sum_limit(limit) {}

    void operator()(int64_t position, int64_t number) {
        if (waiting == kMost || number != first + waiting) {
            flush();
            first = number;
        }
        at[waiting++] = static_cast<uint32_t>(position);
    }

    void flush() {
        put(at, waiting, first);
        waiting = 0;
    }

    // Values `number` to `number + n - 1`.
    void put_all(const uint32_t* positions, int64_t n, int64_t number) {
        for (int64_t i = 0; i < n; i += kMost) {
            put(positions + i, n - i < kMost ? n - i : kMost, number + i);
        }
    }

    // The same, at most kMost. Elements move in loops of their own: a vector that is loaded right
    // after its parts were stored would wait for them.
    void put(const uint32_t* positions, int64_t n, int64_t number) {
        constexpr int64_t kBytes = Element::kBytes;
        if (n == 0) {
            return;
        }
        read_values(plan, input, number, n, value);
        if constexpr (kAccumulate) {
            for (int64_t i = 0; i < n; ++i) {
                __builtin_memcpy(element + i * kBytes, output + int64_t{positions[i]} * kBytes,
                                 kBytes);
            }
        }
        for (int64_t i = 0; i < n; i += kLanes) {
            Floats x = load_float32(value + i);
            if constexpr (kAccumulate) {
                const Floats old = Element::load(element + i * kBytes);
                x = sum_limit.most == kNoSumLimit ? multiply_add(scale, x, old)
                                                  : limited_sum(scale, x, old, sum_limit);
            } else {
                x = multiply(scale, x);
            }
            Element::store(element + i * kBytes, canonical(x));
        }
        for (int64_t i = 0; i < n; ++i) {
            __builtin_memcpy(output + int64_t{positions[i]} * kBytes, element + i * kBytes, kBytes);
        }
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
    Scatter<Element, kAccumulate> scatter(plan, chunk.input, chunk.scale, chunk.sum_limit);
    const int64_t unit_elems = reader.unit_elems();
    for (int64_t begin = 0, unit = 0; begin < plan.count; begin += unit_elems, ++unit) {
        const int64_t elems = plan.count - begin < unit_elems ? plan.count - begin : unit_elems;
        scatter.output = chunk.output + begin * Element::kBytes;
        const int64_t start = reader.start_of(unit);
        if constexpr (!kAccumulate) {
            __builtin_memset(scatter.output, 0, static_cast<size_t>(elems * Element::kBytes));
        }
        uint32_t at[kSparseSpan + kLanes];
        const int64_t found = reader.positions(unit, elems, at);
        if (found >= 0) {
            scatter.put_all(at, found, start);
            continue;
        }
        good &=
            reader.read(unit, elems, [&](int64_t position, int64_t i) { scatter(position, i); });
        scatter.flush();
    }
    if ((word & kFlagNonFinite) != 0) {
        store_some<Element>(chunk.output, broadcast(__builtin_bit_cast(float, kNanFloat32)), 1);
    }
    set_status(chunk.status, good);
}
