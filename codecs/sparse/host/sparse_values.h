// The values of a sparse encoding: kept elements as the buffer's type, or as integers of 8 or 4
// bits in blocks of 64 with one bf16 scale. Writing them also settles the residual of what was
// sent. Included by host/sparse.cpp inside its anonymous namespace.

constexpr int64_t kBatchElems = 2048;  // elements of one step through a chunk

// Elements picked from a batch, in ascending order: p and the position within the batch. Sixteen
// more may be written behind them.
struct Picked {
    alignas(64) float p[kBatchElems + kLanes];
    alignas(64) uint32_t at[kBatchElems + kLanes];
    int64_t count;
};

// The largest magnitude of a code.
template <int kBits>
constexpr float kReach = static_cast<float>(1 << (kBits - 1));

// One block of 64 values p as codes of kBits bits; replaces p by what is left of it. Decoded values
// end at the fp32 bits `limit`. True unless the block is poison (then p stays).
template <int kBits>
SLIMWIRE_LANES bool quantise_block(float* p, uint32_t limit, uint8_t* codes, uint8_t* scale_at) {
    Words most = broadcast_bits(0);
    for (int64_t i = 0; i < kSparseBlock; i += kLanes) {
        most = maximum(most, magnitude_of(load_float32(p + i)));
    }
    const uint32_t magnitude = largest(most);
    uint32_t scale = 0;
    float inverse = 0;
    if (magnitude >= kInfinityBits) {
        scale = kNanScaleBits;
    } else if (magnitude != 0) {
        const float exact =
            __builtin_bit_cast(float, magnitude) / static_cast<float>(largest_code(kBits));
        scale = (__builtin_bit_cast(uint32_t, exact) + 0xFFFF) & 0xFFFF0000u;
        scale = scale < max_scale_bits(kBits) ? scale : max_scale_bits(kBits);
        scale = scale > kMinScaleBits ? scale : kMinScaleBits;
        inverse = 1.0f / __builtin_bit_cast(float, scale);
    }
    const uint16_t high = static_cast<uint16_t>(scale >> 16);
    __builtin_memcpy(scale_at, &high, 2);
    if (magnitude >= kInfinityBits) {
        __builtin_memset(codes, 0, kSparseBlock * kBits / 8);
        return false;
    }
    const Floats step = broadcast(__builtin_bit_cast(float, scale));
    const Limit within(__builtin_bit_cast(float, scale), kReach<kBits>, limit);
    for (int64_t i = 0; i < kSparseBlock; i += kLanes) {
        const Floats value = load_float32(p + i);
        const Words quantised = quantise(value, broadcast(inverse));
        pack<kBits>(quantised, codes + i * kBits / 8);
        const Floats code = subtract(as_floats(quantised), broadcast(kRoundingMagic));
        store_float32(p + i, subtract(value, within(multiply(code, step))));
    }
    return true;
}

SLIMWIRE_LANES bool quantise_block_as(const SparsePlan& plan,
                                      float* p,
                                      uint8_t* codes,
                                      uint8_t* scale) {
    const uint32_t most = max_bits(plan.dtype);
    return plan.format == ValueFormat::kInt8 ? quantise_block<8>(p, most, codes, scale)
                                             : quantise_block<4>(p, most, codes, scale);
}

// Takes the values of an encoding in their order.
struct ValueWriter {
    const SparsePlan& plan;
    uint8_t* output;
    float* residual;    // null, or of the chunk, already holding what an unsent element leaves
    int64_t count = 0;  // values taken
    // Integers: values that wait for a block of 64, and their positions in the chunk.
    int64_t waiting = 0;
    alignas(64) float p[kSparseBlock] = {};
    int64_t at[kSparseBlock] = {};

    ValueWriter(const SparsePlan& for_plan, uint8_t* to, float* left)
        : plan(for_plan), output(to), residual(left) {}

    template <class Element>
    void put_native(const Picked& picked, int64_t n, int64_t batch) {
        uint8_t* to = output + plan.values + count * Element::kBytes;
        for (int64_t i = 0; i < n; i += kLanes) {
            const Floats value =
                canonical(saturated(load_float32(picked.p + i), broadcast_bits(Element::kMaxBits)));
            const int64_t some = n - i < kLanes ? n - i : kLanes;
            if (some == kLanes) {
                Element::store(to + i * Element::kBytes, value);
            } else {
                store_some<Element>(to + i * Element::kBytes, value, some);
            }
            if (residual != nullptr) {
                alignas(64) uint8_t stored[kLanes * Element::kBytes];
                alignas(64) float left[kLanes];
                Element::store(stored, value);
                store_float32(left, subtract(load_float32(picked.p + i), Element::load(stored)));
                for (int64_t k = 0; k < some; ++k) {
                    if (is_finite(picked.p[i + k]) && batch + picked.at[i + k] < plan.count) {
                        residual[batch + picked.at[i + k]] = left[k];
                    }
                }
            }
        }
        count += n;
    }

    void flush_block() {
        const int64_t block = count / kSparseBlock - 1;
        const int64_t code_bytes =
            plan.format == ValueFormat::kInt8 ? kSparseBlock : kSparseBlock / 2;
        const bool sent = quantise_block_as(plan, p, output + plan.values + block * code_bytes,
                                            output + plan.scales + 2 * block);
        for (int64_t i = 0; i < waiting && residual != nullptr && sent; ++i) {
            if (at[i] < plan.count) {  // not what completes the last group
                residual[at[i]] = p[i];
            }
        }
        waiting = 0;
    }

    // The first n elements of `picked`, whose batch starts at element `batch` of the chunk.
    void put(const Picked& picked, int64_t n, int64_t batch) {
        if (plan.format == ValueFormat::kNative) {
            visit(plan.dtype,
                  [&](auto element) { put_native<decltype(element)>(picked, n, batch); });
            return;
        }
        for (int64_t i = 0; i < n;) {
            const int64_t room = kSparseBlock - waiting;
            const int64_t some = n - i < room ? n - i : room;
            for (int64_t k = 0; k < some; ++k) {
                p[waiting + k] = picked.p[i + k];
                at[waiting + k] = batch + picked.at[i + k];
            }
            waiting += some;
            count += some;
            i += some;
            if (waiting == kSparseBlock) {
                flush_block();
            }
        }
    }

    // Zero values up to the capacity.
    void finish() {
        const int64_t unit =
            plan.format == ValueFormat::kNative ? (plan.dtype == DType::kFloat32 ? 4 : 2) : 0;
        if (unit != 0) {
            uint8_t* end = output + plan.values + count * unit;
            __builtin_memset(end, 0, static_cast<size_t>(output + plan.bytes - end));
            return;
        }
        if (waiting != 0) {
            for (int64_t i = waiting; i < kSparseBlock; ++i) {
                p[i] = 0;
            }
            count += kSparseBlock - waiting;
            flush_block();
        }
        const int64_t block = count / kSparseBlock;
        uint8_t* codes =
            output + plan.values +
            block * (plan.format == ValueFormat::kInt8 ? kSparseBlock : kSparseBlock / 2);
        __builtin_memset(codes, 0, static_cast<size_t>(output + plan.scales - codes));
        uint8_t* scales = output + plan.scales + 2 * block;
        __builtin_memset(scales, 0, static_cast<size_t>(output + plan.bytes - scales));
    }
};

// fp32 values [first, first + n) of an encoding; sixteen more than n may be written.
template <int kBits>
SLIMWIRE_LANES void read_codes(
    const SparsePlan& plan, const uint8_t* input, int64_t first, int64_t n, float* to) {
    for (int64_t i = first; i < first + n;) {
        const int64_t block = i / kSparseBlock;
        uint16_t high;
        __builtin_memcpy(&high, input + plan.scales + 2 * block, 2);
        const uint32_t bits = static_cast<uint32_t>(high) << 16;
        const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
        const float scale = __builtin_bit_cast(float, bits);
        const uint8_t* codes = input + plan.values;
        const int64_t end =
            (block + 1) * kSparseBlock < first + n ? (block + 1) * kSparseBlock : first + n;
        const Dequantiser<kBits> dequantise(scale);
        const Limit limit(scale, kReach<kBits>, max_bits(plan.dtype));
        const Floats nan = broadcast(__builtin_bit_cast(float, kNanFloat32));
        while (i < end) {
            if (i % kLanes == 0) {
                store_float32(to + (i - first),
                              poison ? nan : limit(dequantise(codes + i * kBits / 8)));
                i += kLanes < end - i ? kLanes : end - i;
                continue;
            }
            const uint32_t up = static_cast<uint32_t>(codes[i * kBits / 8])
                                << (32 - kBits - (kBits == 4 ? i % 2 * 4 : 0));
            const float code = static_cast<float>(static_cast<int32_t>(up) >> (32 - kBits));
            store_some<Float32>(bytes_of(to + (i - first)),
                                poison ? nan : limit(broadcast(code * scale)), 1);
            ++i;
        }
    }
}

SLIMWIRE_LANES void read_values(
    const SparsePlan& plan, const uint8_t* input, int64_t first, int64_t n, float* to) {
    if (plan.format == ValueFormat::kInt8) {
        read_codes<8>(plan, input, first, n, to);
    } else if (plan.format == ValueFormat::kInt4) {
        read_codes<4>(plan, input, first, n, to);
    } else {
        visit(plan.dtype, [&](auto element) {
            using Element = decltype(element);
            const uint8_t* from = input + plan.values + first * Element::kBytes;
            for (int64_t i = 0; i < n; i += kLanes) {
                store_float32(to + i, n - i < kLanes
                                          ? load_some<Element>(from + i * Element::kBytes, n - i)
                                          : Element::load(from + i * Element::kBytes));
            }
        });
    }
}
