// Codec thc: what a policy says of the exchange of levels on a shared scale (thc.h). No run of
// elements has an encoding of its own, so it stands beside the table that encodings are made by;
// collectives/shared_scale carries it. Of CodecParams it has levels, block and seed, and the clip
// as the fraction.
#include "codecs/thc.h"
#include "codecs/without_runs.h"

namespace slimwire {

extern const CodecDescriptor codec_thc;

namespace {

constexpr CodecParams kThcDefaults = {.block = 1024,
                                      .rounding = static_cast<uint8_t>(Rounding::kStochastic),
                                      .levels = 15,
                                      .fraction = 1.0f};

bool set_levels(std::string_view value, CodecParams* params) {
    uint32_t levels = 0;
    if (!read_number(value, 1, 255, &levels)) {
        return false;
    }
    params->levels = static_cast<uint16_t>(levels);
    return true;
}

bool set_block(std::string_view value, CodecParams* params) {
    uint32_t block = 0;
    if (!read_power_of_two(value, 32, 1024, &block)) {
        return false;
    }
    params->block = static_cast<uint16_t>(block);
    return true;
}

bool set_clip(std::string_view value, CodecParams* params) {
    return read_decimal(value, 0.01f, 1.0f, &params->fraction);
}

constexpr SpecKey kLevels = {
    "levels", "a whole number from 1 to 255", set_levels,
    [](const CodecParams& params) { return std::to_string(params.levels); }};
constexpr SpecKey kBlock = {"block", "a power of two from 32 to 1024", set_block,
                            [](const CodecParams& params) { return std::to_string(params.block); }};
constexpr SpecKey kClip = {"clip", "a fraction of the largest magnitude from 0.01 to 1", set_clip,
                           [](const CodecParams& params) { return decimal_text(params.fraction); }};

struct Thc {
    static constexpr bool kLowRank = false;
    static constexpr const char* kName = "thc";
    static constexpr CodecParams kDefaults = kThcDefaults;
    static constexpr const char* kGrammar =
        "thc:levels=1..255 (default 15),block=32..1024 (power of two, default 1024),"
        "clip=0.01..1 (default 1),seed=0..4294967295 (default 0)";
    static constexpr const SpecKey* kKeys[] = {&kLevels, &kBlock, &kClip, &spec_key_seed};
};

}  // namespace

constinit const CodecDescriptor codec_thc = kWithoutRuns<Thc>;

bool shares_scale(const CodecSpec& spec) noexcept {
    return spec.codec == &codec_thc;
}

}  // namespace slimwire
