// Decoding of chunks by the palette codec (FORMAT.md) over the steps of one instruction set. Any
// bytes may be decoded: what no encoder writes gives zeros and a false result, and nothing outside
// the given sizes is read or written. Included by palette.cpp inside its anonymous namespace, after
// palette_encode.h.

template <class S, class Steps>
struct PaletteDecoder : ChunkShape<S> {
    using ChunkShape<S>::kRawBlock;
    using ChunkShape<S>::kStride;

    // `count` elements of S; `size` bytes may be read; only a `slotted` encoding may say that it
    // overflowed. Returns what is to be reported.
    static uint32_t decode(const DecodeChunk& chunk, int64_t count, int64_t size, bool slotted) {
        alignas(64) uint8_t staged[kRawBlock + kSlack];
        const int64_t blocks = ChunkShape<S>::blocks(count);
        const int64_t first = ChunkShape<S>::first_payload(blocks);
        uint32_t flags = 0;
        const bool streams = count * S::kBytes >= ChunkShape<S>::kStreamedBytes &&
                             reinterpret_cast<uintptr_t>(chunk.output) % kLine == 0;
        const int64_t total = load_total(chunk.input, first, size, &flags);
        bool all_good = total >= 0;
        int64_t at = first;
        for (int64_t block = 0; block < blocks; ++block) {
            const int len = ChunkShape<S>::block_length(count, block);
            uint8_t* const to = chunk.output + block * kRawBlock;
            bool good = false;
            if (total >= 0) {
                uint32_t stored;
                __builtin_memcpy(&stored, chunk.input + kPaletteChunkHeader + 4 * block, 4);
                const int64_t end = int64_t{stored} * 8;
                if (at >= first && at <= end && end <= total) {
                    const uint8_t* from = chunk.input + at;
                    if (end + kSlack > total && end - at <= kRawBlock) {
                        __builtin_memcpy(staged, from, static_cast<size_t>(end - at));
                        from = staged;
                    }
                    good = decode_payload(from, end - at, len, streams, to);
                }
                at = end;
            }
            if (!good) {
                all_good = false;
                __builtin_memset(to, 0, static_cast<size_t>(len) * S::kBytes);
            }
        }
        if (streams) {
            Steps::fence();
        }
        if (total < 0 && slotted && flags == kPaletteOverflow) {
            return kStatusOverflow;
        }
        return all_good && at == total ? 0u : uint32_t{kStatusCorrupt};
    }

    // The bytes of the encoding from its header; -1 where that is not one, and where the encoding
    // overflowed, which `flags_out` tells.
    static int64_t load_total(const uint8_t* input,
                              int64_t first,
                              int64_t size,
                              uint32_t* flags_out) {
        if (size < kPaletteChunkHeader) {
            return -1;
        }
        uint32_t magic;
        uint32_t flags;
        int64_t total;
        __builtin_memcpy(&magic, input, 4);
        __builtin_memcpy(&flags, input + 4, 4);
        __builtin_memcpy(&total, input + 8, 8);
        if (magic == kPaletteMagic && flags == kPaletteOverflow && total == kPaletteChunkHeader) {
            *flags_out = flags;
            return -1;
        }
        const bool good = magic == kPaletteMagic && flags == 0 && total >= first && total <= size;
        return good ? total : -1;
    }

    // `from` has kSlack readable bytes beyond, unless the payload is longer than any may be.
    static bool decode_payload(
        const uint8_t* from, int64_t bytes, int len, bool streams, uint8_t* output) {
        const int64_t raw_bytes = int64_t{len} * S::kBytes;
        if (bytes == padded(raw_bytes)) {
            Steps::copy_raw(output, from, raw_bytes, streams);
            return true;
        }
        if (bytes == 0) {
            __builtin_memset(output, 0, static_cast<size_t>(raw_bytes));
            return true;
        }
        return bytes >= kPaletteHeader && bytes < padded(raw_bytes) &&
               decode_block(from, bytes, len, streams, output);
    }

    static bool decode_block(
        const uint8_t* from, int64_t bytes, int len, bool streams, uint8_t* output) {
        BlockHeader header;
        header.load(from);
        const int n = header.n;
        if (n > len || header.n1 > n || header.n2 > header.n1 || header.n3 > header.n2) {
            return false;
        }
        alignas(64) uint64_t marks[kPaletteBlock / 64];
        uint64_t groups = 0;
        const uint8_t* planes = from + kPaletteHeader;
        if (header.zero_mode) {
            planes = load_marks(planes, from + bytes, len, n, &groups, marks);
        }
        if (planes == nullptr || (!header.zero_mode && n != len)) {
            return false;
        }
        const uint8_t* const raw_words = planes + S::kPlanes * n;
        const uint8_t* const words1 = raw_words + S::kRawBits * plane_bytes(n);
        const uint8_t* const words2 = words1 + 2 * plane_bytes(n);
        const uint8_t* const words3 = words2 + 2 * plane_bytes(header.n1);
        const uint8_t* const symbols = words3 + 3 * plane_bytes(header.n2);
        if (padded(symbols + header.n3 - from) != bytes) {
            return false;
        }
        alignas(64) uint8_t third[kStride];
        alignas(64) uint8_t second[kStride];
        const uint8_t* const palette = header.palette;
        if (Steps::template untier<3>(words3, header.n2, palette + 6, symbols, third) !=
                header.n3 ||
            Steps::template untier<2>(words2, header.n1, palette + 3, third, second) != header.n2) {
            return false;
        }
        if (!header.zero_mode) {
            return Steps::template decode_first<S>(planes, raw_words, words1, n, palette, second,
                                                   third, streams, output) == header.n1;
        }
        if (Steps::template untier<2>(words1, n, palette, second, third) != header.n1) {
            return false;
        }
        Steps::template merge_top<S::kRawBits>(raw_words, n, third);
        Steps::template spread<S>(planes, n, third, groups, marks, len, from + bytes, streams,
                                  output);
        return true;
    }

    // Reads the marks of a block in zero mode; returns what follows them, null when malformed.
    static const uint8_t* load_marks(const uint8_t* from,
                                     const uint8_t* end,
                                     int len,
                                     int n,
                                     uint64_t* groups,
                                     uint64_t* marks) {
        if (end - from < 8) {
            return nullptr;
        }
        __builtin_memcpy(groups, from, 8);
        from += 8;
        const int words = __builtin_popcountll(*groups);
        const int most = (len + 63) / 64;
        if (end - from < 8 * words || (most < 64 && *groups >> most != 0)) {
            return nullptr;
        }
        const int ones = Steps::unpack_marks(*groups, from, marks);
        if (len % 64 != 0 && marks[most - 1] >> len % 64 != 0) {
            return nullptr;
        }
        return ones == n ? from + 8 * words : nullptr;
    }
};
