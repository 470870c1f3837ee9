// The common cases of block integers without a tile of fp32, straight from and to bf16: encode with
// factor 1 and without residual or rotation, and decode without rotation. Two
// bf16 share a 32-bit lane, the even one in its low half, so that a shift and a mask make fp32 of
// them. Same bytes as the general path. Included by block_int.cpp inside its anonymous namespace.

constexpr int64_t kPairLanes = 2 * kLanes;  // elements of a register of pairs

// How far ahead memory is asked for. Less hides too little of the last-level cache; the
// second-level cache holds it.
constexpr int64_t kAheadBytes = 16384;

template <class Element>
constexpr bool kIsBfloat16 = false;
template <>
constexpr bool kIsBfloat16<Bfloat16> = true;

SLIMWIRE_LANES bool encodes_fast(const EncodeChunk& chunk, const BlockIntShape& shape) {
    return chunk.factor == 1.0f && shape.block >= kPairLanes && shape.rotate == 0;
}

// Largest magnitudes of the blocks of a whole tile, as fp32 bits; zeros up to sixteen. kBlock is
// the block, or 0 where it is not known when this is compiled.
template <int kBlock>
SLIMWIRE_LANES void bfloat16_magnitudes(Tile& tile, const uint8_t* input, int64_t runtime_block) {
    const int64_t block = kBlock != 0 ? kBlock : runtime_block;
    const Words mask = broadcast_bits(0x7FFF7FFFu);
    const int64_t blocks = kTileElems / block;
    if (blocks < kLanes) {
        store_words(tile.magnitude, broadcast_bits(0));
    }
    for (int64_t b = 0; b < blocks; b += kLanes) {
        const int64_t some = blocks < kLanes ? blocks : kLanes;
        Words most[kLanes];
#pragma GCC unroll 16
        for (int64_t k = 0; k < some; ++k) {
            Words block_most = bit_and(load_words(input), mask);
            for (int64_t i = kPairLanes; i < block; i += kPairLanes) {
                block_most = maximum_halves(block_most, bit_and(load_words(input + 2 * i), mask));
            }
            most[k] = block_most;
            input += 2 * block;
        }
        if (blocks >= kLanes) {
            store_words(tile.magnitude + b,
                        bit_and(largest_half_of_each(most), broadcast_bits(0xFFFF0000u)));
        } else {
            for (int64_t k = 0; k < blocks; ++k) {
                const Words both = maximum_halves(most[k], shift_left<16>(most[k]));
                tile.magnitude[k] = largest(both) & 0xFFFF0000u;
            }
        }
    }
}

// Scales of a whole tile. False where a block is not finite or its scale is at the cap, where codes
// would need to be clamped.
template <int kBits, int kBlock>
SLIMWIRE_LANES bool measure_bfloat16_tile(Tile& tile,
                                          const BlockIntShape& shape,
                                          const uint8_t* input) {
    const int64_t block = kBlock != 0 ? kBlock : shape.block;
    const int64_t blocks = kTileElems / block;
    bfloat16_magnitudes<kBlock>(tile, input, block);
    choose_scales<max_scale_bits(kBits)>(tile, blocks, largest_code(kBits), shape.scale_bytes);
    Words most = broadcast_bits(0);
    for (int64_t b = 0; b < blocks; b += kLanes) {
        most = maximum(most, load_words(tile.scale + b));
    }
    return largest(most) < max_scale_bits(kBits);
}

// Quantises and packs 64 elements, of two blocks where blocks have 32. Where they draw, a register
// of pairs holds 256 times the code and the random byte are added in its halves.
template <int kBits, bool kStochastic>
SLIMWIRE_LANES void encode_pairs(const uint8_t* input,
                                 Floats first_inverse,
                                 Floats second_inverse,
                                 const uint8_t* random,
                                 uint8_t* to) {
    __builtin_prefetch(input + kAheadBytes);
    __builtin_prefetch(input + kAheadBytes + 64);
    const Words high = broadcast_bits(0xFFFF0000u);
    Words even[2];
    Words odd[2];
    Words sums[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        const Words pairs = load_words(input + half * 2 * kPairLanes);
        const Floats low_values = as_floats(shift_left<16>(pairs));
        const Floats high_values = as_floats(bit_and(pairs, high));
        const Floats inverse = half == 0 ? first_inverse : second_inverse;
        if constexpr (kStochastic) {
            sums[half] = add_halves(join_halves(quantise_fixed(low_values, inverse),
                                                quantise_fixed(high_values, inverse)),
                                    load_bytes_to_halves(random + half * kPairLanes));
        } else {
            even[half] = quantise(low_values, inverse);
            odd[half] = quantise(high_values, inverse);
        }
    }
    if constexpr (kStochastic) {
        pack_sums<kBits>(sums, to);
    } else {
        pack_pairs<kBits>(even, odd, to);
    }
}

// Codes of a tile that was measured, whose random bytes are drawn.
template <int kBits, bool kStochastic, int kBlock>
SLIMWIRE_LANES void encode_bfloat16_tile(const Tile& tile,
                                         const BlockIntShape& shape,
                                         const uint8_t* input,
                                         const Planes<uint8_t>& planes) {
    constexpr int64_t kStep = 2 * kPairLanes;
    const int64_t block = kBlock != 0 ? kBlock : shape.block;
    put_scales(tile, kTileElems / block, shape.scale_bytes, planes.scales);
    const float* inverse = tile.inverse;
    if (block == kPairLanes) {
        for (int64_t i = 0; i < kTileElems; i += kStep, inverse += 2) {
            encode_pairs<kBits, kStochastic>(input + 2 * i, broadcast(inverse[0]),
                                             broadcast(inverse[1]), tile.random + i,
                                             planes.codes + i * kBits / 8);
        }
        return;
    }
    for (int64_t begin = 0; begin < kTileElems; begin += block, ++inverse) {
        const Floats block_inverse = broadcast(*inverse);
        for (int64_t i = begin; i < begin + block; i += kStep) {
            encode_pairs<kBits, kStochastic>(input + 2 * i, block_inverse, block_inverse,
                                             tile.random + i, planes.codes + i * kBits / 8);
        }
    }
}

// Encodes the whole tiles of a chunk and returns their elements. One tile is measured before the
// codes of the one before it are written, so that neither waits for the other. `general(done)`
// encodes the tile at that element where this path does not.
template <int kBits, bool kStochastic, int kBlock, class General>
SLIMWIRE_LANES int64_t encode_bfloat16_tiles(Tile (&tiles)[2],
                                             const EncodeChunk& chunk,
                                             const BlockIntShape& shape,
                                             const BlockIntLayout& layout,
                                             const General& general) {
    const int64_t end = chunk.count / kTileElems * kTileElems;
    const auto measure = [&](int64_t done) {
        return done < end &&
               measure_bfloat16_tile<kBits, kBlock>(tiles[done / kTileElems % 2], shape,
                                                    chunk.input + done * Bfloat16::kBytes);
    };
    bool next_fits = measure(0);
    for (int64_t done = 0; done < end; done += kTileElems) {
        Tile& tile = tiles[done / kTileElems % 2];
        const bool fits = next_fits;
        next_fits = measure(done + kTileElems);
        if (fits) {
            if constexpr (kStochastic) {
                draw_bytes(chunk.random, done, kTileElems, tile.random);
            }
            encode_bfloat16_tile<kBits, kStochastic, kBlock>(
                tile, shape, chunk.input + done * Bfloat16::kBytes,
                Planes<uint8_t>::of(chunk.output, shape, layout, done));
        } else {
            general(done);
        }
    }
    return end;
}

// Decodes one block whose scale its dequantiser takes.
template <int kBits>
SLIMWIRE_LANES void decode_bfloat16_block(const PairDequantiser<kBits>& dequantise,
                                          const uint8_t* from,
                                          int64_t block,
                                          uint8_t* output) {
    constexpr int64_t kStep = kPairLanes * kBits / 8;
    if (block == kPairLanes) {
        __builtin_prefetch(output + kAheadBytes, 1);
        __builtin_prefetch(from + kAheadBytes / 2);
        dequantise(from, output);
        return;
    }
    for (int64_t i = 0; i < block; i += 2 * kPairLanes) {
        __builtin_prefetch(output + kAheadBytes, 1);
        __builtin_prefetch(output + kAheadBytes + 64, 1);
        __builtin_prefetch(from + kAheadBytes / 2);
        dequantise(from, output);
        dequantise(from + kStep, output + 2 * kPairLanes);
        from += 2 * kStep;
        output += 4 * kPairLanes;
    }
}

// Decodes the whole blocks of a chunk to bf16; returns how many elements that were. kBlock is the
// block, or 0 where it is not known when this is compiled.
template <int kBits, int kBlock>
SLIMWIRE_LANES int64_t decode_bfloat16_blocks(const Planes<const uint8_t>& planes,
                                              int64_t count,
                                              const BlockIntShape& shape,
                                              uint8_t* output) {
    const int64_t block = kBlock != 0 ? kBlock : shape.block;
    if (block < kPairLanes) {
        return 0;
    }
    const uint8_t* from = planes.codes;
    const int64_t blocks = count >> shape.log2_block;
    for (int64_t b = 0; b < blocks; ++b) {
        const uint32_t bits = get_scale(planes.scales, b, shape.scale_bytes);
        const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
        const Limit limit(__builtin_bit_cast(float, bits), kReach<kBits>, kMaxBfloat16Bits);
        if (poison || limit.needed || !PairDequantiser<kBits>::takes(bits)) {
            const Dequantiser<kBits> dequantise(__builtin_bit_cast(float, bits));
            const Floats nan = as_floats(broadcast_bits(kNanFloat32));
            for (int64_t i = 0; i < block; i += kLanes) {
                store_bfloat16(output + 2 * i,
                               poison ? nan : limit(dequantise(from + i * kBits / 8)));
            }
        } else {
            decode_bfloat16_block<kBits>(PairDequantiser<kBits>(__builtin_bit_cast(float, bits)),
                                         from, block, output);
        }
        output += 2 * block;
        from += block * kBits / 8;
    }
    return blocks * block;
}
