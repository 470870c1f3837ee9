// The descriptor of a codec that encodes no run of elements: what a policy says of an exchange of
// its own. `Words` has kName, kGrammar, kKeys,
// kDefaults and kNeedsFeedback.
#pragma once

#include "codecs/spec.h"

namespace slimwire {

template <class Words>
inline constexpr CodecDescriptor kWithoutRuns = {
    .name = Words::kName,
    .grammar = Words::kGrammar,
    .parse =
        [](std::string_view text, CodecParams* params) {
            return parse_spec_keys(Words::kName, Words::kKeys, Words::kDefaults, text, params);
        },
    .print =
        [](const CodecParams& params) {
            return print_spec_keys(Words::kName, Words::kKeys, Words::kDefaults, params);
        },
    .accepts =
        [](const CodecParams&, DType dtype) {
            return dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
                   dtype == DType::kBfloat16;
        },
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

}  // namespace slimwire
