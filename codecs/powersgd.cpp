// Codec powersgd: what a policy says of the low-rank exchange (low_rank.h). No run of elements is
// encoded, so it stands beside the table that encodings are made by; collectives/low_rank_exchange
// carries it.
#include "codecs/low_rank.h"
#include "codecs/spec.h"

namespace slimwire {
namespace {

constexpr const char* kName = "powersgd";
constexpr CodecParams kDefaults = {.kept = 4};
static_assert(kMostRank == 32, "the texts below say so");

bool set_rank(std::string_view value, CodecParams* params) {
    uint32_t rank = 0;
    if (!read_number(value, 1, kMostRank, &rank)) {
        return false;
    }
    params->kept = rank;
    return true;
}

bool set_columns(std::string_view value, CodecParams* params) {
    uint32_t row = 0;
    if (!read_number(value, 0, INT32_MAX, &row) || row == 1) {
        return false;
    }
    params->row = row;
    return true;
}

constexpr SpecKey kRank = {"rank", "a whole number from 1 to 32", set_rank,
                           [](const CodecParams& params) { return std::to_string(params.kept); }};
constexpr SpecKey kRow = {"row", "0 (as parameters have it) or a whole number from 2 to 2147483647",
                          set_columns,
                          [](const CodecParams& params) { return std::to_string(params.row); }};
constexpr const SpecKey* kKeys[] = {&kRank, &kRow, &spec_key_seed};

}  // namespace

extern const CodecDescriptor codec_powersgd;
constinit const CodecDescriptor codec_powersgd = {
    .name = kName,
    .grammar =
        "powersgd:rank=1..32 (default 4),row=0|2..2147483647 (default 0),"
        "seed=0..4294967295 (default 0)",
    .parse =
        [](std::string_view text, CodecParams* params) {
            return parse_spec_keys(kName, kKeys, kDefaults, text, params);
        },
    .print =
        [](const CodecParams& params) { return print_spec_keys(kName, kKeys, kDefaults, params); },
    .accepts =
        [](const CodecParams&, DType dtype) {
            return dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
                   dtype == DType::kBfloat16;
        },
    .traits =
        [](const CodecParams&, DType) {
            CodecTraits traits;
            traits.low_rank = true;
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

}  // namespace slimwire
