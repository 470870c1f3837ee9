// randomk on the host: one run of 32 elements of each stratum, drawn by the generator. Included by
// host/sparse.cpp inside its anonymous namespace.

// Names the choice of an encoding: the first three words of its header.
struct RunChoice {
    uint32_t step;
    uint32_t tensor;
    uint32_t chunk;
    bool operator==(const RunChoice&) const = default;
};

SLIMWIRE_LANES RunChoice read_choice(const uint8_t* input) {
    return {get_word(input), get_word(input + 4), get_word(input + 8)};
}
SLIMWIRE_LANES void write_choice(uint8_t* output, const RunChoice& choice) {
    put_word(output, choice.step);
    put_word(output + 4, choice.tensor);
    put_word(output + 8, choice.chunk);
    put_word(output + 12, 0);
}

struct Stratum {
    int64_t first;   // element
    int64_t end;     // element, at most the count
    int64_t chosen;  // first element of the chosen run
};

// Calls body(stratum number, Stratum) for all of them.
template <class Body>
SLIMWIRE_LANES void for_each_stratum(const SparsePlan& plan, const RunChoice& choice, Body body) {
    const RandomWords key = {
        {plan.seed, choice.tensor, 0, static_cast<uint32_t>(RandomPurpose::kChoice)}};
    const int64_t runs = (plan.count + kSparseRun - 1) / kSparseRun;
    uint32_t drawn[4] = {};
    for (int64_t j = 0; j < plan.groups; ++j) {
        if (j % 4 == 0) {
            const auto group = static_cast<uint64_t>(j) / 4;
            drawn[0] = static_cast<uint32_t>(group);
            drawn[1] = static_cast<uint32_t>(group >> 32);
            drawn[2] = choice.chunk;
            drawn[3] = choice.step;
            threefry(drawn, key);
        }
        const int64_t low = j * runs / plan.groups;
        const int64_t high = (j + 1) * runs / plan.groups;
        const uint64_t offset = uint64_t{drawn[j % 4]} * static_cast<uint64_t>(high - low) >> 32;
        const int64_t end = high * kSparseRun < plan.count ? high * kSparseRun : plan.count;
        body(j, Stratum{low * kSparseRun, end, (low + static_cast<int64_t>(offset)) * kSparseRun});
    }
}

// Takes runs of values; where an element that is not sent was not finite, the first value says so.
struct RunWriter {
    ValueWriter values;
    Picked run;  // positions 0, 1, ..., 31
    // The first values and their positions.
    int64_t firsts = 0;
    alignas(64) float first_p[kSparseBlock] = {};
    int64_t first_at[kSparseBlock] = {};

    RunWriter(const SparsePlan& plan, uint8_t* output, float* residual)
        : values(plan, output, residual) {
        run.count = kSparseRun;
        for (uint32_t i = 0; i < kSparseRun; ++i) {
            run.at[i] = i;
        }
    }

    // The run's p stand in run.p; it starts at element `begin`.
    void put(int64_t begin) {
        for (int64_t i = 0; i < kSparseRun && firsts < kSparseBlock; ++i) {
            first_at[firsts] = begin + i;
            first_p[firsts++] = run.p[i];
        }
        values.put(run, kSparseRun, begin);
    }

    void finish(bool lost) {
        values.finish();
        if (!lost) {
            return;
        }
        const SparsePlan& plan = values.plan;
        const int64_t poisoned = plan.format == ValueFormat::kNative ? 1 : firsts;
        for (int64_t i = 0; i < poisoned && values.residual != nullptr; ++i) {
            if (is_finite(first_p[i]) && first_at[i] < plan.count) {
                values.residual[first_at[i]] = first_p[i];
            }
        }
        if (plan.format == ValueFormat::kNative) {
            visit(plan.dtype, [&](auto element) {
                store_some<decltype(element)>(values.output + plan.values,
                                              broadcast(__builtin_bit_cast(float, kNanFloat32)), 1);
            });
            return;
        }
        const uint32_t nan = kNanFloat32;
        __builtin_memcpy(first_p, &nan, sizeof(nan));
        quantise_block_as(plan, first_p, values.output + plan.values, values.output + plan.scales);
    }
};

template <class Element, bool kResidual>
void encode_runs(const EncodeChunk& chunk, const SparsePlan& plan) {
    const Source<Element, kResidual> source{chunk.input, chunk.residual, broadcast(chunk.factor)};
    const RunChoice choice{chunk.random.step, chunk.random.key.v[1], chunk.random.chunk};
    write_choice(chunk.output, choice);
    RunWriter writer(plan, chunk.output, chunk.residual);
    Words most = broadcast_bits(0);
    for_each_stratum(plan, choice, [&](int64_t, const Stratum& stratum) {
        for (int64_t i = 0; i < kSparseRun; i += kLanes) {
            const int64_t at = stratum.chosen + i;
            store_float32(writer.run.p + i,
                          at < plan.count ? load_p(source, at, plan.count) : broadcast(0.0f));
        }
        for (int64_t i = stratum.first; i < stratum.end; i += kLanes) {
            const Floats p = load_p(source, i, stratum.end);
            if constexpr (kResidual) {
                leave(chunk.residual + i, p, stratum.end - i);
            }
            if (i < stratum.chosen || i >= stratum.chosen + kSparseRun) {
                most = maximum(most, magnitude_of(p));
            }
        }
        writer.put(stratum.chosen);
    });
    writer.finish(largest(most) >= kInfinityBits);
}

template <class Element, bool kAccumulate>
void decode_runs(const DecodeChunk& chunk, const SparsePlan& plan) {
    const int64_t bytes = plan.count * Element::kBytes;
    if constexpr (!kAccumulate) {
        __builtin_memset(chunk.output, 0, static_cast<size_t>(bytes));
    }
    for_each_stratum(plan, read_choice(chunk.input), [&](int64_t j, const Stratum& stratum) {
        alignas(64) float value[kSparseRun + kLanes];
        read_values(plan, chunk.input, j * kSparseRun, kSparseRun, value);
        const Sink<Element, kAccumulate> sink{chunk.output, Element::kMaxBits, chunk.sum_limit};
        for (int64_t i = 0; i < kSparseRun; i += kLanes) {
            const int64_t at = stratum.chosen + i;
            if (at + kLanes <= plan.count) {
                sink.sixteen(at, load_float32(value + i));
            } else if (at < plan.count) {
                sink.some(at, load_float32(value + i), plan.count - at);
            }
        }
    });
    set_status(chunk.status, get_word(chunk.input + 12) == 0);
}

// Whether all sources have the choice of source 0, and a header that an encoder writes.
struct Agreement {
    bool alike = true;
    bool good = true;

    Agreement(const ReduceChunk& chunk, const RunChoice& choice) {
        for (int32_t i = 0; i < chunk.inputs; ++i) {
            const uint8_t* input = chunk.input + i * chunk.input_stride;
            alike &= read_choice(input) == choice;
            good &= get_word(input + 12) == 0;
        }
    }
};

// The sum of value number `number` and the 31 after it. Sources whose choice is not that of source
// 0 cannot be added: all of it becomes NaN.
SLIMWIRE_LANES void sum_run(
    const ReduceChunk& chunk, const SparsePlan& plan, int64_t number, bool alike, float* sum) {
    alignas(64) float value[kSparseRun + kLanes];
    const SumSink<true> first{bytes_of(sum), kMaxFloat32Bits, broadcast(chunk.input_scale)};
    const SumSink<false> more{first.output, first.most, first.scale};
    for (int32_t s = 0; s < chunk.inputs; ++s) {
        read_values(plan, chunk.input + s * chunk.input_stride, number, kSparseRun, value);
        for (int64_t i = 0; i < kSparseRun; i += kLanes) {
            const Floats x = load_float32(value + i);
            s == 0 ? first.sixteen(i, x) : more.sixteen(i, x);
        }
    }
    limit_sums(chunk.sum_limit, sum, kSparseRun);
    for (int64_t i = 0; i < kSparseRun && !alike; i += kLanes) {
        store_float32(sum + i, broadcast(__builtin_bit_cast(float, kNanFloat32)));
    }
}

template <bool kResidual>
void reduce_runs(const ReduceChunk& chunk, const SparsePlan& plan) {
    const RunChoice choice = read_choice(chunk.input);
    const Agreement sources(chunk, choice);
    write_choice(chunk.output, choice);
    RunWriter writer(plan, chunk.output, chunk.residual);
    for_each_stratum(plan, choice, [&](int64_t j, const Stratum& stratum) {
        alignas(64) float sum[kSparseRun + kLanes];
        sum_run(chunk, plan, j * kSparseRun, sources.alike, sum);
        for (int64_t i = 0; i < kSparseRun; i += kLanes) {
            const int64_t at = stratum.chosen + i;
            Floats p = broadcast(0.0f);
            if (at < plan.count) {
                float* residual = kResidual ? chunk.residual + at : nullptr;
                const Source<Float32, kResidual> source{bytes_of(sum + i), residual,
                                                        broadcast(chunk.factor),
                                                        overflow_bits(chunk.dtype)};
                p = load_p(source, 0, plan.count - at);
                if (kResidual && sources.alike) {
                    leave(residual, p, plan.count - at);
                }
            }
            p = sources.alike ? p : broadcast(__builtin_bit_cast(float, kNanFloat32));
            store_float32(writer.run.p + i, p);
        }
        writer.put(stratum.chosen);
    });
    writer.finish(false);
    set_status(chunk.status, sources.alike && sources.good);
}
