// Codec bounded: no element that is sent is off by more than an absolute bound. Whole steps of a
// power of two, in blocks of 32 of as many bits as their largest needs, up to a fixed capacity;
// blocks that find no room are left to the residual. What is left of the SZ family of compressors
// where neighbours do not predict one another (cuSZp, Huang et al., SC 2023); powers of two as by
// ZFP's fixed accuracy. Layout: FORMAT.md, "Error bounded".
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/bounded/bounded_work.h"
#include "codecs/bounded/host/table.h"
#include "codecs/codec.h"
#include "codecs/numeric.h"
#include "codecs/simd/block_codec.h"
#include "codecs/spec.h"

namespace slimwire {
namespace {

constexpr SpecKey kError = decimal_key<&CodecParams::threshold, DecimalRange{1e-30f, 1e30f}>(
    "error", "a decimal number from 1e-30 to 1e30");
constexpr SpecKey kCapacity = decimal_key<&CodecParams::slot, DecimalRange{0.01f, 2.0f}>(
    "capacity", "a fraction of the raw size from 0.01 to 2");

// The bound is the member `threshold`, the capacity `slot`.
struct Bounded : BlockCodec<Bounded, Launchers<BoundedKernels>> {
    static constexpr const char* kName = "bounded";
    static constexpr CodecParams kDefaults = {.threshold = 0.001f, .slot = 0.5f};
    static constexpr std::array<const SpecKey*, 2> kKeys = {&kError, &kCapacity};

    static auto shapes(const auto& args) {
        return [&args](const auto& chunk) {
            return bounded_plan(args.params, args.dtype, chunk.count);
        };
    }
    static const BoundedTable& bodies(const CodecParams&) { return host_table<BoundedTable>(); }
    static CodecTraits traits(const CodecParams& params, DType dtype) {
        // A block of 16-bit elements may take twice its raw size.
        const bool has_room = params.slot * static_cast<float>(dtype_bytes(dtype)) >= sizeof(float);
        return {.by_step = true, .needs_feedback = !has_room, .poison_elems = kBoundedBlock};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType dtype, int64_t count) {
        return bounded_plan(params, dtype, count).bytes;
    }
    static int64_t granule(const CodecParams&, DType) { return kBoundedGroup; }
    // A block that finds no room is lost, unless there is a residual.
    static double block_error_bound(const CodecParams&, DType) { return 1.0; }
    static int64_t workspace_bytes(const CodecParams&, DType, int64_t count, int64_t chunk_elems) {
        if (count <= 0) {
            return 0;
        }
        constexpr int64_t kTile = kBoundedTileGroups * kBoundedGroup;
        const int64_t chunk = std::min(chunk_elems, count);
        const int64_t states = (count + chunk - 1) / chunk * ((chunk + kTile - 1) / kTile);
        const int64_t bytes = 8 * kLookBackCounters + states * int64_t{sizeof(LookBackState)};
        return (bytes + 15) / 16 * 16;
    }
    static Result<int64_t> check(
        const CodecParams& params, DType dtype, int64_t count, const uint8_t* bytes, int64_t size);
};

uint32_t load(const uint8_t* from) {
    uint32_t word = 0;
    std::memcpy(&word, from, sizeof(word));
    return word;
}

Result<int64_t> Bounded::check(
    const CodecParams& params, DType dtype, int64_t count, const uint8_t* bytes, int64_t size) {
    const BoundedPlan plan = bounded_plan(params, dtype, count);
    const auto invalid = [](const std::string& text) {
        return Status(Code::kInvalidArgument, "bounded encoding " + text);
    };
    if (size < plan.bytes) {
        return invalid("is truncated: " + std::to_string(size) + " of " +
                       std::to_string(plan.bytes) + " bytes");
    }
    if (load(bytes + 4) >= kBoundedGroupBlocks) {
        return invalid("is corrupt: begins with block " + std::to_string(load(bytes + 4)) + " of " +
                       std::to_string(kBoundedGroupBlocks));
    }
    for (int64_t group = 0; group < plan.groups; ++group) {
        uint64_t end = load(bytes + plan.starts + 4 * group);
        for (int block = 0; block < kBoundedGroupBlocks; ++block) {
            const uint32_t width = bytes[plan.widths + group * kBoundedGroupBlocks + block];
            if (!bounded_valid(width)) {
                return invalid("is corrupt: block " +
                               std::to_string(group * kBoundedGroupBlocks + block) +
                               " has a width of " + std::to_string(width) + " bits");
            }
            end += bounded_words(width);
        }
        if (end > static_cast<uint64_t>(plan.capacity)) {
            return invalid("is corrupt: group " + std::to_string(group) + " ends outside");
        }
    }
    return plan.bytes;
}

}  // namespace

BoundedPlan bounded_plan(const CodecParams& params, DType dtype, int64_t count) {
    BoundedPlan plan = {};
    if (count <= 0) {
        return plan;
    }
    plan.count = count;
    plan.blocks = (count + kBoundedBlock - 1) / kBoundedBlock;
    plan.groups = (count + kBoundedGroup - 1) / kBoundedGroup;
    plan.widths = kBoundedHeader;
    plan.starts = plan.widths + plan.groups * kBoundedGroupBlocks;
    plan.payload = (plan.starts + 4 * plan.groups + 15) / 16 * 16;
    const double raw_words = static_cast<double>(plan.blocks * kBoundedBlock / 4) *
                             static_cast<double>(dtype_bytes(dtype));
    const double exact = std::floor(static_cast<double>(params.slot) * raw_words + 0.5);
    const int64_t most = std::min<int64_t>(plan.blocks * kBoundedRaw, UINT32_MAX);
    plan.capacity = std::clamp<int64_t>(static_cast<int64_t>(exact), kBoundedRaw, most);
    plan.bytes = plan.payload + 4 * plan.capacity;
    plan.step_bits = std::bit_cast<uint32_t>(2 * params.threshold) & kInfinityBits;
    plan.step = std::bit_cast<float>(plan.step_bits);
    plan.inverse = std::bit_cast<float>((254u << 23) - plan.step_bits);
    plan.raw_from = plan.step_bits + (uint32_t{kBoundedLargestPower} << 23);
    return plan;
}

BoundedWork bounded_work(const CodecParams& params,
                         DType dtype,
                         int64_t count,
                         int64_t chunk_elems) {
    constexpr int64_t kTile = kBoundedTileGroups * kBoundedGroup;
    const int64_t chunk = std::min(chunk_elems, count);
    const int64_t chunks = (count + chunk - 1) / chunk;
    return {.full = bounded_plan(params, dtype, chunk),
            .last = bounded_plan(params, dtype, count - (chunks - 1) * chunk),
            .chunk_elems = chunk,
            .chunks = chunks,
            .tiles = (chunk + kTile - 1) / kTile,
            .nonce = next_nonce()};
}

extern const CodecDescriptor codec_bounded;
constinit const CodecDescriptor codec_bounded = Bounded::descriptor(
    "bounded:error=1e-30..1e30 (absolute bound, default 0.001),capacity=0.01..2 (fraction of the "
    "raw size, default 0.5)");

}  // namespace slimwire
