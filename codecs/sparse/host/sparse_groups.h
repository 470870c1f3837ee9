// blocktopk and rowtopk on the host: the largest elements of every group, several groups at a time
// where they are short. Included by host/sparse.cpp inside its anonymous namespace.

// The p of one batch: whole groups of up to 2048 elements, or one larger group.
struct Tile {
    alignas(64) float p[kMaxSparseGroup + kLanes];
};

SLIMWIRE_LANES int64_t groups_of_batch(const SparsePlan& plan) {
    return plan.group < kBatchElems ? kBatchElems / plan.group : 1;
}

// Writes the positions of entries that follow one another, `kept` of each group.
struct GroupWriter {
    const SparsePlan& plan;
    uint8_t* indices;
    int64_t group = 0;
    int64_t done = 0;  // entries of the group

    // n of the group's, counted from `origin` before it.
    void put(const uint32_t* at, int64_t n, uint32_t origin) {
        if (plan.form == IndexForm::kLocal8) {
            uint8_t* to = indices + group * plan.kept + done;
            for (int64_t i = 0; i < n; ++i) {
                to[i] = static_cast<uint8_t>(at[i] - origin);
            }
        } else if (plan.form == IndexForm::kLocal16) {
            uint8_t* to = indices + 2 * (group * plan.kept + done);
            for (int64_t i = 0; i < n; ++i) {
                const auto wide = static_cast<uint16_t>(at[i] - origin);
                __builtin_memcpy(to + 2 * i, &wide, 2);
            }
        } else {
            uint8_t* bits = indices + group * ((plan.group + 7) / 8);
            for (int64_t i = 0; i < n; ++i) {
                const uint32_t bit = at[i] - origin;
                bits[bit / 8] = static_cast<uint8_t>(bits[bit / 8] | 1 << (bit % 8));
            }
        }
        done += n;
        if (done == plan.kept) {
            done = 0;
            ++group;
        }
    }
};

// Encodes a group that pick_group() could not, part by part.
SLIMWIRE_LANES void encode_large_group(const float* p,
                                       const SparsePlan& plan,
                                       int64_t begin,
                                       Picked& picked,
                                       GroupWriter& indices,
                                       ValueWriter& values) {
    Cut cut = select_short(p, plan.group, plan.kept);
    for (int64_t i = 0; i < plan.group; i += kBatchElems) {
        const int64_t n = plan.group - i < kBatchElems ? plan.group - i : kBatchElems;
        picked.count = 0;
        collect_group(p, i, n, cut.least, picked);
        keep(picked, 0, cut);
        indices.put(picked.at, picked.count, 0);
        values.put(picked, picked.count, begin);
    }
}

// Encodes the batch whose p stand in `tile`, `groups` groups from element `begin` of the chunk.
SLIMWIRE_LANES void encode_group_tile(const Tile& tile,
                                      const SparsePlan& plan,
                                      int64_t begin,
                                      int64_t groups,
                                      GroupWriter& indices,
                                      ValueWriter& values) {
    Picked picked;
    picked.count = 0;
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * plan.group;
        const int64_t from = picked.count;
        if (!pick_group(tile.p, first, plan.group, plan.kept, picked)) {
            encode_large_group(tile.p, plan, begin, picked, indices, values);
            return;
        }
        indices.put(picked.at + from, plan.kept, static_cast<uint32_t>(first));
    }
    values.put(picked, picked.count, begin);
}

// Calls fill(tile, first element, elements) for every batch and encodes it. What completes the last
// group is zero.
template <class Fill>
SLIMWIRE_LANES void encode_batches(const SparsePlan& plan,
                                   uint8_t* output,
                                   float* residual,
                                   Fill fill) {
    __builtin_memset(output, 0, static_cast<size_t>(plan.values));
    GroupWriter indices{plan, output + plan.indices};
    ValueWriter values(plan, output, residual);
    Tile tile;
    const int64_t step = groups_of_batch(plan);
    for (int64_t g = 0; g < plan.groups; g += step) {
        const int64_t groups = plan.groups - g < step ? plan.groups - g : step;
        const int64_t begin = g * plan.group;
        const int64_t left = plan.count - begin;
        const int64_t elems = left < groups * plan.group ? left : groups * plan.group;
        fill(tile, begin, elems);
        __builtin_memset(tile.p + elems, 0,
                         sizeof(float) * static_cast<size_t>(groups * plan.group - elems));
        encode_group_tile(tile, plan, begin, groups, indices, values);
    }
    values.finish();
}

template <class Element, bool kResidual>
void encode_groups(const EncodeChunk& chunk, const SparsePlan& plan) {
    const Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
    encode_batches(plan, chunk.output, chunk.residual,
                   [&](Tile& tile, int64_t begin, int64_t elems) {
                       fill_tile<kResidual>(tile.p, source, begin, elems, chunk.residual);
                   });
}
