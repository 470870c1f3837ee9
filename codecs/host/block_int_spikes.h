// Spikes on the host: the smallest and the largest element of every block of a tile, which an
// encoding keeps exactly so that the scale serves the others. Layout and rules: codecs/FORMAT.md.
// Included by block_int.cpp inside its anonymous namespace, after block_int_tile.h.

struct Spikes {
    // Smallest and largest value of block 0, of block 1, ...: as taken, and as they read back.
    alignas(64) float exact[2 * kMaxTileBlocks];
    alignas(64) float stored[2 * kMaxTileBlocks];
    uint16_t place[2 * kMaxTileBlocks];
};

// Words whose unsigned order is that of the values; both zeros are one.
SLIMWIRE_LANES Words order_of(Floats x) {
    const Words bits = as_words(add(x, broadcast(0.0f)));
    return bit_xor(bits, bit_or(shift_right_signed<31>(bits), broadcast_bits(~kMagnitudeMask)));
}
SLIMWIRE_LANES float value_of_order(uint32_t order) {
    const uint32_t negative = order >> 31 != 0 ? ~kMagnitudeMask : ~0u;
    return __builtin_bit_cast(float, order ^ negative);
}

// First element of the block whose order is `order`.
SLIMWIRE_LANES int64_t place_of(const float* values, uint32_t order) {
    for (int64_t i = 0;; i += kLanes) {
        const uint32_t found = equal_lanes(order_of(load_float32(values + i)), order);
        if (found != 0) {
            return i + __builtin_ctz(found);
        }
    }
}

// Takes the spikes out of every block that is finite: zeros stay in their places, and the tile's
// magnitudes are those of the others.
[[gnu::noinline]] static void take_spikes(Tile& tile,
                                          Spikes& spikes,
                                          int64_t blocks,
                                          int64_t block) {
    for (int64_t b = 0; b < blocks; ++b) {
        float* values = tile.values + b * block;
        spikes.exact[2 * b] = spikes.exact[2 * b + 1] = 0.0f;
        spikes.place[2 * b] = spikes.place[2 * b + 1] = 0;
        if (tile.magnitude[b] >= kInfinityBits) {
            continue;
        }
        const Words ones = broadcast_bits(~0u);
        Words low = broadcast_bits(0);  // of the complements
        Words high = broadcast_bits(0);
        for (int64_t i = 0; i < block; i += kLanes) {
            const Words order = order_of(load_float32(values + i));
            low = maximum(low, bit_xor(order, ones));
            high = maximum(high, order);
        }
        const uint32_t ends[2] = {~largest(low), largest(high)};
        for (int k = 0; k < 2; ++k) {
            spikes.exact[2 * b + k] = value_of_order(ends[k]);
            spikes.place[2 * b + k] = static_cast<uint16_t>(place_of(values, ends[k]));
        }
        values[spikes.place[2 * b]] = values[spikes.place[2 * b + 1]] = 0.0f;
        Words most = broadcast_bits(0);
        for (int64_t i = 0; i < block; i += kLanes) {
            most = maximum(most, magnitude_of(load_float32(values + i)));
        }
        tile.magnitude[b] = largest(most);
    }
}

// Rounds sixteen values to Element; what is finite stays finite.
template <class Element>
SLIMWIRE_LANES void store_saturated(uint8_t* to, Floats x) {
    const Words bits = as_words(x);
    const Words magnitude = minimum(magnitude_of(x), broadcast_bits(Element::kMaxBits));
    Element::store(to,
                   as_floats(bit_or(bit_and(bits, broadcast_bits(~kMagnitudeMask)), magnitude)));
}

template <class Element>
SLIMWIRE_LANES void put_spike_values(Spikes& spikes, int64_t count, uint8_t* to) {
    alignas(64) uint8_t bytes[2 * kMaxTileBlocks * Element::kBytes];
    for (int64_t i = 0; i < count; i += kLanes) {
        store_saturated<Element>(bytes + i * Element::kBytes, load_float32(spikes.exact + i));
        store_float32(spikes.stored + i, Element::load(bytes + i * Element::kBytes));
    }
    __builtin_memcpy(to, bytes, static_cast<size_t>(count) * Element::kBytes);
}

// Writes both planes.
SLIMWIRE_LANES void put_spikes(Spikes& spikes,
                               int64_t blocks,
                               const BlockIntShape& shape,
                               const Planes<uint8_t>& planes) {
    const int64_t count = 2 * blocks;
    if (shape.spike_type == DType::kFloat32) {
        __builtin_memcpy(planes.spikes, spikes.exact, static_cast<size_t>(count) * 4);
        __builtin_memcpy(spikes.stored, spikes.exact, static_cast<size_t>(count) * 4);
    } else if (shape.spike_type == DType::kFloat16) {
        put_spike_values<Float16>(spikes, count, planes.spikes);
    } else {
        put_spike_values<Bfloat16>(spikes, count, planes.spikes);
    }
    if (shape.index_bytes == 2) {
        __builtin_memcpy(planes.indices, spikes.place, static_cast<size_t>(count) * 2);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        planes.indices[i] = static_cast<uint8_t>(spikes.place[i]);
    }
}

// Sets the residual of the spikes of finite blocks; `count` elements of the tile have one.
SLIMWIRE_LANES void put_spike_residuals(const Tile& tile,
                                        const Spikes& spikes,
                                        int64_t blocks,
                                        int64_t block,
                                        float* residual,
                                        int64_t count) {
    for (int64_t i = 0; i < 2 * blocks; ++i) {
        const int64_t at = i / 2 * block + spikes.place[i];
        if (at < count && tile.magnitude[i / 2] < kInfinityBits) {
            residual[at] = spikes.exact[i] - spikes.stored[i];
        }
    }
}

SLIMWIRE_LANES float get_spike(const uint8_t* from, DType dtype) {
    alignas(64) float value[kLanes];
    if (dtype == DType::kFloat32) {
        __builtin_memcpy(value, from, 4);
    } else if (dtype == DType::kFloat16) {
        store_float32(value, load_some<Float16>(from, 1));
    } else {
        store_float32(value, load_some<Bfloat16>(from, 1));
    }
    return value[0];
}

// Puts the spikes of an encoding, times `factor`, in their places among decoded values. Blocks
// under a non-finite scale, and places outside a block, have none.
[[gnu::noinline]] static void restore_spikes(const Planes<const uint8_t>& planes,
                                             int64_t blocks,
                                             const BlockIntShape& shape,
                                             float factor,
                                             float* values) {
    for (int64_t b = 0; b < blocks; ++b) {
        if ((get_scale(planes.scales, b, shape.scale_bytes) & kMagnitudeMask) >= kInfinityBits) {
            continue;
        }
        for (int64_t i = 2 * b; i < 2 * b + 2; ++i) {
            uint16_t place = 0;
            if (shape.index_bytes == 2) {
                __builtin_memcpy(&place, planes.indices + 2 * i, 2);
            } else {
                place = planes.indices[i];
            }
            if (place < shape.block) {
                values[b * shape.block + place] =
                    factor * get_spike(planes.spikes + i * shape.spike_bytes, shape.spike_type);
            }
        }
    }
}
