// Codec bounded on the host: the operations on one chunk, group by group so that everything between
// two memory accesses stays in the first-level cache. Layout and rules: codecs/FORMAT.md. Included
// by bounded.cpp inside its anonymous namespace.

template <class Element>
constexpr bool kIsBfloat16 = false;
template <>
constexpr bool kIsBfloat16<Bfloat16> = true;

struct Bounded {
    static constexpr float kMagic = 0x1.8p23f;              // whose last bit is a whole step
    static constexpr uint32_t kUnsignedBits = 0x4B000000u;  // 2^23

    SLIMWIRE_LANES uint32_t load_word(const uint8_t* from) {
        uint32_t word;
        __builtin_memcpy(&word, from, 4);
        return word;
    }
    SLIMWIRE_LANES void store_word(uint8_t* to, uint32_t word) { __builtin_memcpy(to, &word, 4); }

    // How far ahead of an operation memory is asked for, what is read and what is written.
    static constexpr int64_t kAheadBytes = 16384;
    // Of a block of 32 elements of so many bytes.
    template <int kElementBytes>
    SLIMWIRE_LANES void ask_ahead(const uint8_t* block) {
        for (int line = 0; line < kElementBytes * kBoundedBlock; line += 64) {
            __builtin_prefetch(block + kAheadBytes + line);
        }
    }

    // --- Encoding

    // An encoding in the making.
    struct Output {
        const BoundedPlan& plan;
        BoundedTurn turn;
        uint8_t* bytes;
        int64_t needed;  // words of payload by all blocks so far
        int64_t end;     // words that are in use once a block found no room; -1 before
    };

    SLIMWIRE_LANES void store_residual(float* residual, int64_t i, Floats left, int64_t count) {
        if (i + kLanes <= count) {
            store_float32(residual + i, left);
        } else if (i < count) {
            store_some<Float32>(bytes_of(residual + i), left, count - i);
        }
    }

    // The widths of a group's blocks.
    SLIMWIRE_LANES void choose_widths(const Tile& tile,
                                      int64_t blocks,
                                      const BoundedPlan& plan,
                                      uint32_t* widths) {
        const Floats magic = broadcast(kMagic);
        const Words none = broadcast_bits(0);
        for (int i = 0; i < kBoundedGroupBlocks; i += kLanes) {
            const Words magnitude = load_words(tile.magnitude + i);
            const Floats steps = to_steps(as_floats(magnitude), broadcast(plan.inverse), magic);
            const Words largest = as_words(subtract(steps, magic));
            // Its exponent, one for the digit before the point, one for the sign.
            Words width = subtract(shift_right<23>(largest), broadcast_bits(127 - 2));
            width = select_at_least(largest, 1, width, none);
            width = select_at_least(magnitude, plan.raw_from, broadcast_bits(kBoundedRaw), width);
            width =
                select_at_least(magnitude, kInfinityBits, broadcast_bits(kBoundedPoison), width);
            store_words(widths + i, width);
        }
        for (int64_t b = blocks; b < kBoundedGroupBlocks; ++b) {
            widths[b] = 0;
        }
    }

    // A block that is sent; `residual` and `count` are of its group, i the block's first element.
    template <bool kResidual>
    SLIMWIRE_LANES void send(const float* values,
                             const BoundedPlan& plan,
                             uint32_t width,
                             const Limit& limit,
                             uint8_t* to,
                             float* residual,
                             int64_t i,
                             int64_t count) {
        if (width == kBoundedRaw) {
            __builtin_memcpy(to, values, 4 * kBoundedBlock);
            if constexpr (kResidual) {
                const Floats p = load_float32(values);
                const Floats q = load_float32(values + kLanes);
                store_residual(residual, i, subtract(p, limit(p)), count);
                store_residual(residual, i + kLanes, subtract(q, limit(q)), count);
            }
            return;
        }
        const Floats magic = broadcast(kMagic);
        const Floats inverse = broadcast(plan.inverse);
        const Floats p = load_float32(values);
        const Floats q = load_float32(values + kLanes);
        const Floats a = to_steps(p, inverse, magic);
        const Floats b = to_steps(q, inverse, magic);
        // The last 22 bits of 1.5 * 2^23 are zero.
        put_planes(as_words(a), as_words(b), width, to);
        if constexpr (kResidual) {
            const Floats step = broadcast(plan.step);
            const Floats x = limit(multiply(subtract(a, magic), step));
            const Floats y = limit(multiply(subtract(b, magic), step));
            store_residual(residual, i, subtract(p, x), count);
            store_residual(residual, i + kLanes, subtract(q, y), count);
        }
    }

    // Encodes group `group`, whose elements and residuals `source` and `residual` have from 0 on.
    template <bool kResidual, int kElementBytes, class Source>
    SLIMWIRE_LANES void encode_group(
        Tile& tile, const Source& source, int64_t group, float* residual, Output& output) {
        const BoundedPlan& plan = output.plan;
        const int64_t left = plan.count - group * kBoundedGroup;
        const int64_t count = left < kBoundedGroup ? left : kBoundedGroup;
        alignas(64) uint32_t widths[kBoundedGroupBlocks];
        uint8_t* stored = output.bytes + plan.widths + group * kBoundedGroupBlocks;
        const int64_t blocks = whole_blocks(count, kBoundedBlock);
        fill_tile(tile, source, count, blocks * kBoundedBlock, kBoundedBlock);
        choose_widths(tile, blocks, plan, widths);
        const int64_t start = output.needed < plan.capacity ? output.needed : plan.capacity;
        store_word(output.bytes + plan.starts + 4 * group, static_cast<uint32_t>(start));
        for (uint32_t k = 0; k < kBoundedGroupBlocks; ++k) {
            const uint32_t b = (k + output.turn.block) % kBoundedGroupBlocks;
            const uint32_t width = widths[b];
            const float* values = tile.values + int64_t{b} * kBoundedBlock;
            const int64_t i = int64_t{b} * kBoundedBlock;
            ask_ahead<kElementBytes>(source.input + i * kElementBytes);
            if constexpr (kResidual) {
                ask_ahead<4>(bytes_of(residual) + i * 4);
            }
            stored[b] = static_cast<uint8_t>(width);
            if (width == kBoundedPoison) {
                continue;
            }
            const int64_t at = output.needed;
            output.needed += width;
            if (width != 0 && output.needed <= plan.capacity) {
                send<kResidual>(values, plan, width, Limit(tile.most),
                                output.bytes + plan.payload + 4 * at, residual, i, count);
                continue;
            }
            if (width != 0 && output.end < 0) {
                output.end = at;
            }
            stored[b] = 0;
            if constexpr (kResidual) {
                store_residual(residual, i, load_float32(values), count);
                store_residual(residual, i + kLanes, load_float32(values + kLanes), count);
            }
        }
    }

    SLIMWIRE_LANES Output begin(uint8_t* bytes, const BoundedPlan& plan, uint32_t step) {
        const BoundedTurn turn = bounded_turn(step, plan.blocks);
        return {plan, turn, bytes, 0, -1};
    }
    // The header, and zeros where nothing is.
    SLIMWIRE_LANES void finish(const Output& output) {
        const BoundedPlan& plan = output.plan;
        const int64_t most = UINT32_MAX;
        store_word(output.bytes,
                   static_cast<uint32_t>(output.needed < most ? output.needed : most));
        store_word(output.bytes + 4, output.turn.block);
        __builtin_memset(output.bytes + 8, 0, 8);
        const int64_t tables = plan.starts + 4 * plan.groups;
        __builtin_memset(output.bytes + tables, 0, static_cast<size_t>(plan.payload - tables));
        const int64_t end = output.end < 0 ? output.needed : output.end;
        __builtin_memset(output.bytes + plan.payload + 4 * end, 0,
                         static_cast<size_t>(4 * (plan.capacity - end)));
    }

    template <class Element, bool kResidual, bool kScaled>
    static void encode_as(const EncodeChunk& chunk, const BoundedPlan& plan) {
        Tile tile;
        tile.most = Element::kMaxBits;
        Output output = begin(chunk.output, plan, chunk.random.step);
        for (int64_t k = 0, group = output.turn.group; k < plan.groups; ++k, ++group) {
            group = group == plan.groups ? 0 : group;
            const int64_t at = group * kBoundedGroup;
            float* residual = kResidual ? chunk.residual + at : nullptr;
            encode_group<kResidual, Element::kBytes>(
                tile,
                Source<Element, kResidual, kScaled>{chunk.input + at * Element::kBytes, residual,
                                                    broadcast(chunk.factor)},
                group, residual, output);
        }
        finish(output);
    }

    static void encode(const EncodeChunk& chunk, const BoundedPlan& plan) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            if (chunk.residual != nullptr) {
                encode_as<Element, true, true>(chunk, plan);
            } else if (__builtin_bit_cast(uint32_t, chunk.factor) == 0x3F800000u) {
                encode_as<Element, false, false>(chunk, plan);
            } else {
                encode_as<Element, false, true>(chunk, plan);
            }
        });
    }

    // --- Decoding

    // Whether an encoder writes these widths of a group whose payload begins at word `start`.
    SLIMWIRE_LANES bool is_group(const uint8_t* widths, int64_t start, const BoundedPlan& plan) {
        uint32_t words = 0;
        uint32_t wrong = 0;
        for (int b = 0; b < kBoundedGroupBlocks; ++b) {
            const uint32_t width = widths[b];
            wrong |= bounded_valid(width) ? 0u : 1u;
            words += bounded_words(width);
        }
        return wrong == 0 && start + words <= plan.capacity;
    }

    // The values of a block's codes.
    SLIMWIRE_LANES void get_codes(
        const uint8_t* from, uint32_t width, Floats step, Floats& x, Floats& y) {
        Words u, v;
        get_planes(from, width, u, v);
        // With the sign bit turned over a code counts from the lowest one.
        const Words above = broadcast_bits(kUnsignedBits | 1u << (width - 1));
        x = multiply(subtract(as_floats(bit_xor(u, above)), as_floats(above)), step);
        y = multiply(subtract(as_floats(bit_xor(v, above)), as_floats(above)), step);
    }

    // Decodes `count` elements of a group into `sink`, whose indices start at 0. kPlain: what is
    // there before does not matter. Where no encoder wrote the table the result is false and zeros.
    template <class Element, bool kPlain, class Sink>
    SLIMWIRE_LANES bool decode_group(const uint8_t* encoding,
                                     const BoundedPlan& plan,
                                     int64_t group,
                                     uint32_t turn,
                                     int64_t count,
                                     const Sink& sink) {
        const uint8_t* widths = encoding + plan.widths + group * kBoundedGroupBlocks;
        const int64_t start = load_word(encoding + plan.starts + 4 * group);
        const bool valid = is_group(widths, start, plan);
        const uint8_t* from = encoding + plan.payload + 4 * start;
        const Floats step = broadcast(plan.step);
        const Limit limit(sink.most);
        for (uint32_t k = 0; k < kBoundedGroupBlocks; ++k) {
            const uint32_t b = (k + turn) % kBoundedGroupBlocks;
            const int64_t i = int64_t{b} * kBoundedBlock;
            const uint32_t width = valid ? widths[b] : 0;
            const uint8_t* at = from;
            from += 4 * int64_t{bounded_words(width)};
            if (i >= count) {
                continue;
            }
            ask_ahead<Element::kBytes>(sink.output + i * Element::kBytes);
            Floats x = broadcast(0.0f);
            Floats y = x;
            if (width - 2 < kBoundedMostBits - 1) {
                get_codes(at, width, step, x, y);
                // Up to 2^8 steps are bf16 as they are.
                if constexpr (kPlain && kIsBfloat16<Element>) {
                    if (width <= 9 && i + kBoundedBlock <= count) {
                        store_high_halves(sink.output + i * Element::kBytes, x, y);
                        continue;
                    }
                }
            } else if (width == kBoundedRaw) {
                x = load_float32(at);
                y = load_float32(at + 4 * kLanes);
            } else if (width == kBoundedPoison) {
                x = y = as_floats(broadcast_bits(kNanFloat32));
            }
            x = limit(x);
            y = limit(y);
            if (i + kBoundedBlock <= count) {
                sink.sixteen(i, x);
                sink.sixteen(i + kLanes, y);
            } else {
                put_some(sink, i, x, count);
                put_some(sink, i + kLanes, y, count);
            }
        }
        return valid;
    }
    template <class Sink>
    SLIMWIRE_LANES void put_some(const Sink& sink, int64_t i, Floats x, int64_t count) {
        if (i + kLanes <= count) {
            sink.sixteen(i, x);
        } else if (i < count) {
            sink.some(i, x, count - i);
        }
    }

    SLIMWIRE_LANES uint32_t turn_of(const uint8_t* encoding, bool* valid) {
        const uint32_t turn = load_word(encoding + 4);
        *valid = turn < kBoundedGroupBlocks;
        return turn % kBoundedGroupBlocks;
    }
    SLIMWIRE_LANES void report(bool valid, uint32_t* status) {
        if (!valid && status != nullptr) {
            *status |= kStatusCorrupt;
        }
    }
    SLIMWIRE_LANES int64_t count_of(const BoundedPlan& plan, int64_t group) {
        const int64_t left = plan.count - group * kBoundedGroup;
        return left < kBoundedGroup ? left : kBoundedGroup;
    }

    template <class Element, bool kAccumulate>
    static void decode_as(const DecodeChunk& chunk, const BoundedPlan& plan) {
        bool valid = true;
        const uint32_t turn = turn_of(chunk.input, &valid);
        for (int64_t group = 0; group < plan.groups; ++group) {
            valid &= decode_group<Element, !kAccumulate>(
                chunk.input, plan, group, turn, count_of(plan, group),
                Sink<Element, kAccumulate>{chunk.output + group * kBoundedGroup * Element::kBytes,
                                           Element::kMaxBits, chunk.sum_limit});
        }
        report(valid, chunk.status);
    }
    static void decode(const DecodeChunk& chunk, const BoundedPlan& plan) {
        visit(chunk.dtype, [&](auto element) {
            using Element = decltype(element);
            chunk.accumulate ? decode_as<Element, true>(chunk, plan)
                             : decode_as<Element, false>(chunk, plan);
        });
    }

    // --- Sums

    static bool sum_group(const ReduceChunk& chunk,
                          const BoundedPlan& plan,
                          int64_t group,
                          float* sum) {
        bool all = true;
        const uint32_t most = max_bits(chunk.dtype);
        const Floats scale = broadcast(chunk.input_scale);
        for (int32_t i = 0; i < chunk.inputs; ++i) {
            const uint8_t* encoding = chunk.input + i * chunk.input_stride;
            bool valid = true;
            const uint32_t turn = turn_of(encoding, &valid);
            all &= valid;
            const int64_t count = count_of(plan, group);
            all &= i == 0
                       ? decode_group<Float32, true>(encoding, plan, group, turn, count,
                                                     SumSink<true>{bytes_of(sum), most, scale})
                       : decode_group<Float32, false>(encoding, plan, group, turn, count,
                                                      SumSink<false>{bytes_of(sum), most, scale});
        }
        limit_sums(chunk.sum_limit, sum, count_of(plan, group));
        return all;
    }

    template <bool kResidual>
    static void reduce_as(const ReduceChunk& chunk, const BoundedPlan& plan) {
        alignas(64) float sum[kBoundedGroup];
        Tile tile;
        tile.most = max_bits(chunk.dtype);
        bool valid = true;
        Output output = begin(chunk.output, plan, chunk.random.step);
        for (int64_t k = 0, group = output.turn.group; k < plan.groups; ++k, ++group) {
            group = group == plan.groups ? 0 : group;
            valid &= sum_group(chunk, plan, group, sum);
            float* residual = kResidual ? chunk.residual + group * kBoundedGroup : nullptr;
            encode_group<kResidual, 4>(
                tile,
                Source<Float32, kResidual>{bytes_of(sum), residual, broadcast(chunk.factor),
                                           overflow_bits(chunk.dtype)},
                group, residual, output);
        }
        finish(output);
        report(valid, chunk.status);
    }
    static void reduce(const ReduceChunk& chunk, const BoundedPlan& plan) {
        chunk.residual != nullptr ? reduce_as<true>(chunk, plan) : reduce_as<false>(chunk, plan);
    }

    template <class Element>
    static void sum_as(const ReduceChunk& chunk, const BoundedPlan& plan) {
        alignas(64) float sum[kBoundedGroup];
        bool valid = true;
        for (int64_t group = 0; group < plan.groups; ++group) {
            valid &= sum_group(chunk, plan, group, sum);
            put_scaled<Element>(sum, broadcast(chunk.factor),
                                chunk.output + group * kBoundedGroup * Element::kBytes,
                                count_of(plan, group));
        }
        report(valid, chunk.status);
    }
    static void sum(const ReduceChunk& chunk, const BoundedPlan& plan) {
        visit(chunk.dtype, [&](auto element) { sum_as<decltype(element)>(chunk, plan); });
    }

    static constexpr BoundedTable kTable = {encode, decode, reduce, sum};
};
