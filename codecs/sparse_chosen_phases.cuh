// What the thread blocks of topk and threshold do with one chunk, phase by phase: (topk: count
// digits, find the cut,) mark survivors as bits and count them by span, add the counts up, send the
// marked ones, quantise. Reads of the input: 1 and the sectors of what is sent for threshold; 2
// more for topk of 16-bit elements as they are, else 3. sparse_chosen.cuh launches them.
#pragma once

#include "codecs/sparse.cuh"

namespace slimwire {
namespace {

constexpr int kDigits = 2048;
constexpr int64_t kRounds = kSparseSpan / kRoundElems;

enum class ChosenPhase : int {
    kPrepare,
    kCount20,
    kDigit20,
    kCount9,
    kDigit9,
    kCount0,
    kDigit0,
    kMark,
    kScan,
    kSend,
    kValues,
    kEnd
};

struct ChosenArgs {
    EncodeArgs encode;
    SparseWork work;
    int64_t workspace_bytes;  // of a chunk
    ChosenPhase first;
    ChosenPhase last;  // behind the last
    bool block_for_chunk;
};

// Device words of one chunk between phases.
struct ChosenState {
    uint32_t low;  // the cut lies in [low, high)
    uint32_t high;
    uint32_t wanted;    // of those in it; after the last digit: ties
    uint32_t at_least;  // elements not below the cut
    uint32_t digits[kDigits];
};
struct SpanCount {
    uint32_t above;  // the cut
    uint32_t ties;
};

// The workspace of a chunk: state, counts of the spans (and their sums), a byte for eight elements,
// and for integer values what is sent as fp32 and its position.
struct ChosenSpace {
    int64_t counts;
    int64_t marks;
    int64_t sent;
    int64_t positions;
    int64_t bytes;

    __host__ __device__ static ChosenSpace of(const SparsePlan& plan) {
        const int64_t spans = (plan.count + kSparseSpan - 1) / kSparseSpan;
        ChosenSpace space = {};
        space.counts = sizeof(ChosenState);
        space.marks = space.counts + spans * static_cast<int64_t>(sizeof(SpanCount));
        space.positions = (space.marks + spans * (kSparseSpan / 8) + 15) / 16 * 16;
        const int64_t staged = plan.format == ValueFormat::kNative ? 0 : plan.capacity;
        space.sent = space.positions + staged * 8;
        space.bytes = (space.sent + staged * 4 + 15) / 16 * 16;
        return space;
    }
};

// One chunk, as its phases see it.
template <class Element>
struct Chosen {
    const SparsePlan& plan;
    ChosenSpace space;
    UserSource<Element> source;
    uint8_t* output;
    float* residual;
    uint8_t* workspace;
    const float* threshold_ptr;
    int64_t warp;  // of the warps at work
    int64_t warps;
    bool leads;  // this thread block does what one alone must do

    __device__ ChosenState& state() const { return *reinterpret_cast<ChosenState*>(workspace); }
    __device__ SpanCount* counts() const {
        return reinterpret_cast<SpanCount*>(workspace + space.counts);
    }
    __device__ int64_t spans() const { return (plan.count + kSparseSpan - 1) / kSparseSpan; }
    __device__ bool top() const { return plan.kind == SparseKind::kTopK; }
    __device__ uint32_t* header() const { return reinterpret_cast<uint32_t*>(output); }

    __device__ void prepare() const {
        zero_bytes(output, kSparseHeader, plan.values, warp * kWarpThreads + lane_number(),
                   warps * kWarpThreads);
        if (!leads) {
            return;
        }
        for (int i = static_cast<int>(threadIdx.x); i < kDigits;
             i += static_cast<int>(blockDim.x)) {
            state().digits[i] = 0;
        }
        if (threadIdx.x == 0) {
            state().low = 0;
            state().high = kMagnitudeMask + 1;
            state().wanted = static_cast<uint32_t>(plan.capacity);
            if (!top()) {
                const float t = threshold_ptr != nullptr ? *threshold_ptr : 0.0f;
                state().low =
                    threshold_ptr == nullptr ? plan.threshold : (t > 0 ? __float_as_uint(t) : 0);
                state().wanted = 0xFFFFFFFFu;  // no ties are turned away
            }
        }
    }

    __device__ void count_digits(int shift) const {
        __shared__ uint32_t digits[kDigits];
        for (int i = static_cast<int>(threadIdx.x); i < kDigits;
             i += static_cast<int>(blockDim.x)) {
            digits[i] = 0;
        }
        __syncthreads();
        const uint32_t low = state().low;
        const uint32_t high = state().high;
        const int64_t rounds = (plan.count + kRoundElems - 1) / kRoundElems;
        for (int64_t round = warp; round < rounds; round += warps) {
            const int64_t i = round * kRoundElems + lane_number() * kPerThread;
            Eight p;
            source.eight(i, p);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const uint32_t order = order_of(p.v[k]);
                if (i + k < plan.count && order >= low && order < high) {
                    atomicAdd(&digits[(order - low) >> shift], 1u);
                }
            }
        }
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < kDigits;
             i += static_cast<int>(blockDim.x)) {
            if (digits[i] != 0) {
                atomicAdd(&state().digits[i], digits[i]);
            }
        }
        __syncthreads();
    }

    // One warp walks down from the largest digit.
    __device__ void find_digit(int shift) const {
        if (!leads || threadIdx.x >= kWarpThreads) {
            return;
        }
        ChosenState& now = state();
        const uint32_t wanted = now.wanted;
        uint32_t above = 0;
        for (int first = kDigits - kWarpThreads; first >= 0; first -= kWarpThreads) {
            const int digit = first + kWarpThreads - 1 - lane_number();  // lane 0: the largest
            const uint32_t count = now.digits[digit];
            const uint32_t before = above + sum_before(count);
            const unsigned reached = __ballot_sync(kAllLanes, before + count >= wanted);
            if (reached != 0) {
                const int lane = __ffs(static_cast<int>(reached)) - 1;
                if (lane_number() == lane) {
                    now.low += static_cast<uint32_t>(digit) << shift;
                    now.high = now.low + (1u << shift);
                    now.at_least = static_cast<uint32_t>(plan.capacity) - wanted + before + count;
                    now.wanted = wanted - before;
                }
                break;
            }
            above = __shfl_sync(kAllLanes, before + count, kWarpThreads - 1);
        }
        __syncwarp();
        for (int i = lane_number(); i < kDigits; i += kWarpThreads) {
            now.digits[i] = 0;
        }
    }

    __device__ void mark() const {
        const uint32_t cut = state().low;
        for (int64_t span = warp; span < spans(); span += warps) {
            SpanCount count = {0, 0};
            for (int64_t round = 0; round < kRounds; ++round) {
                const int64_t i =
                    span * kSparseSpan + round * kRoundElems + lane_number() * kPerThread;
                uint32_t mask = 0;
                if (i < plan.count) {
                    Eight p;
                    source.eight(i, p);
                    mask = byte_of(p, i, plan.count, [&](uint32_t x) { return x >= cut; });
                    const uint32_t above =
                        byte_of(p, i, plan.count, [&](uint32_t x) { return x > cut; });
                    count.above += static_cast<uint32_t>(__popc(above));
                    count.ties += static_cast<uint32_t>(__popc(mask ^ above));
                    if (residual != nullptr) {
                        leave(i, p, mask);
                    }
                }
                workspace[space.marks + span * (kSparseSpan / 8) + round * kWarpThreads +
                          lane_number()] = static_cast<uint8_t>(mask);
            }
            count.above = sum_of_warp(count.above);
            count.ties = sum_of_warp(count.ties);
            if (lane_number() == 0) {
                counts()[span] = count;
            }
        }
    }

    // What does not survive stays in the residual; survivors are seen to when they are sent.
    __device__ void leave(int64_t i, const Eight& p, uint32_t mask) const {
        if (mask == 0) {
            store_eight<Float32>(reinterpret_cast<uint8_t*>(residual), i, plan.count, p);
            return;
        }
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            if (i + k < plan.count && (mask >> k & 1) == 0) {
                residual[i + k] = p.v[k];
            }
        }
    }

    // Counts of the spans become the counts before them; writes the header.
    __device__ void scan() const {
        if (!leads || threadIdx.x >= kWarpThreads) {
            return;
        }
        SpanCount before = {0, 0};
        for (int64_t first = 0; first < spans(); first += kWarpThreads) {
            const int64_t span = first + lane_number();
            const SpanCount count = span < spans() ? counts()[span] : SpanCount{0, 0};
            const SpanCount sum = {before.above + sum_before(count.above),
                                   before.ties + sum_before(count.ties)};
            if (span < spans()) {
                counts()[span] = sum;
            }
            before = {__shfl_sync(kAllLanes, sum.above + count.above, kWarpThreads - 1),
                      __shfl_sync(kAllLanes, sum.ties + count.ties, kWarpThreads - 1)};
        }
        if (lane_number() == 0) {
            const uint64_t survivors = uint64_t{before.above} + before.ties;
            header()[0] = static_cast<uint32_t>(sent_before(before.above, before.ties));
            header()[1] =
                top() ? state().at_least
                      : (survivors < 0xFFFFFFFFu ? static_cast<uint32_t>(survivors) : 0xFFFFFFFFu);
            header()[2] = state().low;
            header()[3] = static_cast<uint32_t>(plan.form);
        }
    }

    // Elements that find room of so many.
    __device__ int64_t sent_before(uint32_t above, uint32_t ties) const {
        const uint32_t most = state().wanted;
        const int64_t sent = int64_t{above} + (ties < most ? ties : most);
        return sent < plan.capacity ? sent : plan.capacity;
    }

    __device__ void send() const {
        const uint32_t cut = state().low;
        const uint32_t most = state().wanted;
        const uint8_t* marks = workspace + space.marks;
        bool lost = false;
        for (int64_t span = warp; span < spans(); span += warps) {
            SpanCount before = counts()[span];
            const int64_t start = sent_before(before.above, before.ties);
            begin_span(span, start);
            GapState gaps = {output + plan.indices + (start + 1) / 2 + kGapSpare * span, 0, 0};
            for (int64_t round = 0; round < kRounds; ++round) {
                const int64_t i =
                    span * kSparseSpan + round * kRoundElems + lane_number() * kPerThread;
                uint32_t mask =
                    marks[span * (kSparseSpan / 8) + round * kWarpThreads + lane_number()];
                if (__ballot_sync(kAllLanes, mask != 0) == 0) {
                    continue;
                }
                Eight p = {};
                if (mask != 0) {
                    source.eight(i, p);
                }
                const uint32_t tie =
                    mask & byte_of(p, i, plan.count, [&](uint32_t x) { return x == cut; });
                const uint32_t above =
                    before.above + sum_before(static_cast<uint32_t>(__popc(mask ^ tie)));
                const uint32_t ties = before.ties + sum_before(static_cast<uint32_t>(__popc(tie)));
                const uint32_t sent = send_eight(p, i, mask, tie, above, ties, most, lost);
                before.above = __shfl_sync(
                    kAllLanes, above + static_cast<uint32_t>(__popc(mask ^ tie)), kWarpThreads - 1);
                before.ties = __shfl_sync(kAllLanes, ties + static_cast<uint32_t>(__popc(tie)),
                                          kWarpThreads - 1);
                put_positions(span, round, i, sent, gaps);
            }
        }
        if (lost) {
            atomicOr(header() + 3, kFlagNonFinite);
        }
    }

    // Values of the marked ones of eight; the bits of those that found room.
    __device__ uint32_t send_eight(const Eight& p,
                                   int64_t i,
                                   uint32_t mask,
                                   uint32_t tie,
                                   uint32_t above,
                                   uint32_t ties,
                                   uint32_t most,
                                   bool& lost) const {
        uint32_t sent = 0;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            if ((mask >> k & 1) == 0) {
                continue;
            }
            const bool is_tie = (tie >> k & 1) != 0;
            const int64_t number = int64_t{above} + (ties < most ? ties : most);
            const bool room = number < plan.capacity && (!is_tie || ties < most);
            above += is_tie ? 0 : 1;
            ties += is_tie ? 1 : 0;
            const float value = p.v[k];
            float left = value;
            if (!room) {
                lost |= !top() && !is_finite(value);
            } else {
                sent |= 1u << k;
                put_position(i + k, number);
                if (plan.format == ValueFormat::kNative) {
                    left =
                        __fsub_rn(value, put_native<Element>(output + plan.values, number, value));
                } else {
                    reinterpret_cast<int64_t*>(workspace + space.positions)[number] = i + k;
                    reinterpret_cast<float*>(workspace + space.sent)[number] = value;
                }
            }
            if (residual != nullptr && is_finite(value)) {
                residual[i + k] = left;
            }
        }
        return sent;
    }

    __device__ void begin_span(int64_t span, int64_t start) const {
        if (lane_number() != 0) {
            return;
        }
        auto* table = reinterpret_cast<uint32_t*>(output + kSparseHeader);
        constexpr int64_t kSpansOfWide = kSparseWide / kSparseSpan;
        if (plan.form == IndexForm::kLocal8) {
            table[span * (kLocal8Entry / 4)] = static_cast<uint32_t>(start);
        } else if (plan.form != IndexForm::kLocal16) {
            table[span] = static_cast<uint32_t>(start);
        } else if (span % kSpansOfWide == 0) {
            table[span / kSpansOfWide] = static_cast<uint32_t>(start);
        }
    }

    __device__ void put_position(int64_t at, int64_t number) const {
        uint8_t* indices = output + plan.indices;
        if (plan.form == IndexForm::kLocal8) {
            indices[number] = static_cast<uint8_t>(at);
        } else if (plan.form == IndexForm::kLocal16) {
            reinterpret_cast<uint16_t*>(indices)[number] = static_cast<uint16_t>(at);
        }
    }

    struct GapState {
        uint8_t* to;
        int64_t written;   // half bytes of this span
        int64_t expected;  // the position that a gap of 0 names
    };

    // What a whole warp writes of the positions of 256 elements: a segment's count, bits, gaps.
    __device__ void put_positions(
        int64_t span, int64_t round, int64_t i, uint32_t sent, GapState& gaps) const {
        if (plan.form == IndexForm::kBitmap) {
            if (i < plan.count) {
                output[plan.indices + i / 8] = static_cast<uint8_t>(sent);
            }
        } else if (plan.form == IndexForm::kLocal8) {
            const uint32_t count = sum_of_warp(static_cast<uint32_t>(__popc(sent)));
            if (lane_number() == 0) {
                uint8_t* entry = output + kSparseHeader + kLocal8Entry * span;
                entry[8 + round] = static_cast<uint8_t>(count);
                if (count == kSparseSegment) {
                    *reinterpret_cast<uint32_t*>(entry + 4) |= 1u << round;
                }
            }
        } else if (plan.form == IndexForm::kGaps) {
            put_gaps(round, sent, gaps);
        }
    }

    __device__ void put_gaps(int64_t round, uint32_t sent, GapState& gaps) const {
        const int64_t base = round * kRoundElems + lane_number() * kPerThread;
        const unsigned holders = __ballot_sync(kAllLanes, sent != 0);
        if (holders == 0) {
            return;
        }
        // One above the last position sent by an earlier lane.
        const int64_t own_end = base + 32 - __clz(static_cast<int>(sent));
        const unsigned earlier = holders & ((1u << lane_number()) - 1);
        const int from = 31 - __clz(static_cast<int>(earlier | 1));
        const int64_t their_end = __shfl_sync(kAllLanes, own_end, from);
        int64_t expected = earlier != 0 ? their_end : gaps.expected;
        uint32_t halves = 0;
        int64_t walk = expected;
        for (uint32_t rest = sent; rest != 0; rest &= rest - 1) {
            const int64_t at = base + __ffs(static_cast<int>(rest)) - 1;
            halves += static_cast<uint32_t>((at - walk) / kGapSkip) + 1;
            walk = at + 1;
        }
        const uint32_t before = sum_before(halves);
        int64_t half = gaps.written + before;
        for (uint32_t rest = sent; rest != 0; rest &= rest - 1) {
            const int64_t at = base + __ffs(static_cast<int>(rest)) - 1;
            int64_t gap = at - expected;
            for (; gap >= kGapSkip; gap -= kGapSkip) {
                put_half(gaps.to, half++, kGapSkip);
            }
            put_half(gaps.to, half++, static_cast<uint32_t>(gap));
            expected = at + 1;
        }
        gaps.written += __shfl_sync(kAllLanes, before + halves, kWarpThreads - 1);
        gaps.expected = __shfl_sync(kAllLanes, own_end, 31 - __clz(static_cast<int>(holders)));
    }

    // Half bytes of neighbouring lanes share a word; the places are zero before.
    __device__ static void put_half(uint8_t* to, int64_t half, uint32_t value) {
        uint8_t* byte = to + half / 2;
        const auto address = reinterpret_cast<uintptr_t>(byte);
        const auto shift =
            static_cast<uint32_t>(address & 3) * 8 + static_cast<uint32_t>(half & 1) * 4;
        atomicOr(reinterpret_cast<unsigned*>(byte - (address & 3)), value << shift);
    }

    // Integers from what was sent, and zeros behind it.
    __device__ void put_values() const {
        const int64_t kept = header()[0];
        if (plan.format == ValueFormat::kNative) {
            zero_bytes(output, plan.values + kept * Element::kBytes, plan.bytes,
                       warp * kWarpThreads + lane_number(), warps * kWarpThreads);
            return;
        }
        const auto* sent = reinterpret_cast<const float*>(workspace + space.sent);
        const auto* positions = reinterpret_cast<const int64_t*>(workspace + space.positions);
        const int64_t blocks = (plan.capacity + kSparseBlock - 1) / kSparseBlock;
        for (int64_t block = warp; block < blocks; block += warps) {
            const int64_t number = block * kSparseBlock + lane_number() * 2;
            float p[2];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                p[k] = number + k < kept ? sent[number + k] : 0.0f;
            }
            if (put_block(plan, output, block, p) && residual != nullptr) {
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    if (number + k < kept) {
                        residual[positions[number + k]] = p[k];
                    }
                }
            }
        }
    }

    __host__ __device__ static constexpr bool streams(ChosenPhase phase) {
        return phase == ChosenPhase::kMark || phase == ChosenPhase::kCount20 ||
               phase == ChosenPhase::kCount9 || phase == ChosenPhase::kCount0;
    }
    // The phases that read the whole input.
    __device__ void stream(ChosenPhase phase) const {
        if (phase == ChosenPhase::kMark) {
            mark();
        } else {
            count_digits(shift_of(phase));
        }
    }

    __device__ void run(ChosenPhase phase) const {
        switch (phase) {
            case ChosenPhase::kPrepare:
                return prepare();
            case ChosenPhase::kCount20:
            case ChosenPhase::kCount9:
            case ChosenPhase::kCount0:
                return count_digits(shift_of(phase));
            case ChosenPhase::kDigit20:
            case ChosenPhase::kDigit9:
            case ChosenPhase::kDigit0:
                return find_digit(shift_of(phase));
            case ChosenPhase::kMark:
                return mark();
            case ChosenPhase::kScan:
                return scan();
            case ChosenPhase::kSend:
                return send();
            case ChosenPhase::kValues:
                return put_values();
            case ChosenPhase::kEnd:
                return;
        }
    }
    __device__ static int shift_of(ChosenPhase phase) {
        return phase <= ChosenPhase::kDigit20 ? 20 : phase <= ChosenPhase::kDigit9 ? 9 : 0;
    }
};

}  // namespace
}  // namespace slimwire
