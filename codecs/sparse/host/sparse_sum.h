// decode_reduce of blocktopk, rowtopk and randomk on the host. Elements that no source sent are
// factor * 0. Included by host/sparse.cpp inside its anonymous namespace.

template <class Element>
void sum_groups_as(const ReduceChunk& chunk, const SparsePlan& plan) {
    Tile tile;
    bool good = true;
    const int64_t step = groups_of_batch(plan);
    const GroupReader reader(plan, step);
    for (int64_t g = 0; g < plan.groups; g += step) {
        const int64_t begin = g * plan.group;
        const int64_t left = plan.count - begin;
        const int64_t elems = left < step * plan.group ? left : step * plan.group;
        good &= sum_groups(chunk, reader, g, elems, tile.p);
        put_scaled<Element>(tile.p, broadcast(chunk.factor), chunk.output + begin * Element::kBytes,
                            elems);
    }
    set_status(chunk.status, good);
}

// x, as an element, to `count` elements.
template <class Element>
SLIMWIRE_LANES void fill(uint8_t* output, float x, int64_t count) {
    if (__builtin_bit_cast(uint32_t, x) == 0) {
        __builtin_memset(output, 0, static_cast<size_t>(count * Element::kBytes));
        return;
    }
    const Sink<Element, false> sink{output};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        sink.sixteen(i, broadcast(x));
    }
    if (i < count) {
        sink.some(i, broadcast(x), count - i);
    }
}

template <class Element>
void sum_runs_as(const ReduceChunk& chunk, const SparsePlan& plan) {
    const RunChoice choice = read_choice(chunk.input);
    const Agreement sources(chunk, choice);
    const Floats factor = broadcast(chunk.factor);
    const float unsent = chunk.factor * 0.0f;
    for_each_stratum(plan, choice, [&](int64_t j, const Stratum& stratum) {
        uint8_t* const to = chunk.output + stratum.first * Element::kBytes;
        const int64_t before = stratum.chosen - stratum.first;
        const int64_t room = stratum.end - stratum.chosen;
        const int64_t run = room < kSparseRun ? room : kSparseRun;
        alignas(64) float sum[kSparseRun + kLanes];
        sum_run(chunk, plan, j * kSparseRun, sources.alike, sum);
        fill<Element>(to, unsent, before);
        put_scaled<Element>(sum, factor, to + before * Element::kBytes, run);
        fill<Element>(to + (before + run) * Element::kBytes, unsent, room - run);
    });
    set_status(chunk.status, sources.alike && sources.good);
}

void sum(const ReduceChunk& chunk, const SparsePlan& plan) {
    visit(chunk.dtype, [&](auto element) {
        if (plan.kind == SparseKind::kGroups) {
            sum_groups_as<decltype(element)>(chunk, plan);
        } else {
            sum_runs_as<decltype(element)>(chunk, plan);
        }
    });
}
