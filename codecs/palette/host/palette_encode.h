// Encoding of chunks by the palette codec (FORMAT.md) over the steps of one instruction set.
// Included by palette.cpp inside its anonymous namespace, after the steps.

// What is known of a coded block before its bytes; the header's fields, the kind of block with
// them.
struct BlockHeader {
    int n;   // elements coded: all of the block, or those that are not zero
    int n1;  // escapes of the first tier, coded by the second
    int n2;
    int n3;  // escapes of the last tier, stored as they are
    bool zero_mode;
    uint8_t palette[16];

    void store(uint8_t* to) const {
        const uint64_t counts = static_cast<uint64_t>(n - 1) | static_cast<uint64_t>(n1) << 12 |
                                static_cast<uint64_t>(n2) << 25 | static_cast<uint64_t>(n3) << 38 |
                                static_cast<uint64_t>(zero_mode) << 51;
        __builtin_memcpy(to, &counts, 8);
        __builtin_memcpy(to + 8, palette, 16);
    }
    void load(const uint8_t* from) {
        uint64_t counts;
        __builtin_memcpy(&counts, from, 8);
        n = static_cast<int>(counts & 0xFFF) + 1;
        n1 = static_cast<int>(counts >> 12 & 0x1FFF);
        n2 = static_cast<int>(counts >> 25 & 0x1FFF);
        n3 = static_cast<int>(counts >> 38 & 0x1FFF);
        zero_mode = (counts >> 51 & 1) != 0;
        __builtin_memcpy(palette, from + 8, 16);
    }
};

// Sizes that both directions need.
template <class S>
struct ChunkShape {
    static constexpr int64_t kRawBlock = int64_t{kPaletteBlock} * S::kBytes;
    static constexpr int64_t kStride = kPaletteBlock + kSlack;  // of a plane in own buffers
    // Elements of this size or more would push out of the caches what is read beside them, and each
    // line that is written would be fetched for nothing: what is written whole goes past the
    // caches.
    static constexpr int64_t kStreamedBytes = int64_t{8} << 20;

    static int64_t blocks(int64_t count) { return (count + kPaletteBlock - 1) / kPaletteBlock; }
    static int64_t first_payload(int64_t blocks) {
        return kPaletteChunkHeader + padded(4 * blocks);
    }
    static int block_length(int64_t count, int64_t block) {
        const int64_t left = count - block * kPaletteBlock;
        return left < kPaletteBlock ? static_cast<int>(left) : kPaletteBlock;
    }
};

template <class S, class Steps>
struct PaletteEncoder : ChunkShape<S> {
    using ChunkShape<S>::kRawBlock;
    using ChunkShape<S>::kStride;
    // What encode_block may write: header, marks, planes, words and escaped symbols at their worst.
    static constexpr int64_t kBlockRoom = kPaletteHeader + 8 + kPaletteBlock / 8 + kRawBlock +
                                          kPaletteBlock / 8 * (S::kRawBits + 2 + 2 + 3) + kSlack;

    // False when the encoding does not fit; its header then says so.
    static bool encode(const uint8_t* input, int64_t count, uint8_t* output, int64_t capacity) {
        const int64_t blocks = ChunkShape<S>::blocks(count);
        int64_t at = ChunkShape<S>::first_payload(blocks);
        const bool fits = at <= capacity && encode_blocks(input, count, output, capacity, &at);
        Steps::fence();
        const uint32_t flags = fits ? 0 : kPaletteOverflow;
        const int64_t total = fits ? at : kPaletteChunkHeader;
        __builtin_memcpy(output, &kPaletteMagic, 4);
        __builtin_memcpy(output + 4, &flags, 4);
        __builtin_memcpy(output + 8, &total, 8);
        return fits;
    }

    // Bytes after the encoding stay as they are: what is written before its size is known goes to a
    // buffer of this function. `at` is where the next block goes.
    static bool encode_blocks(
        const uint8_t* input, int64_t count, uint8_t* output, int64_t capacity, int64_t* at) {
        alignas(64) uint8_t staged[kBlockRoom];
        const int64_t blocks = ChunkShape<S>::blocks(count);
        uint8_t* const ends = output + kPaletteChunkHeader;
        __builtin_memset(ends + 4 * blocks, 0, blocks % 2 != 0 ? 4 : 0);
        const bool streams = count * S::kBytes >= ChunkShape<S>::kStreamedBytes;
        Sampled next;
        next.take(input, ChunkShape<S>::block_length(count, 0));
        for (int64_t block = 0; block < blocks; ++block) {
            const Sampled sampled = next;
            if (block + 1 < blocks) {
                next.input = input + (block + 1) * kRawBlock;
                next.len = ChunkShape<S>::block_length(count, block + 1);
            }
            const int64_t bytes =
                encode_block(sampled, &next, streams, staged, output + *at, capacity - *at);
            if (bytes < 0) {
                return false;
            }
            *at += bytes;
            const uint32_t end = static_cast<uint32_t>(*at / 8);
            __builtin_memcpy(ends + 4 * block, &end, 4);
        }
        return true;
    }

    // A block and what its sample said.
    struct Sampled {
        const uint8_t* input;
        int len;
        PaletteChoice choice;
        uint8_t palette[16];

        void take() {
            __builtin_memset(palette, 0, sizeof(palette));
            choice = Steps::template choose_palette<S>(input, len, false, palette);
        }
        void take(const uint8_t* elements, int count) {
            input = elements;
            len = count;
            take();
        }
    };

    // Where the parts of a payload are put together: its first `done` bytes after the header are
    // in their place, the others in `staged`, in the same distance from its start.
    struct Parts {
        int64_t done;
        uint8_t* end;  // null: not to be coded so
    };

    // Encodes a block to `output`; returns the bytes of the payload, -1 where that would be more
    // than `room`. Planes are a part of every payload, so they go there at once where a raw block
    // has room; the rest comes by `staged` (kBlockRoom bytes). The sample of the next block is
    // taken before the last copy: a long chain of short steps, beside which others run.
    static int64_t encode_block(const Sampled& block,
                                Sampled* next,
                                bool streams,
                                uint8_t* staged,
                                uint8_t* output,
                                int64_t room) {
        const int64_t raw_bytes = int64_t{block.len} * S::kBytes;
        uint8_t* const direct = room >= padded(raw_bytes) ? output : nullptr;
        Parts parts = {0, nullptr};
        if (block.choice.try_zeros) {
            parts = encode_zeros(block, staged, direct);
            if (parts.end == staged) {
                next->take();
                return 0;
            }
        } else if (block.choice.wide &&
                   Steps::template surely_raw<S>(block.input, block.len, block.choice.base)) {
            return store_raw(block, next, streams, output, room);
        }
        if (parts.end == nullptr) {
            parts = encode_all(block, staged, direct);
        }
        const int64_t bytes = parts.end - staged;
        if (padded(bytes) >= padded(raw_bytes)) {
            return store_raw(block, next, streams, output, room);
        }
        if (padded(bytes) > room) {
            return -1;
        }
        __builtin_memset(parts.end, 0, 8);
        __builtin_memcpy(output, staged, kPaletteHeader);
        const int64_t from = kPaletteHeader + parts.done;
        next->take();
        Steps::copy(output + from, staged + from, padded(bytes) - from, padded(bytes));
        return padded(bytes);
    }

    static int64_t store_raw(
        const Sampled& block, Sampled* next, bool streams, uint8_t* output, int64_t room) {
        const int64_t bytes = int64_t{block.len} * S::kBytes;
        if (padded(bytes) > room) {
            return -1;
        }
        next->take();
        Steps::copy_raw(output, block.input, bytes, streams);
        for (int64_t i = bytes; i < padded(bytes); ++i) {
            output[i] = 0;
        }
        return padded(bytes);
    }

    // A short block may be smaller raw than a header with what follows it.
    static uint8_t* place(uint8_t* staged, uint8_t* direct, int len, int64_t bytes) {
        const bool fits = kPaletteHeader + bytes <= padded(int64_t{len} * S::kBytes);
        return (direct != nullptr && fits ? direct : staged) + kPaletteHeader;
    }

    // All elements are coded.
    static Parts encode_all(const Sampled& block, uint8_t* staged, uint8_t* direct) {
        alignas(64) uint8_t symbols[kStride];
        BlockHeader header = {};
        __builtin_memcpy(header.palette, block.palette, sizeof(header.palette));
        if (!block.choice.made) {
            Steps::template choose_palette<S>(block.input, block.len, true, header.palette);
        }
        header.n = block.len;
        const int planes_bytes = S::kPlanes * block.len;
        uint8_t* const raw_words = staged + kPaletteHeader + planes_bytes;
        uint8_t* const words = raw_words + S::kRawBits * plane_bytes(block.len);
        uint8_t* const planes = place(staged, direct, block.len, planes_bytes);
        header.n1 = Steps::template encode_first<S>(block.input, block.len, header.palette, planes,
                                                    raw_words, words, symbols);
        uint8_t* const end = encode_rest(&header, symbols, words + 2 * plane_bytes(block.len));
        header.store(staged);
        return {planes == staged + kPaletteHeader ? 0 : planes_bytes, end};
    }

    // The second and third tier, and the symbols left; returns the end.
    static uint8_t* encode_rest(BlockHeader* header, uint8_t* symbols, uint8_t* to) {
        header->n2 = Steps::template tier<2>(symbols, header->n1, header->palette + 3, to, symbols);
        to += 2 * plane_bytes(header->n1);
        header->n3 = Steps::template tier<3>(symbols, header->n2, header->palette + 6, to, symbols);
        to += 3 * plane_bytes(header->n2);
        for (int i = 0; i < header->n3; i += kLine) {
            __builtin_memcpy(to + i, symbols + i, kLine);
        }
        return to + header->n3;
    }

    // Zero mode: an end of null when there are too few zeros for it, of `staged` for a block of
    // zeros.
    [[gnu::noinline]] static Parts encode_zeros(const Sampled& block,
                                                uint8_t* staged,
                                                uint8_t* direct) {
        alignas(64) uint8_t planes[S::kBytes * kStride];
        uint8_t* const top = planes + S::kPlanes * kStride;
        alignas(64) uint64_t marks[kPaletteBlock / 64];
        BlockHeader header = {};
        const int len = block.len;
        const int n = Steps::template gather<S>(block.input, len, marks, planes, kStride, top,
                                                direct != nullptr ? direct : staged);
        if (n == 0) {
            return {0, staged};
        }
        if ((len - n) * kPaletteZeroPart <= len) {
            return {0, nullptr};
        }
        header.n = n;
        header.zero_mode = true;
        // The symbols are sampled as bytes are: there is nothing to rotate in them any more.
        if constexpr (S::kRawBits == 0) {
            Steps::template choose_palette<Shape<1, 0, false>>(top, n, true, header.palette);
        }
        alignas(64) uint8_t packed[kPaletteBlock / 8 + kSlack];
        const uint64_t groups = Steps::pack_marks(marks, (len + 63) / 64, packed);
        const int marks_bytes = 8 * __builtin_popcountll(groups);
        const int64_t done = 8 + marks_bytes + int64_t{S::kPlanes} * n;
        uint8_t* const first = place(staged, direct, len, done);
        uint8_t* to = first;
        __builtin_memcpy(to, &groups, 8);
        __builtin_memcpy(to + 8, packed, static_cast<size_t>(marks_bytes));
        to += 8 + marks_bytes;
        for (int j = 0; j < S::kPlanes; ++j) {
            __builtin_memcpy(to, planes + j * kStride, static_cast<size_t>(n));
            to += n;
        }
        uint8_t* const raw_words = staged + kPaletteHeader + done;
        uint8_t* const words = raw_words + S::kRawBits * plane_bytes(n);
        if constexpr (S::kRawBits != 0) {
            Steps::template split_top<S::kRawBits>(top, n, raw_words);
            Steps::template choose_palette<Shape<1, 0, false>>(top, n, true, header.palette);
        }
        header.n1 = Steps::template tier<2>(top, n, header.palette, words, top);
        uint8_t* const end = encode_rest(&header, top, words + 2 * plane_bytes(n));
        header.store(staged);
        return {first == staged + kPaletteHeader ? 0 : done, end};
    }
};
