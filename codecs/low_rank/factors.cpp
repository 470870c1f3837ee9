// Codecs powersgd and linear_ae: what a policy says of the exchanges of matrices (low_rank.h). No
// run of elements is encoded, so they stand beside the table that encodings are made by;
// collectives/algorithms/low_rank.cpp carries them.
#include <cstdint>

#include "codecs/low_rank/low_rank.h"
#include "codecs/spec.h"

namespace slimwire {
namespace {

constexpr CodecParams kFourColumns = {.kept = 4};
static_assert(kMostRank == 32, "the texts below say so");

constexpr SpecKey kRank = number_key<&CodecParams::kept, NumberRange{1, kMostRank}>(
    "rank", "a whole number from 1 to 32");
constexpr SpecKey kWidth = {"width", kRank.accepts, kRank.set, kRank.get};
constexpr SpecKey kRow = number_key<&CodecParams::row, NumberRange{2, INT32_MAX, false, true}>(
    "row", "0 (as parameters have it) or a whole number from 2 to 2147483647");

// In CodecParams::threshold, which these have no other use for.
constexpr SpecKey kRate = decimal_key<&CodecParams::threshold, DecimalRange{0, 1}>(
    "rate", "a decimal number from 0 to 1");

// As averaged_role() has them.
constexpr SpecWord<int> kRoles[] = {{"none", 0}, {"dp", 1}, {"tp", 2},
                                    {"pp", 3},   {"ep", 4}, {"cp", 5}};
constexpr SpecKey kAverage =
    word_key<&CodecParams::target, kRoles>("average", "none, dp, tp, pp, ep or cp");

// What both say but for their name and the word for how many columns a factor has.
struct Powersgd {
    static constexpr CodecParams kDefaults = kFourColumns;
    static constexpr const char* kName = "powersgd";
    static constexpr const char* kGrammar =
        "powersgd:rank=1..32 (default 4),row=0|2..2147483647 (default 0),seed=0..4294967295 "
        "(default 0)";
    static constexpr const SpecKey* kKeys[] = {&kRank, &kRow, &spec_key_seed};
    static constexpr bool kNeedsFeedback = true;
};
struct LinearAe {
    static constexpr CodecParams kDefaults = {.kept = 4, .threshold = 0.001f};
    static constexpr const char* kName = "linear_ae";
    static constexpr const char* kGrammar =
        "linear_ae:width=1..32 (default 4),row=0|2..2147483647 (default 0),seed=0..4294967295 "
        "(default 0),rate=0..1 (default 0.001),average=none|dp|tp|pp|ep|cp (default none)";
    static constexpr const SpecKey* kKeys[] = {&kWidth, &kRow, &spec_key_seed, &kRate, &kAverage};
    static constexpr bool kNeedsFeedback = false;  // its directions follow what it is given
};

// Words: kName, kGrammar, kKeys, kDefaults and kNeedsFeedback.
template <class Words>
constexpr CodecDescriptor kWithoutRuns = {
    .name = Words::kName,
    .grammar = Words::kGrammar,
    .parse = SpecOf<Words>::parse,
    .print = SpecOf<Words>::print,
    .accepts = SpecOf<Words>::accepts,
    .traits =
        [](const CodecParams&, DType) {
            CodecTraits traits;
            traits.low_rank = true;
            traits.needs_feedback = Words::kNeedsFeedback;
            traits.poison_elems = 0;
            return traits;
        },
    .encoded_bytes = [](const CodecParams&, DType, int64_t) { return int64_t{0}; },
    .granule = [](const CodecParams&, DType) { return int64_t{1}; },
    .block_error_bound = [](const CodecParams&, DType) { return 1.0; },
    .workspace_bytes = nullptr,
    .check = nullptr,
    .host = {},
    .cuda = {},
};

}  // namespace

extern const CodecDescriptor codec_powersgd;
extern const CodecDescriptor codec_linear_ae;
constinit const CodecDescriptor codec_powersgd = kWithoutRuns<Powersgd>;
constinit const CodecDescriptor codec_linear_ae = kWithoutRuns<LinearAe>;

bool autoencodes(const CodecSpec& spec) noexcept {
    return spec.codec == &codec_linear_ae;
}

}  // namespace slimwire
