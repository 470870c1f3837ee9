// The family of sparsifiers: topk, blocktopk, rowtopk, threshold, randomk. They send some elements
// of a chunk, with their positions, and leave the rest to the residual. Layout and numerics:
// FORMAT.md, "Sparse". sparse_chosen.cu, sparse_groups.cu and sparse_runs.cu have the kernels.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "codecs/codec.h"
#include "codecs/numeric.h"
#include "codecs/pair_mode.h"
#include "codecs/simd/block_codec.h"
#include "codecs/sparse/host/table.h"
#include "codecs/sparse/launchers.h"
#include "codecs/sparse/sparse_plan.h"
#include "codecs/spec.h"

namespace slimwire {
namespace {

// Looks at a received sparse encoding before anybody decodes it: counts, tables and positions, in
// plain loops over the bytes that FORMAT.md, "Sparse", describes.

uint32_t word_at(const uint8_t* bytes, int64_t at) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + at, sizeof(word));
    return word;
}

Status corrupt(const std::string& what) {
    return {Code::kInvalidArgument, "corrupt: " + what};
}
Status corrupt_unit(const char* unit, int64_t number, const std::string& what) {
    return corrupt(std::string(unit) + " " + std::to_string(number) + ": " + what);
}

// Positions of `width` bytes, `count` of them from number `first` on: ascending and below `limit`.
bool ascend(const uint8_t* indices, int64_t width, int64_t first, int64_t count, int64_t limit) {
    int64_t before = -1;
    for (int64_t i = first; i < first + count; ++i) {
        int64_t at = indices[i * width];
        if (width == 2) {
            at |= indices[i * 2 + 1] << 8;
        }
        if (at <= before || at >= limit) {
            return false;
        }
        before = at;
    }
    return true;
}

// Exactly `kept` ones, all of them below `limit`.
bool has_ones(const uint8_t* bits, int64_t limit, int64_t kept) {
    int64_t last = -1;
    int64_t count = 0;
    for (int64_t i = 0; i < (limit + 7) / 8 * 8; ++i) {
        if ((bits[i / 8] >> (i % 8) & 1) != 0) {
            last = i;
            ++count;
        }
    }
    return count == kept && last < limit;
}

// What the unit `elems` long holds in its part of the indices; the empty text when all is well.
std::string check_span(const SparsePlan& plan,
                       const uint8_t* bytes,
                       int64_t unit,
                       int64_t start,
                       int64_t kept,
                       int64_t elems) {
    const uint8_t* indices = bytes + plan.indices;
    switch (plan.form) {
        case IndexForm::kBitmap:
            return has_ones(indices + unit * (kSparseSpan / 8), elems, kept)
                       ? ""
                       : "the bitmap has another number of ones than the table says";
        case IndexForm::kLocal8: {
            const uint8_t* entry = bytes + kSparseHeader + kLocal8Entry * unit;
            int64_t at = start;
            for (int64_t s = 0; s < kSparseSpan / kSparseSegment; ++s) {
                const int64_t some =
                    entry[8 + s] + ((word_at(entry, 4) >> s & 1) != 0 ? kSparseSegment : 0);
                if (at + some > start + kept) {
                    return "the counts exceed what the table says";
                }
                if (!ascend(indices, 1, at, some, elems - s * kSparseSegment)) {
                    return "positions do not ascend or leave the chunk";
                }
                at += some;
            }
            return at == start + kept ? "" : "the counts fall short of what the table says";
        }
        case IndexForm::kLocal16:
            return ascend(indices, 2, start, kept, elems)
                       ? ""
                       : "positions do not ascend or leave the chunk";
        case IndexForm::kEliasFano: {
            const uint8_t* bits = indices + 4 * (start / 32 + kEliasWords * unit);
            const uint8_t* lows = bytes + plan.lows + (start + 1) / 2 + unit;
            const int64_t words = (elems + kEliasElems - 1) / kEliasElems + (kept + 31) / 32;
            int64_t before = -1;
            int64_t number = 0;
            for (int64_t bit = 0; bit < 32 * words; ++bit) {
                if ((bits[bit / 8] >> (bit % 8) & 1) == 0) {
                    continue;
                }
                if (number == kept) {
                    return "there are more ones than the table says";
                }
                const int64_t at =
                    16 * (bit - number) + (lows[number / 2] >> (number % 2 * 4) & 15);
                if (at <= before || at >= elems) {
                    return "positions do not ascend or leave the chunk";
                }
                before = at;
                ++number;
            }
            return number == kept ? "" : "there are fewer ones than the table says";
        }
        case IndexForm::kNone:
            break;
    }
    return "";
}

Status check_chosen(const SparsePlan& plan, const uint8_t* bytes) {
    const int64_t kept = word_at(bytes, 0);
    const uint32_t word = word_at(bytes, 12);
    if (kept > plan.capacity || (plan.kind == SparseKind::kTopK && kept != plan.capacity)) {
        return corrupt(std::to_string(kept) + " values, room for " + std::to_string(plan.capacity));
    }
    if ((word & ~kFlagNonFinite) != static_cast<uint32_t>(plan.form)) {
        return corrupt("header word 3 is " + std::to_string(word));
    }
    const bool wide = plan.form == IndexForm::kLocal16;
    const int64_t unit_elems = wide ? kSparseWide : kSparseSpan;
    const int64_t entry = plan.form == IndexForm::kLocal8 ? kLocal8Entry : 4;
    int64_t expected = 0;
    for (int64_t begin = 0, unit = 0; begin < plan.count; begin += unit_elems, ++unit) {
        const int64_t start = word_at(bytes, kSparseHeader + entry * unit);
        const bool last = begin + unit_elems >= plan.count;
        const int64_t next = last ? kept : word_at(bytes, kSparseHeader + entry * (unit + 1));
        if (start < expected || next < start || next > kept || (unit == 0 && start != 0)) {
            return corrupt_unit("table entry", unit, "the starts do not ascend to the count");
        }
        expected = start;
        const int64_t elems = last ? plan.count - begin : unit_elems;
        const std::string wrong = check_span(plan, bytes, unit, start, next - start, elems);
        if (!wrong.empty()) {
            return corrupt_unit("table entry", unit, wrong);
        }
    }
    return {};
}

Status check_groups(const SparsePlan& plan, const uint8_t* bytes) {
    const uint8_t* indices = bytes + plan.indices;
    const int64_t kept = plan.kept;
    for (int64_t g = 0; g < plan.groups; ++g) {
        const bool good = plan.form == IndexForm::kBitmap
                              ? has_ones(indices + g * ((plan.group + 7) / 8), plan.group, kept)
                              : ascend(indices, plan.form == IndexForm::kLocal8 ? 1 : 2, g * kept,
                                       kept, plan.group);
        if (!good) {
            return corrupt_unit("group", g,
                                plan.form == IndexForm::kBitmap
                                    ? "the bitmap has another number of ones than are kept"
                                    : "positions do not ascend or leave the group");
        }
    }
    return {};
}

Result<int64_t> sparse_check(const SparsePlan& plan, const uint8_t* bytes, int64_t size) {
    if (size < plan.bytes) {
        return Status(Code::kInvalidArgument, "truncated: " + std::to_string(size) + " of " +
                                                  std::to_string(plan.bytes) + " bytes");
    }
    switch (plan.kind) {
        case SparseKind::kTopK:
        case SparseKind::kThreshold:
            SLIMWIRE_TRY(check_chosen(plan, bytes));
            break;
        case SparseKind::kGroups:
            SLIMWIRE_TRY(check_groups(plan, bytes));
            break;
        case SparseKind::kRuns:
            if (word_at(bytes, 12) != 0) {
                return corrupt("header word 3 is " + std::to_string(word_at(bytes, 12)));
            }
            break;
    }
    return plan.bytes;
}

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
int64_t aligned(int64_t bytes) {
    return divide_up(bytes, 16) * 16;
}

// fraction * count to the nearest whole number, at least 1 and at most `most`.
int64_t share(float fraction, int64_t count, int64_t most) {
    const double exact =
        std::floor(static_cast<double>(fraction) * static_cast<double>(count) + 0.5);
    return std::clamp<int64_t>(static_cast<int64_t>(exact), 1, most);
}

struct IndexSize {
    IndexForm form;
    int64_t table;
    int64_t indices;
    int64_t bits = 0;  // of the indices, before the half bytes
};

// The smallest of `sizes`, the first of equal ones.
template <size_t kCount>
IndexSize smallest(const IndexSize (&sizes)[kCount]) {
    return *std::min_element(std::begin(sizes), std::end(sizes),
                             [](const IndexSize& a, const IndexSize& b) {
                                 return a.table + a.indices < b.table + b.indices;
                             });
}

IndexSize span_indices(int64_t count, int64_t capacity) {
    const int64_t spans = divide_up(count, kSparseSpan);
    const int64_t bits = 4 * (capacity / 32 + divide_up(count, kEliasElems) + spans);
    return smallest(
        {{IndexForm::kBitmap, 4 * spans, divide_up(count, 8)},
         {IndexForm::kLocal8, kLocal8Entry * spans, capacity},
         {IndexForm::kLocal16, 4 * divide_up(count, kSparseWide), 2 * capacity},
         {IndexForm::kEliasFano, 4 * spans, bits + divide_up(capacity, 2) + spans, bits}});
}

IndexSize group_indices(int64_t group, int64_t groups, int64_t kept) {
    const IndexSize bitmap{IndexForm::kBitmap, 0, groups * divide_up(group, 8)};
    const IndexSize wide{IndexForm::kLocal16, 0, groups * 2 * kept};
    return group <= kSparseSegment
               ? smallest({bitmap, {IndexForm::kLocal8, 0, groups * kept}, wide})
               : smallest({bitmap, wide});
}

constexpr SpecWord<PairMode> kPairs[] = {{"none", PairMode::kNone}, {"mask", PairMode::kMask}};
constexpr SpecWord<PairMode> kRunPairs[] = {{"none", PairMode::kNone}, {"mask", PairMode::kRuns}};
constexpr SpecWord<ValueFormat> kValues[] = {
    {"native", ValueFormat::kNative}, {"int8", ValueFormat::kInt8}, {"int4", ValueFormat::kInt4}};

// Magnitude bits of a threshold; what is no number or negative lets everything pass.
uint32_t threshold_bits(float threshold) {
    return threshold > 0 ? std::bit_cast<uint32_t>(threshold) : 0;
}

constexpr SpecKey kFractionKey = decimal_key<&CodecParams::fraction, DecimalRange{1e-6f, 1.0f}>(
    "fraction", "a decimal number from 0.000001 to 1");
constexpr SpecKey kKeptKey = number_key<&CodecParams::kept, NumberRange{1, kMaxSparseGroup}>(
    "kept", "a whole number from 1 to the elements of a block or row");
constexpr SpecKey kPairKey = word_key<&CodecParams::target, kPairs>("pair", "none or mask");
constexpr SpecKey kRunPairKey = word_key<&CodecParams::target, kRunPairs>("pair", "none or mask");
constexpr SpecKey kRefreshKey = number_key<&CodecParams::refresh, NumberRange{0, 1'000'000'000}>(
    "refresh", "a whole number from 0 to 1000000000");
constexpr SpecKey kRowKey = number_key<&CodecParams::row, NumberRange{2, kMaxSparseGroup}>(
    "row", "a whole number from 2 to 16384");
constexpr SpecKey kThresholdKey = decimal_key<&CodecParams::threshold, DecimalRange{0.0f, 3.4e38f}>(
    "threshold", "a decimal number from 0 to 3.4e38");
constexpr SpecKey kValuesKey =
    word_key<&CodecParams::values, kValues>("values", "native, int8 or int4");

// What of `params` does not go together; an error names it.
Status validate(const char* codec, const CodecParams& params) {
    const uint32_t group = params.row != 0 ? params.row : params.block;
    if (group != 0 && params.kept > group) {
        return {Code::kInvalidArgument,
                "codec " + std::string(codec) + ": kept=" + std::to_string(params.kept) +
                    " is not accepted; kept is a whole number from 1 to " + std::to_string(group) +
                    ", the elements of a " + (params.row != 0 ? "row" : "block")};
    }
    const bool paired = group == 0 && has_pair_mask(params);
    if (paired && params.values != static_cast<uint8_t>(ValueFormat::kNative)) {
        return {Code::kInvalidArgument,
                "codec " + std::string(codec) +
                    ": pair=mask with packed values; accepted: values=native, or pair=none"};
    }
    if (paired && params.threshold != 0 && params.refresh == 0) {
        return {Code::kInvalidArgument, "codec " + std::string(codec) +
                                            ": pair=mask with a threshold that does not follow the "
                                            "data; accepted: refresh=1 or more, or pair=none"};
    }
    return {};
}

}  // namespace

SparsePlan sparse_plan(SparseKind kind, const CodecParams& params, DType dtype, int64_t count) {
    SparsePlan plan = {};
    if (count <= 0) {
        return plan;
    }
    plan.count = count;
    plan.seed = params.seed;
    plan.threshold = threshold_bits(params.threshold);
    plan.kind = kind;
    plan.format = static_cast<ValueFormat>(params.values);
    plan.dtype = dtype;
    int64_t header = kSparseHeader;
    IndexSize indices{IndexForm::kNone, 0, 0};
    switch (kind) {
        case SparseKind::kTopK:
        case SparseKind::kThreshold:
            plan.capacity = share(params.fraction, count, std::min<int64_t>(count, UINT32_MAX));
            indices = span_indices(count, plan.capacity);
            break;
        case SparseKind::kGroups:
            header = 0;
            plan.group = params.row != 0 ? params.row : params.block;
            plan.groups = divide_up(count, plan.group);
            plan.kept = params.kept;
            plan.capacity = plan.groups * params.kept;
            indices = group_indices(plan.group, plan.groups, params.kept);
            break;
        case SparseKind::kRuns:
            plan.group = kSparseRun;
            plan.groups =
                share(params.fraction, divide_up(count, kSparseRun), divide_up(count, kSparseRun));
            plan.kept = kSparseRun;
            plan.capacity = plan.groups * kSparseRun;
            break;
    }
    plan.form = indices.form;
    plan.indices = aligned(header + indices.table);
    plan.lows = plan.indices + indices.bits;
    plan.values = aligned(plan.indices + indices.indices);
    if (plan.format == ValueFormat::kNative) {
        plan.scales = plan.values + plan.capacity * static_cast<int64_t>(dtype_bytes(dtype));
        plan.bytes = plan.scales;
    } else {
        const int64_t blocks = divide_up(plan.capacity, kSparseBlock);
        const int bits = plan.format == ValueFormat::kInt8 ? 8 : 4;
        plan.scales = plan.values + blocks * (kSparseBlock * bits / 8);
        plan.bytes = plan.scales + 2 * blocks;
    }
    return plan;
}

namespace {

// The plans of an operation's chunks: all alike but a short last one.
class Plans {
  public:
    Plans(SparseKind kind, const auto& args, int64_t count, const float* threshold, int64_t stride)
        : params_(args.params),
          plan_(sparse_plan(kind, params_, args.dtype, std::min(args.count, count))),
          threshold_(device_view_as<const float>(threshold)),
          stride_(stride) {}

    const SparsePlan& operator()(const auto& chunk) {
        if (chunk.count != plan_.count) {
            plan_ = sparse_plan(plan_.kind, params_, plan_.dtype, chunk.count);
        }
        if (threshold_ != nullptr) {
            plan_.threshold = threshold_bits(*threshold_);
            threshold_ += stride_;
        }
        return plan_;
    }

  private:
    CodecParams params_;
    SparsePlan plan_;
    const float* threshold_;  // null, or that of the next chunk
    int64_t stride_;
};

// A member's descriptor. Words: kKind, kName, kGrammar, kDefaults, kKeys.
template <class Words>
struct Sparse : BlockCodec<Sparse<Words>, SparseCuda<Words::kKind>>, Words {
    static constexpr SparseKind kKind = Words::kKind;
    static constexpr bool kRuns = kKind == SparseKind::kRuns;
    static constexpr bool kReduces = kKind == SparseKind::kGroups || kRuns;
    static constexpr decltype(CodecDescriptor::workspace_bytes) workspace_bytes =
        kRuns ? nullptr : SparseCuda<kKind>::workspace_bytes;

    static Plans shapes(const EncodeArgs& args) {
        return {kKind, args, args.chunk_elems, args.threshold_ptr, args.threshold_stride};
    }
    static Plans shapes(const DecodeArgs& args) {
        return {kKind, args, args.chunk_elems, nullptr, 0};
    }
    static Plans shapes(const auto& args) { return {kKind, args, args.count, nullptr, 0}; }
    static const SparseTable& bodies(const CodecParams&) { return host_table<SparseTable>(); }

    static Status parse(std::string_view text, CodecParams* params) {
        CodecParams result;
        SLIMWIRE_TRY(parse_spec_keys(Words::kName, Words::kKeys, Words::kDefaults, text, &result));
        SLIMWIRE_TRY(validate(Words::kName, result));
        *params = result;
        return {};
    }
    static CodecTraits traits(const CodecParams& params, DType) {
        return {.linear = kRuns && params.values == static_cast<uint8_t>(ValueFormat::kNative),
                .by_step = kRuns,
                .draws_alike = kRuns && !has_pair_mask(params),
                .adapts_threshold = kKind == SparseKind::kThreshold && params.refresh > 0,
                .needs_feedback = !has_pair_mask(params),
                .poison_elems = 0,
                .pairs_masks = has_pair_mask(params)};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType dtype, int64_t count) {
        return sparse_plan(kKind, params, dtype, count).bytes;
    }
    static int64_t granule(const CodecParams& params, DType) {
        if (kKind == SparseKind::kGroups) {
            return params.row != 0 ? params.row : params.block;
        }
        return kRuns ? kSparseRun : kSparseSegment;
    }
    // What is not sent is lost, unless there is a residual.
    static double block_error_bound(const CodecParams&, DType) { return 1.0; }
    static Result<int64_t> check(
        const CodecParams& params, DType dtype, int64_t count, const uint8_t* bytes, int64_t size) {
        return sparse_check(sparse_plan(kKind, params, dtype, count), bytes, size);
    }
};

// The largest elements of the whole chunk, exactly; of equal ones the first.
struct TopK {
    static constexpr SparseKind kKind = SparseKind::kTopK;
    static constexpr const char* kName = "topk";
    static constexpr const char* kGrammar =
        "topk:fraction=0.000001..1 (default 0.01),values=native|int8|int4 (default "
        "native),pair=none|mask (of messages between stages: backward values alone, at the "
        "positions of the message that they answer; default none)";
    static constexpr CodecParams kDefaults = {.fraction = 0.01f};
    static constexpr const SpecKey* kKeys[] = {&kFractionKey, &kValuesKey, &kPairKey};
};

// The elements not below a threshold, in their order, up to a fixed capacity.
struct Threshold {
    static constexpr SparseKind kKind = SparseKind::kThreshold;
    static constexpr const char* kName = "threshold";
    static constexpr const char* kGrammar =
        "threshold:threshold=0..3.4e38 (default 0.001),fraction=0.000001..1 (capacity, default "
        "0.01),refresh=0..1000000000 (encodings from one exact threshold to the next, in between "
        "it follows the data; default 0: it stays),values=native|int8|int4 (default "
        "native),pair=none|mask (as of topk; default none)";
    static constexpr CodecParams kDefaults = {.fraction = 0.01f, .threshold = 0.001f};
    static constexpr const SpecKey* kKeys[] = {&kThresholdKey, &kFractionKey, &kRefreshKey,
                                               &kValuesKey, &kPairKey};
};

// The largest elements of every block; as many of each.
struct BlockTopK {
    static constexpr SparseKind kKind = SparseKind::kGroups;
    static constexpr const char* kName = "blocktopk";
    static constexpr const char* kGrammar =
        "blocktopk:block=16..2048 (power of two, default 128),kept=1..block (default "
        "2),values=native|int8|int4 (default native)";
    static constexpr CodecParams kDefaults = {.block = 128, .kept = 2};
    static constexpr const SpecKey* kKeys[] = {&spec_key_block, &kKeptKey, &kValuesKey};
};

// The largest elements of every row of an activation.
struct RowTopK {
    static constexpr SparseKind kKind = SparseKind::kGroups;
    static constexpr const char* kName = "rowtopk";
    static constexpr const char* kGrammar =
        "rowtopk:row=2..16384 (default 1024),kept=1..row (default 16),values=native|int8|int4 "
        "(default native)";
    static constexpr CodecParams kDefaults = {.kept = 16, .row = 1024};
    static constexpr const SpecKey* kKeys[] = {&kRowKey, &kKeptKey, &kValuesKey};
};

// Runs of 32 elements that all ranks draw alike; no positions are sent.
struct RandomK {
    static constexpr SparseKind kKind = SparseKind::kRuns;
    static constexpr const char* kName = "randomk";
    static constexpr const char* kGrammar =
        "randomk:fraction=0.000001..1 (default 0.01),seed=0..4294967295 (default "
        "0),values=native|int8|int4 (default native),pair=none|mask (as of topk; default none)";
    static constexpr CodecParams kDefaults = {.fraction = 0.01f};
    static constexpr const SpecKey* kKeys[] = {&kFractionKey, &spec_key_seed, &kValuesKey,
                                               &kRunPairKey};
};

}  // namespace

extern const CodecDescriptor codec_topk;
constinit const CodecDescriptor codec_topk = Sparse<TopK>::descriptor(TopK::kGrammar);

extern const CodecDescriptor codec_threshold;
constinit const CodecDescriptor codec_threshold =
    Sparse<Threshold>::descriptor(Threshold::kGrammar);

extern const CodecDescriptor codec_blocktopk;
constinit const CodecDescriptor codec_blocktopk =
    Sparse<BlockTopK>::descriptor(BlockTopK::kGrammar);

extern const CodecDescriptor codec_rowtopk;
constinit const CodecDescriptor codec_rowtopk = Sparse<RowTopK>::descriptor(RowTopK::kGrammar);

extern const CodecDescriptor codec_randomk;
constinit const CodecDescriptor codec_randomk = Sparse<RandomK>::descriptor(RandomK::kGrammar);

}  // namespace slimwire
