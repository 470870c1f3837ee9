// Decoding of topk and threshold on the host, and what all decoders share. Layout and rules:
// codecs/FORMAT.md, "Sparse". Included by host/sparse.cpp inside its anonymous namespace.

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
