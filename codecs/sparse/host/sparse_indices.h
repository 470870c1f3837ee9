// Positions of the kept elements of topk and threshold: written batch by batch, read span by span.
// Included by host/sparse.cpp inside its anonymous namespace.

constexpr int64_t kSpanSegments = kSparseSpan / kSparseSegment;

SLIMWIRE_LANES void put_word(uint8_t* to, uint32_t word) {
    __builtin_memcpy(to, &word, 4);
}
SLIMWIRE_LANES uint32_t get_word(const uint8_t* from) {
    uint32_t word;
    __builtin_memcpy(&word, from, 4);
    return word;
}

// Where bits and half bytes of the span stand before which there are `start` values: a span has its
// spare whatever it holds.
template <class Byte>
SLIMWIRE_LANES Byte* elias_bits(const SparsePlan& plan, Byte* from, int64_t span, int64_t start) {
    return from + plan.indices + 4 * (start / 32 + kEliasWords * span);
}
template <class Byte>
SLIMWIRE_LANES Byte* elias_lows(const SparsePlan& plan, Byte* from, int64_t span, int64_t start) {
    return from + plan.lows + (start + 1) / 2 + span;
}

// Takes positions in ascending order. The table and the indices hold zeros before the first.
struct IndexWriter {
    const SparsePlan& plan;
    uint8_t* output;
    int64_t count = 0;  // positions taken
    int64_t start = 0;  // before this span

    IndexWriter(const SparsePlan& for_plan, uint8_t* to) : plan(for_plan), output(to) {}

    [[nodiscard]] uint8_t* table() const { return output + kSparseHeader; }

    // Before the first batch of each span.
    void begin_span(int64_t span) {
        const auto word = static_cast<uint32_t>(count);
        if (plan.form == IndexForm::kLocal8) {
            put_word(table() + kLocal8Entry * span, word);
        } else if (plan.form != IndexForm::kLocal16) {
            put_word(table() + 4 * span, word);
        } else if (span % (kSparseWide / kSparseSpan) == 0) {
            put_word(table() + 4 * (span / (kSparseWide / kSparseSpan)), word);
        }
        start = count;
    }

    // n positions relative to element `batch` of the chunk, a multiple of kBatchElems.
    void put(const uint32_t* at, int64_t n, int64_t batch) {
        const int64_t span = batch / kSparseSpan;
        const auto inside = static_cast<uint32_t>(batch % kSparseSpan);
        uint8_t* indices = output + plan.indices;
        if (plan.form == IndexForm::kBitmap) {
            for (int64_t i = 0; i < n; ++i) {
                const int64_t bit = batch + at[i];
                indices[bit / 8] = static_cast<uint8_t>(indices[bit / 8] | 1 << (bit % 8));
            }
        } else if (plan.form == IndexForm::kLocal8) {
            uint8_t* entry = table() + kLocal8Entry * span;
            uint8_t* counts = entry + 8;
            for (int64_t i = 0; i < n; ++i) {
                const uint32_t position = inside + at[i];
                const uint32_t segment = position / kSparseSegment;
                indices[count + i] = static_cast<uint8_t>(position);
                if (++counts[segment] == 0) {  // 256 of them
                    put_word(entry + 4, get_word(entry + 4) | 1u << segment);
                }
            }
        } else if (plan.form == IndexForm::kLocal16) {
            const auto wide = static_cast<uint32_t>(batch % kSparseWide);
            for (int64_t i = 0; i < n; ++i) {
                const auto position = static_cast<uint16_t>(wide + at[i]);
                __builtin_memcpy(indices + 2 * (count + i), &position, 2);
            }
        } else {
            uint8_t* bits = elias_bits(plan, output, span, start);
            uint8_t* lows = elias_lows(plan, output, span, start);
            for (int64_t i = 0; i < n; ++i) {
                const uint32_t position = inside + at[i];
                const int64_t number = count - start + i;
                const int64_t bit = position / 16 + number;
                bits[bit / 8] = static_cast<uint8_t>(bits[bit / 8] | 1 << (bit % 8));
                lows[number / 2] =
                    static_cast<uint8_t>(lows[number / 2] | position % 16 << (number % 2 * 4));
            }
        }
        count += n;
    }
};

// Whether at[0, n) ascend and end below `elems`. Fifteen more may be read.
SLIMWIRE_LANES bool ascending(const uint32_t* at, int64_t n, int64_t elems) {
    uint32_t bad = 0;
    for (int64_t i = 1; i < n; i += kLanes) {
        const Words step = subtract(load_words(at + i), load_words(at + i - 1));
        const uint32_t back = mask_at_least(subtract(step, broadcast_bits(1)), 0x80000000u);
        bad |= n - i < kLanes ? back & ((1u << (n - i)) - 1) : back;
    }
    return bad == 0 && (n == 0 || at[n - 1] < elems);
}

// Reads positions unit by unit: spans, or 65536 elements for two-byte positions. read() calls
// take(position in the unit, number of the value) in ascending order of positions, all below
// `elems`, and returns false where the bytes are not what an encoder writes (FORMAT.md says what
// they then mean).
struct IndexReader {
    const SparsePlan& plan;
    const uint8_t* input;
    int64_t kept;  // at most the capacity

    [[nodiscard]] int64_t unit_elems() const {
        return plan.form == IndexForm::kLocal16 ? kSparseWide : kSparseSpan;
    }
    // Values before unit u; of the unit after the last: all.
    [[nodiscard]] int64_t start_of(int64_t unit) const {
        if (unit * unit_elems() >= plan.count) {
            return kept;
        }
        const int64_t entry = plan.form == IndexForm::kLocal8 ? kLocal8Entry : 4;
        const int64_t start = get_word(input + kSparseHeader + entry * unit);
        return start < kept ? start : kept;
    }

    // The quick way: all positions in the unit at once, and their number. Negative where there is
    // none: other forms, whole segments, bytes that no encoder writes; read() tells them apart.
    // Sixteen more than a span may be written.
    int64_t positions(int64_t unit, int64_t elems, uint32_t* at) const {
        const bool bytes = plan.form == IndexForm::kLocal8;
        const int64_t start = start_of(unit);
        const int64_t n = start_of(unit + 1) - start;
        if (plan.form == IndexForm::kEliasFano && n >= 0 && n <= kSparseSpan) {
            const uint8_t* lows = elias_lows(plan, input, unit, start);
            if (!ones_of(elias_bits(plan, input, unit, start), elems, n, at)) {
                return -1;
            }
            for (int64_t i = 0; i < n; ++i) {
                at[i] =
                    (at[i] - static_cast<uint32_t>(i)) * 16 + (lows[i / 2] >> (i % 2 * 4) & 15u);
            }
            return ascending(at, n, elems) ? n : -1;
        }
        const int64_t first = plan.indices + (bytes ? start : 2 * start);
        if ((!bytes && plan.form != IndexForm::kLocal16) || n < 0 || n > kSparseSpan ||
            first + 2 * (n + kLanes) > plan.bytes) {
            return -1;
        }
        if (bytes) {
            const uint8_t* entry = input + kSparseHeader + kLocal8Entry * unit;
            if (get_word(entry + 4) != 0 || !segments(entry + 8, n, at)) {
                return -1;
            }
        }
        for (int64_t i = 0; i < n; i += kLanes) {
            store_words(at + i, bytes ? add(load_words(at + i), load_bytes(input + first + i))
                                      : load_halves(input + first + 2 * i));
        }
        return ascending(at, n, elems) ? n : -1;
    }

    // Of each of n values where its one stands; false if there are more or fewer of them.
    static bool ones_of(const uint8_t* bits, int64_t elems, int64_t n, uint32_t* at) {
        const int64_t words = (elems + kEliasElems - 1) / kEliasElems + (n + 31) / 32;
        int64_t number = 0;
        for (int64_t word = 0; word < words; ++word) {
            uint32_t ones = get_word(bits + 4 * word);
            if (number + bits_set(ones) > n) {
                return false;
            }
            for (int64_t half = 2 * word; half < 2 * word + 2; ++half, ones >>= 16) {
                compress(add(lane_numbers(), broadcast_bits(static_cast<uint32_t>(16 * half))),
                         ones & 0xFFFF, at + number);
                number += bits_set(ones & 0xFFFF);
            }
        }
        return number == n;
    }

    // Of each of n entries its segment's first element; false if there are more or fewer of them.
    static bool segments(const uint8_t* counts, int64_t n, uint32_t* at) {
        int64_t count = 0;
        for (int64_t segment = 0; segment < kSpanSegments; ++segment) {
            const Words base = broadcast_bits(static_cast<uint32_t>(segment * kSparseSegment));
            const int64_t more = counts[segment];
            if (count + more > n) {
                return false;
            }
            store_words(at + count, base);
            for (int64_t i = kLanes; i < more; i += kLanes) {
                store_words(at + count + i, base);
            }
            count += more;
        }
        return count == n;
    }

    template <class Take>
    bool read(int64_t unit, int64_t elems, Take take) const {
        const int64_t start = start_of(unit);
        const int64_t end = start_of(unit + 1);
        if (end < start) {
            return false;
        }
        const uint8_t* indices = input + plan.indices;
        if (plan.form == IndexForm::kBitmap) {
            return read_bitmap(indices + unit * (kSparseSpan / 8), elems, start, end, take);
        }
        if (plan.form == IndexForm::kLocal8) {
            return read_local8(input + kSparseHeader + kLocal8Entry * unit, indices, elems, start,
                               end, take);
        }
        if (plan.form == IndexForm::kLocal16) {
            return read_local<uint16_t>(indices, 0, elems, start, end, take);
        }
        return read_elias(unit, elems, start, end, take);
    }

    // Ascending positions of `Position` type; ends at the first that is not.
    template <class Position, class Take>
    static bool read_local(const uint8_t* indices,
                           int64_t base,
                           int64_t elems,
                           int64_t start,
                           int64_t end,
                           Take& take) {
        int64_t before = -1;
        for (int64_t i = start; i < end; ++i) {
            Position at;
            __builtin_memcpy(&at, indices + i * static_cast<int64_t>(sizeof(at)), sizeof(at));
            if (at <= before || base + at >= elems) {
                return false;
            }
            take(base + at, i);
            before = at;
        }
        return true;
    }

    template <class Take>
    static bool read_local8(const uint8_t* entry,
                            const uint8_t* indices,
                            int64_t elems,
                            int64_t start,
                            int64_t end,
                            Take& take) {
        const uint32_t full = get_word(entry + 4);
        bool good = true;
        for (int64_t segment = 0; segment < kSpanSegments; ++segment) {
            int64_t next =
                start + entry[8 + segment] + ((full >> segment & 1) != 0 ? kSparseSegment : 0);
            if (next > end) {
                next = end;
                good = false;
            }
            good &=
                read_local<uint8_t>(indices, segment * kSparseSegment, elems, start, next, take);
            start = next;
        }
        return good && start == end;
    }

    template <class Take>
    static bool read_bitmap(
        const uint8_t* bits, int64_t elems, int64_t start, int64_t end, Take& take) {
        const int64_t bytes = (elems + 7) / 8;
        for (int64_t byte = 0; byte < bytes; byte += 8) {
            const int64_t some = bytes - byte < 8 ? bytes - byte : 8;
            uint64_t word = 0;
            __builtin_memcpy(&word, bits + byte, static_cast<size_t>(some));
            for (; word != 0; word &= word - 1) {
                const int64_t at = byte * 8 + __builtin_ctzll(word);
                if (start == end || at >= elems) {
                    return false;
                }
                take(at, start++);
            }
        }
        return start == end;
    }

    template <class Take>
    bool read_elias(int64_t unit, int64_t elems, int64_t start, int64_t end, Take& take) const {
        const uint8_t* bits = elias_bits(plan, input, unit, start);
        const uint8_t* lows = elias_lows(plan, input, unit, start);
        const int64_t n = end - start;
        const int64_t words = (elems + kEliasElems - 1) / kEliasElems + (n + 31) / 32;
        int64_t number = 0;
        int64_t before = -1;
        for (int64_t word = 0; word < words; ++word) {
            for (uint32_t ones = get_word(bits + 4 * word); ones != 0; ones &= ones - 1) {
                const int64_t group = 32 * word + __builtin_ctz(ones) - number;
                if (number == n) {
                    return false;
                }
                const int64_t at = 16 * group + (lows[number / 2] >> (number % 2 * 4) & 15);
                if (at <= before || at >= elems) {
                    return false;
                }
                take(at, start + number++);
                before = at;
            }
        }
        return number == n;
    }
};
