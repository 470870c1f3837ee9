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
        for (int64_t block = 0; block < blocks; ++block) {
            const int len = ChunkShape<S>::block_length(count, block);
            const int64_t bytes =
                encode_block(input + block * kRawBlock, len, staged, output + *at, capacity - *at);
            if (bytes < 0) {
                return false;
            }
            *at += bytes;
            const uint32_t end = static_cast<uint32_t>(*at / 8);
            __builtin_memcpy(ends + 4 * block, &end, 4);
        }
        return true;
    }

    // Encodes `len` elements to `output`; returns the bytes of the payload, -1 where that would be
    // more than `room`. The planes are a part of every payload but those of zero mode, so they
    // go there at once where a raw block has room; the rest comes by `staged` (kBlockRoom bytes).
    static int64_t encode_block(
        const uint8_t* input, int len, uint8_t* staged, uint8_t* output, int64_t room) {
        BlockHeader header = {};
        const PaletteChoice choice =
            Steps::template choose_palette<S>(input, len, false, header.palette);
        const int64_t raw_bytes = int64_t{len} * S::kBytes;
        int64_t done = 0;  // bytes after the header that are in their place
        uint8_t* end = nullptr;
        if (choice.try_zeros) {
            end = encode_zeros(input, len, staged);
            if (end == staged) {
                return 0;
            }
            if (end == nullptr) {
                Steps::template choose_palette<S>(input, len, true, header.palette);
            }
        } else if (choice.wide && Steps::template surely_raw<S>(input, len, choice.base)) {
            return store_raw(input, raw_bytes, output, room);
        }
        if (end == nullptr) {
            alignas(64) uint8_t symbols[kStride];
            header.n = len;
            const int planes_bytes = S::kPlanes * len;
            // A short block may be smaller raw than a header with planes.
            const bool direct =
                room >= padded(raw_bytes) && padded(raw_bytes) >= kPaletteHeader + planes_bytes;
            uint8_t* const raw_words = staged + kPaletteHeader + planes_bytes;
            uint8_t* const words = raw_words + S::kRawBits * plane_bytes(len);
            uint8_t* const planes = (direct ? output : staged) + kPaletteHeader;
            header.n1 = Steps::template encode_first<S>(input, len, header.palette, planes,
                                                        raw_words, words, symbols);
            end = encode_rest(&header, symbols, words + 2 * plane_bytes(len));
            header.store(staged);
            done = direct ? planes_bytes : 0;
        }
        const int64_t bytes = end - staged;
        if (padded(bytes) >= padded(raw_bytes)) {
            return store_raw(input, raw_bytes, output, room);
        }
        if (padded(bytes) > room) {
            return -1;
        }
        __builtin_memset(end, 0, 8);
        __builtin_memcpy(output, staged, kPaletteHeader);
        const int64_t from = kPaletteHeader + done;
        Steps::copy(output + from, staged + from, padded(bytes) - from, padded(bytes));
        return padded(bytes);
    }

    static int64_t store_raw(const uint8_t* input, int64_t bytes, uint8_t* output, int64_t room) {
        if (padded(bytes) > room) {
            return -1;
        }
        __builtin_memcpy(output, input, static_cast<size_t>(bytes));
        for (int64_t i = bytes; i < padded(bytes); ++i) {
            output[i] = 0;
        }
        return padded(bytes);
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

    // Zero mode; null when there are too few zeros for it, `to` for a block of zeros.
    [[gnu::noinline]] static uint8_t* encode_zeros(const uint8_t* input, int len, uint8_t* to) {
        alignas(64) uint8_t planes[S::kBytes * kStride];
        uint8_t* const top = planes + S::kPlanes * kStride;
        alignas(64) uint64_t marks[kPaletteBlock / 64];
        BlockHeader header = {};
        header.n = Steps::template gather<S>(input, len, marks, planes, kStride, top);
        if (header.n == 0) {
            return to;
        }
        if ((len - header.n) * kPaletteZeroPart <= len) {
            return nullptr;
        }
        header.zero_mode = true;
        uint8_t* end = to + kPaletteHeader;
        const uint64_t groups = Steps::pack_marks(marks, (len + 63) / 64, end + 8);
        __builtin_memcpy(end, &groups, 8);
        end += 8 + 8 * __builtin_popcountll(groups);
        for (int j = 0; j < S::kPlanes; ++j) {
            __builtin_memcpy(end, planes + j * kStride, static_cast<size_t>(header.n));
            end += header.n;
        }
        Steps::template split_top<S::kRawBits>(top, header.n, end);
        end += S::kRawBits * plane_bytes(header.n);
        // The symbols are sampled as bytes are: there is nothing to rotate in them any more.
        Steps::template choose_palette<Shape<1, 0, false>>(top, header.n, true, header.palette);
        header.n1 = Steps::template tier<2>(top, header.n, header.palette, end, top);
        end = encode_rest(&header, top, end + 2 * plane_bytes(header.n));
        header.store(to);
        return end;
    }
};
