// Codecs powersgd and linear_ae: what a policy says of the exchanges of matrices (low_rank.h). No
// run of elements is encoded, so they stand beside the table that encodings are made by;
// collectives/algorithms/low_rank.cpp carries them.
#include <algorithm>
#include <iterator>

#include "codecs/low_rank/low_rank.h"
#include "codecs/low_rank/without_runs.h"

namespace slimwire {
namespace {

constexpr CodecParams kFourColumns = {.kept = 4};
static_assert(kMostRank == 32, "the texts below say so");

bool set_kept(std::string_view value, CodecParams* params) {
    uint32_t kept = 0;
    if (!read_number(value, 1, kMostRank, &kept)) {
        return false;
    }
    params->kept = kept;
    return true;
}

std::string print_kept(const CodecParams& params) {
    return std::to_string(params.kept);
}

bool set_columns(std::string_view value, CodecParams* params) {
    uint32_t row = 0;
    if (!read_number(value, 0, INT32_MAX, &row) || row == 1) {
        return false;
    }
    params->row = row;
    return true;
}

constexpr SpecKey kRank = {"rank", "a whole number from 1 to 32", set_kept, print_kept};
constexpr SpecKey kWidth = {"width", kRank.accepts, set_kept, print_kept};
constexpr SpecKey kRow = {"row", "0 (as parameters have it) or a whole number from 2 to 2147483647",
                          set_columns,
                          [](const CodecParams& params) { return std::to_string(params.row); }};

// In CodecParams::threshold, which these have no other use for.
constexpr SpecKey kRate = {
    "rate", "a decimal number from 0 to 1",
    [](std::string_view value, CodecParams* params) {
        return read_decimal(value, 0, 1, &params->threshold);
    },
    [](const CodecParams& params) { return decimal_text(params.threshold); }};

constexpr std::string_view kRoles[] = {"none", "dp", "tp", "pp", "ep", "cp"};

constexpr SpecKey kAverage = {
    "average", "none, dp, tp, pp, ep or cp",
    [](std::string_view value, CodecParams* params) {
        const auto* const found = std::find(std::begin(kRoles), std::end(kRoles), value);
        params->target = static_cast<uint8_t>(found - std::begin(kRoles));
        return found != std::end(kRoles);
    },
    [](const CodecParams& params) { return std::string(kRoles[params.target]); }};

// What both say but for their name and the word for how many columns a factor has.
struct Powersgd {
    static constexpr CodecParams kDefaults = kFourColumns;
    static constexpr const char* kName = "powersgd";
    static constexpr const char* kGrammar =
        "powersgd:rank=1..32 (default 4),row=0|2..2147483647 (default 0),"
        "seed=0..4294967295 (default 0)";
    static constexpr const SpecKey* kKeys[] = {&kRank, &kRow, &spec_key_seed};
    static constexpr bool kNeedsFeedback = true;
};
struct LinearAe {
    static constexpr CodecParams kDefaults = {.kept = 4, .threshold = 0.001f};
    static constexpr const char* kName = "linear_ae";
    static constexpr const char* kGrammar =
        "linear_ae:width=1..32 (default 4),row=0|2..2147483647 (default 0),"
        "seed=0..4294967295 (default 0),rate=0..1 (default 0.001),"
        "average=none|dp|tp|pp|ep|cp (default none)";
    static constexpr const SpecKey* kKeys[] = {&kWidth, &kRow, &spec_key_seed, &kRate, &kAverage};
    static constexpr bool kNeedsFeedback = false;  // its directions follow what it is given
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
