// Scales of block floats: chosen from the maxima of a tile's blocks, written, and read. One struct
// for each BlockScale, all with
//   choose(tile, blocks, shape)   tile.scale, tile.inverse and what is stored, from tile.magnitude;
//                                 tile.magnitude becomes infinite where more than a block is poison
//   put(tile, first, blocks, planes)   to the planes, from block `first` of the chunk on
//   load(planes, first, blocks, scale)   fp32, NaN for poison, up to whole registers of them
// Rules: codecs/FORMAT.md. Included by block_float.cpp inside its anonymous namespace.

struct ScaledTile : Tile {
    alignas(64) uint8_t scale_bytes[kMaxTileBlocks];    // as stored, where they have 8 bits
    alignas(64) float group[kTileElems / kScaleGroup];  // of two levels, as stored
};

// Where the scales of an encoding stand.
template <class Byte>
struct ScalePlanes {
    Byte* groups;
    Byte* scales;
    int32_t scale_bytes;
};

template <class Kind, BlockScale = Kind::kScale>
struct Scales;

template <class Kind>
struct Scales<Kind, BlockScale::kBinary> {
    using Format = typename Kind::Format;

    SLIMWIRE_LANES void choose(ScaledTile& tile, int64_t blocks, const BlockFloatShape& shape) {
        choose_scales<Format::kMaxScaleBits>(tile, blocks, Format::kMax, shape.scale_bytes);
    }

    SLIMWIRE_LANES void put(const ScaledTile& tile,
                            int64_t first,
                            int64_t blocks,
                            const ScalePlanes<uint8_t>& planes) {
        const int bytes = planes.scale_bytes;
        put_scales(tile, blocks, bytes, planes.scales + first * bytes);
    }

    SLIMWIRE_LANES void load(const ScalePlanes<const uint8_t>& planes,
                             int64_t first,
                             int64_t blocks,
                             float* scale) {
        const int bytes = planes.scale_bytes;
        load_scales(planes.scales + first * bytes, blocks, bytes, scale);
    }
};

template <class Kind>
struct Scales<Kind, BlockScale::kPowerOfTwo> {
    using Format = typename Kind::Format;
    static constexpr uint32_t kSmallest = 0x00400000u;  // 2^-127, which is a subnormal

    SLIMWIRE_LANES void choose(ScaledTile& tile, int64_t blocks, const BlockFloatShape& shape) {
        constexpr uint32_t kMaxFraction = Format::kMaxBits & 0x7FFFFFu;
        const Words carry = broadcast_bits(shape.scale_up ? 0x7FFFFFu - kMaxFraction : 0);
        const Words largest_exponent = broadcast_bits(Format::kMaxExponent);
        for (int64_t b = 0; b < blocks; b += kLanes) {
            const Words magnitude = load_words(tile.magnitude + b);
            const Words field = shift_right<23>(add(magnitude, carry));
            const Words byte = minimum(subtract(maximum(field, largest_exponent), largest_exponent),
                                       broadcast_bits(254 - Format::kMaxExponent));
            const Words scale = maximum(shift_left<23>(byte), broadcast_bits(kSmallest));
            store_words(tile.inverse + b, shift_left<23>(subtract(broadcast_bits(254), byte)));
            store_words(tile.scale + b, select_at_least(magnitude, kInfinityBits,
                                                        broadcast_bits(kNanScaleBits), scale));
        }
    }
    SLIMWIRE_LANES void put(ScaledTile& tile,
                            int64_t first,
                            int64_t blocks,
                            const ScalePlanes<uint8_t>& planes) {
        for (int64_t b = 0; b < blocks; b += kLanes) {
            pack<8>(shift_right<23>(load_words(tile.scale + b)), tile.scale_bytes + b);
        }
        for (int64_t b = 0; b < blocks; ++b) {  // no memcpy: GCC 12 warns of one below zero
            planes.scales[first + b] = tile.scale_bytes[b];
        }
    }
    SLIMWIRE_LANES void load(const ScalePlanes<const uint8_t>& planes,
                             int64_t first,
                             int64_t blocks,
                             float* scale) {
        alignas(64) uint8_t bytes[kMaxTileBlocks] = {};
        __builtin_memcpy(bytes, planes.scales + first, static_cast<size_t>(blocks));
        for (int64_t b = 0; b < blocks; b += kLanes) {
            const Words byte = load_bytes(bytes + b);
            const Words bits = maximum(shift_left<23>(byte), broadcast_bits(kSmallest));
            store_words(scale + b, select_at_least(byte, 255, broadcast_bits(kNanFloat32), bits));
        }
    }
};

template <class Kind>
struct Scales<Kind, BlockScale::kTwoLevels> {
    using Code = SmallFloat<Fp8e4m3Format>;
    static constexpr int64_t kGroupBlocks = kScaleGroup / 16;
    static_assert(kGroupBlocks == 2 * kLanes);

    // The e4m3 value next to x, or the one not below it.
    SLIMWIRE_LANES void put_codes(Floats x, bool up, uint8_t* to) {
        const Words code = Code::nearest(x);
        pack<8>(code, to);
        if (up) {
            const Floats short_by = subtract(load_fp8(to, Fp8e4m3Format{}), x);
            const Words next = add(code, shift_right<31>(as_words(short_by)));
            pack<8>(minimum(next, broadcast_bits(0x7E)), to);
        }
    }

    // The fp32 of group g, and what takes magnitudes to codes of its blocks' scales.
    SLIMWIRE_LANES float choose_group(ScaledTile& tile, int64_t g) {
        const int64_t first = g * kGroupBlocks;
        const uint32_t most = largest(maximum(load_words(tile.magnitude + first),
                                              load_words(tile.magnitude + first + kLanes)));
        if (most == 0 || most >= kInfinityBits) {
            const bool poison = most != 0;
            for (int64_t b = first; poison && b < first + kGroupBlocks; ++b) {
                tile.magnitude[b] = kInfinityBits;
            }
            tile.group[g] = poison ? __builtin_bit_cast(float, kNanFloat32) : 0.0f;
            return 0.0f;
        }
        uint32_t bits =
            __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, most) / kTwoLevelMax);
        bits = bits < kMaxGroupScaleBits ? bits : kMaxGroupScaleBits;
        bits = bits > kMinGroupScaleBits ? bits : kMinGroupScaleBits;
        tile.group[g] = __builtin_bit_cast(float, bits);
        return 1.0f / (6.0f * tile.group[g]);
    }

    // Step by step for all blocks, so that the long chain of each does not wait for another's.
    SLIMWIRE_LANES void choose(ScaledTile& tile, int64_t blocks, const BlockFloatShape& shape) {
        const int64_t groups = (blocks + kGroupBlocks - 1) / kGroupBlocks;
        for (int64_t b = blocks; b < groups * kGroupBlocks; ++b) {
            tile.magnitude[b] = 0;
        }
        float to_code[kTileElems / kScaleGroup];
        for (int64_t g = 0; g < groups; ++g) {
            to_code[g] = choose_group(tile, g);
        }
        for (int64_t b = 0; b < groups * kGroupBlocks; b += kLanes) {
            const Words magnitude = load_words(tile.magnitude + b);
            const Words finite =
                select_at_least(magnitude, kInfinityBits, broadcast_bits(0), magnitude);
            put_codes(multiply(as_floats(finite), broadcast(to_code[b / kGroupBlocks])),
                      shape.scale_up, tile.scale_bytes + b);
        }
        for (int64_t b = 0; b < groups * kGroupBlocks; b += kLanes) {
            const Floats code = load_fp8(tile.scale_bytes + b, Fp8e4m3Format{});
            const Floats scale = multiply(code, broadcast(tile.group[b / kGroupBlocks]));
            const Words inverse = as_words(divide(broadcast(1.0f), scale));
            store_float32(tile.scale + b, scale);
            store_words(tile.inverse + b,
                        select_at_least(as_words(code), 1, inverse, broadcast_bits(0)));
        }
    }
    SLIMWIRE_LANES void put(const ScaledTile& tile,
                            int64_t first,
                            int64_t blocks,
                            const ScalePlanes<uint8_t>& planes) {
        const int64_t groups = (blocks + kGroupBlocks - 1) / kGroupBlocks;
        __builtin_memcpy(planes.groups + first / kGroupBlocks * 4, tile.group,
                         static_cast<size_t>(groups) * 4);
        __builtin_memcpy(planes.scales + first, tile.scale_bytes, static_cast<size_t>(blocks));
    }
    SLIMWIRE_LANES void load(const ScalePlanes<const uint8_t>& planes,
                             int64_t first,
                             int64_t blocks,
                             float* scale) {
        alignas(64) uint8_t bytes[kMaxTileBlocks] = {};
        __builtin_memcpy(bytes, planes.scales + first, static_cast<size_t>(blocks));
        for (int64_t b = 0; b < blocks; b += kLanes) {
            uint32_t bits;
            __builtin_memcpy(&bits, planes.groups + (first + b) / kGroupBlocks * 4, 4);
            const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
            const Floats group = broadcast(__builtin_bit_cast(float, poison ? kNanFloat32 : bits));
            const Words product = as_words(multiply(load_fp8(bytes + b, Fp8e4m3Format{}), group));
            // Products may overflow with bytes that no encoder writes.
            const Words magnitude = bit_and(product, broadcast_bits(kMagnitudeMask));
            store_words(scale + b, select_at_least(magnitude, kInfinityBits,
                                                   broadcast_bits(kNanFloat32), product));
        }
    }
};
