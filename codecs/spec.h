// The one grammar of codec specifications, "name:key=value,key=value", for all codecs. A codec
// states its parameters as a table of SpecKey; reading, printing, the help line and every error
// text follow from it. Spaces around names, keys and values are ignored. Called at start-up and by
// tools, not hot.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "codecs/codec.h"

namespace slimwire {

struct SpecKey {
    const char* key;
    const char* accepts;  // "a power of two from 16 to 2048"
    // Sets the parameter and returns true, or returns false and leaves `params` alone.
    bool (*set)(std::string_view value, CodecParams* params);
    // The value in canonical spelling.
    std::string (*get)(const CodecParams& params);
};

// The keys that several families share.
extern const SpecKey spec_key_block;
extern const SpecKey spec_key_scale;
extern const SpecKey spec_key_rounding;             // nearest only
extern const SpecKey spec_key_rounding_stochastic;  // nearest or stochastic
extern const SpecKey spec_key_seed;

// For keys of a family's own: whole numbers, powers of two and decimal fractions within bounds, and
// the shortest text that reads back as the same float.
[[nodiscard]] bool read_number(std::string_view text, uint32_t least, uint32_t most, uint32_t* out);
[[nodiscard]] bool read_power_of_two(std::string_view text,
                                     uint32_t least,
                                     uint32_t most,
                                     uint32_t* out);
[[nodiscard]] bool read_decimal(std::string_view text, float least, float most, float* out);
[[nodiscard]] std::string decimal_text(float value);

// Parses "key=value,..." over `defaults`. Unknown, repeated, empty and refused parameters are
// errors that name the codec, the parameter and what is accepted; `params` then stays as it was.
Status parse_spec_keys(const char* codec,
                       std::span<const SpecKey* const> keys,
                       const CodecParams& defaults,
                       std::string_view text,
                       CodecParams* params);

// Name and the parameters that differ from `defaults`, in the order of `keys`.
std::string print_spec_keys(const char* codec,
                            std::span<const SpecKey* const> keys,
                            const CodecParams& defaults,
                            const CodecParams& params);

// `text` without spaces and tabs at its ends.
[[nodiscard]] std::string_view trimmed(std::string_view text) noexcept;

// The candidate that is nearest to `text`, if it is near enough to be a slip of the pen (one edit,
// or a third of the letters; neighbours exchanged are one edit, capitals none); else empty.
[[nodiscard]] std::string_view nearest_word(std::string_view text,
                                            std::span<const std::string_view> candidates);

}  // namespace slimwire
