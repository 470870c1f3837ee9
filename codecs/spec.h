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
extern const SpecKey spec_key_rounding_stochastic;  // nearest or stochastic
extern const SpecKey spec_key_seed;

// Whole numbers, or powers of two, from `least` to `most`; or 0.
struct NumberRange {
    uint32_t least, most;
    bool powers = false;
    bool or_zero = false;
};
[[nodiscard]] bool read_number(std::string_view text, const NumberRange& range, uint32_t* out);
// The same of decimal fractions.
struct DecimalRange {
    float least, most;
    bool or_zero = false;
};
[[nodiscard]] bool read_decimal(std::string_view text, const DecimalRange& range, float* out);
// The shortest text that reads back as the same float.
[[nodiscard]] std::string decimal_text(float value);

// Keys of a family's own, whose values are those of the member: numbers,
template <auto kMember, NumberRange kRange>
constexpr SpecKey number_key(const char* key, const char* accepts) {
    return {key, accepts,
            [](std::string_view value, CodecParams* params) {
                uint32_t number = 0;
                if (!read_number(value, kRange, &number)) {
                    return false;
                }
                auto& member = params->*kMember;
                member = static_cast<std::decay_t<decltype(member)>>(number);
                return true;
            },
            [](const CodecParams& params) { return std::to_string(params.*kMember); }};
}
// decimal fractions,
template <auto kMember, DecimalRange kRange>
constexpr SpecKey decimal_key(const char* key, const char* accepts) {
    return {key, accepts,
            [](std::string_view value, CodecParams* params) {
                return read_decimal(value, kRange, &(params->*kMember));
            },
            [](const CodecParams& params) { return decimal_text(params.*kMember); }};
}
// or words, with what each stands for.
template <class Meaning>
struct SpecWord {
    const char* word;
    Meaning meaning;
};
template <auto kMember, const auto& kWords>
constexpr SpecKey word_key(const char* key, const char* accepts) {
    return {key, accepts,
            [](std::string_view value, CodecParams* params) {
                for (const auto& [word, meaning] : kWords) {
                    if (value == word) {
                        params->*kMember = static_cast<uint8_t>(meaning);
                        return true;
                    }
                }
                return false;
            },
            [](const CodecParams& params) {
                for (const auto& [word, meaning] : kWords) {
                    if (params.*kMember == static_cast<uint8_t>(meaning)) {
                        return std::string(word);
                    }
                }
                return std::string();
            }};
}

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

// What the descriptor of a codec says of its specifications, whose Words have kName, kKeys and
// kDefaults; and of its element types, if they are those of gradients.
template <class Words>
struct SpecOf {
    static Status parse(std::string_view text, CodecParams* params) {
        return parse_spec_keys(Words::kName, Words::kKeys, Words::kDefaults, text, params);
    }
    static std::string print(const CodecParams& params) {
        return print_spec_keys(Words::kName, Words::kKeys, Words::kDefaults, params);
    }
    static bool accepts(const CodecParams&, DType dtype) {
        return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
    }
};

// `text` without spaces and tabs at its ends.
[[nodiscard]] std::string_view trimmed(std::string_view text) noexcept;

// The candidate that is nearest to `text`, if it is near enough to be a slip of the pen (one edit,
// or a third of the letters; neighbours exchanged are one edit, capitals none); else empty.
[[nodiscard]] std::string_view nearest_word(std::string_view text,
                                            std::span<const std::string_view> candidates);

}  // namespace slimwire
