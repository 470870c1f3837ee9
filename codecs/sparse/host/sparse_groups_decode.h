// Decoding of blocktopk and rowtopk on the host, and decode-reduce-encode. Included by
// host/sparse.cpp inside its anonymous namespace.

// Hands the entries of `groups` groups from `group` on to `scatter`, positions relative to the
// first of them; false where a group's positions do not ascend within it.
template <class Scatter>
SLIMWIRE_LANES bool read_groups(
    const SparsePlan& plan, const uint8_t* input, int64_t group, int64_t groups, Scatter& scatter) {
    bool good = true;
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = (group + g) * plan.kept;
        const int64_t left = plan.count - (group + g) * plan.group;
        const auto take = [&](int64_t at, int64_t i) {
            if (at < left) {  // not what completed the last group
                scatter(g * plan.group + at, i);
            }
        };
        const uint8_t* indices = input + plan.indices;
        const int64_t end = first + plan.kept;
        if (plan.form == IndexForm::kLocal8) {
            good &= IndexReader::read_local<uint8_t>(indices, 0, plan.group, first, end, take);
        } else if (plan.form == IndexForm::kLocal16) {
            good &= IndexReader::read_local<uint16_t>(indices, 0, plan.group, first, end, take);
        } else {
            good &= IndexReader::read_bitmap(indices + (group + g) * ((plan.group + 7) / 8),
                                             plan.group, first, end, take);
        }
    }
    return good;
}

// Reads the entries of a batch of groups.
struct GroupReader {
    const SparsePlan& plan;
    int64_t entries;  // of a batch
    // Of every entry of a batch, its group's first element.
    alignas(64) uint32_t base[kBatchElems + kLanes];

    GroupReader(const SparsePlan& for_plan, int64_t groups)
        : plan(for_plan), entries(groups * for_plan.kept) {
        for (int64_t i = 0; i < entries && entries <= kBatchElems; ++i) {
            base[i] = static_cast<uint32_t>(i / plan.kept * plan.group);
        }
    }

    // The quick way: positions of a whole batch, relative to its first element. False where there
    // is none: other forms, a batch that is cut off, bytes that no encoder writes.
    bool positions(const uint8_t* input, int64_t group, int64_t groups, uint32_t* at) const {
        const int64_t first =
            plan.indices + group * plan.kept * (plan.form == IndexForm::kLocal8 ? 1 : 2);
        const int64_t elems = groups * plan.group;
        if (entries > kBatchElems || groups * plan.kept != entries ||
            (plan.form != IndexForm::kLocal8 && plan.form != IndexForm::kLocal16) ||
            group * plan.group + elems > plan.count ||
            first + 2 * (entries + kLanes) > plan.bytes) {
            return false;
        }
        const uint8_t* indices = input + first;
        uint32_t outside = 0;
        at[0] = 0;  // as GCC 12 cannot know that there are entries
        for (int64_t i = 0; i < entries; i += kLanes) {
            const Words inside = plan.form == IndexForm::kLocal8 ? load_bytes(indices + i)
                                                                 : load_halves(indices + 2 * i);
            const uint32_t beyond = mask_at_least(inside, static_cast<uint32_t>(plan.group));
            outside |= entries - i < kLanes ? beyond & ((1u << (entries - i)) - 1) : beyond;
            store_words(at + i, add(inside, load_words(base + i)));
        }
        return outside == 0 && ascending(at, entries, elems);
    }

    // Hands the entries of `groups` groups from `group` on to `scatter`; false for bytes that no
    // encoder writes.
    template <class Scatter>
    bool read(const uint8_t* input, int64_t group, int64_t groups, Scatter& scatter) const {
        uint32_t at[kBatchElems + kLanes];
        if (positions(input, group, groups, at)) {
            scatter.put_all(at, entries, group * plan.kept);
            return true;
        }
        return read_groups(plan, input, group, groups, scatter);
    }
};

template <class Element, bool kAccumulate>
void decode_groups(const DecodeChunk& chunk, const SparsePlan& plan) {
    bool good = true;
    Scatter<Element, kAccumulate> scatter(plan, chunk.input, chunk.scale, chunk.sum_limit);
    // As many groups at a time as a span holds, unless they send more than a batch of entries.
    const int64_t span = kSparseSpan / plan.group;
    const int64_t most = kBatchElems / plan.kept;
    const int64_t step = span < 1 || most < 1 ? 1 : span < most ? span : most;
    const GroupReader reader(plan, step);
    for (int64_t g = 0; g < plan.groups; g += step) {
        const int64_t groups = plan.groups - g < step ? plan.groups - g : step;
        const int64_t begin = g * plan.group;
        const int64_t left = plan.count - begin;
        scatter.output = chunk.output + begin * Element::kBytes;
        if constexpr (!kAccumulate) {
            const int64_t elems = left < groups * plan.group ? left : groups * plan.group;
            __builtin_memset(scatter.output, 0, static_cast<size_t>(elems * Element::kBytes));
        }
        good &= reader.read(chunk.input, g, groups, scatter);
        scatter.flush();
    }
    set_status(chunk.status, good);
}

// The sum over the sources of `elems` elements, whole groups from group `group` on but for the end
// of the chunk; false where a list of positions is corrupt.
SLIMWIRE_LANES bool sum_groups(
    const ReduceChunk& chunk, const GroupReader& reader, int64_t group, int64_t elems, float* sum) {
    const SparsePlan& plan = reader.plan;
    const int64_t groups = (elems + plan.group - 1) / plan.group;
    __builtin_memset(sum, 0, sizeof(float) * static_cast<size_t>(elems));
    Scatter<Float32, false> first(plan, chunk.input, chunk.input_scale);
    first.output = bytes_of(sum);
    bool good = reader.read(chunk.input, group, groups, first);
    first.flush();
    for (int32_t i = 1; i < chunk.inputs; ++i) {
        const uint8_t* input = chunk.input + i * chunk.input_stride;
        Scatter<Float32, true> more(plan, input, chunk.input_scale);
        more.output = bytes_of(sum);
        good &= reader.read(input, group, groups, more);
        more.flush();
    }
    limit_sums(chunk.sum_limit, sum, elems);
    return good;
}

template <bool kResidual>
void reduce_groups(const ReduceChunk& chunk, const SparsePlan& plan) {
    bool good = true;
    const GroupReader reader(plan, groups_of_batch(plan));
    encode_batches(
        plan, chunk.output, chunk.residual, [&](Tile& tile, int64_t begin, int64_t elems) {
            good &= sum_groups(chunk, reader, begin / plan.group, elems, tile.p);
            float* residual = kResidual ? chunk.residual + begin : nullptr;
            const Source<Float32, kResidual> source{
                bytes_of(tile.p), residual, broadcast(chunk.factor), overflow_bits(chunk.dtype)};
            fill_tile<kResidual>(tile.p, source, 0, elems, residual);
        });
    set_status(chunk.status, good);
}
