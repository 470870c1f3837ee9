// Elements at the positions of an encoding of topk or randomk: host body of masked_values.h.
// Included by host/sparse.cpp inside its anonymous namespace.

template <class Word>
bool gather_words(const uint8_t* mask,
                  const uint8_t* input,
                  uint8_t* values,
                  const SparsePlan& plan,
                  Word exponent) {
    Word finite = 1;
    for (int64_t i = 0; i < plan.count; ++i) {
        Word element;
        __builtin_memcpy(&element, input + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
        finite &= (element & exponent) != exponent ? 1 : 0;
    }
    if (mask == nullptr) {
        return finite != 0;
    }
    const auto take = [&](int64_t position, int64_t number, int64_t elems) {
        __builtin_memcpy(values + number * static_cast<int64_t>(sizeof(Word)),
                         input + position * static_cast<int64_t>(sizeof(Word)),
                         static_cast<size_t>(elems) * sizeof(Word));
    };
    if (plan.kind == SparseKind::kRuns) {
        for_each_stratum(plan, read_choice(mask), [&](int64_t j, const Stratum& stratum) {
            const int64_t left = plan.count - stratum.chosen;
            take(stratum.chosen, j * kSparseRun, left < kSparseRun ? left : kSparseRun);
        });
        return finite != 0;
    }
    SparsePlan known = plan;
    known.bytes = plan.values;  // nothing behind the positions is read
    const int64_t kept = get_word(mask);
    const IndexReader reader{known, mask, kept < plan.capacity ? kept : plan.capacity};
    const int64_t unit_elems = reader.unit_elems();
    for (int64_t begin = 0, unit = 0; begin < plan.count; begin += unit_elems, ++unit) {
        const int64_t elems = plan.count - begin < unit_elems ? plan.count - begin : unit_elems;
        (void)reader.read(unit, elems, [&](int64_t position, int64_t number) {
            take(begin + position, number, 1);
        });
    }
    return finite != 0;
}

// Whether all elements are finite; without a mask no value is written.
bool gather(const uint8_t* mask, const uint8_t* input, uint8_t* values, const SparsePlan& plan) {
    return plan.dtype == DType::kFloat32
               ? gather_words<uint32_t>(mask, input, values, plan, 0x7F800000u)
               : gather_words<uint16_t>(mask, input, values, plan,
                                        plan.dtype == DType::kFloat16 ? 0x7C00 : 0x7F80);
}
