#include "codecs/spec.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <numeric>
#include <vector>

#include "codecs/base/removed_words.h"

namespace slimwire {
namespace {

std::string quoted(std::string_view text) {
    std::string result(1, '"');
    result.append(text);
    result.push_back('"');
    return result;
}

std::string accepted_keys(std::span<const SpecKey* const> keys) {
    std::string text;
    for (const SpecKey* key : keys) {
        text += (text.empty() ? "" : "; ") + std::string(key->key) + " = " + key->accepts;
    }
    return text;
}

constexpr SpecWord<ScaleType> kScales[] = {{"bf16", ScaleType::kBfloat16},
                                           {"fp32", ScaleType::kFloat32}};
constexpr SpecWord<Rounding> kRoundings[] = {{"nearest", Rounding::kNearest},
                                             {"stochastic", Rounding::kStochastic}};

// Letters of `text` to add, drop, replace or exchange with their neighbour for `candidate`.
size_t edit_distance(std::string_view text, std::string_view candidate) {
    const auto letter = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 32) : c; };
    std::vector<size_t> before, row(candidate.size() + 1), next(row.size());
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= text.size(); ++i) {
        next[0] = i;
        for (size_t j = 1; j <= candidate.size(); ++j) {
            const bool equal = letter(text[i - 1]) == letter(candidate[j - 1]);
            next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (equal ? 0 : 1)});
            if (i > 1 && j > 1 && letter(text[i - 1]) == letter(candidate[j - 2]) &&
                letter(text[i - 2]) == letter(candidate[j - 1])) {
                next[j] = std::min(next[j], before[j - 2] + 1);
            }
        }
        before = row;
        row.swap(next);
    }
    return row.back();
}

}  // namespace

constinit const SpecKey spec_key_block =
    number_key<&CodecParams::block, NumberRange{16, 2048, true}>("block",
                                                                 "a power of two from 16 to 2048");
constinit const SpecKey spec_key_scale =
    word_key<&CodecParams::scale_type, kScales>("scale", "bf16 or fp32");
constinit const SpecKey spec_key_rounding_stochastic =
    word_key<&CodecParams::rounding, kRoundings>("rounding", "nearest or stochastic");
constinit const SpecKey spec_key_seed =
    number_key<&CodecParams::seed, NumberRange{0, UINT32_MAX}>("seed", "a whole number below 2^32");

namespace {

template <class Number, class Range>
bool read_within(std::string_view text, const Range& range, Number* out) {
    Number value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool zero = range.or_zero && value == 0;
    if (error != std::errc() || stop != end ||
        !(zero || (value >= range.least && value <= range.most))) {
        return false;
    }
    *out = value;
    return true;
}

}  // namespace

bool read_number(std::string_view text, const NumberRange& range, uint32_t* out) {
    uint32_t value = 0;
    if (!read_within(text, range, &value) ||
        (range.powers && value != 0 && !std::has_single_bit(value))) {
        return false;
    }
    *out = value;
    return true;
}

bool read_decimal(std::string_view text, const DecimalRange& range, float* out) {
    return read_within(text, range, out);
}

std::string decimal_text(float value) {
    char text[32];
    const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
    return {text, error == std::errc() ? end : text};
}

std::string_view trimmed(std::string_view text) noexcept {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) {
        return {};
    }
    return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::string_view nearest_word(std::string_view text, std::span<const std::string_view> candidates) {
    std::string_view best;
    size_t fewest = std::max<size_t>(1, text.size() / 3) + 1;
    for (const std::string_view candidate : candidates) {
        const size_t edits = edit_distance(text, candidate);
        if (edits < fewest && edits < candidate.size()) {
            fewest = edits;
            best = candidate;
        }
    }
    return best;
}

Status parse_spec_keys(const char* codec,
                       std::span<const SpecKey* const> keys,
                       const CodecParams& defaults,
                       std::string_view text,
                       CodecParams* params) {
    const std::string where = "codec " + std::string(codec) + ": ";
    CodecParams result = defaults;
    std::vector<const SpecKey*> seen;
    text = trimmed(text);
    while (!text.empty()) {
        const size_t comma = text.find(',');
        const std::string_view item = trimmed(text.substr(0, comma));
        const size_t equals = item.find('=');
        const std::string_view name = trimmed(item.substr(0, equals));
        if (equals == std::string_view::npos) {
            return {Code::kInvalidArgument, where + "expected key=value, got " + quoted(item) +
                                                "; accepted: " + accepted_keys(keys)};
        }
        const auto found = std::find_if(keys.begin(), keys.end(),
                                        [&](const SpecKey* key) { return name == key->key; });
        if (found == keys.end()) {
            return {Code::kInvalidArgument, where + "unknown parameter " + quoted(name) +
                                                removed_hint(RemovedKind::kCodecParameter, name) +
                                                "; accepted: " + accepted_keys(keys)};
        }
        if (std::find(seen.begin(), seen.end(), *found) != seen.end()) {
            return {Code::kInvalidArgument,
                    where + "parameter " + quoted(name) + " is given twice"};
        }
        const std::string_view value = trimmed(item.substr(equals + 1));
        if (!(*found)->set(value, &result)) {
            return {Code::kInvalidArgument, where + std::string(name) + "=" + std::string(value) +
                                                " is not accepted; " + (*found)->key + " is " +
                                                (*found)->accepts};
        }
        seen.push_back(*found);
        if (comma == std::string_view::npos) {
            break;
        }
        text = trimmed(text.substr(comma + 1));
        if (text.empty()) {
            return {Code::kInvalidArgument,
                    where + "a parameter is missing after the last comma; accepted: " +
                        accepted_keys(keys)};
        }
    }
    *params = result;
    return {};
}

std::string print_spec_keys(const char* codec,
                            std::span<const SpecKey* const> keys,
                            const CodecParams& defaults,
                            const CodecParams& params) {
    std::string text = codec;
    char separator = ':';
    for (const SpecKey* key : keys) {
        const std::string value = key->get(params);
        if (value != key->get(defaults)) {
            text += separator + std::string(key->key) + "=" + value;
            separator = ',';
        }
    }
    return text;
}

}  // namespace slimwire
